"""Answers that were written to a connection and that its client has not received yet.

They occupy the broker's memory while they are in the transport's buffer. The transport does not
report progress, so its size is polled while it is not empty.
"""

import asyncio
from collections.abc import Callable

from tidemark_broker.admission.response_memory import ResponseMemory

#: Smaller answers are not tracked.
_FOLLOWED_BYTES = 4096
#: Interval of polling the buffer's size.
_POLL_S = 0.02


class Unsent:
    """Unsent answers of one connection. ``emptied`` is called once all are sent."""

    def __init__(
        self,
        memory: ResponseMemory,
        loop: asyncio.AbstractEventLoop,
        emptied: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._memory = memory
        self._loop = loop
        self._emptied = emptied
        self._paused = False
        self._last_progress_s = 0.0
        self._last_unsent_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes at the last poll."""
        return self._memory.reserved_bytes

    def add(self, answer: ResponseMemory) -> None:
        """Take over the memory of a written answer until it is sent."""
        size = answer.reserved_bytes
        answer.set_reserved(0)
        if size > _FOLLOWED_BYTES and self.transport is not None:
            # One poll timer serves all answers of the connection.
            is_followed = self._memory.reserved_bytes > 0
            self._memory.set_reserved(self._memory.reserved_bytes + size)
            if not is_followed:
                self._loop.call_later(_POLL_S, self._poll)

    def forget(self) -> None:
        """Release everything, because the connection is closed."""
        self.transport = None
        self._memory.set_reserved(0)

    def pause(self) -> None:
        """Stop polling: the buffer is full, and the transport reports when it is empty."""
        self._paused = True

    def resume(self) -> None:
        """Handle an empty buffer."""
        self._paused = False
        self._poll()

    def _poll(self) -> None:
        if self._memory.reserved_bytes == 0:
            return
        buffered_bytes = self._buffered_bytes()
        self._memory.set_reserved(min(buffered_bytes, self._memory.reserved_bytes))
        if buffered_bytes and not self._paused:
            self._loop.call_later(_POLL_S, self._poll)
        elif not buffered_bytes:
            self._emptied()

    def _buffered_bytes(self) -> int:
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def is_stalled(self, for_s: float) -> bool:
        """Return whether the client has received nothing for that long.

        Must be called repeatedly.
        """
        size = self._buffered_bytes()
        # Any progress restarts the period.
        if size == 0 or size < self._last_unsent_bytes or not self._last_unsent_bytes:
            self._last_progress_s = self._loop.time()
        self._last_unsent_bytes = size
        return size > 0 and self._loop.time() - self._last_progress_s >= for_s
