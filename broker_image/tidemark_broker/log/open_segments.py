"""Cache of closed segments that stay open for readers, shared by all logs of a broker.

Each costs a descriptor and its offset index in memory (2 MiB for a full segment of 1 GiB), so one
limit applies to all logs. The least recently read segment is closed first.
"""

from contextlib import AbstractContextManager

from tidemark.lru import Lru
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.log.segment import Segment

#: Weight of a descriptor, in addition to the bytes of its index.
_DESCRIPTOR_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024 * 1024

LogLock = AbstractContextManager[bool]


class OpenSegments:
    """LRU of open segments, for any thread. A segment is closed only under the lock of its log."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._lock = ordered_lock(LockRank.OPEN_SEGMENTS)
        #: Segments, with the locks of their logs.
        self._kept: Lru[Segment, LogLock] = Lru(limit_bytes)

    @property
    def size_bytes(self) -> int:
        """Total weight of the cached segments."""
        return self._kept.weight

    def used(self, segment: Segment, log_lock: LogLock) -> None:
        """Add an open segment, or mark it as recently read."""
        with self._lock:
            if self._kept.get(segment) is None:
                self._kept.put(segment, log_lock, _DESCRIPTOR_BYTES + segment.index_bytes)

    def forget(self, segment: Segment) -> None:
        """Drop a segment that its log has closed."""
        with self._lock:
            self._kept.pop(segment)

    def trim(self) -> None:
        """Close what is above the limit. The caller holds no log's lock."""
        with self._lock:
            gone = self._kept.evict(least=1)
        for segment, log_lock in gone:
            # Lock order is log before cache, so the log's lock is taken after releasing the
            # cache's. A reader may have used the segment again in between.
            with log_lock:
                with self._lock:
                    used_again = segment in self._kept
                if not used_again:
                    segment.unload()
