"""Answers that were written to a connection and that its client has not received yet.

They occupy the broker's memory while they are in the transport's buffer. The transport does not
report progress, so its size is polled while it is not empty.
"""

import asyncio
from collections.abc import Callable

from tidemark_broker.response_memory import AnswerMemory

#: Smaller answers are not tracked.
_FOLLOWED_BYTES = 4096
#: Interval of polling the buffer's size.
_SETTLE_S = 0.02


class Unsent:
    """Unsent answers of one connection. ``emptied`` is called once all are sent."""

    def __init__(
        self,
        memory: AnswerMemory,
        loop: asyncio.AbstractEventLoop,
        emptied: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._memory = memory
        self._loop = loop
        self._emptied = emptied
        self._paused = False
        self._taken_s = 0.0
        self._not_taken_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes at the last poll."""
        return self._memory.held_bytes

    def add(self, answer: AnswerMemory) -> None:
        """Take over the memory of a written answer until it is sent."""
        size = answer.held_bytes
        answer.hold(0)
        if size > _FOLLOWED_BYTES and self.transport is not None:
            # One poll timer serves all answers of the connection.
            is_followed = self._memory.held_bytes > 0
            self._memory.hold(self._memory.held_bytes + size)
            if not is_followed:
                self._loop.call_later(_SETTLE_S, self._settle)

    def forget(self) -> None:
        """Release everything, because the connection is closed."""
        self.transport = None
        self._memory.hold(0)

    def pause(self) -> None:
        """Stop polling: the buffer is full, and the transport reports when it is empty."""
        self._paused = True

    def resume(self) -> None:
        """Handle an empty buffer."""
        self._paused = False
        self._settle()

    def _settle(self) -> None:
        if self._memory.held_bytes == 0:
            return
        left = self._left()
        self._memory.hold(min(left, self._memory.held_bytes))
        if left and not self._paused:
            self._loop.call_later(_SETTLE_S, self._settle)
        elif not left:
            self._emptied()

    def _left(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def is_stalled(self, for_s: float) -> bool:
        """Return whether the client has received nothing for that long.

        Must be called repeatedly.
        """
        left = self._left()
        # Any progress restarts the period.
        if left == 0 or left < self._not_taken_bytes or not self._not_taken_bytes:
            self._taken_s = self._loop.time()
        self._not_taken_bytes = left
        return left > 0 and self._loop.time() - self._taken_s >= for_s
