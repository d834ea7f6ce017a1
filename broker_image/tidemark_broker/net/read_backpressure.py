"""Backpressure on reading from a connection.

Received bytes occupy memory until the request is answered. A small request is always read to its
end, so incomplete requests never wait for each other. A large one is read only while there is room
for unanswered and for incomplete requests. It is also not read behind a request that it must wait
for anyway, which may take arbitrarily long.
"""

from collections.abc import Callable

from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.partial_requests import (
    CAUTIOUS_BYTES,
    SMALL_BYTES,
    FrameReader,
    UnfinishedFrames,
)

#: Header of a request: key, version and correlation id.
REQUEST_BYTES_MIN = 8
#: Memory of a request in addition to its bytes: small requests weigh many times their size.
_OBJECTS_BYTES = 64


def weight(frame: Frame) -> int:
    """Memory of a request until it is answered."""
    return len(frame) + _OBJECTS_BYTES


class ReadBackpressure:
    """Receiver of one connection's bytes, and the decision whether to read more.

    ``resume`` is called once a paused connection may be read again. ``give_up`` is called if the
    rest of an incomplete request arrives too slowly while other connections wait for its memory.
    """

    __slots__ = (
        "_budget",
        "_reader",
        "_receiver",
        "_resume",
        "_unfinished",
        "partial_bytes",
        "waits_for_request",
    )  # fmt: skip

    def __init__(
        self,
        receiver: FrameReceiver,
        budget: RequestBudget,
        unfinished: UnfinishedFrames,
        address: str,
        *,
        resume: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        """Create the read side of a connection from the IP address ``address``."""
        #: Splits the received bytes into frames.
        self._receiver = receiver
        #: Memory of complete, unanswered requests of all connections.
        self._budget = budget
        #: Memory of incomplete requests of all connections, which large requests fill one at a
        #: time.
        self._unfinished = unfinished
        self._resume = resume
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
        receiver, unfinished = self._receiver, self._unfinished
        receiver.cautious = unfinished.exhausted or self.waits_for_request
        # A small buffer keeps a connection from passing the limit by much in a single read.
        if receiver.cautious and not unfinished.has_turn(self._reader):
            return receiver.get_buffer()[:CAUTIOUS_BYTES]
        return receiver.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """Process received bytes. Return complete requests, which occupy memory from now on.

        Raises ``FrameError``.
        """
        frames = self._receiver.received(count)
        # Counted here, before any of them starts: they are in memory now.
        for frame in frames:
            self._budget.take(weight(frame))
        self._count(self._receiver.buffered_bytes)
        if frames:
            self._unfinished.remove(self._reader)
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
        if self._budget.exhausted and not is_small:
            self.pause()
            self._budget.call_back(self._resume)
            return False
        return self._unfinished.may_read(self._reader, receiver.frame_bytes, receiver.missing_bytes)

    def pause(self) -> None:
        """Leave the queue for memory, because something else prevents reading."""
        if self._receiver.in_frame:
            self._unfinished.remove(self._reader)

    def stop(self) -> None:
        """Stop reading for good. Idempotent."""
        self._budget.forget(self._resume)
        self._unfinished.remove(self._reader)
        self._receiver.drop()
        self._count(0)

    def _count(self, partial_bytes: int) -> None:
        change, self.partial_bytes = partial_bytes - self.partial_bytes, partial_bytes
        if change:
            self._unfinished.add(change)
