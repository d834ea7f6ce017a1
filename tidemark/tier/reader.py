"""Reader of a tier without brokers, for Spark's driver and executors and the fetcher.

A snapshot fixes one state of the head (its version, log start and end). Its plans name segments
whose objects stay for ``remote.delete.delay.ms`` after they are marked. Pages are immutable and
cached by name. A missing page means that the head has dropped it since: the head is read again for
a new snapshot.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.tier.metadata import queries
from tidemark.tier.metadata.head import Head, HeadPosition
from tidemark.tier.metadata.manifest import LoadedHead, ManifestStore, PageCache, PageNotFound
from tidemark.tier.metadata.queries import Pages, SegmentRange
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicCatalog, TopicObject
from tidemark.tier.stores.objects import Version

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of one partition by one version of its head."""

    head: Head
    version: Version
    pages: Pages

    def plan(self, start_offset: int, until_offset: int) -> tuple[SegmentRange, ...]:
        """Return the segments that answer the offsets [start, until) (``queries.plan``)."""
        return queries.plan(self.head, self.pages, start_offset, until_offset)

    def iter_plan(self, start_offset: int, until_offset: int) -> Iterator[SegmentRange]:
        """Yield the same one by one (``queries.iter_plan``)."""
        return queries.iter_plan(self.head, self.pages, start_offset, until_offset)

    def sizes(self, start_offset: int, until_offset: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first offset, exclusive end, log bytes) of ranges (``queries.sizes``)."""
        return queries.sizes(self.head, self.pages, start_offset, until_offset)

    def find(self, offset: int) -> SegmentEntry | None:
        """Return the segment that serves one offset, or None (``queries.find``)."""
        return queries.find(self.head, self.pages, offset)

    def find_cached(self, offset: int) -> SegmentEntry | None:
        """Return what :meth:`find` does, or raise NotInMemory instead of loading a page."""
        pages = self.pages
        return queries.find(
            self.head, pages.without_loads() if isinstance(pages, PageCache) else pages, offset
        )

    def live_segments(self) -> Iterator[SegmentEntry]:
        """Yield all segments that the tier serves, oldest first (``queries.live_segments``)."""
        return queries.live_segments(self.head, self.pages)

    def find_by_timestamp(self, timestamp_ms: int) -> SegmentEntry | None:
        """Return the first segment with a record of this time or later
        (``queries.find_by_timestamp``).
        """
        return queries.find_by_timestamp(self.head, self.pages, timestamp_ms)

    def by_newest(self) -> Iterator[SegmentEntry]:
        """Yield live segments by largest timestamp, descending (``queries.by_newest``)."""
        return queries.by_newest(self.head, self.pages)

    def bytes_below(self, offset: int) -> int:
        """Return the log bytes of live segments below an offset (``queries.bytes_below``)."""
        return queries.bytes_below(self.head, self.pages, offset)


class TierReader:
    """Reader of manifests and topic objects of one store. Calls block; thread-safe."""

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
        """Return a snapshot of the manifest and the segments that serve the offsets, from it.

        Reads again if a page was dropped in between. Raises TierOffsetOutOfRange, and
        PageNotFound if the tier is damaged.
        """
        for _ in range(_ATTEMPTS - 1):
            snapshot = self.snapshot(topic_id, partition)
            try:
                return snapshot, snapshot.plan(start_offset, until_offset)
            # A commit dropped the page after the head was read: the next head does not name it.
            except PageNotFound:
                continue
        # The last attempt raises: a page that is still named and missing is damage.
        snapshot = self.snapshot(topic_id, partition)
        return snapshot, snapshot.plan(start_offset, until_offset)

    def expired_below(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """Return the offset below which missing objects have expired, None for a deleted topic."""
        head = self.snapshot(topic_id, partition).head
        return head.log_start_offset if head.deleted_at_ms is None else None

    def partitions(self, topic_id: uuid.UUID) -> tuple[int, ...]:
        """Return the partitions of a topic that have a manifest."""
        return self._manifests.partitions(topic_id)

    def find_topic(self, name: str) -> TopicObject:
        """Return the topic of this name. Raises TopicNotFound, TopicAmbiguous."""
        return self._topics.find(name)

    def topic(self, topic_id: uuid.UUID) -> TopicObject:
        """Return the topic of this id. Raises TopicNotFound."""
        return self._topics.get(topic_id)

    def _snapshot_of(self, loaded: LoadedHead) -> Snapshot:
        head = loaded.head
        pages = self._manifests.pages(head.topic_id, head.partition)
        return Snapshot(head, loaded.version, pages)
