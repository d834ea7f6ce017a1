"""Answers that were written to a connection and that its client has not taken yet.

They are memory of the broker's for as long as they wait in the socket's buffer, which tells its
size only when asked: it is asked again and again while something is there.
"""

import asyncio
from collections.abc import Callable

from tidemark_broker.response_memory import AnswerMemory

#: Smaller answers are not followed on their way out.
_FOLLOWED_BYTES = 4096
#: How often is looked what of the others has been sent.
_SETTLE_S = 0.02


class Unsent:
    """Of one connection. ``emptied`` is called once all of it is sent."""

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
        """As of the last look."""
        return self._memory.held_bytes

    def add(self, answer: AnswerMemory) -> None:
        """An answer was written: what it held is held until it is sent."""
        size = answer.held_bytes
        answer.hold(0)
        if size > _FOLLOWED_BYTES and self.transport is not None:
            is_followed = self._memory.held_bytes > 0
            self._memory.hold(self._memory.held_bytes + size)
            if not is_followed:
                self._loop.call_later(_SETTLE_S, self._settle)

    def forget(self) -> None:
        """The connection is gone."""
        self.transport = None
        self._memory.hold(0)

    def pause(self) -> None:
        """The buffer is full: the transport tells when it is empty again."""
        self._paused = True

    def resume(self) -> None:
        """The buffer is empty."""
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

    def takes_nothing(self, for_s: float) -> bool:
        """Has it answers to take, and has it taken none for so long? To be asked again and
        again."""
        left = self._left()
        if left == 0 or left < self._not_taken_bytes or not self._not_taken_bytes:
            self._taken_s = self._loop.time()
        self._not_taken_bytes = left
        return left > 0 and self._loop.time() - self._taken_s >= for_s
