"""What is read of a connection, and when it is not read on.

Whatever has begun to arrive takes memory until it is answered. A small request is always read to
its end, so nobody waits for anybody who waits. A large one is read on only while there is room for
requests that wait for their answers, and for those that have begun and not ended; and not behind a
request that the next one has to wait for anyway, which may take as long as its client likes.
"""

from collections.abc import Callable

from tidemark.wire.receiver import Frame, FrameReceiver
from tidemark_broker.net.budget import RequestBudget
from tidemark_broker.net.partial_requests import (
    CAUTIOUS_BYTES,
    SMALL_BYTES,
    Reader,
    UnfinishedFrames,
)

#: A request's header: key, version and correlation id.
REQUEST_BYTES_MIN = 8
#: What a request takes beside its bytes: a small one weighs many times what it has.
_OBJECTS_BYTES = 64


def weight(frame: Frame) -> int:
    """Of one request, as it counts until it is answered."""
    return len(frame) + _OBJECTS_BYTES


class Reading:
    """Of one connection. ``go_on`` is called once it may be read on that could not be, ``give_up``
    where others wait for the memory of a request that does not come to its end."""

    __slots__ = (
        "_budget", "_go_on", "_reader", "_receiver", "_unfinished", "behind_one", "held_bytes",
    )  # fmt: skip

    def __init__(
        self,
        receiver: FrameReceiver,
        budget: RequestBudget,
        unfinished: UnfinishedFrames,
        address: str,
        *,
        go_on: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        self._receiver = receiver
        self._budget = budget
        self._unfinished = unfinished
        self._go_on = go_on
        self._reader = Reader(address, go_on, give_up)
        #: Of a request that has begun and not ended.
        self.held_bytes = 0
        #: Is a request under way that the next one waits for?
        self.behind_one = False

    def limit(self, frame_bytes_max: int) -> None:
        """No frame that begins from now on may be longer."""
        self._receiver.limit_bytes = frame_bytes_max

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong."""
        receiver, unfinished = self._receiver, self._unfinished
        receiver.cautious = unfinished.exhausted or self.behind_one
        if receiver.cautious and not unfinished.has_turn(self._reader):
            return receiver.get_buffer()[:CAUTIOUS_BYTES]
        return receiver.get_buffer()

    def received(self, count: int) -> list[Frame]:
        """So many bytes are there; the requests that are complete with them, which take memory from
        now on. Raises ``FrameError``."""
        frames = self._receiver.received(count)
        for frame in frames:
            self._budget.take(weight(frame))
        self._count(self._receiver.held_bytes)
        if frames:
            self._unfinished.left(self._reader)
        return frames

    @property
    def large_one(self) -> Frame | None:
        """What has arrived of a large request that has not ended; None where there is none."""
        return self._receiver.begun if self._receiver.frame_bytes > SMALL_BYTES else None

    def may_go_on(self) -> bool:
        """Is there room for more? If not, ``go_on`` is called once there is."""
        receiver = self._receiver
        if self.behind_one and receiver.frame_bytes > CAUTIOUS_BYTES:
            self.pause()
            return False
        is_small = receiver.in_frame and receiver.frame_bytes <= SMALL_BYTES
        if self._budget.exhausted and not is_small:
            self.pause()
            self._budget.call_back(self._go_on)
            return False
        return self._unfinished.may_read(self._reader, receiver.frame_bytes, receiver.missing_bytes)

    def pause(self) -> None:
        """Something else keeps it from being read: others need not wait for it."""
        if self._receiver.in_frame:
            self._unfinished.left(self._reader)

    def stop(self) -> None:
        """Nothing more is read of it; may be said again."""
        self._budget.forget(self._go_on)
        self._unfinished.left(self._reader)
        self._receiver.drop()
        self._count(0)

    def _count(self, held_bytes: int) -> None:
        change, self.held_bytes = held_bytes - self.held_bytes, held_bytes
        if change:
            self._unfinished.held(change)
