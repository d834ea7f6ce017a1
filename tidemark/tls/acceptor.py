"""Acceptor of connections that begin with a handshake, with limits on their cost before it is done.

An unauthenticated peer costs a socket and a handshake, for a limited time and within limits of its
own: established peers have slots that it cannot take. Each refusal is logged with its reason, at
most one line in ten seconds.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tidemark.tls.files import NoCertificates

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
_LOG_PAUSE_S = 10.0
_ACCEPT_PAUSE_S = 0.1
_ACCEPTS_PER_TURN = 16
_KEEPALIVE_IDLE_S, _KEEPALIVE_PAUSE_S, _KEEPALIVE_PROBES = 60, 10, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptLimits:
    """Limits of an acceptor.

    ``unauthenticated_max``: handshakes in progress, of which at most
    ``unauthenticated_per_address_max`` are from one address.
    ``per_peer_max``: connections of one identity, where connections have one.
    """

    unauthenticated_max: int = 128
    unauthenticated_per_address_max: int = 32
    per_peer_max: int = 16


class Refusals:
    """Counter of refused peers; logs at most one line in :data:`_LOG_PAUSE_S`."""

    def __init__(self, what: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._now_s = now_s
        self._next_s = 0.0
        self._unsaid = 0
        self.total = 0

    def add(self, address: str, reason: str) -> None:
        """Count one more connection that was closed before any request was read."""
        self.total += 1
        if self._now_s() < self._next_s:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more since the last such line)" if self._unsaid else ""
        logger.warning("%s: closed a connection from %s: %s%s", self._what, address, reason, more)
        self._next_s, self._unsaid = self._now_s() + _LOG_PAUSE_S, 0


def _accept_anyone(_: str) -> str | None:
    return None


class Acceptor:
    """Acceptor that belongs to the loop on which :meth:`run` runs.

    ``shake_hands`` receives an accepted socket and the peer's address, and returns within limited
    time once its connection is served; it raises ``OSError`` for an unauthenticated peer.
    ``refusal`` returns why an address is refused at present, None if it is not.
    """

    def __init__(
        self,
        listening: socket.socket,
        shake_hands: Callable[[socket.socket, str], Awaitable[None]],
        *,
        refusals: Refusals,
        limits: AcceptLimits,
        refusal: Callable[[str], str | None] = _accept_anyone,
    ) -> None:
        """Create an acceptor for a listening socket; :meth:`run` accepts.

        ``refusals``: counts and logs refused connections. For ``shake_hands`` and ``refusal`` see
        the class.
        """
        self._socket = listening
        self._refusal = refusal
        self._shake_hands = shake_hands
        self._limits = limits
        #: Number of handshakes in progress, by address.
        self._unproven: Counter[str] = Counter()
        #: One task for each handshake in progress.
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals = refusals
        #: Set when accepting has failed, so that :meth:`run` pauses before it continues.
        self._failed = asyncio.Event()

    async def run(self) -> None:
        """Accept connections until cancelled; closes the socket then.

        After a failure to accept (no free file descriptors) it pauses.
        """
        loop = asyncio.get_running_loop()
        with self._socket:
            try:
                while True:
                    # Not sock_accept: cancelled, it loses a socket that it has just accepted.
                    loop.add_reader(self._socket, self._accept)
                    await self._failed.wait()
                    self._failed.clear()
                    await asyncio.sleep(_ACCEPT_PAUSE_S)
            finally:
                loop.remove_reader(self._socket)
                for task in self._tasks:
                    task.cancel()

    def _accept(self) -> None:
        """Accept waiting connections, at most ``_ACCEPTS_PER_TURN`` at a time.

        In between, the loop serves established connections.
        """
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: open connections stay
                self._refusals.add("?", f"accept failed: {error}")
                asyncio.get_running_loop().remove_reader(self._socket)
                self._failed.set()
                return
            self._begin(accepted, str(address[0]))

    def _begin(self, accepted: socket.socket, address: str) -> None:
        """Start the handshake of an accepted connection, or refuse it at once."""
        limits = self._limits
        # Limits come before the policy: counting is cheaper than a decision about the address.
        if (
            self._unproven.total() >= limits.unauthenticated_max
            or self._unproven[address] >= limits.unauthenticated_per_address_max
        ):
            self._refuse(accepted, address, "too many handshakes in progress")
            return
        refusal = self._refusal(address)
        if refusal is not None:
            self._refuse(accepted, address, refusal)
            return
        # Counted until the handshake has ended, whatever its result is.
        self._unproven[address] += 1
        task = asyncio.get_running_loop().create_task(self._prove(accepted, address))
        self._tasks.add(task)
        task.add_done_callback(partial(self._proven, accepted=accepted))

    def _proven(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # it may not even have begun
            accepted.close()

    def _refuse(self, accepted: socket.socket, address: str, why: str) -> None:
        accepted.close()
        self._refusals.add(address, why)

    async def _prove(self, accepted: socket.socket, address: str) -> None:
        """Run the handshake of one connection, and release its slot afterwards."""
        try:
            accepted.setblocking(False)
            _notice_its_end(accepted)
            await self._shake_hands(accepted, address)
        except (OSError, TimeoutError) as error:  # ssl.SSLError and WrongPeer are OSErrors
            accepted.close()
            self._refusals.add(address, _reason(error))
        finally:
            self._unproven[address] -= 1
            if not self._unproven[address]:
                del self._unproven[address]


def _notice_its_end(accepted: socket.socket) -> None:
    """Enable keepalive, which ends the connection of a silent peer whose machine has failed."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_PAUSE_S)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def _reason(error: BaseException) -> str:
    if isinstance(error, NoCertificates):
        return f"{error}; no peer can be authenticated"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with a certificate that is trusted here ({error.reason or error})"
    return str(error) or "it did not prove in time who it is"
