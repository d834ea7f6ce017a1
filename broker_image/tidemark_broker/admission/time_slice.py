"""Time slices of a request, so that the loop serves other connections however many entries it has.

A handler that iterates over entries checks ``call.time_slice.is_over`` at each, and yields the loop
if it is true. If each entry becomes a task, a limited number is created at a time
(:func:`in_parts`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: A slice ends with the entry that exceeds it.
_SLICE_S = 0.005
#: Entries that become tasks at the same time.
_PART_ENTRIES = 250


class TimeSlice:
    """Current time slice of one request on the event loop. ``now`` returns seconds."""

    __slots__ = ("_now", "_until_s")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._until_s = now() + _SLICE_S

    @property
    def is_over(self) -> bool:
        """True if the slice is used up."""
        return self._now() > self._until_s

    async def renew(self) -> None:
        """Let other requests run on the event loop, then start a new slice."""
        # One iteration is enough: the event loop runs everything that is ready before it returns.
        await asyncio.sleep(0)
        self._until_s = self._now() + _SLICE_S

    async def renew_if_over(self) -> None:
        """Let other requests run if the slice is used up."""
        if self.is_over:
            await self.renew()

    async def collect(self, items: Iterable[T]) -> list[T]:
        """Return the items as a list, letting other requests run between slices."""
        collected = []
        for item in items:
            collected.append(item)
            # Checked after each item, since one item may take long.
            if self.is_over:
                await self.renew()
        return collected


def in_parts(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the entries in parts of limited size."""
    return (
        entries[start : start + _PART_ENTRIES] for start in range(0, len(entries), _PART_ENTRIES)
    )
