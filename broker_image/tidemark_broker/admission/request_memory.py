"""Memory of requests over all connections, and backpressure on reading.

- :class:`RequestBudget`: complete requests, from their arrival until they are answered (Kafka's
  ``queued.max.request.bytes``). Above the limit no connection starts to read another request; they
  resume as requests are answered.
- :class:`PartialRequestBudget`: incomplete requests, whose bytes count from the first one. Many
  connections that each send all but the end of a large request would otherwise fill the memory.
  Above the limit only small requests are read, and two large ones at a time: one with few missing
  bytes, and one with many. A request of ordinary size therefore never waits for maximal ones.
  Addresses alternate. Within an address the request with the fewest missing bytes and the longest
  waiting one alternate. While others wait, reading one has a time limit, so that a stalled sender
  delays the others only briefly.
- :class:`ReadBackpressure`: the decision of one connection whether to read more.

No request is rejected: a waiting connection is not read, and TCP slows its sender down. A small
request is always read to its end, so incomplete requests never wait for each other.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.admission.response_memory import ResponseBudget

#: Header of a request: key, version and correlation id.
REQUEST_BYTES_MIN = 8
#: Memory of a request in addition to its bytes: small requests weigh many times their size.
_OBJECTS_BYTES = 64
#: Requests of at most this size are always read to their end.
SMALL_BYTES = 64 * 1024
#: Bytes read at a time from a connection while the limit is reached.
CAUTIOUS_BYTES = 16 * 1024
#: Up to this number of missing bytes a request is in the short queue. Producers send at most a
#: megabyte by default.
LITTLE_BYTES = 2 * 1024 * 1024
#: Time to read a large request while others wait, plus time per missing byte.
READ_S = 1.0
READ_BYTES_PER_S = 16 * 1024 * 1024
#: Number of extensions by ``READ_S``, each for the bytes below: links may be slow, or this loop.
EXTENSIONS_MAX = 4
EXTENSION_BYTES = 64 * 1024


def weight(frame: Frame) -> int:
    """Memory of a request until it is answered."""
    return len(frame) + _OBJECTS_BYTES


class RequestBudget:
    """Number of bytes in use. Paused connections are called back once there is room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: dict[Callable[[], None], None] = {}
        self.used_bytes = 0

    @property
    def is_exhausted(self) -> bool:
        """True if reading must pause."""
        return self.used_bytes >= self._limit

    def take(self, size: int) -> None:
        """Count a request of ``size`` bytes."""
        self.used_bytes += size

    def give(self, size: int) -> None:
        """Uncount a request, and resume paused connections if there is room."""
        self.used_bytes -= size
        if self._waiting and not self.is_exhausted:
            # Swapped first, because a resumed connection may have to wait again.
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def call_back(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once there is room."""
        self._waiting[resume] = None

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call ``resume`` any more."""
        self._waiting.pop(resume, None)


@dataclass(frozen=True, slots=True, eq=False)
class FrameReader:
    """A waiting connection: ``resume`` reads on, ``give_up`` closes it."""

    address: str
    resume: Callable[[], None]
    give_up: Callable[[], None]


class PartialRequestBudget:
    """Incomplete requests of all connections of a broker. Used from the loop thread only."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        #: For requests with few missing bytes, and for those with many.
        self._queues = _ReadQueue(), _ReadQueue()
        self.used_bytes = 0

    @property
    def is_exhausted(self) -> bool:
        """True if the limit is reached."""
        return self.used_bytes >= self._limit

    def add(self, change_bytes: int) -> None:
        """Add or remove bytes of incomplete frames."""
        self.used_bytes += change_bytes
        # Below the limit no connection needs to wait.
        if change_bytes < 0 and not self.is_exhausted:
            for reader in [reader for queue in self._queues for reader in queue.dissolve()]:
                reader.resume()

    def may_read(self, reader: FrameReader, frame_bytes: int, missing_bytes: int) -> bool:
        """Return whether a connection may read on in a frame of that length.

        If not, it is resumed later.
        """
        if frame_bytes <= SMALL_BYTES or not self.is_exhausted:
            return True
        for queue in self._queues:
            if reader is queue.current:
                queue.missing_bytes = missing_bytes
                return True
        return self._queues[missing_bytes > LITTLE_BYTES].may_read(reader, missing_bytes)

    def is_current(self, reader: FrameReader) -> bool:
        """True if the connection is read although the limit is reached."""
        return any(reader is queue.current for queue in self._queues)

    @property
    def has_waiters(self) -> bool:
        """True if a connection waits for memory."""
        return any(queue.waiting for queue in self._queues)

    def remove(self, reader: FrameReader) -> None:
        """Remove a connection whose frame is complete, or that cannot be read for another
        reason.
        """
        for queue in self._queues:
            queue.remove(reader)


class _ReadQueue:
    """Queue of connections whose large request waits for memory; one of them is read at a time.

    ``current`` is the connection that is being read, None if no large request is incomplete, and
    ``missing_bytes`` are those of its request. ``waiting`` has those of the other connections.
    """

    def __init__(self) -> None:
        self.current: FrameReader | None = None
        self.waiting: dict[FrameReader, int] = {}
        #: Time of an address's last read, or of its arrival in the queue, in half reads.
        self._last: dict[str, int] = {}
        self._reads = 0
        self._extensions = 0
        self.missing_bytes = self._last_missing_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def may_read(self, reader: FrameReader, missing_bytes: int) -> bool:
        if self.current is None:
            self._begin_read(reader, missing_bytes)
            return True
        self.waiting.setdefault(reader, missing_bytes)
        # Odd values sort a new address behind earlier arrivals and before the current one.
        self._last.setdefault(reader.address, 2 * self._reads - 1)
        return False

    def remove(self, reader: FrameReader) -> None:
        if self.waiting:
            self.waiting.pop(reader, None)
        if reader is self.current:
            self._end_read()
            self._read_next()

    def dissolve(self) -> list[FrameReader]:
        """Empty the queue, and return the connections that waited."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self._last.clear()
        self._end_read()
        return waiting

    def _read_next(self) -> None:
        if not self.waiting:
            self._last.clear()
            return
        waiting, last = self.waiting, self._last
        # The address whose last read is longest ago is next, however many connections it has.
        address = min((key.address for key in waiting), key=lambda key: last[key])
        own = [reader for reader in waiting if reader.address == address]
        following = own[0] if self._reads % 2 else min(own, key=lambda reader: waiting[reader])
        self._begin_read(following, waiting.pop(following))
        # In a later iteration of the event loop, since this connection may leave the queue at once,
        # and so may all that follow.
        asyncio.get_running_loop().call_soon(following.resume)

    def _begin_read(self, reader: FrameReader, missing_bytes: int) -> None:
        self.current = reader
        self._reads += 1
        self._last[reader.address] = 2 * self._reads
        self._extensions = 0
        self.missing_bytes = self._last_missing_bytes = missing_bytes
        self._start_timer(READ_S + missing_bytes / READ_BYTES_PER_S)

    def _start_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        """Extend the time of a connection that makes progress; else close it for the others."""
        received_bytes, self._last_missing_bytes = (
            self._last_missing_bytes - self.missing_bytes,
            self.missing_bytes,
        )
        if self.current is None or not self.waiting:
            self._start_timer(READ_S)
        elif received_bytes >= EXTENSION_BYTES and self._extensions < EXTENSIONS_MAX:
            self._extensions += 1
            self._start_timer(READ_S)
        else:
            self.current.give_up()

    def _end_read(self) -> None:
        self.current = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True, slots=True)
class MemoryBudgets:
    """Memory that connections share: all client connections of a broker, or all of its peers.

    Separate for peers, so that clients cannot exhaust the memory for replication.
    """

    requests: RequestBudget
    partial_requests: PartialRequestBudget
    responses: ResponseBudget

    @classmethod
    def of(cls, request_bytes_max: int, response_bytes_max: int) -> Self:
        """Create budgets. Incomplete requests may use a quarter of ``request_bytes_max`` more."""
        return cls(
            RequestBudget(request_bytes_max),
            PartialRequestBudget(request_bytes_max // 4),
            ResponseBudget(response_bytes_max),
        )


class ReadBackpressure:
    """Receiver of one connection's bytes, and the decision whether to read more.

    ``resume`` is called once a paused connection may be read again. ``give_up`` is called if the
    rest of an incomplete request arrives too slowly while other connections wait for its memory.
    """

    __slots__ = (
        "_budget", "_partial_requests", "_reader", "_receiver", "partial_bytes",
        "waits_for_request",
    )  # fmt: skip

    def __init__(
        self,
        receiver: FrameReceiver,
        budgets: MemoryBudgets,
        address: str,
        *,
        resume: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        """Create the read side of a connection from the IP address ``address``."""
        #: Splits the received bytes into frames.
        self._receiver = receiver
        self._budget = budgets.requests
        self._partial_requests = budgets.partial_requests
        #: This connection in the queue of connections that wait for memory.
        self._reader = FrameReader(address, resume, give_up)
        #: Bytes of an incomplete request.
        self.partial_bytes = 0
        #: True while a request is in progress that the next one must wait for.
        self.waits_for_request = False

    def limit(self, frame_bytes_max: int) -> None:
        """Set the maximum length of frames that start from now on."""
        self._receiver.limit_bytes = frame_bytes_max

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""
        receiver, partial_requests = self._receiver, self._partial_requests
        receiver.cautious = partial_requests.is_exhausted or self.waits_for_request
        # A small buffer keeps a connection from passing the limit by much in a single read.
        if receiver.cautious and not partial_requests.is_current(self._reader):
            return receiver.get_buffer()[:CAUTIOUS_BYTES]
        return receiver.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """Process received bytes. Return complete requests, which occupy memory from now on.

        Raises ``FrameError``.
        """
        frames = self._receiver.received(count)
        # Counted here, before any of them starts: they are in memory now.
        self._budget.take(sum(map(weight, frames)))
        buffered_bytes = self._receiver.buffered_bytes
        # Nearly always there was no incomplete request before, and there is none now. A connection
        # that waits for memory, or is read although it is short, always has one.
        if buffered_bytes or self.partial_bytes:
            self._count(buffered_bytes)
            if frames:
                self._partial_requests.remove(self._reader)
        return frames

    @property
    def partial_large_request(self) -> Frame | None:
        """Received part of an incomplete large request, None without one."""
        return self._receiver.begun if self._receiver.frame_bytes > SMALL_BYTES else None

    def may_read_on(self) -> bool:
        """Return whether there is room to read on. If not, ``resume`` is called later."""
        receiver = self._receiver
        if self.waits_for_request and receiver.frame_bytes > CAUTIOUS_BYTES:
            self.pause()
            return False
        # Finishing a small request frees memory soon, so it is exempt from the limit.
        is_small = receiver.in_frame and receiver.frame_bytes <= SMALL_BYTES
        if self._budget.is_exhausted and not is_small:
            self.pause()
            self._budget.call_back(self._reader.resume)
            return False
        return self._partial_requests.may_read(
            self._reader, receiver.frame_bytes, receiver.missing_bytes
        )

    def pause(self) -> None:
        """Leave the queue for memory, because something else prevents reading."""
        if self._receiver.in_frame:
            self._partial_requests.remove(self._reader)

    def stop(self) -> None:
        """Stop reading for good. Idempotent."""
        self._budget.forget(self._reader.resume)
        self._partial_requests.remove(self._reader)
        self._receiver.drop()
        self._count(0)

    def _count(self, partial_bytes: int) -> None:
        change, self.partial_bytes = partial_bytes - self.partial_bytes, partial_bytes
        if change:
            self._partial_requests.add(change)
