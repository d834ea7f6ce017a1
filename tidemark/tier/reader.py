"""Reading a tier without a broker: what Spark's driver and executors and the fetcher use.

A snapshot pins the head as it was (its version, log start and end); plans made from it name
segments whose objects stay for ``remote.delete.delay.ms`` after they are marked. Pages are
immutable and cached by name. A page that is gone means that the head has dropped it since: the head
is read again, and the new snapshot tells.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.tier import queries
from tidemark.tier.head import Head, HeadPosition
from tidemark.tier.manifest import LoadedHead, ManifestStore, PageCache, PageNotFound
from tidemark.tier.objects import Version
from tidemark.tier.queries import SegmentRange
from tidemark.tier.segment import SegmentEntry
from tidemark.tier.topics import TopicCatalog, TopicObject

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One partition as its head said at one moment."""

    head: Head
    version: Version
    pages: PageCache

    def plan(self, start_offset: int, until_offset: int) -> tuple[SegmentRange, ...]:
        """``queries.plan``: which segment answers which of the offsets [start, until)."""
        return queries.plan(self.head, self.pages, start_offset, until_offset)

    def find(self, offset: int) -> SegmentEntry | None:
        """``queries.find``: the segment that answers for one offset."""
        return queries.find(self.head, self.pages, offset)

    def live_segments(self) -> Iterator[SegmentEntry]:
        """Yield all segments that the tier serves, oldest first (``queries.live_segments``)."""
        return queries.live_segments(self.head, self.pages)

    def find_by_timestamp(self, timestamp_ms: int) -> SegmentEntry | None:
        """``queries.find_by_timestamp``."""
        return queries.find_by_timestamp(self.head, self.pages, timestamp_ms)

    def by_newest(self) -> Iterator[SegmentEntry]:
        """Yield live segments by largest timestamp, descending (``queries.by_newest``)."""
        return queries.by_newest(self.head, self.pages)

    def bytes_below(self, offset: int) -> int:
        """``queries.bytes_below``."""
        return queries.bytes_below(self.head, self.pages, offset)


class TierReader:
    """Reads manifests and topic objects of one store. Calls block; safe between threads."""

    def __init__(self, manifests: ManifestStore, topics: TopicCatalog) -> None:
        self._manifests = manifests
        self._topics = topics

    def snapshot(
        self, topic_id: uuid.UUID, partition: int, known: HeadPosition | None = None
    ) -> Snapshot:
        """Return the present partition. Raises HeadNotFound, HeadWentBack, StoreUnavailable."""
        return self._snapshot_of(self._manifests.load(topic_id, partition, known))

    def plan(
        self, topic_id: uuid.UUID, partition: int, start_offset: int, until_offset: int
    ) -> tuple[Snapshot, tuple[SegmentRange, ...]]:
        """A snapshot and a plan from it, read again where a page was dropped in between. Raises
        RemoteOffsetOutOfRange, and PageNotFound where the tier is damaged."""
        for _ in range(_ATTEMPTS - 1):
            snapshot = self.snapshot(topic_id, partition)
            try:
                return snapshot, snapshot.plan(start_offset, until_offset)
            except PageNotFound:
                continue
        snapshot = self.snapshot(topic_id, partition)
        return snapshot, snapshot.plan(start_offset, until_offset)

    def partitions(self, topic_id: uuid.UUID) -> tuple[int, ...]:
        """Partitions of a topic that have a manifest."""
        return self._manifests.partitions(topic_id)

    def find_topic(self, name: str) -> TopicObject:
        """Raises TopicNotFound, TopicAmbiguous."""
        return self._topics.find(name)

    def topic(self, topic_id: uuid.UUID) -> TopicObject:
        """Raises TopicNotFound."""
        return self._topics.get(topic_id)

    def _snapshot_of(self, loaded: LoadedHead) -> Snapshot:
        head = loaded.head
        pages = self._manifests.pages(head.topic_id, head.partition)
        return Snapshot(head, loaded.version, pages)
