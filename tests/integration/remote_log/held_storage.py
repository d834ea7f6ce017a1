"""A storage manager plugin (the seam of KIP-405) that is as slow as a test wants it to be.

It hands everything to the real one; each upload (or read) first waits until the test lets it go.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.storage import BucketStorageManager, Copied, SegmentData


class HeldStorage(BucketStorageManager):
    """``begun``: entries whose upload has begun."""

    def __init__(self, real: BucketStorageManager, *, reads: bool) -> None:
        super().__init__(real._buckets)
        self._reads = reads
        self.begun: list[SegmentEntry] = []
        self.release = threading.Event()

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        self.begun.append(entry)
        assert self._reads or self.release.wait(20)
        return super().copy_segment(entry, data)

    def fetch(self, entry: SegmentEntry, start: int, end_exclusive: int) -> bytes:
        assert not self._reads or self.release.wait(20)
        return super().fetch(entry, start, end_exclusive)


@contextmanager
def held(host: TieredHost, *, reads: bool = False) -> Iterator[HeldStorage]:
    """From now on uploads of this host wait, or reads; at the end all go on."""
    guard = host.remote._shared.guard
    tier = guard.tier()
    storage = HeldStorage(tier.segments, reads=reads)
    guard._tier = replace(tier, segments=storage)
    try:
        yield storage
    finally:
        storage.release.set()
