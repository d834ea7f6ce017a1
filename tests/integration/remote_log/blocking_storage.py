"""Remote storage that blocks until the test releases it; every call then reaches the real one.

``blocking``: a storage manager plugin (KIP-405) in which one kind of call waits until the test
releases it. ``hung``: an object store of which no call returns before the test has ended
its hanging.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.records.batch import Buffer
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.remote_storage_manager import (
    Copied,
    RemoteStorageManager,
    SegmentData,
)
from tidemark.tier.stores.objects import NO_BUCKET, NotInMemory, ObjectStore


class BlockingStorage(RemoteStorageManager):
    """``begun``: entries whose upload, read or deletion has begun."""

    def __init__(self, real: RemoteStorageManager, kind: str) -> None:
        super().__init__(real.stores, real.keys)
        self._kind = kind
        self.begun: list[SegmentEntry] = []
        self.release = threading.Event()

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        self._block("uploads", entry)
        return super().copy_segment(entry, data)

    def fetch_stored(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]], frames: Frames | None
    ) -> Sequence[Buffer]:
        self._block("reads", entry)
        return super().fetch_stored(entry, bounds, frames)

    def fetch_cached(
        self, entry: SegmentEntry, bounds: Sequence[tuple[int, int]]
    ) -> Sequence[bytes]:
        # Nothing is in the page cache if reads wait.
        if self._kind == "reads":
            raise NotInMemory
        return super().fetch_cached(entry, bounds)

    def delete(self, entries: Sequence[SegmentEntry]) -> None:
        self._block("deletions", *entries)
        super().delete(entries)

    def _block(self, kind: str, *entries: SegmentEntry) -> None:
        if kind == self._kind:
            self.begun.extend(entries)
            # 20 s: longer than any wait of a test, so that a test that forgets the release fails
            # here.
            assert self.release.wait(20)


@contextmanager
def blocking(host: TieredHost, kind: str = "uploads") -> Iterator[BlockingStorage]:
    """Block calls of one kind (uploads, reads or deletions); all continue at the end."""
    # The plugin is replaced below the guard, where it is shared by copier, reader and expiration.
    guard = host.remote._shared.guard
    tier = guard.tier()
    storage = BlockingStorage(tier.segments, kind)
    guard._tier = replace(tier, segments=storage)
    try:
        yield storage
    finally:
        # Release even after a failure: closing the host waits for the threads that are blocked
        # here.
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
    # Everything that reaches the store is rebuilt on the hanging one: manifests, topics, segments.
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
        # Restore first, so that calls that begin from now on reach the real store.
        guard._tier = before
        store.release.set()
