"""Forwarding of topic changes to the controller, over a separate connection.

It is dialled on demand. A change waits for the API server, and must not delay a proposal for an
ISR. A change that is not known to be done gets an error that clients retry: NOT_CONTROLLER if the
controller was not reached, REQUEST_TIMED_OUT if it did not answer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError
from tidemark.wire.topics import (
    CHANGES_MAX,
    ChangeTopicsRequest,
    ChangeTopicsResponse,
    TopicChange,
    TopicChangeResult,
)
from tidemark_broker.admission.fair_share import FairQueue

logger = logging.getLogger(__name__)

#: Limit of one message. The controller ends a connection after a message of 16 MiB, and with it the
#: requests of other clients.
MESSAGE_BYTES_MAX = 1024 * 1024
#: Messages in flight; more wait for their turn, and no client has more than half of them.
_AT_ONCE = 16
#: Minimum time for the operator: a client without a timeout still expects the change.
_LEAST_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ControllerLink:
    """Current session with the controller. ``connect`` raises ``OSError`` or ``TimeoutError``."""

    connect: Callable[[], Awaitable[KafkaConnection]]
    broker_id: int
    broker_epoch: int
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Requester:
    """Client that requests a change, for the audit log."""

    principal: str
    host: str

    @property
    def identity(self) -> tuple[str, str]:
        """Identity for fair sharing: without the port."""
        return self.principal, self.host.rpartition(":")[0]


_NOBODY = Requester("", "")


class ChangeForwarder(Protocol):
    """Interface for topic changes."""

    async def change(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> list[TopicChangeResult]:
        """Return one result for each change, in their order.

        Failures are results, never exceptions.
        """


class Forwarder(ChangeForwarder):
    """Forwarder on the loop. ``link`` returns the current session, or None."""

    def __init__(self, link: Callable[[], ControllerLink | None]) -> None:
        self._link = link
        self._connected: tuple[ControllerLink, KafkaConnection] | None = None
        self._dialling = asyncio.Lock()
        self._queue = FairQueue(_AT_ONCE)

    async def change(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        *,
        timeout_s: float,
        validate_only: bool = False,
    ) -> list[TopicChangeResult]:
        """Forward the changes; ``timeout_s`` is for all of them. See :class:`ChangeForwarder`."""
        until_s = asyncio.get_running_loop().time() + max(timeout_s, _LEAST_S)
        results: list[TopicChangeResult] = []
        for batch in _messages(changes):
            # A single change that is too large would end the connection for everyone.
            if len(batch) == 1 and _size(batch[0]) > MESSAGE_BYTES_MAX:
                results += _all(
                    batch,
                    ErrorCode.policy_violation,
                    f"the change exceeds {MESSAGE_BYTES_MAX} bytes",
                )
            else:
                results += await self._forward(
                    batch, requester, until_s, validate_only=validate_only
                )
        return results

    async def _forward(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        until_s: float,
        *,
        validate_only: bool,
    ) -> Sequence[TopicChangeResult]:
        try:
            async with asyncio.timeout_at(until_s), self._queue.admit(1, requester.identity):
                answer = await self._request_changes(
                    changes, requester, until_s, validate_only=validate_only
                )
        except TimeoutError:
            return _all(changes, ErrorCode.request_timed_out, "the controller did not answer")
        except (OSError, FrameError) as error:
            logger.warning("changes of topics could not be passed on: %s", error)
            return _all(changes, ErrorCode.not_controller, "the controller cannot be reached")
        if answer is None:
            return _all(changes, ErrorCode.not_controller, "there is no controller at present")
        # A controller that answers for another session knows nothing of this change.
        if answer.error_code or len(answer.results) != len(changes):
            await self.close()
            return _all(changes, ErrorCode.not_controller, "there is another controller by now")
        return answer.results

    async def _request_changes(
        self,
        changes: Sequence[TopicChange],
        requester: Requester,
        until_s: float,
        *,
        validate_only: bool,
    ) -> ChangeTopicsResponse | None:
        async with self._dialling:
            # One dial at a time; concurrent changes share the connection.
            reached = await self._reach(until_s)
        if reached is None:
            return None
        link, connection = reached
        request = _request(link, changes, requester, validate_only=validate_only)
        return await connection.request(request, ChangeTopicsResponse, _left_s(until_s))

    async def _reach(self, until_s: float) -> tuple[ControllerLink, KafkaConnection] | None:
        """Return a connection of the current session that has sent a small request before.

        The controller reads a large request only from a peer that has shown the session's secret.
        """
        link = self._link()
        if self._connected is not None:
            of, connection = self._connected
            # A connection of a former session would carry an outdated token.
            if of is link and not connection.closed:
                return self._connected
            await self.close()
        if link is None:
            return None
        connection = await link.connect()
        self._connected = link, connection
        # An empty request shows the token before the large one is sent.
        nothing = _request(link, (), _NOBODY, validate_only=True)
        await connection.request(nothing, ChangeTopicsResponse, _left_s(until_s))
        return self._connected

    async def close(self) -> None:
        """Close the connection; the next change opens another."""
        if self._connected is not None:
            _, connection = self._connected
            self._connected = None
            with contextlib.suppress(OSError):
                await connection.close()


def _messages(changes: Sequence[TopicChange]) -> Iterator[Sequence[TopicChange]]:
    """Split the changes into messages within the limits."""
    batch: list[TopicChange] = []
    size = 0
    for change in changes:
        more = _size(change)
        if batch and (len(batch) == CHANGES_MAX or size + more > MESSAGE_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += more
    if batch:
        yield batch


def _size(change: TopicChange) -> int:
    """Return an upper estimate of the change's bytes in a message."""
    texts = [
        change.name,
        *(text for setting in change.settings for text in (setting.name, setting.value)),
    ]
    brokers = sum(len(assignment.replicas) for assignment in change.assignments)
    elements = len(texts) + len(change.assignments) + brokers
    return 100 + 12 * elements + sum(4 * len(text) for text in texts if text is not None)


def _request(
    link: ControllerLink,
    changes: Sequence[TopicChange],
    requester: Requester,
    *,
    validate_only: bool,
) -> ChangeTopicsRequest:
    return ChangeTopicsRequest(
        broker_id=link.broker_id,
        broker_epoch=link.broker_epoch,
        session_token=link.token,
        principal=requester.principal,
        host=requester.host,
        validate_only=validate_only,
        changes=tuple(changes),
    )


def _left_s(until_s: float) -> float:
    return max(until_s - asyncio.get_running_loop().time(), 0.001)


def _all(
    changes: Sequence[TopicChange], code: ErrorCode, message: str
) -> Sequence[TopicChangeResult]:
    failed = TopicChangeResult(error_code=int(code), error_message=message, topic_id=None)
    return [failed] * len(changes)
