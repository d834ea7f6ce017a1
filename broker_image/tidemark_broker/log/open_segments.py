"""Closed segments that are kept open for readers, of all logs of a broker together.

Each costs a descriptor and its offset index in memory (2 MiB for a full segment of 1 GiB), so what
is kept has one limit however many logs there are; what was not read for longest goes first.
"""

from contextlib import AbstractContextManager

from tidemark.lru import Lru
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.log.segment import Segment

#: What a descriptor counts for, beside the bytes of its index.
_DESCRIPTOR_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024 * 1024

LogLock = AbstractContextManager[bool]


class OpenSegments:
    """Any thread; a segment is only closed under the lock of its log."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._lock = ordered_lock(LockRank.OPEN_SEGMENTS)
        #: Each with its log's lock.
        self._kept: Lru[Segment, LogLock] = Lru(limit_bytes)

    @property
    def size_bytes(self) -> int:
        """What all that are kept count for."""
        return self._kept.weight

    def used(self, segment: Segment, log_lock: LogLock) -> None:
        """It is open and was read just now."""
        with self._lock:
            if self._kept.get(segment) is None:
                self._kept.put(segment, log_lock, _DESCRIPTOR_BYTES + segment.index_bytes)

    def forget(self, segment: Segment) -> None:
        """Its log has closed it."""
        with self._lock:
            self._kept.pop(segment)

    def trim(self) -> None:
        """Close what is above the limit. The caller holds no log's lock."""
        with self._lock:
            gone = self._kept.evict(least=1)
        for segment, log_lock in gone:
            with log_lock:
                with self._lock:
                    used_again = segment in self._kept
                if not used_again:
                    segment.unload()
