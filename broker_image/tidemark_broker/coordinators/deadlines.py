"""Deadlines by key in a heap.

A member's session is postponed with each heartbeat, so postponing must be cheap. A postponed key
stays in the heap at its old time, and is inserted again when that time comes. Pure: the owner
passes the time. Keys of different kinds must not be equal (as tuples could be).
"""

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Number of stale heap entries that is tolerated before the heap is rebuilt.
_STALE_MIN = 64


class Deadlines(Generic[K]):
    """Deadlines in seconds of the owner's clock.

    ``earlier`` is called when a new deadline is the earliest.
    """

    __slots__ = ("_count", "_due", "_heap", "_queued", "earlier")

    def __init__(self, earlier: Callable[[], None] | None = None) -> None:
        self._due: dict[K, float] = {}
        #: Time of the key's earliest heap entry.
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self.earlier = earlier

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def schedule(self, key: K, at_s: float) -> None:
        """Set the deadline of ``key``, replacing an earlier one."""
        self._due[key] = at_s
        queued_s = self._queued.get(key)
        # A later deadline needs no heap operation: the queued entry is corrected when it is due.
        if queued_s is None or at_s < queued_s:
            self._push(key, at_s)

    def cancel(self, key: K) -> None:
        """Remove the deadline of ``key``, if it has one."""
        # Cancelled entries stay in the heap until they are too many.
        if self._due.pop(key, None) is not None and (
            len(self._heap) > 2 * len(self._due) + _STALE_MIN
        ):
            self._rebuild()

    def next_s(self) -> float | None:
        """Return the earliest time at which a deadline may expire, None without deadlines."""
        while self._heap:
            at_s, _, key = self._heap[0]
            due_s = self._due.get(key)
            if due_s is not None and due_s <= at_s:
                return at_s
            self._pop()
            # The entry was stale. Its key may have a later deadline that is not in the heap yet.
            if due_s is not None and key not in self._queued:
                self._push(key, due_s, notify=False)
        return None

    def due(self, now_s: float, most: int) -> list[K]:
        """Remove and return at most ``most`` expired keys, earliest first."""
        found: list[K] = []
        while len(found) < most:
            next_s = self.next_s()
            if next_s is None or next_s > now_s:
                break
            key = self._pop()
            del self._due[key]
            found.append(key)
        return found

    def _push(self, key: K, at_s: float, *, notify: bool = True) -> None:
        is_first = not self._heap or at_s < self._heap[0][0]
        self._queued[key] = at_s
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, key))
        if is_first and notify and self.earlier is not None:
            self.earlier()

    def _pop(self) -> K:
        at_s, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) == at_s:
            del self._queued[key]
        return key

    def _rebuild(self) -> None:
        self._heap = [(at_s, number, key) for number, (key, at_s) in enumerate(self._due.items())]
        heapq.heapify(self._heap)
        self._queued = dict(self._due)
        self._count = len(self._heap)
