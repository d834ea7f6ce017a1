"""Storage that is as slow as a test wants it to be; everything is handed to the real one.

``held``: a storage manager plugin (the seam of KIP-405) whose uploads (or reads) first wait until
the test lets them go. ``hung``: an object store of which no call returns before the test has ended
its hanging.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tier.manifest import ManifestStore
from tidemark.tier.objects import ObjectStore
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.storage import NO_BUCKET, BucketStorageManager, Copied, SegmentData
from tidemark.tier.topics import TopicCatalog


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


class HungStore:
    """``begun``: names of the calls that hang, or hung."""

    def __init__(self, real: ObjectStore) -> None:
        self._real = real
        self.begun: list[str] = []
        self.release = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._real, name)

        def late(*args: Any) -> Any:
            self.begun.append(name)
            assert self.release.wait(60)
            return call(*args)

        return late


@contextmanager
def hung(host: TieredHost) -> Iterator[HungStore]:
    """From now on nothing that this host asks of its store returns; at the end all does."""
    guard = host.remote._shared.guard
    store = HungStore(guard.tier().store)
    manifests = ManifestStore(store)  # type: ignore[arg-type]
    topics = TopicCatalog(store)  # type: ignore[arg-type]
    before, guard._tier = (
        guard._tier,
        Tier(
            store,  # type: ignore[arg-type]
            manifests,
            BucketStorageManager({NO_BUCKET: store}),  # type: ignore[dict-item]
            topics,
            TierReader(manifests, topics),
        ),
    )
    try:
        yield store
    finally:
        guard._tier = before
        store.release.set()
