"""Closed segments that are kept open for readers, of all logs of a broker together.

Each costs a descriptor and its offset index in memory (2 MiB for a full segment of 1 GiB), so what
is kept has one limit however many logs there are; what was not read for longest goes first.
"""

import threading
from collections import OrderedDict
from contextlib import AbstractContextManager

from tidemark_broker.log.segment import Segment

#: What a descriptor counts for, beside the bytes of its index.
_DESCRIPTOR_BYTES = 32 * 1024
LIMIT_BYTES = 64 * 1024 * 1024

LogLock = AbstractContextManager[bool]


class OpenSegments:
    """Any thread; a segment is only closed under the lock of its log."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        #: By the time they were read last, each with its log's lock and what it counts for.
        self._kept: OrderedDict[Segment, tuple[LogLock, int]] = OrderedDict()
        self.size_bytes = 0

    def used(self, segment: Segment, log_lock: LogLock) -> None:
        """It is open and was read just now."""
        with self._lock:
            if segment in self._kept:
                self._kept.move_to_end(segment)
                return
            size = _DESCRIPTOR_BYTES + segment.index_bytes
            self._kept[segment] = log_lock, size
            self.size_bytes += size

    def forget(self, segment: Segment) -> None:
        """Its log has closed it."""
        with self._lock:
            self._drop(segment)

    def trim(self) -> None:
        """Close what is above the limit. The caller holds no log's lock."""
        for segment, log_lock in self._too_many():
            with log_lock:
                with self._lock:
                    used_again = segment in self._kept
                if not used_again:
                    segment.unload()

    def _too_many(self) -> list[tuple[Segment, LogLock]]:
        victims = []
        with self._lock:
            while self.size_bytes > self._limit_bytes and len(self._kept) > 1:
                segment, (log_lock, _) = next(iter(self._kept.items()))
                self._drop(segment)
                victims.append((segment, log_lock))
        return victims

    def _drop(self, segment: Segment) -> None:
        kept = self._kept.pop(segment, None)
        if kept is not None:
            self.size_bytes -= kept[1]
