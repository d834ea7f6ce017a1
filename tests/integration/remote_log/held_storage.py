"""A storage manager plugin (the seam of KIP-405) that is as slow as a test wants it to be.

It hands everything to the real one; each call of one kind first waits until the test lets it go.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.storage import BucketStorageManager, Copied, SegmentData


class HeldStorage(BucketStorageManager):
    """``begun``: entries whose upload, read or deletion has begun."""

    def __init__(self, real: BucketStorageManager, kind: str) -> None:
        super().__init__(real._buckets)
        self._kind = kind
        self.begun: list[SegmentEntry] = []
        self.release = threading.Event()

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        self._hold("uploads", entry)
        return super().copy_segment(entry, data)

    def fetch(self, entry: SegmentEntry, start: int, end_exclusive: int) -> bytes:
        self._hold("reads", entry)
        return super().fetch(entry, start, end_exclusive)

    def delete(self, entries: Sequence[SegmentEntry]) -> None:
        self._hold("deletions", *entries)
        super().delete(entries)

    def _hold(self, kind: str, *entries: SegmentEntry) -> None:
        if kind == self._kind:
            self.begun.extend(entries)
            assert self.release.wait(20)


@contextmanager
def held(host: TieredHost, kind: str = "uploads") -> Iterator[HeldStorage]:
    """From now on calls of one kind wait (uploads, reads or deletions); at the end all go on."""
    guard = host.remote._shared.guard
    tier = guard.tier()
    storage = HeldStorage(tier.segments, kind)
    guard._tier = replace(tier, segments=storage)
    try:
        yield storage
    finally:
        storage.release.set()
