"""When what is due: a heap of deadlines by key.

A member's session is put off with each of its heartbeats, so putting off must cost next to nothing:
a key that is due later than the heap has it stays where it is, and is put back when its turn comes.
Pure: whoever owns one hands in the time. Keys of several kinds must not equal each other (as tuples
would).
"""

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Entries of the heap that nothing stands for any more, before it is made anew.
_STALE_MIN = 64


class Deadlines(Generic[K]):
    """Times in seconds of whatever clock the owner uses. ``earlier``: told when something is due
    sooner than all else was."""

    __slots__ = ("_count", "_due", "_heap", "_queued", "earlier")

    def __init__(self, earlier: Callable[[], None] | None = None) -> None:
        self._due: dict[K, float] = {}
        #: When the heap's earliest entry of the key is.
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0
        self.earlier = earlier

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def schedule(self, key: K, at_s: float) -> None:
        """``key`` is due then, and not when it was until now."""
        self._due[key] = at_s
        queued_s = self._queued.get(key)
        if queued_s is None or at_s < queued_s:
            self._push(key, at_s)

    def cancel(self, key: K) -> None:
        """``key`` is not due any more, if it was."""
        if self._due.pop(key, None) is not None and (
            len(self._heap) > 2 * len(self._due) + _STALE_MIN
        ):
            self._make_anew()

    def next_s(self) -> float | None:
        """When something may be due; nothing is before."""
        while self._heap:
            at_s, _, key = self._heap[0]
            due_s = self._due.get(key)
            if due_s is not None and due_s <= at_s:
                return at_s
            self._pop()
            if due_s is not None and key not in self._queued:
                self._push(key, due_s, tell=False)
        return None

    def due(self, now_s: float, most: int) -> list[K]:
        """What is due by now, the earliest first, ``most`` of it; it is due no more."""
        found: list[K] = []
        while len(found) < most:
            next_s = self.next_s()
            if next_s is None or next_s > now_s:
                break
            key = self._pop()
            del self._due[key]
            found.append(key)
        return found

    def _push(self, key: K, at_s: float, *, tell: bool = True) -> None:
        is_first = not self._heap or at_s < self._heap[0][0]
        self._queued[key] = at_s
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, key))
        if is_first and tell and self.earlier is not None:
            self.earlier()

    def _pop(self) -> K:
        at_s, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) == at_s:
            del self._queued[key]
        return key

    def _make_anew(self) -> None:
        self._heap = [(at_s, number, key) for number, (key, at_s) in enumerate(self._due.items())]
        heapq.heapify(self._heap)
        self._queued = dict(self._due)
        self._count = len(self._heap)
