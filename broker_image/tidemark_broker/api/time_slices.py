"""Time slices of a request, so that the loop serves other connections however many entries it has.

A handler that iterates over entries checks ``turns.over`` at each, and yields the loop if it is
true. If each entry becomes a task, a limited number is created at a time (:func:`some`).
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: A slice ends with the entry that exceeds it.
_SLICE_S = 0.005
#: Entries that become tasks at the same time.
_SOME = 250


class TimeSlices:
    """Time slices of one request on the event loop. ``now`` returns seconds.

    A handler that iterates over many entries uses it to let other requests run between them.
    """

    __slots__ = ("_now", "_until_s")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._until_s = now() + _SLICE_S

    @property
    def over(self) -> bool:
        """True if the slice is used up."""
        return self._now() > self._until_s

    async def give(self) -> None:
        """Let other requests run on the event loop, then start a new slice."""
        # One iteration is enough: the event loop runs everything that is ready before it returns.
        await asyncio.sleep(0)
        self._until_s = self._now() + _SLICE_S

    async def pause(self) -> None:
        """Let other requests run if the slice is used up."""
        if self.over:
            await self.give()

    async def all_of(self, making: Iterable[T]) -> list[T]:
        """Return the items as a list, letting other requests run between slices."""
        made = []
        for one in making:
            made.append(one)
            # Checked after each item, since one item may take long.
            if self.over:
                await self.give()
        return made


class InOrder:
    """Order of requests on one connection: a request starts after the previous ones have
    started, although they may yield while they start.
    """

    __slots__ = ("_is_first", "_lock")

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_first = False

    async def begin(self) -> None:
        """Wait until the previous requests have started."""
        # asyncio's lock is fair, which keeps the order of arrival.
        await self._lock.acquire()
        self._is_first = True

    def begun(self) -> None:
        """Let the next request start. May be called repeatedly."""
        if self._is_first:
            self._is_first = False
            self._lock.release()


def some(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the entries in parts."""
    return (entries[start : start + _SOME] for start in range(0, len(entries), _SOME))


def named_twice(keys: Sequence[K]) -> Set[K]:
    """Return the partitions that a request names several times, which Kafka answers
    INVALID_REQUEST.
    """
    # Nearly no request repeats a partition, so this path is kept short.
    if len(set(keys)) == len(keys):
        return frozenset()
    return {key for key, times in Counter(keys).items() if times > 1}
