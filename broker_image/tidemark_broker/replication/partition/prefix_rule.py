"""Prefix rule: the content of the tier is a prefix of every leader's log.

Every replica stores the last known end of the manifest, (offset, epoch). A replica whose own log
ends below it, or has another epoch there, must not lead. It first takes over from the tier
(docs/explanation/architecture.md, invariants 3 and 4). The stored end may be outdated. So an
elected leader queries the tier for its end if nothing proves that its log has all committed
records. That is the case if it was elected uncleanly (the row is RECOVERING). It is also the case
if its log was opened after a crash that may have lost bytes, and no leader has added it to the ISR
since. A replica with proof must not depend on the tier. If its claim contradicts the proof, its
leadership ends at once. Local retention trusts an end only as far as the log shares the tier's
history.
"""

from dataclasses import dataclass

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark.tiering import Tiering
from tidemark.wire.control import PartitionState
from tidemark_broker.replication.remote import NOTHING, RemoteEnd, TierEnd


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why nothing proves that a log has all committed records.

    ``refuted``: the tier has shown that records are missing.
    """

    reason: str
    refuted: bool = False


UNCLEAN_SHUTDOWN = Doubt("its log was opened after an unclean shutdown")
RECORDS_LOST = Doubt("its disk lost records")
LOG_RESTARTED = Doubt("its log was restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixState:
    """State of an elected replica before it leads.

    ``epochs`` and ``next_offset`` are its log's; ``end`` is the last known end of the tier.
    """

    has_manifest: bool
    recovering: bool
    tiering: Tiering
    doubt: Doubt | None
    end: RemoteEnd | None
    epochs: LeaderEpochs
    next_offset: int


def reason_to_query_tier(replica: PrefixState) -> str:
    """Return the reason why the replica must query the tier before it leads, or ""."""
    if replica.doubt is not None and replica.doubt.refuted:
        return replica.doubt.reason
    # Without a tier, or without anything copied, the tier has nothing to add.
    if not replica.has_manifest or not replica.tiering.reads_tier:
        return ""
    if replica.recovering:
        return "it was not in sync when it was elected"
    if replica.doubt is not None:
        return replica.doubt.reason
    if contradicts(replica.end, replica.epochs, next_offset=replica.next_offset):
        return describe_gap(TierEnd(replica.end or NOTHING, -1), next_offset=replica.next_offset)
    return ""


def joined_isr(before: PartitionState | None, after: PartitionState, node_id: int) -> bool:
    """Return whether the leader of ``before`` has added the replica to the ISR since.

    Only a row of the same leader epoch proves it: a row that has the replica in the ISR from the
    start may be older than its crash.
    """
    return (
        before is not None
        and before.leader_epoch == after.leader_epoch
        and before.leader == after.leader != node_id
        and node_id not in before.isr
        and node_id in after.isr
    )


def is_behind_tier(tier: TierEnd, epochs: LeaderEpochs, *, next_offset: int) -> bool:
    """Return whether a log that ends at ``next_offset`` lacks or contradicts the tier's content.

    If so, its leader would assign offsets a second time.
    """
    return next_offset < tier.log_start_offset or contradicts(
        tier.end, epochs, next_offset=next_offset
    )


def describe_gap(tier: TierEnd, *, next_offset: int) -> str:
    """Describe a log for which :func:`is_behind_tier` is true."""
    if next_offset < tier.log_start_offset:
        return f"its log ends at {next_offset}, below the tier's log start {tier.log_start_offset}"
    return (
        f"its log ends at {next_offset} and does not contain the tier's record at "
        f"{tier.end.offset} of epoch {tier.end.epoch}"
    )


def contradicts(end: RemoteEnd | None, epochs: LeaderEpochs, *, next_offset: int) -> bool:
    """Return whether a log that ends at ``next_offset`` lacks or contradicts the tier's last
    record.

    If the log knows no epoch (below its start only the tier may know it), nothing contradicts.
    """
    if end is None or end.offset < 0:
        return False
    if next_offset <= end.offset:
        return True
    own_epoch = epochs.epoch_for_offset(end.offset)
    return own_epoch >= 0 and end.epoch >= 0 and own_epoch != end.epoch


def trusted_offset(end: RemoteEnd | None, epochs: LeaderEpochs, *, next_offset: int) -> int:
    """Return the last offset up to which log and tier have the same records; -1 for none.

    The offset is inclusive. Local segments up to it may be deleted. KIP-405
    (``RemoteLogManager.findHighestRemoteOffset``) bounds the tier's part of an epoch by the end of
    that epoch in the log's own leader-epoch cache. If the cache does not know the epoch of the
    tier's last record, the records below may merely have the same offsets.
    """
    if end is None or end.offset < 0:
        return -1
    # The tier's epoch may have ended earlier in this log than in the tier.
    offset = min(end.offset, epochs.end_offset_for(end.epoch, next_offset).end_offset - 1)
    if offset < 0 or epochs.epoch_for_offset(offset) != end.epoch:
        return -1
    return offset


def later(known: RemoteEnd | None, offset: int, epoch: int) -> RemoteEnd:
    """Return the end to store: it only grows (a deletion of old segments does not lower it).

    (-1, -1) is a tier known to be empty, unlike None, which is unknown.
    """
    if known is not None and offset <= known.offset:
        return known
    return RemoteEnd(offset, epoch) if offset >= 0 else NOTHING
