"""Start of a replica from the tier, and the tier's end for the prefix rule.

All calls block. The content of the tier is a prefix of every leader's log. So the epochs that were
stored with a segment are those that a log which starts after it must have.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs
from tidemark.logfiles.offset_index import IndexFormatError, OffsetIndex
from tidemark.logfiles.producer_snapshot import SnapshotFormatError, decode_snapshot
from tidemark.records.batch import NO_PRODUCER_ID, CorruptBatch, check_crc, iter_headers
from tidemark.tier.metadata.head import Claim, Head
from tidemark.tier.metadata.manifest import Transition
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.open import Tier
from tidemark.tier.reader import Snapshot
from tidemark.tier.segments.auxiliary import Aux, AuxCorrupt
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores.objects import SegmentUnreadable
from tidemark_broker.log import ProducerBatch, producer_batch
from tidemark_broker.remote_log import verified_head
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import (
    BootstrapPoint,
    RemoteEnd,
    RemoteOffsetOutOfRange,
    TierEnd,
)

logger = logging.getLogger(__name__)

#: Bytes and segments read at the end of the tier to recover producers' last batches.
_RECALLED_BYTES, _RECALLED_SEGMENTS = 2 << 20, 8


def claimed_end(
    tier: Tier, partition: Partition, by: Claim, claim: Transition, *, now_ms: int
) -> TierEnd:
    """Claim the head under ``by``, so that no other leader adds to the tier; return the tier's end.

    Raises HeadNotFound if there is no manifest, since the caller knows that one exists.
    """
    loaded = verified_head.load(tier, partition, by, now_ms=now_ms)
    return tier_end(verified_head.commit(tier, partition, loaded, claim, by, now_ms=now_ms).head)


def tier_end(head: Head) -> TierEnd:
    """Return the tier's end, which every leader's log must contain, from a head."""
    end = RemoteEnd(head.highest_remote_offset, head.highest_remote_epoch)
    return TierEnd(end, head.log_start_offset, head.position)


def bootstrap_point(tier: Tier, partition: Partition, up_to_offset: int) -> BootstrapPoint:
    """Return where a replica's empty local log starts when older records exist only in the tier.

    A follower calls this after OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405), a new leader during its
    takeover. The log starts after the remote segment that contains the offset before
    ``up_to_offset`` (exclusive), or at the log start offset if that segment is expired. An elected
    leader ignores a smaller ``up_to_offset`` and starts after the tier's last offset: the next
    offset that it assigns must not be in the tier.

    Blocking. Raises RemoteOffsetOutOfRange if the tier does not reach ``up_to_offset``.
    """
    snapshot = tier.reader.snapshot(
        partition.topic_id, partition.partition, partition.tier_position
    )
    head = snapshot.head
    # It is elected and waits to lead.
    if partition.role is Role.TAKING_OVER:
        up_to_offset = max(up_to_offset, head.highest_remote_offset + 1)
    # Starting after a whole segment gives the epochs and producers stored with it.
    entry = snapshot.find(up_to_offset - 1)
    if entry is not None:
        point = _behind(tier, entry, head.log_start_offset)
        if point.producer_snapshot is None:
            return point
        return replace(point, recent_batches=_recent_batches(tier, snapshot, entry))
    # The segment is expired: everything below the log start is deleted, so nothing is missing.
    if up_to_offset <= head.log_start_offset:
        start = head.log_start_offset
        return BootstrapPoint(next_offset=start, log_start_offset=start, epochs=())
    raise RemoteOffsetOutOfRange(
        f"{partition.tp}: offset {up_to_offset - 1} is not in the tier, which ends at "
        f"{head.highest_remote_offset}"
    )


def _behind(tier: Tier, entry: SegmentEntry, head_log_start: int) -> BootstrapPoint:
    """Return the start of a log that begins after ``entry``, with the state of its aux object.

    ``head_log_start``: log start offset of the manifest's head. Raises AuxCorrupt if the leader
    epochs or the producer snapshot in the aux object are unreadable.
    """
    # The aux object holds the segment's indexes, leader epochs and producer snapshot.
    aux = tier.segments.fetch_aux(entry)
    next_offset = entry.end_offset_inclusive + 1
    try:
        # The epochs up to this segment's end were stored with it.
        epochs = read_epochs(aux.leader_epochs.decode())
    except (CheckpointFormatError, UnicodeDecodeError) as error:
        raise AuxCorrupt(f"{entry.aux_key}: {error}") from error
    # A head's log start may be above the segment, if the rest of the tier is expired.
    log_start = min(head_log_start, next_offset)
    return BootstrapPoint(
        next_offset=next_offset,
        log_start_offset=log_start,
        epochs=epochs.truncate_from_end(next_offset).truncate_from_start(log_start).entries,
        producer_snapshot=_snapshot(entry, aux),
    )


def _snapshot(entry: SegmentEntry, aux: Aux) -> bytes | None:
    """Return the segment's producer snapshot, or None if none was copied."""
    if not aux.producer_snapshot:
        return None
    try:
        decode_snapshot(aux.producer_snapshot)
    except SnapshotFormatError as error:
        raise AuxCorrupt(f"{entry.aux_key}: {error}") from error
    return aux.producer_snapshot


def _recent_batches(tier: Tier, snapshot: Snapshot, last: SegmentEntry) -> Sequence[ProducerBatch]:
    """Return the idempotent producers' batches near the end of ``last``, oldest first.

    They let the replica recognize a retry of any of a producer's last five batches: a producer
    snapshot has only the last one. A retry that is not recognized gets OUT_OF_ORDER_SEQUENCE_NUMBER
    instead of its original offset. This is best effort and never prevents the replica's start: a
    segment that is not readable here ends the search, and later reads report it.
    """
    found: list[ProducerBatch] = []
    entry: SegmentEntry | None = last
    left = _RECALLED_BYTES  # bytes that may still be read
    try:
        for _ in range(_RECALLED_SEGMENTS):
            if entry is None or left <= 0:
                break
            # Segments are read backwards, batches stay in the order of the log.
            found[:0] = _last_batches(tier, entry, left)
            left -= entry.size_bytes
            entry = snapshot.find(entry.start_offset - 1)
    except (CorruptBatch, IndexFormatError, ObjectDamaged, SegmentUnreadable) as error:
        logger.warning("%s: the last batches of producers are not known: %s", last.log_key, error)
    return found


def _last_batches(tier: Tier, entry: SegmentEntry, count_bytes: int) -> list[ProducerBatch]:
    """Return the idempotent producers' batches in about the last ``count_bytes`` of a segment.

    Reading starts at a batch that the offset index knows, not after that position. Raises
    CorruptBatch if a batch's CRC is wrong.
    """
    position = 0
    # Only the end of a large segment is read, from an indexed batch.
    if entry.size_bytes > count_bytes:
        index = OffsetIndex.from_bytes(
            entry.start_offset, tier.segments.fetch_aux(entry).offset_index
        )
        position = index.floor_position(
            entry.size_bytes - count_bytes, entry.end_offset_inclusive + 1
        )
    data = tier.segments.fetch(entry, position, entry.size_bytes)
    found = []
    for at, header in iter_headers(data):
        check_crc(data, at, header)
        # Markers have no sequence numbers, and the snapshot has their effect.
        if header.producer_id > NO_PRODUCER_ID and not header.is_control:
            batch = producer_batch(header, b"")
            if batch is not None:
                found.append(batch)
    return found
