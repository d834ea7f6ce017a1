"""The prefix rule: what is in the tier is a prefix of every leader's log.

Every replica keeps the last known end of the manifest, (offset, epoch). A replica whose own log
ends below it, or holds another epoch there, must not lead: it first takes the log over from the
tier (docs/explanation/architecture.md, invariants 3 and 4). What it last heard may be out of date,
so an
elected leader asks the tier for its end where nothing proves that its log holds all that was
committed: it was elected uncleanly (the row is RECOVERING), or its log was opened after a crash
that may have taken bytes and no leader has taken it into the ISR since. Who has proof, or never
stopped, must not depend on the tier. Should a claim show otherwise all the same, its leadership
ends at once. Local retention trusts an end only as far as the log is of the tier's own history.
"""

from dataclasses import dataclass

from tidemark.logfiles.leader_epochs import LeaderEpochs
from tidemark.tiering import Tiering
from tidemark.wire.control import PartitionState
from tidemark_broker.replication.remote import NOTHING, RemoteEnd, TierEnd


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why nothing proves that a log holds all that was committed. ``refuted``: the tier has shown
    that it does not."""

    reason: str
    refuted: bool = False


UNCLEAN_SHUTDOWN = Doubt("its log was opened without a clean shutdown before")
RECORDS_LOST = Doubt("its disk lost records")
BEGUN_ANEW = Doubt("its log was begun anew")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an elected replica knows of its log and of the tier before it leads. ``epochs`` and
    ``next_offset`` are its log's, ``end`` is the tier's as it last heard."""

    has_manifest: bool
    recovering: bool
    tiering: Tiering
    doubt: Doubt | None
    end: RemoteEnd | None
    epochs: LeaderEpochs
    next_offset: int


def question(replica: Standing) -> str:
    """Why the replica must ask the tier before it leads; empty where it need not."""
    if replica.doubt is not None and replica.doubt.refuted:
        return replica.doubt.reason
    if not replica.has_manifest or not replica.tiering.reads_tier:
        return ""
    if replica.recovering:
        return "it was not in sync when it was elected"
    if replica.doubt is not None:
        return replica.doubt.reason
    if contradicts(replica.end, replica.epochs, next_offset=replica.next_offset):
        return lacking(TierEnd(replica.end or NOTHING, -1), next_offset=replica.next_offset)
    return ""


def taken_in(before: PartitionState | None, after: PartitionState, node_id: int) -> bool:
    """Has the leader that a replica follows under ``before`` taken it into the ISR since? Only a
    row of the same leader epoch says so: one that names it from the start may be older than its
    crash."""
    return (
        before is not None
        and before.leader_epoch == after.leader_epoch
        and before.leader == after.leader != node_id
        and node_id not in before.isr
        and node_id in after.isr
    )


def lacks(tier: TierEnd, epochs: LeaderEpochs, *, next_offset: int) -> bool:
    """Does a log that ends at ``next_offset`` lack or contradict what is, or was, in the tier? If
    it does, it would give out offsets a second time."""
    return next_offset < tier.log_start_offset or contradicts(
        tier.end, epochs, next_offset=next_offset
    )


def lacking(tier: TierEnd, *, next_offset: int) -> str:
    """That in words."""
    if next_offset < tier.log_start_offset:
        return f"its log ends at {next_offset}, below the tier's log start {tier.log_start_offset}"
    return (
        f"its log ends at {next_offset} and does not hold the tier's record at {tier.end.offset} "
        f"of epoch {tier.end.epoch}"
    )


def contradicts(end: RemoteEnd | None, epochs: LeaderEpochs, *, next_offset: int) -> bool:
    """Does a log that ends at ``next_offset`` lack or contradict the tier's last record?

    Where the log knows no epoch (what lies below its start may be known by the tier only), nothing
    contradicts.
    """
    if end is None or end.offset < 0:
        return False
    if next_offset <= end.offset:
        return True
    own_epoch = epochs.epoch_for_offset(end.offset)
    return own_epoch >= 0 and end.epoch >= 0 and own_epoch != end.epoch


def trusted_offset(end: RemoteEnd | None, epochs: LeaderEpochs, *, next_offset: int) -> int:
    """The last offset (inclusive, -1: none) up to which the log is of the history that the tier
    holds, so that local segments up to it may go.

    KIP-405 (RemoteLogManager.findHighestRemoteOffset) bounds what the tier has of an epoch by where
    that epoch ends in the log's own leader-epoch cache; where the cache does not know the epoch of
    the tier's last record at all, the records below may merely share their offsets with it.
    """
    if end is None or end.offset < 0:
        return -1
    offset = min(end.offset, epochs.end_offset_for(end.epoch, next_offset).end_offset - 1)
    if offset < 0 or epochs.epoch_for_offset(offset) != end.epoch:
        return -1
    return offset


def later(known: RemoteEnd | None, offset: int, epoch: int) -> RemoteEnd:
    """The end to remember: it only grows (a deletion of old segments does not lower it).

    (-1, -1) is a tier known to be empty, which is more than to know nothing (None).
    """
    if known is not None and offset <= known.offset:
        return known
    return RemoteEnd(offset, epoch) if offset >= 0 else NOTHING
