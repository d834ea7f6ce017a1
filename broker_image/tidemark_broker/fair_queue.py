"""Fair turns at a limited resource, such as bytes or slots.

A turn is the right to use a part of the resource for some time. A client with large requests delays
only itself. Turns of one client start in the order of its requests, interleaved with the turns of
other clients, and no client holds more than half of the budget.
"""

import asyncio
import collections
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

#: Size of a waiting turn, and the future that resolves when it starts.
_Waiting = tuple[int, "asyncio.Future[None]"]


class FairTurns:
    """Turns at a ``budget`` of any unit. Used from one event loop only."""

    def __init__(self, budget: int) -> None:
        self._budget = self._left = budget
        self._used: Counter[Hashable] = Counter()
        #: Waiting turns by client. The client whose turn is next is first.
        self._waiting: dict[Hashable, collections.deque[_Waiting]] = {}

    @asynccontextmanager
    async def turn(self, size: int, who: Hashable) -> AsyncIterator[None]:
        """Take ``size`` of the budget for the duration of the context, at most half of it."""
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
            # The turn may have started just before the cancellation, and then holds its share.
            if begun.done() and not begun.cancelled():
                self._give(size, who)
            else:
                self._forget(begun, who)
            raise

    def _forget(self, begun: "asyncio.Future[None]", who: Hashable) -> None:
        """Remove a turn that has not started from the queue."""
        waiting = self._waiting.get(who, collections.deque())
        left = collections.deque(turn for turn in waiting if turn[1] is not begun)
        if left:
            self._waiting[who] = left
        else:
            self._waiting.pop(who, None)
        # Larger requests of other clients may have been blocked behind the removed one.
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
                    return  # smaller requests must not overtake it for ever
                self._left -= size
                self._used[who] += size
                begun.set_result(None)
            queue = self._waiting.pop(who)
            queue.popleft()
            if queue:  # back to the end, so that other clients come first
                self._waiting[who] = queue

    def _following(self) -> "tuple[Hashable, _Waiting] | None":
        for who, waiting in self._waiting.items():
            size, begun = waiting[0]
            # A client above half of the budget is skipped until it returns some.
            if begun.done() or self._used[who] + size <= self._budget // 2:
                return who, waiting[0]
        return None
