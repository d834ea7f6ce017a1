"""Starting a replica from the tier, and the prefix rule's question to it.

All calls block. What is in the tier is a prefix of every leader's log, so the epochs that were
stored with a segment are the ones that a log which starts behind it must have.
"""

from tidemark.logfiles.checkpoints import CheckpointFormatError, read_epochs
from tidemark.logfiles.producer_snapshot import SnapshotFormatError, decode_snapshot
from tidemark.tier.auxiliary import Aux, AuxCorrupt
from tidemark.tier.head import Claim, Head
from tidemark.tier.manifest import Transition
from tidemark.tier.open import Tier
from tidemark.tier.segment import SegmentEntry
from tidemark_broker.remote_log import known_head
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import (
    BootstrapPoint,
    RemoteEnd,
    RemoteOffsetOutOfRange,
    TierEnd,
)


def claimed_end(
    tier: Tier, partition: Partition, by: Claim, claim: Transition, *, now_ms: int
) -> TierEnd:
    """What the tier has, once the asker's claim, under ``by``, keeps all others from adding to it.
    A manifest that is not found raises: whoever asks knows that there is one."""
    loaded = known_head.load(tier, partition, by, now_ms=now_ms)
    return tier_end(known_head.commit(tier, partition, loaded, claim, by, now_ms=now_ms).head)


def tier_end(head: Head) -> TierEnd:
    """What a head says that every leader's log must hold."""
    end = RemoteEnd(head.highest_remote_offset, head.highest_remote_epoch)
    return TierEnd(end, head.log_start_offset, head.position)


def bootstrap_point(tier: Tier, partition: Partition, up_to_offset: int) -> BootstrapPoint:
    """Where to start: behind the segment that holds the offset before ``up_to_offset``, or where
    the log now begins if that one is expired. An
    elected leader needs all of the tier, whatever end it last heard of: the next offset that it
    gives out must not be one that is in the tier."""
    snapshot = tier.reader.snapshot(
        partition.topic_id, partition.partition, partition.tier_position
    )
    head = snapshot.head
    if partition.role is Role.TAKING_OVER:
        up_to_offset = max(up_to_offset, head.highest_remote_offset + 1)
    entry = snapshot.find(up_to_offset - 1)
    if entry is not None:
        return _behind(tier, entry, head.log_start_offset)
    if up_to_offset <= head.log_start_offset:
        start = head.log_start_offset
        return BootstrapPoint(next_offset=start, log_start_offset=start, epochs=())
    raise RemoteOffsetOutOfRange(
        f"{partition.tp}: offset {up_to_offset - 1} is not in the tier, which ends at "
        f"{head.highest_remote_offset}"
    )


def _behind(tier: Tier, entry: SegmentEntry, head_log_start: int) -> BootstrapPoint:
    aux = tier.segments.fetch_aux(entry)
    next_offset = entry.end_offset_inclusive + 1
    try:
        epochs = read_epochs(aux.leader_epochs.decode())
    except (CheckpointFormatError, UnicodeDecodeError) as error:
        raise AuxCorrupt(f"{entry.aux_key}: {error}") from error
    log_start = min(head_log_start, next_offset)
    return BootstrapPoint(
        next_offset=next_offset,
        log_start_offset=log_start,
        epochs=epochs.truncate_from_end(next_offset).truncate_from_start(log_start).entries,
        producer_snapshot=_snapshot(entry, aux),
    )


def _snapshot(entry: SegmentEntry, aux: Aux) -> bytes | None:
    """None where none was copied along."""
    if not aux.producer_snapshot:
        return None
    try:
        decode_snapshot(aux.producer_snapshot)
    except SnapshotFormatError as error:
        raise AuxCorrupt(f"{entry.aux_key}: {error}") from error
    return aux.producer_snapshot
