"""Parts of a tier that readers of records use, and the tier of a read.

The tier is Tidemark's own, or that of Apache Kafka's plug-in by Aiven.
"""

import uuid
from typing import Protocol

from tidemark.tier.metadata.queries import SegmentRange
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import open_tier
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.frames import Frames
from tidemark.tier.segments.integrity import BatchLine
from tidemark.tier.stores.config import RemoteStorage
from tidemark_pipeline.aiven.layout import AivenLayout
from tidemark_pipeline.aiven.tier import AivenTier


class PartitionReader(Protocol):
    """Topics and partitions; :class:`~tidemark.tier.reader.TierReader` describes the methods."""

    def find_topic(self, name: str) -> TopicObject: ...
    def topic(self, topic_id: uuid.UUID) -> TopicObject: ...
    def snapshot(self, topic_id: uuid.UUID, partition: int) -> Snapshot: ...
    def plan(
        self, topic_id: uuid.UUID, partition: int, start_offset: int, until_offset: int
    ) -> tuple[Snapshot, tuple[SegmentRange, ...]]: ...
    def expired_below(self, topic_id: uuid.UUID, partition: int) -> int | None: ...


class SegmentFetcher(Protocol):
    """Bytes of segments; RemoteStorageManager describes the methods."""

    def reads_parts(self, entry: SegmentEntry) -> bool: ...
    def batch_line(self, entry: SegmentEntry, expected: int | None = None) -> BatchLine: ...
    def fetch(
        self, entry: SegmentEntry, start: int, end_exclusive: int, frames: Frames | None = None
    ) -> bytes: ...
    def fetch_aux(self, entry: SegmentEntry) -> Aux: ...
    def describe(self, entry: SegmentEntry) -> str: ...


class ReadableTier(Protocol):
    """Tier whose records can be read."""

    @property
    def reader(self) -> PartitionReader: ...
    @property
    def segments(self) -> SegmentFetcher: ...
    def topic_names(self) -> set[str]: ...


def open_readable(config: RemoteStorage, layout: AivenLayout | None) -> ReadableTier:
    """Return the tier of a read. ``layout``: None for Tidemark's own."""
    return open_tier(config) if layout is None else AivenTier(config, layout)
