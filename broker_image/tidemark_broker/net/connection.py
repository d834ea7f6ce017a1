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

from tidemark.metrics import broker_table
from tidemark.tls.acceptor import Refusals
from tidemark.wire.bounds import STRING_BYTES_MAX
from tidemark.wire.connection import peer_name
from tidemark.wire.framing import PRODUCE_KEY, FrameError, peek_key
from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.channel_mute import Rest
from tidemark_broker.net.config import ServerConfig
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.net.partial_requests import UnfinishedFrames
from tidemark_broker.net.read_backpressure import REQUEST_BYTES_MIN, Reading, weight
from tidemark_broker.net.sockets import has_left
from tidemark_broker.net.unsent_responses import Unsent
from tidemark_broker.response_memory import AnswerBudget, AnswerMemory

logger = logging.getLogger(__name__)

#: For so long a client may hold its connection that has been told why it is ended: some that find
#: the end of a connection behind an answer do not look at the answer.
_LAST_WORD_S = 0.5
#: Of a large request: its client id is in it.
_HEADER_BYTES = 10 + STRING_BYTES_MAX
#: So long a peer may take what was sent before the end of a connection.
_CLOSING_S = 10.0

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
        self, text: str, *, reason: str = broker_table.ASKED, answer: Sequence[bytes] | None = None
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
        self._reading = Reading(
            FrameReceiver(
                shared.config.request_bytes_max, shared.scratch, frame_bytes_min=REQUEST_BYTES_MIN
            ),
            shared.budget,
            shared.unfinished,
            address,
            go_on=self._advance,
            give_up=self._too_slow,
        )
        self._transport: asyncio.Transport | None = None
        self._arrived: collections.deque[Frame] = collections.deque()
        self._in_flight: collections.deque[_Slot] = collections.deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_write = True
        self._is_read = True
        self._ended = False
        self._unsent = Unsent(AnswerMemory(shared.answers), shared.loop, self._advance)
        self._rest = Rest(shared.loop, self._rest_is_over)
        self._closing: asyncio.TimerHandle | None = None
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
        return self._reading.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self.last_received_s = self._now()
        self.shared.metrics.bytes_in.inc(nbytes)
        try:
            frames = self._reading.received(nbytes)
        except FrameError as error:
            self._end_malformed(error)
            return
        self._arrived.extend(frames)
        self._advance()

    def _too_slow(self) -> None:
        """Others wait for the memory that its request takes."""
        self.end(broker_table.SLOW, "its request did not come to an end in time")

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
        if self._closing is not None:
            self._closing.cancel()
        self._let_go()
        self._unsent.forget()
        self.shared.lost(self)

    def _let_go(self) -> None:
        """Of all that it holds but what is still being sent. Not only once it is lost: that may
        take as long as its peer likes, who does not take what was sent."""
        self._rest.cancel()
        self._reading.stop()
        held = sum(map(weight, self._arrived)) + sum(slot.size for slot in self._in_flight)
        for slot in self._in_flight:
            slot.memory.hold(0)
        self._arrived.clear()
        self._in_flight.clear()
        self.shared.budget.give(held)

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
        if reason == broker_table.AUTHENTICATION:  # strangers do not fill the log
            self.shared.refusals.add(self.peer, text)
            return
        level = (
            logging.INFO if reason in (broker_table.IDLE, broker_table.ASKED) else logging.WARNING
        )
        logger.log(level, "connection from %s closed: %s", self.peer, text)

    def close(self) -> None:
        """Close without a word."""
        self._ended = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._let_go()
        if self._transport is not None and self._closing is None:
            self._transport.close()
            self._closing = self.shared.loop.call_later(_CLOSING_S, self.abort)

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
        self._reading.limit(frame_bytes_max)
        self._in_flight_max = 1
        self._deadline = self.shared.loop.call_later(timeout_s, self._not_proven)
        self.shared.confined(self)

    def release(self) -> None:
        """It has proven who it is: the limits are those of all."""
        self._end_deadline()
        self._reading.limit(self._config.request_bytes_max)
        self._in_flight_max = self._config.requests_in_flight_max
        self.shared.released(self)

    def rests_before_first(self, rest_s: Callable[[Frame], float | None]) -> None:
        """See :attr:`Rest.before_first`; of a large request only the beginning is read before."""
        self._rest.before_first = rest_s

    def rest(self, for_s: float) -> None:
        """It has used too much of its quotas."""
        if not self._ended:
            self._rest.begin(for_s)

    def _rest_is_over(self) -> None:
        """Whoever has gone before anything of its was begun may have asked for it again on another
        connection: nobody has looked since reading was paused."""
        if self._rest.is_first and self._transport is not None and has_left(self._transport):
            self.end(broker_table.ASKED, "its client has gone while it rested")
            return
        self._advance()

    @property
    def parked_bytes(self) -> int:
        """What it holds of requests that cannot begin for as long as it likes: behind one that
        waits, or while it rests."""
        if not (self._reading.behind_one or self._rest.is_on):
            return 0
        return self._reading.held_bytes + sum(map(weight, self._arrived))

    @property
    def unsent(self) -> "Unsent":
        """What of its answers it has not taken yet."""
        return self._unsent

    def _not_proven(self) -> None:
        self.end(broker_table.AUTHENTICATION, "it did not prove in time who it is")

    def _end_malformed(self, error: FrameError) -> None:
        stranger = self._deadline is not None
        self.end(broker_table.AUTHENTICATION if stranger else broker_table.MALFORMED, str(error))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ------------------------------------------------------------ inside

    def _advance(self) -> None:
        """Begin as many requests as may be in flight, and read on only if none is left over."""
        while self._arrived and self._may_begin():
            frame = self._arrived[0]
            alone = peek_key(frame) != PRODUCE_KEY
            if (alone and self._reading.behind_one) or self._rest.comes_first(frame):
                break
            self._arrived.popleft()
            self._begin(frame, alone=alone)
        if not self._arrived and self._may_begin() and not self._large_one_rests_first():
            self._read_on(self._reading.may_go_on())
        else:
            self._reading.pause()
            self._read_on(False)

    def _begin(self, frame: Frame, *, alone: bool) -> None:
        slot = _Slot(weight(frame), AnswerMemory(self.shared.answers), alone=alone)
        self._reading.behind_one = self._reading.behind_one or alone
        self._in_flight.append(slot)
        task = self.shared.loop.create_task(self._run(frame, slot))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _large_one_rests_first(self) -> bool:
        """It would only take memory meanwhile."""
        begun = self._reading.large_one
        return begun is not None and len(begun) >= _HEADER_BYTES and self._rest.comes_first(begun)

    def _may_begin(self) -> bool:
        return (
            self._may_write
            and not self._ended
            and not self._rest.is_on
            and not (self._unsent.held_bytes and self.shared.answers.short)
            and len(self._in_flight) < self._in_flight_max
        )

    def _read_on(self, is_read: bool) -> None:
        if self._transport is None or self._ended or is_read is self._is_read:
            return
        self._is_read = is_read
        if is_read:
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
            self.end(broker_table.FAILED, "the request failed inside the broker")
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
                self._reading.behind_one = False
            if slot.pieces:
                self.shared.metrics.bytes_out.inc(slot.memory.held_bytes)
                transport.writelines(slot.pieces)
                self._unsent.add(slot.memory)
        if freed:
            self.shared.budget.give(freed)
            self._advance()
