"""Turns at something of which there is only so much: those who ask have theirs one after another.

Who asks for much waits only for itself: each one's own turns come in the order in which they were
asked for, the others' in between, and nobody has more than half of all there is.
"""

import asyncio
import collections
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

#: How much, and what is told that it has begun.
_Waiting = tuple[int, "asyncio.Future[None]"]


class FairTurns:
    """``budget``: how much there is, in what unit ever. Belongs to one loop."""

    def __init__(self, budget: int) -> None:
        self._budget = self._left = budget
        self._used: Counter[Hashable] = Counter()
        #: By who asks; whose turn is next stands first.
        self._waiting: dict[Hashable, collections.deque[_Waiting]] = {}

    @asynccontextmanager
    async def turn(self, size: int, who: Hashable) -> AsyncIterator[None]:
        """So much of it is taken meanwhile; at most half of all."""
        await self._wait(size, who)
        try:
            yield
        finally:
            self._give(size, who)

    async def _wait(self, size: int, who: Hashable) -> None:
        begun = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, collections.deque()).append((size, begun))
        self._begin_next()
        try:
            await begun
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled():
                self._give(size, who)
            else:
                self._forget(begun, who)
            raise

    def _forget(self, begun: "asyncio.Future[None]", who: Hashable) -> None:
        """It has not begun, and is not to."""
        waiting = self._waiting.get(who, collections.deque())
        left = collections.deque(each for each in waiting if each[1] is not begun)
        if left:
            self._waiting[who] = left
        else:
            self._waiting.pop(who, None)
        self._begin_next()

    def _give(self, size: int, who: Hashable) -> None:
        self._left += size
        self._used[who] -= size
        if not self._used[who]:
            del self._used[who]
        self._begin_next()

    def _begin_next(self) -> None:
        while (following := self._following()) is not None:
            who, (size, begun) = following
            if not begun.done():
                if size > self._left:
                    return  # nobody who needs less goes before it for ever
                self._left -= size
                self._used[who] += size
                begun.set_result(None)
            mine = self._waiting.pop(who)
            mine.popleft()
            if mine:  # the others' turn first
                self._waiting[who] = mine

    def _following(self) -> "tuple[Hashable, _Waiting] | None":
        for who, waiting in self._waiting.items():
            size, begun = waiting[0]
            if begun.done() or self._used[who] + size <= self._budget // 2:
                return who, waiting[0]
        return None
