"""One client's connection: frames in, answers out in the order of the requests.

Requests of a connection begin in the order in which they came. Produce, whose answers are small,
may be in flight up to a limit; of all others one at a time, since its answer would wait for those
before it anyway. An answer is held until all before it are written. Reading pauses while a request
cannot begin, while the client does not take its answers, or while the broker as a whole holds too
many unanswered bytes. Whatever is wrong with a connection ends that connection, with one line.
"""

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from tidemark.tls.acceptor import Refusals
from tidemark.wire.connection import peer_name
from tidemark.wire.framing import FrameError, peek_key
from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.answer_memory import AnswerBudget, AnswerMemory
from tidemark_broker.net import metrics
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.unfinished import CAUTIOUS_BYTES, Reader, UnfinishedFrames
from tidemark_broker.net.unsent import Unsent

logger = logging.getLogger(__name__)

#: For so long a client may hold its connection that has been told why it is ended: some that find
#: the end of a connection behind an answer do not look at the answer.
_LAST_WORD_S = 0.5

_PRODUCE = 0

#: Takes a request frame of one connection and the memory of its answer; gives the pieces of the
#: answer's frame, or None where the request has no answer. Raises FrameError for a frame that is no
#: request this broker can read and CloseConnection to end the connection without more ado.
Serve = Callable[[Frame, AnswerMemory], Awaitable[Sequence[bytes] | None]]
#: Decides once, when a connection is up, who answers it.
OpenSession = Callable[["ServerConnection"], Serve]


def _ignore(_: "ServerConnection") -> None:
    """Whoever reaches this listener has proven who it is."""


class CloseConnection(Exception):  # named as the order it gives
    """The protocol's only answer to this request is to end the connection; ``answer`` goes out
    before, if there is one."""

    def __init__(
        self, text: str, *, reason: str = metrics.ASKED, answer: Sequence[bytes] | None = None
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all connections of one listener share; ``opened`` and ``lost`` are called with each,
    ``confined`` and ``released`` with those that have to prove who they are, and have."""

    open_session: OpenSession
    config: ServerConfig
    metrics: NetMetrics
    budget: RequestBudget
    answers: AnswerBudget
    unfinished: UnfinishedFrames
    scratch: bytearray
    loop: asyncio.AbstractEventLoop
    opened: "Callable[[ServerConnection], None]"
    lost: "Callable[[ServerConnection], None]"
    confined: "Callable[[ServerConnection], None]" = _ignore
    released: "Callable[[ServerConnection], None]" = _ignore
    refusals: Refusals = field(default_factory=lambda: Refusals("connections"))


class _Slot:
    """The place of one request in the order of answers."""

    __slots__ = ("alone", "done", "memory", "pieces", "size")

    def __init__(self, size: int, memory: AnswerMemory, *, alone: bool) -> None:
        self.size = size
        self.memory = memory
        self.alone = alone
        self.done = False
        self.pieces: Sequence[bytes] | None = None


class ServerConnection(asyncio.BufferedProtocol):
    """See the module. One is made for each accepted socket."""

    def __init__(self, shared: Shared, address: str = "") -> None:
        self.shared = shared
        self.address = address
        self._config = shared.config
        self._in_flight_max = shared.config.requests_in_flight_max
        self._deadline: asyncio.TimerHandle | None = None
        self._serve: Serve
        self._now = shared.loop.time
        self._receiver = FrameReceiver(shared.config.request_bytes_max, shared.scratch)
        self._transport: asyncio.Transport | None = None
        self._arrived: collections.deque[Frame] = collections.deque()
        self._in_flight: collections.deque[_Slot] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_write = True
        self._reading = True
        self._ended = False
        self._unfinished_bytes = 0
        self._unsent = Unsent(AnswerMemory(shared.answers), shared.loop, self._advance)
        self._one_alone = False
        self._rests_until_s = 0.0
        self._rest: asyncio.TimerHandle | None = None
        self._reader = Reader(self._advance, self._too_slow)
        self.peer = "?"
        self.last_received_s = 0.0

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # It is resumed once all is sent: then nothing of it is held.
        self._transport.set_write_buffer_limits(high=self._config.unsent_bytes_max, low=0)
        self._unsent.transport = self._transport
        self.peer = peer_name(transport)
        self.last_received_s = self._now()
        self.shared.opened(self)
        self._serve = self.shared.open_session(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        receiver = self._receiver
        receiver.cautious = self.shared.unfinished.exhausted
        return (
            receiver.get_buffer()[:CAUTIOUS_BYTES] if receiver.cautious else receiver.get_buffer()
        )

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self.last_received_s = self._now()
        self.shared.metrics.bytes_in.inc(nbytes)
        try:
            frames = self._receiver.received(nbytes)
        except FrameError as error:
            self._end_malformed(error)
            return
        for frame in frames:
            self.shared.budget.take(len(frame))
            self._arrived.append(frame)
        self._count_unfinished(self._receiver.held_bytes)
        if frames:
            self.shared.unfinished.left(self._reader)
        self._advance()

    def _count_unfinished(self, held_bytes: int) -> None:
        change, self._unfinished_bytes = held_bytes - self._unfinished_bytes, held_bytes
        if change:
            self.shared.unfinished.held(change)

    def _too_slow(self) -> None:
        """Others wait for the memory that its request takes."""
        self.end(metrics.SLOW, "its request did not come to an end in time")

    def pause_writing(self) -> None:
        self._may_write = False
        self._unsent.pause()
        self._advance()

    def resume_writing(self) -> None:
        self._may_write = True
        self._unsent.resume()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        for task in self._tasks:
            task.cancel()
        self._end_deadline()
        if self._rest is not None:
            self._rest.cancel()
        self.shared.budget.forget(self._advance)
        self.shared.unfinished.left(self._reader)
        self._count_unfinished(0)
        held = sum(len(frame) for frame in self._arrived) + sum(s.size for s in self._in_flight)
        self._unsent.forget()
        for slot in self._in_flight:
            slot.memory.hold(0)
        self._arrived.clear()
        self._in_flight.clear()
        self.shared.budget.give(held)
        self.shared.lost(self)

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
        self._say_why(reason, text)
        self.close()

    def _say_why(self, reason: str, text: str) -> None:
        self.shared.metrics.closed(reason)
        if reason == metrics.AUTHENTICATION:  # strangers do not fill the log
            self.shared.refusals.add(self.peer, text)
            return
        level = logging.INFO if reason in (metrics.IDLE, metrics.ASKED) else logging.WARNING
        logger.log(level, "connection from %s closed: %s", self.peer, text)

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

    # ------------------------------------------------------------ what a session calls

    def certificate(self) -> bytes | None:
        """What the client has shown in its TLS handshake, as DER; None without one."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    def confine(self, frame_bytes_max: int, timeout_s: float) -> None:
        """Until :meth:`release`: one request at a time, none larger, and for so long at most."""
        self._receiver.limit_bytes = frame_bytes_max
        self._in_flight_max = 1
        self._deadline = self.shared.loop.call_later(timeout_s, self._not_proven)
        self.shared.confined(self)

    def release(self) -> None:
        """It has proven who it is: the limits are those of all."""
        self._end_deadline()
        self._receiver.limit_bytes = self._config.request_bytes_max
        self._in_flight_max = self._config.requests_in_flight_max
        self.shared.released(self)

    def rest(self, for_s: float) -> None:
        """It has used too much of its quotas: for so long nothing more is read from it, and nothing
        begun (KIP-219). What is under way goes on."""
        until_s = self._now() + for_s
        if until_s <= self._rests_until_s or self._ended:
            return
        self._rests_until_s = until_s
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self.shared.loop.call_at(until_s, self._rest_is_over)

    def _rest_is_over(self) -> None:
        """Not asked of the clock: a timer of uvloop's may come before its time."""
        self._rests_until_s = 0.0
        self._advance()

    @property
    def unsent(self) -> "Unsent":
        """What of its answers it has not taken yet."""
        return self._unsent

    def _not_proven(self) -> None:
        self.end(metrics.AUTHENTICATION, "it did not prove in time who it is")

    def _end_malformed(self, error: FrameError) -> None:
        stranger = self._deadline is not None
        self.end(metrics.AUTHENTICATION if stranger else metrics.MALFORMED, str(error))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ------------------------------------------------------------ inside

    def _advance(self) -> None:
        """Begin as many requests as may be in flight, and read on only if none is left over."""
        while self._arrived and self._may_begin():
            alone = peek_key(self._arrived[0]) != _PRODUCE
            if alone and self._one_alone:
                break
            frame = self._arrived.popleft()
            slot = _Slot(len(frame), AnswerMemory(self.shared.answers), alone=alone)
            self._one_alone = self._one_alone or alone
            self._in_flight.append(slot)
            task = self.shared.loop.create_task(self._run(frame, slot))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._set_reading(
            not self._arrived
            and self._may_begin()
            and not self._out_of_budget()
            and self._may_read_on()
        )

    def _may_begin(self) -> bool:
        return (
            self._may_write
            and not self._ended
            and self._now() >= self._rests_until_s
            and not (self._unsent.held_bytes and self.shared.answers.short)
            and len(self._in_flight) < self._in_flight_max
        )

    def _out_of_budget(self) -> bool:
        budget = self.shared.budget
        if not budget.exhausted or self._receiver.in_frame:
            return False
        budget.call_back(self._advance)
        return True

    def _may_read_on(self) -> bool:
        return self.shared.unfinished.may_read(
            self._reader, self._receiver.frame_bytes, self._receiver.missing_bytes
        )

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
            slot.pieces = await self._serve(frame, slot.memory)
        except CloseConnection as order:
            self._obey(order, slot)
        except FrameError as error:
            self._end_malformed(error)
        except Exception:
            if not self._ended:
                logger.exception("a request of %s failed", self.peer)
            self.end(metrics.FAILED, "the request failed inside the broker")
        else:
            slot.done = True
            slot.memory.hold(sum(map(len, slot.pieces or ())))
            self._write_ready()
        finally:
            if self._ended:
                slot.memory.hold(0)

    def _obey(self, order: CloseConnection, slot: _Slot) -> None:
        """End it, after the last answer if there is one."""
        if order.answer is None:
            self.end(order.reason, str(order))
            return
        slot.pieces, slot.done = order.answer, True
        slot.memory.hold(sum(map(len, order.answer)))
        self._write_ready()
        if not self._ended:
            self._ended = True
            self._say_why(order.reason, str(order))
            self._end_deadline()
            self._deadline = self.shared.loop.call_later(_LAST_WORD_S, self.close)

    def _write_ready(self) -> None:
        """Write the answers at the head of the order."""
        transport = self._transport
        if transport is None or self._ended:
            return
        freed = 0
        while self._in_flight and self._in_flight[0].done:
            slot = self._in_flight.popleft()
            freed += slot.size
            if slot.alone:
                self._one_alone = False
            if slot.pieces:
                self.shared.metrics.bytes_out.inc(slot.memory.held_bytes)
                transport.writelines(slot.pieces)
                self._unsent.add(slot.memory)
        if freed:
            self.shared.budget.give(freed)
            self._advance()
