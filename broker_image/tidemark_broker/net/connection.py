"""Connection of one client: frames in, responses out in the order of the requests.

Requests of a connection start in the order of their arrival. A request that waits for nothing is
answered in the turn of the loop that receives it. Every other one runs in a task, or is a
:class:`Deferred` whose result is written in the turn that delivers it. Several Produce
requests, whose responses are small, may be in flight up to a limit. Other requests run one at a
time, since their responses would wait for the previous ones anyway. A response is held until all
earlier ones are written, and those of one turn are written together. Reading pauses while a request
cannot start, while the client does not read its responses, or while the broker holds too many
unanswered bytes. Any error of a connection closes that connection, with one log line.
"""

import asyncio
import collections
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

from tidemark.metrics import broker_table
from tidemark.tls.acceptor import Refusals
from tidemark.wire.bounds import STRING_BYTES_MAX
from tidemark.wire.connection import peer_name
from tidemark.wire.framing import PRODUCE_KEY, FrameError, peek_key
from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.admission.channel_mute import ChannelMute
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.request_memory import (
    REQUEST_BYTES_MIN,
    MemoryBudgets,
    ReadBackpressure,
    weight,
)
from tidemark_broker.admission.response_memory import ResponseMemory, UnsentResponses
from tidemark_broker.net.metrics import NetMetrics
from tidemark_broker.tasks import Deferred

logger = logging.getLogger(__name__)

#: Time between the last answer and the end of a connection. Some clients that see the end right
#: after an answer ignore the answer.
_LAST_RESPONSE_S = 0.5
#: Part of a large request that surely contains its client id.
_HEADER_BYTES = 10 + STRING_BYTES_MAX
#: Time for the peer to receive what was sent before the end of a connection.
_CLOSING_S = 10.0

#: Time for requests of one connection that are answered at once, before others get their turn.
_SLICE_S = 0.0005
#: Longest time between two writes to a client while more of its requests can be answered at once.
_WRITE_PAUSE_S = 0.002

#: Linux TCP states of a connection whose peer no longer sends: CLOSE and CLOSE_WAIT.
_CLOSED_BY_PEER = frozenset({7, 8})

#: Pieces of a response's frame, None for a request without a response; or what delivers them later.
Served: TypeAlias = (
    Sequence[bytes]
    | Coroutine[Any, Any, Sequence[bytes] | None]
    | Deferred[Sequence[bytes] | None]
    | None
)
#: Serves a request frame, with the memory of its response. Raises FrameError for an unreadable
#: frame, and CloseConnection to close the connection.
Serve = Callable[[Frame, ResponseMemory], Served]
#: Selects the handler of a connection when it is established.
OpenSession = Callable[["ServerConnection"], Serve]


def _ignore(_: "ServerConnection") -> None:
    """Do nothing: peers of this listener are authenticated by their certificate."""


class CloseConnection(Exception):  # named as the order it gives
    """Order to close the connection; ``answer`` is sent before, if set."""

    def __init__(
        self, text: str, *, reason: str = broker_table.ASKED, answer: Sequence[bytes] | None = None
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerState:
    """State that all connections of one listener share.

    ``opened`` and ``lost`` are called for each connection. ``confined`` is called for one that must
    authenticate first, ``released`` once it has. ``scratch`` is a receive buffer that all
    connections reuse.
    """

    open_session: OpenSession
    limits: ConnectionLimits
    metrics: NetMetrics
    budgets: MemoryBudgets
    scratch: bytearray
    loop: asyncio.AbstractEventLoop
    opened: "Callable[[ServerConnection], None]"
    lost: "Callable[[ServerConnection], None]"
    confined: "Callable[[ServerConnection], None]" = _ignore
    released: "Callable[[ServerConnection], None]" = _ignore
    refusals: Refusals = field(default_factory=lambda: Refusals("connections"))


@dataclass(slots=True, eq=False)
class _RequestInFlight:
    """One started request, at its place in the order of responses.

    ``size`` is the memory of the request in bytes, ``memory`` that of the response. With
    ``is_alone`` the request is not a Produce, and at most one such request may be in flight. Once
    it ``is_done``, ``pieces`` contains the response frame, None without one. ``deferred`` delivers
    it if no task does.
    """

    size: int
    memory: ResponseMemory
    is_alone: bool
    deferred: Deferred[Sequence[bytes] | None] | None = None
    is_done: bool = False
    pieces: Sequence[bytes] | None = None


class ServerConnection(asyncio.BufferedProtocol):
    """Protocol of one accepted socket: receives requests, runs them, and writes responses in order.

    See the module for the rules.
    """

    def __init__(self, shared: ListenerState, address: str = "") -> None:
        """Create the protocol of an accepted socket. ``address`` is the peer's IP address."""
        self.shared = shared
        self.address = address
        self._limits = shared.limits
        #: Concurrent requests: 1 until the client has authenticated, see :meth:`confine`.
        self._in_flight_max = shared.limits.requests_in_flight_max
        #: Time limit of the authentication; later that of the final response.
        self._deadline: asyncio.TimerHandle | None = None
        #: Handler of request frames, set when the connection is established.
        self._serve: Serve
        self._now = shared.loop.time
        # Reading decides when to pause. It calls back once the reason has passed.
        self._reading = ReadBackpressure(
            FrameReceiver(
                shared.limits.request_bytes_max, shared.scratch, frame_bytes_min=REQUEST_BYTES_MIN
            ),
            shared.budgets,
            address,
            resume=self._advance,
            give_up=self._too_slow,
        )
        self._transport: asyncio.Transport | None = None
        #: Complete requests that have not started.
        self._arrived: collections.deque[Frame] = collections.deque()
        #: Started requests in the order of arrival. Their responses are written in this order.
        self._in_flight: collections.deque[_RequestInFlight] = collections.deque()
        #: Tasks of the running requests.
        self.tasks: set[asyncio.Task[Sequence[bytes] | None]] = set()
        #: Number of requests whose tasks have not started. Later requests must not overtake them.
        self._starting = 0
        #: False while the transport's write buffer is full.
        self._may_write = True
        #: False while reading from the transport is paused.
        self._is_read = True
        #: True while a later call of :meth:`_write_ready` is scheduled.
        self._is_write_due = False
        #: True while a later call of :meth:`_advance` is scheduled.
        self._is_advance_due = False
        #: Time of the last write (``perf_counter``).
        self._written_s = 0.0
        #: True while :meth:`_advance` runs.
        self._is_advancing = False
        #: True once this side has decided to close. The socket may still be sending.
        self.ended = False
        #: Responses that the client has not received yet.
        self.unsent = UnsentResponses(
            ResponseMemory(shared.budgets.responses), shared.loop, self._advance
        )
        #: Mute because of exceeded quotas (KIP-219).
        self._mute = ChannelMute(shared.loop, self._mute_ended)
        #: Timer that aborts a socket whose peer does not receive the rest.
        self._closing: asyncio.TimerHandle | None = None
        self.peer = "?"
        #: Loop time in seconds of the last received bytes.
        self.last_received_s = 0.0

    # ------------------------------------------------------------ asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Resume only when the buffer is empty, which is when no memory is held.
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes_max, low=0)
        self.unsent.transport = self._transport
        self.peer = peer_name(transport)
        self.last_received_s = self._now()
        # Registered first, since opening the session may close the connection.
        self.shared.opened(self)
        self._serve = self.shared.open_session(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reading.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended:
            return
        self.last_received_s = self._now()
        self.shared.metrics.bytes_in += nbytes
        try:
            frames = self._reading.received(nbytes)
        except FrameError as error:
            self._end_malformed(error)
            return
        self._arrived.extend(frames)
        self._advance()

    def _too_slow(self) -> None:
        """Close, because other connections wait for the memory of its incomplete request."""
        self.end(broker_table.SLOW, "its request was not complete in time")

    def pause_writing(self) -> None:
        self._may_write = False
        self.unsent.pause()
        self._advance()

    def resume_writing(self) -> None:
        self._may_write = True
        self.unsent.resume()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        for task in self.tasks:
            task.cancel()
        self._end_deadline()
        if self._closing is not None:
            self._closing.cancel()
        self._release()
        self.unsent.forget()
        # Breaks the cycle of references to the transport. Its TLS state has 20 KB outside Python,
        # of which the collector does not know.
        self._transport = None
        self.shared.lost(self)

    def _release(self) -> None:
        """Release all resources except unsent answers.

        Called at the close already, because a peer that does not read can delay the loss of the
        connection.
        """
        self._mute.cancel()
        self._reading.stop()
        request_bytes = sum(map(weight, self._arrived)) + sum(
            request.size for request in self._in_flight
        )
        for request in self._in_flight:
            request.memory.set_reserved(0)
            if request.deferred is not None:
                request.deferred.cancel()
        self._arrived.clear()
        self._in_flight.clear()
        self.shared.budgets.requests.give(request_bytes)

    # ------------------------------------------------------------ called by the listener

    @property
    def idle(self) -> bool:
        """True if no request is in progress, or the client does not read its answers."""
        return not self._may_write or not (self._in_flight or self._arrived)

    def started(self) -> Callable[[], bool]:
        """Return a function: whether any request that has started by now is unanswered."""
        if not self._in_flight:
            return lambda: False
        # Responses are in order, so the newest request is answered last.
        newest = self._in_flight[-1]
        return lambda: newest in self._in_flight

    def end(self, reason: str, text: str) -> None:
        """Close with one log line; answers that are ready are still sent."""
        if self.ended:
            return
        self._write_done_and_end()
        self._log_close(reason, text)
        self.close()

    def _write_done_and_end(self) -> None:
        """Write the responses that are ready, and start and write nothing more."""
        freed = self._write_done()
        # Set first: freed memory lets this connection and others start requests.
        self.ended = True
        self.shared.budgets.requests.give(freed)

    def _log_close(self, reason: str, text: str) -> None:
        self.shared.metrics.closed(reason)
        if reason == broker_table.AUTHENTICATION:  # summarized, so that attacks cannot fill the log
            self.shared.refusals.add(self.peer, text)
            return
        level = (
            logging.INFO if reason in (broker_table.IDLE, broker_table.ASKED) else logging.WARNING
        )
        logger.log(level, "connection from %s closed: %s", self.peer, text)

    def close(self) -> None:
        """Close without a log line."""
        self._write_done_and_end()
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._release()
        if self._transport is not None and self._closing is None:
            self._transport.close()
            # A peer that does not read could keep the socket, and its memory, for ever.
            self._closing = self.shared.loop.call_later(_CLOSING_S, self.abort)

    def abort(self) -> None:
        """Close at once. Unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ called by a session

    def certificate(self) -> bytes | None:
        """Return the client's TLS certificate as DER, None without one."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    def confine(self, frame_bytes_max: int, timeout_s: float) -> None:
        """Restrict the connection until :meth:`release`: small frames, one at a time, with a
        deadline.
        """
        self._reading.limit(frame_bytes_max)
        self._in_flight_max = 1
        self._deadline = self.shared.loop.call_later(timeout_s, self._authentication_timed_out)
        self.shared.confined(self)

    def release(self) -> None:
        """Lift the restrictions after authentication."""
        self._end_deadline()
        self._reading.limit(self._limits.request_bytes_max)
        self._in_flight_max = self._limits.requests_in_flight_max
        self.shared.released(self)

    def mute_before_first(self, mute_s: Callable[[Frame], float | None]) -> None:
        """Set :attr:`ChannelMute.before_first`. Of a large request only the beginning is read
        before."""
        self._mute.before_first = mute_s

    def mute(self, for_s: float) -> None:
        """Mute the connection, because its quotas are exceeded."""
        if not self.ended:
            self._mute.begin(for_s)

    def _mute_ended(self) -> None:
        """End the mute.

        A client that disconnected before its first request started may already retry on another
        connection. While reading was paused, the disconnect was not noticed.
        """
        if (
            self._mute.is_first
            and self._transport is not None
            and _peer_has_closed(self._transport)
        ):
            self.end(broker_table.ASKED, "the client disconnected while it was throttled")
            return
        self._advance()

    @property
    def parked_bytes(self) -> int:
        """Bytes of requests that cannot start for an unlimited time: behind a waiting one, or
        muted.
        """
        if not (self._reading.waits_for_request or self._mute.is_on):
            return 0
        return self._reading.partial_bytes + sum(map(weight, self._arrived))

    def _authentication_timed_out(self) -> None:
        self.end(broker_table.AUTHENTICATION, "it did not authenticate in time")

    def _end_malformed(self, error: FrameError) -> None:
        stranger = self._deadline is not None
        self.end(broker_table.AUTHENTICATION if stranger else broker_table.MALFORMED, str(error))

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # ------------------------------------------------------------ internal

    def _advance(self) -> None:
        """Start as many requests as permitted, then resume or pause reading.

        Called after every event that may permit more: received bytes, a written response, free
        memory, the end of a mute.
        """
        # Writing a response below calls this again. The loop starts what it permits.
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            self._start_arrived()
        finally:
            self._is_advancing = False
        # Reading continues only if every received request has started. Otherwise TCP slows the
        # client down.
        if not self._arrived and self._may_begin() and not self._is_large_request_muted():
            self._read_on(self._reading.may_read_on())
        else:
            # Memory for incomplete requests goes to other connections meanwhile.
            self._reading.pause()
            self._read_on(False)

    def _start_arrived(self) -> None:
        """Start permitted requests for ``_SLICE_S``, and write the responses that are ready.

        After the slice other connections are served first.
        """
        now_s = time.perf_counter()
        until_s, is_over = now_s + _SLICE_S, False
        while self._arrived and not is_over:
            frame = self._arrived[0]
            # At most one request other than Produce runs at a time. Its response may be large, and
            # would hold memory while it waits for the previous one. Produce responses are small.
            is_alone = peek_key(frame) != PRODUCE_KEY
            if (
                not self._may_begin()
                or (is_alone and self._reading.waits_for_request)
                or self._mute.must_wait(frame)
            ):
                # It may wait for responses that are ready. They are written together, not one by
                # one.
                if self._write_ready():
                    continue
                break
            self._arrived.popleft()
            self._begin(frame, is_alone=is_alone)
            now_s = time.perf_counter()
            is_over = now_s > until_s
        if is_over and self._arrived and not self._is_advance_due:
            self._is_advance_due = True
            self.shared.loop.call_soon(self._next_slice)
            # A write costs as much as several appends. If only few others are served in between,
            # the responses of some slices are written together.
            if now_s < self._written_s + _WRITE_PAUSE_S:
                return
        self._write_ready()

    def _next_slice(self) -> None:
        self._is_advance_due = False
        self._advance()

    def _begin(self, frame: Frame, *, is_alone: bool) -> None:
        """Start one request, which may be answered at once.

        Every error ends the connection, because responses are in order and none can be left out.
        """
        memory = ResponseMemory(self.shared.budgets.responses)
        request = _RequestInFlight(weight(frame), memory, is_alone)
        self._reading.waits_for_request = self._reading.waits_for_request or is_alone
        self._in_flight.append(request)
        # A request that waits for nothing is answered here. While a task has not started, later
        # requests become tasks too, so that none overtakes it.
        try:
            served: Served = (
                self._serve_in_turn(frame, memory) if self._starting else self._serve(frame, memory)
            )
        except Exception as error:  # noqa: BLE001 - ends the connection
            self._request_failed(error, request)
            return
        # The first test is for speed: nearly all responses are lists.
        if type(served) is not list and isinstance(served, Coroutine):
            task = self.shared.loop.create_task(served)
            self.tasks.add(task)
            task.add_done_callback(partial(self._finished, request))
            # A Produce has taken its place in the order already.
            if is_alone or self._starting:
                self._starting += 1
                self.shared.loop.call_soon(self._task_started)
        elif isinstance(served, Deferred):
            request.deferred = served
            served.then(partial(self._delivered, request), partial(self._not_delivered, request))
        else:
            self._answered(request, served)

    async def _serve_in_turn(self, frame: Frame, memory: ResponseMemory) -> Sequence[bytes] | None:
        """Serve a request in a task, which starts after the earlier ones have started."""
        served = self._serve(frame, memory)
        return await served if isinstance(served, Coroutine | Deferred) else served

    def _task_started(self) -> None:
        """Count a task that has run up to its first wait, because it was scheduled before."""
        self._starting -= 1

    def _is_large_request_muted(self) -> bool:
        """True if a large incomplete request must wait for a mute, during which it would only
        hold memory.
        """
        begun = self._reading.partial_large_request
        return begun is not None and len(begun) >= _HEADER_BYTES and self._mute.must_wait(begun)

    def _may_begin(self) -> bool:
        # The last condition bounds requests in flight; the others bound memory and fairness.
        return (
            self._may_write
            and not self.ended
            and not self._mute.is_on
            and not (self.unsent.unsent_bytes and self.shared.budgets.responses.is_short)
            and len(self._in_flight) < self._in_flight_max
        )

    def _read_on(self, is_read: bool) -> None:
        if self._transport is None or self.ended or is_read is self._is_read:
            return
        self._is_read = is_read
        if is_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _finished(
        self, request: _RequestInFlight, task: asyncio.Task[Sequence[bytes] | None]
    ) -> None:
        """Write the response of a request that was waited for, if no earlier one is missing."""
        self.tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is None:
                self._delivered(request, task.result())
            else:
                self._request_failed(error, request)
        # After a close nothing is written any more, so the memory is returned here.
        if self.ended:
            request.memory.set_reserved(0)

    def _delivered(self, request: _RequestInFlight, pieces: Sequence[bytes] | None) -> None:
        """Write a response that was waited for, if no earlier one is missing."""
        request.deferred = None
        self._answered(request, pieces)
        # One commit often ends the waits of many requests: all are written together.
        if len(self._in_flight) == 1:
            self._write_ready()
        elif not self._is_write_due:
            self._is_write_due = True
            self.shared.loop.call_soon(self._write_ready)

    def _not_delivered(self, request: _RequestInFlight, error: BaseException) -> None:
        request.deferred = None
        self._request_failed(error, request)

    def _answered(self, request: _RequestInFlight, pieces: Sequence[bytes] | None) -> None:
        # Marked only. ``_write_ready`` waits for the responses of earlier requests.
        request.pieces, request.is_done = pieces, True
        request.memory.set_reserved(sum(map(len, pieces or ())))

    def _request_failed(self, error: BaseException, request: _RequestInFlight) -> None:
        """Close the connection. The close cancels the connection's other requests."""
        if isinstance(error, CloseConnection):
            self._close_as_ordered(error, request)
        elif isinstance(error, FrameError):
            self._end_malformed(error)
        else:
            if not self.ended:
                logger.error("a request of %s failed", self.peer, exc_info=error)
            self.end(broker_table.FAILED, "the request failed inside the broker")

    def _close_as_ordered(self, order: CloseConnection, request: _RequestInFlight) -> None:
        """Close the connection, after the last answer if there is one."""
        if order.answer is None:
            self.end(order.reason, str(order))
            return
        if self.ended:
            return
        request.pieces, request.is_done = order.answer, True
        request.memory.set_reserved(sum(map(len, order.answer)))
        self._write_done_and_end()
        self._log_close(order.reason, str(order))
        # Closed a moment later, so that the client reads the answer before the end.
        self._end_deadline()
        self._deadline = self.shared.loop.call_later(_LAST_RESPONSE_S, self.close)

    def _write_ready(self) -> bool:
        """Write the responses that are next in the order of requests, then use the freed room.

        Return whether there were any.
        """
        self._is_write_due = False
        freed = self._write_done()
        # More room for requests of others, and of this connection if any waits for room. Reading
        # pauses if the response started a mute, or if memory has become short meanwhile.
        if freed:
            requests = self.shared.budgets.requests
            requests.give(freed)
            if self._arrived or not (self._is_read and self._may_begin()) or requests.is_exhausted:
                self._advance()
        return freed > 0

    def _write_done(self) -> int:
        """Write responses up to the first request that is still running.

        Return the bytes of their requests, whose memory the caller gives back.
        """
        transport = self._transport
        if transport is None or self.ended:
            return 0
        freed = 0
        pieces: list[bytes] = []
        memories = []
        while self._in_flight and self._in_flight[0].is_done:
            request = self._in_flight.popleft()
            freed += request.size
            # The request behind which others waited is answered, so the next one may start.
            if request.is_alone:
                self._reading.waits_for_request = False
            if request.pieces:
                self.shared.metrics.bytes_out += request.memory.reserved_bytes
                pieces += request.pieces
                memories.append(request.memory)
        if pieces:
            transport.writelines(pieces)
            self._written_s = time.perf_counter()
        # What the socket has not taken still uses memory.
        for memory in memories:
            self.unsent.add(memory)
        return freed


def _peer_has_closed(transport: asyncio.Transport) -> bool:
    """Return whether the peer has closed the connection, even with unread data.

    False if unknown.
    """
    own = transport.get_extra_info("socket")
    if own is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        # tcpi_state is the first byte of the structure.
        state: int = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return True
    return state in _CLOSED_BY_PEER
