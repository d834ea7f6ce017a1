"""Decisions of the S3-FIFO cache algorithm (Yang et al., SOSP 2023), without the cached data.

New entries join a small queue of a tenth of the cache. An entry that is used more than once there
moves to the main queue; others leave the cache, and only their keys remain in the ghost queue for a
while. A key that returns within that time joins the main queue at once. A scan therefore passes
through the small queue, and entries that several readers use stay in the main queue.

One addition: uses in quick succession count as one. A consumer that scans reads each chunk in a few
requests, which would otherwise look like several readers.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: Share of the small queue. The paper found a tenth to suit all of its traces.
_SMALL_SHARE = 0.1
#: Uses in the small queue that move an entry to the main queue.
_PROMOTION_USES = 2
#: Uses within this time of the last counted one, or of the arrival, do not count.
_SAME_USE_S = 10.0
#: Counted uses of an entry. A small maximum lets entries age that were used a lot once.
_USES_MAX = 3


@dataclass(slots=True)
class _FifoQueue(Generic[K]):
    """Keys in the order of their arrival, with their size in bytes, and the sum of the sizes."""

    keys: OrderedDict[K, int] = field(default_factory=OrderedDict)
    size_bytes: int = 0

    def push(self, key: K, size_bytes: int) -> None:
        self.keys[key] = size_bytes
        self.size_bytes += size_bytes

    def pop(self) -> tuple[K, int]:
        key, size_bytes = self.keys.popitem(last=False)
        self.size_bytes -= size_bytes
        return key, size_bytes

    def remove(self, key: K) -> int | None:
        size_bytes = self.keys.pop(key, None)
        self.size_bytes -= size_bytes or 0
        return size_bytes

    def exceeds(self, limit_bytes: float, limit_entries: float) -> bool:
        return self.size_bytes > limit_bytes or len(self.keys) > limit_entries


@dataclass(slots=True)
class QueueChanges(Generic[K]):
    """Entries that moved to the main queue, and then entries that left the cache.

    Each has its size in bytes. An evicted entry also says whether it left the main queue, possibly
    just after its promotion.
    """

    promoted: list[tuple[K, int]] = field(default_factory=list)
    evicted: list[tuple[K, int, bool]] = field(default_factory=list)


class S3Fifo(Generic[K]):
    """Queues of keys with a limit in bytes and in entries. Not thread-safe."""

    def __init__(self, limit_bytes: int, limit_entries: int) -> None:
        self._limit_bytes = limit_bytes
        self._limit_entries = limit_entries
        self._small: _FifoQueue[K] = _FifoQueue()
        self._main: _FifoQueue[K] = _FifoQueue()
        self._ghosts: _FifoQueue[K] = _FifoQueue()
        #: Counted uses of each entry since it joined its queue, and the time of the last one.
        self._uses: dict[K, tuple[int, float]] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries."""
        return self._small.size_bytes + self._main.size_bytes

    def __len__(self) -> int:
        return len(self._small.keys) + len(self._main.keys)

    def __iter__(self) -> Iterator[K]:
        yield from self._small.keys
        yield from self._main.keys

    def size_of(self, key: K) -> int | None:
        """Return the size of an entry in bytes, None if there is no such entry."""
        return self._small.keys.get(key) or self._main.keys.get(key)

    def is_main(self, key: K) -> bool:
        """Return whether the entry is in the main queue."""
        return key in self._main.keys

    def use(self, key: K, now_s: float) -> None:
        """Count a use of an entry, unless another one has just been counted."""
        uses, last_s = self._uses[key]
        if now_s - last_s >= _SAME_USE_S:
            self._uses[key] = min(uses + 1, _USES_MAX), now_s

    def unused_since(self, time_s: float) -> list[K]:
        """Return the entries that were neither added nor used since that time."""
        return [key for key, (_, last_s) in self._uses.items() if last_s < time_s]

    def add(self, key: K, size_bytes: int, now_s: float, *, main: bool = False) -> QueueChanges[K]:
        """Add a new entry, and evict others until it fits.

        ``size_bytes`` is from 1 to the limit. ``main``: add it to the main queue, as it was before
        a restart. An entry whose key is in the ghost queue is added there, too.
        """
        # The evictions below may drop the key from the ghost queue, so it is read first.
        main = self._ghosts.remove(key) is not None or main
        changes = self._evict(self._limit_bytes - size_bytes, self._limit_entries - 1)
        (self._main if main else self._small).push(key, size_bytes)
        self._uses[key] = 0, now_s
        return changes

    def remove(self, key: K) -> int | None:
        """Remove an entry for another reason than space; return its size, None without one."""
        self._uses.pop(key, None)
        small = self._small.remove(key)
        return self._main.remove(key) if small is None else small

    def shrink(self, size_bytes: int) -> QueueChanges[K]:
        """Evict entries of at least this total size, or all."""
        return self._evict(self.size_bytes - size_bytes, self._limit_entries)

    def _evict(self, limit_bytes: int, limit_entries: int) -> QueueChanges[K]:
        """Evict entries until the rest is within these limits."""
        changes: QueueChanges[K] = QueueChanges()
        while len(self) and (self.size_bytes > limit_bytes or len(self) > limit_entries):
            # The main queue gives way only to a small queue within its share.
            if not self._main.keys or self._small.exceeds(
                self._limit_bytes * _SMALL_SHARE, self._limit_entries * _SMALL_SHARE
            ):
                self._evict_small(changes)
            else:
                self._evict_main(changes)
        return changes

    def _evict_small(self, changes: QueueChanges[K]) -> None:
        """Let the oldest entry leave the small queue, for the main queue or the ghost queue."""
        key, size_bytes = self._small.pop()
        uses, last_s = self._uses.pop(key)
        if uses >= _PROMOTION_USES:
            self._main.push(key, size_bytes)
            self._uses[key] = 0, last_s
            changes.promoted.append((key, size_bytes))
            return
        changes.evicted.append((key, size_bytes, False))
        # The ghost queue remembers as many bytes and entries as the main queue can have.
        self._ghosts.push(key, size_bytes)
        share = 1 - _SMALL_SHARE
        while self._ghosts.exceeds(self._limit_bytes * share, self._limit_entries * share):
            self._ghosts.pop()

    def _evict_main(self, changes: QueueChanges[K]) -> None:
        """Let the oldest entry leave the main queue; one that was used joins it again."""
        key, size_bytes = self._main.pop()
        uses, last_s = self._uses.pop(key)
        if not uses:
            changes.evicted.append((key, size_bytes, True))
            return
        # Each round costs one use, so the loop ends.
        self._main.push(key, size_bytes)
        self._uses[key] = uses - 1, last_s
