"""A real tier in a folder: segments of known records, copied the way a broker copies them."""

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import CRC_COVERS_FROM, compute_crc, iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.tier.maintenance.topic_restore import claim, restorable
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Claim, new_head
from tidemark.tier.metadata.layout import head_key
from tidemark.tier.metadata.manifest import LoadedHead
from tidemark.tier.metadata.merging import merged_segment
from tidemark.tier.metadata.queries import live_segments
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.segments.auxiliary import AbortedRanges, Aux
from tidemark.tier.segments.merged_segment import MergedSegment
from tidemark.tier.segments.remote_storage_manager import SegmentData
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tier.stores.key_ring import NO_KEYS, KeyRing
from tidemark.tiering import Tiering, TieringState

BY = Claim(1, 0)
RESTORED_MS = 1_800_000_000_000


def _batch(
    base_offset: int,
    values: list[bytes],
    gap_at: int | None,
    leader_epoch: int,
    keys: Sequence[bytes],
) -> bytes:
    records = [
        Record(keys[delta] if keys else b"k", value, (), base_offset + delta)
        for delta, value in enumerate(values)
        if base_offset + delta != gap_at
    ]
    data = bytearray(build_batch(records, base_offset=base_offset, leader_epoch=leader_epoch))
    # The batch still spans the offset of the record that is left out, so that the header is
    # adjusted.
    struct.pack_into(">i", data, 23, len(values) - 1)
    struct.pack_into(">I", data, 17, compute_crc(data, CRC_COVERS_FROM, len(data)))
    return bytes(data)


@dataclass(slots=True)
class SmallTier:
    """One topic of one partition.

    Without ``with_digests``, entries are recorded in the manifest's first format. With
    ``with_indexes``, the indexes contain every batch. ``compress`` and ``keys``: the form in which
    segments are stored. A folder that has the topic's head already is continued.
    """

    path: Path
    topic_id: uuid.UUID = field(default_factory=uuid.uuid4)
    entries: list[SegmentEntry] = field(default_factory=list)
    with_digests: bool = True
    with_indexes: bool = False
    compress: bool = False
    keys: KeyRing = NO_KEYS
    name: str = "t"
    tier: Tier = field(init=False)
    loaded: LoadedHead = field(init=False)
    #: Claim of the leader, and the start offset of each leader epoch.
    by: Claim = BY
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(BY.leader_epoch, 0)])

    def __post_init__(self) -> None:
        self.tier = open_tier(self.storage)
        # Continue a tier that another process or another version has written.
        if (self.path / head_key(self.topic_id, 0)).exists():
            self.loaded = self.tier.manifests.load(self.topic_id, 0)
            pages = self.tier.manifests.pages(self.topic_id, 0)
            self.entries = list(live_segments(self.loaded.head, pages))
            return
        # Otherwise create an empty topic.
        self.tier.topics.put(
            TopicObject(
                topic_id=self.topic_id, name=self.name, cluster_id="c", partitions=1, config={}
            )
        )
        self.loaded = self.tier.manifests.create(
            new_head(
                topic=self.name,
                topic_id=self.topic_id,
                partition=0,
                cluster_id="c",
                leader_epoch=BY.leader_epoch,
                tiering=Tiering(TieringState.ENABLED, BY.tiered_epoch),
                broker_id=1,
                log_start_offset=0,
            )
        )

    @property
    def storage(self) -> FilesystemConfig:
        """Configuration of the tier, for jobs."""
        return FilesystemConfig(self.path, key_ring=self.keys)

    def copy(
        self,
        values: list[bytes],
        *,
        batch_records: int = 3,
        start: int | None = None,
        gap_at: int | None = None,
        older_below: int = 0,
        newest_ms: int | None = None,
        batches: Sequence[bytes] = (),
        aborted: tuple[AbortedTxn, ...] = (),
        keys: Sequence[bytes] = (),
    ) -> SegmentEntry:
        """Copy a segment of ``values`` behind the last one, or from ``start`` on.

        Each batch has ``batch_records`` records. The record at ``gap_at`` is missing from its
        batch. Batches below ``older_below`` are of a leader epoch that the manifest does not name.
        ``newest_ms`` replaces the newest timestamp in the manifest, ``batches`` the segment's
        bytes, and ``keys`` the keys of the records.
        """
        if start is None:
            start = self.loaded.head.next_copy_offset
        data = b"".join(
            _batch(
                start + i,
                values[i : i + batch_records],
                gap_at,
                self.by.leader_epoch if start + i >= older_below else 0,
                keys[i : i + batch_records],
            )
            for i in range(0, len(values), batch_records)
        )
        if batches:
            data = b"".join(batches)
        file = self.path.parent / "segment.log"
        file.write_bytes(data)
        entry = new_segment(
            topic=self.name,
            topic_id=self.topic_id,
            partition=0,
            segment_id=uuid.uuid4(),
            start_offset=start,
            end_offset_inclusive=start + len(values) - 1,
            max_timestamp_ms=start + len(values) - 1 if newest_ms is None else newest_ms,
            size_bytes=len(data),
            broker_id=1,
            event_time_ms=0,
            leader_epochs=[
                # The epoch in force at the start, and every epoch that begins within the segment.
                *[pair for pair in self.epochs if pair[1] <= start][-1:],
                *[pair for pair in self.epochs if start < pair[1] < start + len(values)],
            ],
            leader_epoch=self.by.leader_epoch,
            tiered_epoch=self.by.tiered_epoch,
        )
        commit = self.tier.manifests.commit
        self.loaded = commit(self.loaded, lambda h: transitions.start_copy(h, self.by, entry))
        offsets, times = OffsetIndex(start), TimeIndex(start)
        for position, header in iter_headers(data) if self.with_indexes else ():
            offsets.append(header.last_offset, position)
            times.maybe_append(header.max_timestamp, header.last_offset)
        aux = Aux(
            offset_index=offsets.to_bytes(),
            time_index=times.to_bytes(),
            leader_epochs=b"",
            producer_snapshot=b"",
            aborted=AbortedRanges(aborted),
        )
        copied = self.tier.segments.copy_segment(
            entry, SegmentData(file, len(data), aux, self.compress)
        )
        custom = copied.custom_metadata
        digests = copied.digests if self.with_digests else None
        self.loaded = commit(
            self.loaded, lambda h: transitions.finish_copy(h, self.by, entry, custom, digests)
        )
        self.entries.append(entry)
        return entry

    def merge(self, *parts: SegmentEntry) -> SegmentEntry:
        """Replace adjacent segments by one, and delete their objects."""
        ids, manifests = {part.segment_id for part in parts}, self.tier.manifests
        entry = merged_segment(self.loaded.head, parts, segment_id=uuid.uuid4(), broker_id=1)
        self.loaded = manifests.commit(
            self.loaded, lambda head: transitions.start_merge(head, self.by, entry, ids)
        )
        merged = MergedSegment(self.tier.segments, parts, 4096)
        copied = self.tier.segments.store_segment(entry, merged.log(), merged.aux)
        custom, digests = copied.custom_metadata, copied.digests
        self.loaded = manifests.commit(
            self.loaded,
            lambda head: transitions.finish_merge(
                head, self.by, entry, ids, custom, digests, now_ms=0
            ),
        )
        self.tier.segments.delete(parts)
        return entry

    def expire_to(self, offset: int) -> None:
        """Raise the head's log start."""
        self.loaded = self.tier.manifests.commit(
            self.loaded,
            lambda h: transitions.expire_to(h, self.by, offset, now_ms=0, delete_delay_ms=0),
        )

    def restore(self, to_cluster: str = "d") -> int:
        """Restore the topic into another cluster, as ``tidemark restore`` does.

        Return the end offset of the restored log.
        """
        found = next(item for item in restorable(self.tier) if item.topic.topic_id == self.topic_id)
        from_cluster = self.loaded.head.cluster_id
        origin = claim(
            self.tier, found, from_cluster=from_cluster, to_cluster=to_cluster, now_ms=RESTORED_MS
        )
        self.by = Claim(origin.leader_epoch, origin.tiering.epoch)
        self.loaded = self.tier.manifests.commit(
            self.tier.manifests.load(self.topic_id, 0),
            lambda head: transitions.claim(
                head,
                origin.leader_epoch,
                origin.tiering,
                cluster_id=to_cluster,
                broker_id=1,
                now_ms=RESTORED_MS,
            ),
        )
        # The restored log continues where the tier ends, in a new leader epoch.
        end = self.loaded.head.next_copy_offset
        self.epochs.append((origin.leader_epoch, end))
        return end

    def delete(self) -> None:
        """Write the tombstone of a deleted topic."""
        self.loaded = self.tier.manifests.commit(
            self.loaded, lambda h: transitions.make_tombstone(h, now_ms=0)
        )
