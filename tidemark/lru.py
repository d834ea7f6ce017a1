"""Least-recently-used map with a limit on the total weight of its values.

The caller decides when to evict, because evicted values may have to be closed under a lock of the
caller's.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Map whose values are never None. Not thread-safe."""

    __slots__ = ("_entries", "limit", "weight")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Return the value and mark it as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Add or replace the value; call :meth:`evict` afterwards."""
        self.pop(key)
        self._entries[key] = value, weight
        self.weight += weight

    def pop(self, key: K) -> V | None:
        """Remove and return the value, None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.weight -= entry[1]
        return entry[0]

    def evict(self, *, least: int = 0) -> list[tuple[K, V]]:
        """Remove and return the values above the limit; keep ``least`` values, whatever their
        weight.
        """
        evicted = []
        # Oldest first, until the weight is within the limit.
        while self.weight > self.limit and len(self._entries) > least:
            key, (value, weight) = self._entries.popitem(last=False)
            self.weight -= weight
            evicted.append((key, value))
        return evicted
