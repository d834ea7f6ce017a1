"""Storage that is as slow as a test wants it to be; everything is handed to the real one.

``held``: a storage manager plugin (the seam of KIP-405) of whose calls one kind first waits until
the test lets it go. ``hung``: an object store of which no call returns before the test has ended
its hanging.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tier.manifest import ManifestStore
from tidemark.tier.objects import ObjectStore
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.remote_storage_manager import (
    NO_BUCKET,
    Copied,
    RemoteStorageManager,
    SegmentData,
)
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.topics import TopicCatalog


class HeldStorage(RemoteStorageManager):
    """``begun``: entries whose upload, read or deletion has begun."""

    def __init__(self, real: RemoteStorageManager, kind: str) -> None:
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
    """Block calls of one kind (uploads, reads or deletions); all continue at the end."""
    guard = host.remote._shared.guard
    tier = guard.tier()
    storage = HeldStorage(tier.segments, kind)
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
    """Block all calls of this host to its store; all return at the end."""
    guard = host.remote._shared.guard
    store = HungStore(guard.tier().store)
    manifests = ManifestStore(store)  # type: ignore[arg-type]
    topics = TopicCatalog(store)  # type: ignore[arg-type]
    before, guard._tier = (
        guard._tier,
        Tier(
            store,  # type: ignore[arg-type]
            manifests,
            RemoteStorageManager({NO_BUCKET: store}),  # type: ignore[dict-item]
            topics,
            TierReader(manifests, topics),
        ),
    )
    try:
        yield store
    finally:
        guard._tier = before
        store.release.set()
