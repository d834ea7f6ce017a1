"""Time slices of a request, so that the loop serves other connections however many entries it has.

A handler that iterates over entries checks ``call.time_slice.is_over`` at each, and yields the loop
if it is true. If each entry becomes a task, a limited number is created at a time
(:func:`in_parts`). Many requests with one long step each take turns (:class:`ReadTurns`).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: A slice ends with the entry that exceeds it.
_SLICE_S = 0.005
#: Entries that become tasks at the same time.
_PART_ENTRIES = 250
#: Half of what most consumers request of a partition: less than 0.5 ms of reading and writing.
_TURN_BYTES = 512 * 1024


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


class ReadTurns:
    """Turns of Fetches whose records are in memory: one large read in an iteration of the loop.

    Many consumers often become ready in the same iteration. If all were served in it, a small
    Produce that arrives meanwhile would wait for megabytes of reads. Small reads share a turn, so
    consumers at the end of their logs wait only behind large reads. Used from one event loop only.
    """

    __slots__ = ("_is_renewal_due", "_left_bytes", "_waiting")

    def __init__(self) -> None:
        self._left_bytes = _TURN_BYTES
        #: Requests in the order of their arrival; at most one for each connection.
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_renewal_due = False

    async def take(self) -> None:
        """Wait until this iteration of the loop has room for a read."""
        if self._left_bytes <= 0 or self._waiting:
            admitted = asyncio.get_running_loop().create_future()
            self._waiting.append(admitted)
            await admitted

    def use(self, read_bytes: int) -> None:
        """Count the records of a read. The last one of a turn may exceed it."""
        self._left_bytes -= read_bytes
        if self._left_bytes <= 0 and not self._is_renewal_due:
            self._renew_soon()

    def _renew_soon(self) -> None:
        # Before the next iteration the event loop receives what has arrived meanwhile.
        self._is_renewal_due = True
        asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._left_bytes, self._is_renewal_due = _TURN_BYTES, False
        while self._waiting:
            admitted = self._waiting.popleft()
            # A request whose client has disconnected is done already.
            if not admitted.done():
                admitted.set_result(None)
                break
        # The admitted request takes the turn, even if it reads little.
        if self._waiting:
            self._renew_soon()


def in_parts(entries: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the entries in parts of limited size."""
    return (
        entries[start : start + _PART_ENTRIES] for start in range(0, len(entries), _PART_ENTRIES)
    )
