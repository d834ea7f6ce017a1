"""Merge of small segments in the tier: COPY_STARTED, upload, then one commit that replaces them.

The order is that of a copy (``copier``). Until the last commit readers use the old segments, and
after it the merged one. The objects of the old ones are deleted like those of any marked segment,
after ``remote.delete.delay.ms``. A crash before the last commit leaves the entry in COPY_STARTED,
which the next claim or the next merge marks.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace

from tidemark.metrics import tier_table
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Head
from tidemark.tier.metadata.merging import MergeLimits, merge_limits, merged_segment, next_merge
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.open import Tier
from tidemark.tier.segments.merged_segment import MergedSegment
from tidemark.tier.segments.remote_storage_manager import Copied
from tidemark.tier.segments.segment_origin import encode_origin
from tidemark_broker.log import LogConfig
from tidemark_broker.remote_log.copier import Copier
from tidemark_broker.remote_log.head_writer import HeadWriter

logger = logging.getLogger(__name__)


class Merger:
    """Merges of one leader's term."""

    def __init__(self, writer: HeadWriter, copier: Copier) -> None:
        self._writer = writer
        self._copier = copier
        self._shared = writer.shared
        self._partition = writer.partition
        #: Version of the head and limits for which there was nothing to merge.
        self._idle_at: tuple[int, MergeLimits] | None = None

    async def merge_next(self) -> bool:
        """Merge the next small segments of the tier; return False if there are none.

        Raises the cause of a failed merge.
        """
        if not self._next():
            return False
        shared = self._shared
        # Merges have a share of the copiers' threads, so that copies do not wait for them.
        async with shared.merges:
            # A commit with an unknown outcome may have replaced the segments already.
            await self._writer.refresh()
            parts = self._next()
            if not parts:
                return False
            await shared.quotas.copy.take(sum(entry.size_bytes for entry in parts))
            try:
                await self._merge(parts)
            except Exception:
                shared.metrics.add(tier_table.MERGE_ERRORS)
                raise
        return True

    def _next(self) -> tuple[SegmentEntry, ...]:
        """Return the segments to merge next; no I/O, and little work for an unchanged head."""
        head, config = self._writer.head, self._partition.log.config
        limits = merge_limits(
            # A merge takes at most a second of the copy quota, so that copies wait no longer.
            size_bytes=min(
                self._shared.dynamic.merge_bytes, self._shared.settings.copy_bytes_per_second
            ),
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            retention_bytes=config.retention_bytes,
            retention_ms=config.retention_ms,
        )
        if self._idle_at == (head.version, limits):
            return ()
        parts = next_merge(head, limits)
        self._idle_at = None if parts else (head.version, limits)
        return parts

    async def _merge(self, parts: Sequence[SegmentEntry]) -> None:
        """Replace adjacent segments by one with the same records."""
        writer, shared, by = self._writer, self._shared, self._writer.term.by
        context = shared.context
        # At most one merge is in COPY_STARTED: abandon that of a failed attempt first.
        left = writer.head.merging
        if left is not None:
            await self._copier.abandon(left)
        entry = merged_segment(
            writer.head, parts, segment_id=uuid.uuid4(), broker_id=context.node_id
        )
        ids = frozenset(part.segment_id for part in parts)
        # The manifest names the objects before the store contains them.
        started = await writer.commit(lambda head: transitions.start_merge(head, by, entry, ids))

        def upload(tier: Tier) -> Copied:
            return _upload(tier, started, entry, parts, config)

        def finish(head: Head, copied: Copied) -> Head:
            custom, digests = copied.custom_metadata, copied.digests
            return transitions.finish_merge(
                head, by, entry, ids, custom, digests, now_ms=context.wall_ms()
            )

        config = self._partition.log.config
        await self._copier.upload(entry, upload, finish)
        shared.metrics.add(tier_table.MERGED_SEGMENTS, len(parts))
        shared.metrics.add(tier_table.MERGED_BYTES, entry.size_bytes)
        logger.info("%s: merged %d segments of the tier", self._partition.tp, len(parts))


def _upload(
    tier: Tier,
    head: Head,
    entry: SegmentEntry,
    parts: Sequence[SegmentEntry],
    config: LogConfig,
) -> Copied:
    """Read the parts from the store and upload them as one segment (blocking)."""
    merged = MergedSegment(tier.segments, parts, config.index_interval_bytes)
    origin = encode_origin(entry, head.version, head.topic, head.topic_id, head.partition)
    return tier.segments.store_segment(
        entry,
        merged.log(),
        lambda: replace(merged.aux(), origin=origin),
        compress=config.compresses_remote,
    )
