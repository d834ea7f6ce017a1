"""/metrics and /healthz on one small HTTP listener.

``/healthz`` says whether reconciling moves, not whether the process exists: it fails when nothing
was reconciled for too long although something waits, or when one key is stuck.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from tidemark_operator.settings import Address

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 8192
REQUEST_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What ``/healthz`` judges, in seconds. ``since_pass_s``: since the last key was reconciled."""

    leads: bool
    since_pass_s: float
    head_age_s: float
    depth: int


def verdict(pulse: Pulse, stand_still_s: float) -> tuple[bool, str]:
    """Whether the process is well, and one line that says why."""
    if not pulse.leads:
        return True, "ok: another operator leads"
    if pulse.head_age_s > stand_still_s:
        return False, f"one key has been waiting or worked on for {pulse.head_age_s:.0f} s"
    if pulse.depth and pulse.since_pass_s > stand_still_s:
        return (
            False,
            f"{pulse.depth} keys wait and none was reconciled in {pulse.since_pass_s:.0f} s",
        )
    return True, f"ok: leading, {pulse.depth} keys waiting"


class HealthServer:
    """Serves two pages; anything else is 404."""

    def __init__(
        self,
        *,
        render: Callable[[], bytes],
        pulse: Callable[[], Pulse],
        stand_still_s: float,
    ) -> None:
        self._render = render
        self._pulse = pulse
        self._stand_still_s = stand_still_s
        self._server: asyncio.Server | None = None

    async def start(self, address: Address) -> Address:
        """Listen; the address bound."""
        self._server = await asyncio.start_server(
            self._serve, address.host, address.port, limit=REQUEST_BYTES_MAX
        )
        bound = self._server.sockets[0].getsockname()
        return Address(host=str(bound[0]), port=int(bound[1]))

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = self._answer(head.split(b" ", 2)[1])
                writer.write(_response(status, kind, body))
                await writer.drain()
        except (OSError, EOFError, IndexError, asyncio.LimitOverrunError) as error:
            logger.debug("a request to the metrics port failed: %s", error)
        finally:
            writer.close()

    def _answer(self, path: bytes) -> tuple[HTTPStatus, str, bytes]:
        if path == b"/metrics":
            return HTTPStatus.OK, "text/plain; version=0.0.4; charset=utf-8", self._render()
        if path == b"/healthz":
            well, why = verdict(self._pulse(), self._stand_still_s)
            status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
            return status, "text/plain; charset=utf-8", f"{why}\n".encode()
        return HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"/metrics or /healthz\n"


def _response(status: HTTPStatus, kind: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
