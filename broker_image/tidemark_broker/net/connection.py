"""One client's connection: frames in, answers out in the order of the requests.

Requests of a connection begin in the order in which they came, up to a limit in flight, and may
finish in any order; an answer is held until all before it are written. Reading pauses while the
limit is reached, while the client does not take its answers, or while the broker as a whole holds
too many unanswered bytes. Whatever is wrong with a connection ends that connection, with one line.
"""

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tidemark.wire.connection import peer_name
from tidemark.wire.framing import FrameError
from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.net import metrics
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.metrics import NetMetrics

logger = logging.getLogger(__name__)

#: Takes a request frame and the peer's name; gives the pieces of the answer's frame, or None where
#: the request has no answer. Raises FrameError for a frame that is no request this broker can read
#: and CloseConnection to end the connection without more ado.
Serve = Callable[[Frame, str], Awaitable[Sequence[bytes] | None]]


class CloseConnection(Exception):  # named as the order it gives
    """The protocol's only answer to this request is to end the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all connections of one listener share; ``opened`` and ``lost`` are called with each."""

    serve: Serve
    config: ServerConfig
    metrics: NetMetrics
    budget: RequestBudget
    scratch: bytearray
    loop: asyncio.AbstractEventLoop
    opened: "Callable[[ServerConnection], None]"
    lost: "Callable[[ServerConnection], None]"


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("done", "pieces", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.done = False
        self.pieces: Sequence[bytes] | None = None


class ServerConnection(asyncio.BufferedProtocol):
    """See the module. One is made for each accepted socket."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._config = shared.config
        self._now = shared.loop.time
        self._receiver = FrameReceiver(shared.config.request_bytes_max, shared.scratch)
        self._transport: asyncio.Transport | None = None
        self._arrived: collections.deque[Frame] = collections.deque()
        self._in_flight: collections.deque[_Slot] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_write = True
        self._reading = True
        self._ended = False
        self.peer = "?"
        self.last_received_s = 0.0

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._config.unsent_bytes_max)
        self.peer = peer_name(transport)
        self.last_received_s = self._now()
        self._shared.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self.last_received_s = self._now()
        self._shared.metrics.bytes_in.inc(nbytes)
        try:
            frames = self._receiver.received(nbytes)
        except FrameError as error:
            self.end(metrics.MALFORMED, str(error))
            return
        for frame in frames:
            self._shared.budget.take(len(frame))
            self._arrived.append(frame)
        self._advance()

    def pause_writing(self) -> None:
        self._may_write = False
        self._advance()

    def resume_writing(self) -> None:
        self._may_write = True
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        for task in self._tasks:
            task.cancel()
        self._shared.budget.forget(self._advance)
        held = sum(len(frame) for frame in self._arrived) + sum(s.size for s in self._in_flight)
        self._arrived.clear()
        self._in_flight.clear()
        self._shared.budget.give(held)
        self._shared.lost(self)

    # ------------------------------------------------------------ what the listener calls

    @property
    def idle(self) -> bool:
        """Whether nothing is being done for this client, or it does not take what was done."""
        return not self._may_write or not (self._in_flight or self._arrived)

    @property
    def ended(self) -> bool:
        """Whether this side has closed it; the socket may still be sending."""
        return self._ended

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """What is being done for this client."""
        return self._tasks

    def end(self, reason: str, text: str) -> None:
        """Close, with one log line; answers that are ready are still sent."""
        if self._ended:
            return
        self._ended = True
        self._shared.metrics.closed(reason)
        level = logging.INFO if reason in (metrics.IDLE, metrics.ASKED) else logging.WARNING
        logger.log(level, "connection from %s closed: %s", self.peer, text)
        self.close()

    def close(self) -> None:
        """Close without a word."""
        self._ended = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ inside

    def _advance(self) -> None:
        """Begin as many requests as may be in flight, and read on only if none is left over."""
        while self._arrived and self._may_begin():
            frame = self._arrived.popleft()
            slot = _Slot(len(frame))
            self._in_flight.append(slot)
            task = self._shared.loop.create_task(self._run(frame, slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._set_reading(not self._arrived and self._may_begin() and not self._out_of_budget())

    def _may_begin(self) -> bool:
        return (
            self._may_write
            and not self._ended
            and len(self._in_flight) < self._config.requests_in_flight_max
        )

    def _out_of_budget(self) -> bool:
        budget = self._shared.budget
        if not budget.exhausted or self._receiver.in_frame:
            return False
        budget.call_back(self._advance)
        return True

    def _set_reading(self, reading: bool) -> None:
        if self._transport is None or self._ended or reading is self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    async def _run(self, frame: Frame, slot: _Slot) -> None:
        try:
            slot.pieces = await self._shared.serve(frame, self.peer)
        except CloseConnection as order:
            self.end(metrics.ASKED, str(order))
        except FrameError as error:
            self.end(metrics.MALFORMED, str(error))
        except Exception:
            if not self._ended:
                logger.exception("a request of %s failed", self.peer)
            self.end(metrics.FAILED, "the request failed inside the broker")
        else:
            slot.done = True
            self._write_ready()

    def _write_ready(self) -> None:
        """Write the answers at the head of the order."""
        transport = self._transport
        if transport is None or self._ended:
            return
        freed = 0
        while self._in_flight and self._in_flight[0].done:
            slot = self._in_flight.popleft()
            freed += slot.size
            if slot.pieces:
                self._shared.metrics.bytes_out.inc(sum(map(len, slot.pieces)))
                transport.writelines(slot.pieces)
        if freed:
            self._shared.budget.give(freed)
            self._advance()
