"""A request's work in slices: others get the loop in between, however many entries it names.

A handler that goes through entries looks at ``turns.over`` with each, and gives the loop away where
it is. Where each entry becomes a task of its own, so many at a time are made (:func:`some`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: A slice ends with the entry that goes beyond it.
_SLICE_S = 0.005
#: Entries that become tasks at once.
_SOME = 250


class Turns:
    """Of one request. ``now`` in seconds."""

    __slots__ = ("_now", "_until_s")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._until_s = now() + _SLICE_S

    @property
    def over(self) -> bool:
        """Is it somebody else's turn?"""
        return self._now() > self._until_s

    async def give(self) -> None:
        """Let others have theirs."""
        await asyncio.sleep(0)
        self._until_s = self._now() + _SLICE_S

    async def pause(self) -> None:
        """Let others have theirs, where it is."""
        if self.over:
            await self.give()

    async def all_of(self, making: Iterable[T]) -> list[T]:
        """Make them, some in each slice."""
        made = []
        for one in making:
            made.append(one)
            if self.over:
                await self.give()
        return made


class InOrder:
    """A request that is begun only when those before it on its connection are, though each of them
    may let others have their turn on the way."""

    __slots__ = ("_is_first", "_lock")

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_first = False

    async def begin(self) -> None:
        """Wait for those before it."""
        await self._lock.acquire()
        self._is_first = True

    def begun(self) -> None:
        """The next one may begin; may be said again."""
        if self._is_first:
            self._is_first = False
            self._lock.release()


def some(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """All of them, so many at a time."""
    return (entries[start : start + _SOME] for start in range(0, len(entries), _SOME))


def named_twice(keys: Sequence[K]) -> Set[K]:
    """Partitions that one request names several times: Kafka answers INVALID_REQUEST for each."""
    if len(set(keys)) == len(keys):
        return frozenset()
    return {key for key, times in Counter(keys).items() if times > 1}
