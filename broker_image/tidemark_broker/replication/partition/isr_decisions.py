"""ISR membership and the high watermark, as pure decisions of a leader (Kafka's ``Partition`` and
``Replica``).

While an AlterPartition is in flight, the *maximal* ISR (committed members plus added ones) bounds
the high watermark, and the *committed* one counts for ``min.insync.replicas``. So no electable
replica lacks an acknowledged record, whichever of the two the controller has persisted (invariant
1). The high watermark never falls (invariant 2). It does not advance while the committed ISR is
below its minimum, or while the row has eligible leaders (KIP-966). The reason is that the
controller may briefly use another minimum, and elects by the row.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tidemark.wire import control

UNKNOWN = -1


class FollowerProgress(NamedTuple):
    """State of one follower since this broker became leader. Times are monotonic seconds."""

    next_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    local_log_start_offset: int = UNKNOWN
    tiered_epoch: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    last_fetch_s: float = float("-inf")
    leader_next_offset_at_last_fetch: int = UNKNOWN
    last_caught_up_s: float = float("-inf")


class FollowerFetch(NamedTuple):
    """One fetch of a follower, with the leader's state at that time."""

    fetch_offset: int
    log_start_offset: int
    local_log_start_offset: int
    broker_epoch: int
    leader_next_offset: int
    now_s: float
    #: Tiered epoch in the follower's state file.
    tiered_epoch: int = UNKNOWN


def after_fetch(progress: FollowerProgress, fetch: FollowerFetch) -> FollowerProgress:
    """Return a follower's progress after a fetch: it has everything below its fetch offset.

    It is caught up *now* if it fetches at the leader's log end. It was caught up at the time of its
    previous fetch if it now fetches at or above the log end of that time.
    """
    # The two rules of Kafka's Replica.updateFetchStateOrThrow.
    caught_up_s = progress.last_caught_up_s
    if fetch.fetch_offset >= fetch.leader_next_offset:
        caught_up_s = max(caught_up_s, fetch.now_s)
    elif fetch.fetch_offset >= progress.leader_next_offset_at_last_fetch != UNKNOWN:
        caught_up_s = max(caught_up_s, progress.last_fetch_s)
    return FollowerProgress(
        next_offset=fetch.fetch_offset,
        log_start_offset=fetch.log_start_offset,
        local_log_start_offset=fetch.local_log_start_offset,
        tiered_epoch=fetch.tiered_epoch,
        broker_epoch=fetch.broker_epoch,
        last_fetch_s=fetch.now_s,
        leader_next_offset_at_last_fetch=fetch.leader_next_offset,
        last_caught_up_s=caught_up_s,
    )


def at_rest(progress: FollowerProgress, last_round_s: float) -> FollowerProgress:
    """Apply rounds of a fetch session (KIP-227) that did not name the partition, up to
    ``last_round_s``.

    Each round fetched at the same offset while the leader's end did not move, so the result is that
    of :func:`after_fetch` for each of them.
    """
    if last_round_s <= progress.last_fetch_s:
        return progress
    caught_up_s = progress.last_caught_up_s
    if progress.next_offset >= progress.leader_next_offset_at_last_fetch != UNKNOWN:
        caught_up_s = max(caught_up_s, last_round_s)
    return progress._replace(last_fetch_s=last_round_s, last_caught_up_s=caught_up_s)


def at_new_epoch(
    previous: FollowerProgress | None, *, in_isr: bool, now_s: float
) -> FollowerProgress:
    """Return a follower's progress at the start of a new leader epoch.

    ``previous``: its progress in the epoch before, None if unknown. Log starts are kept, other
    offsets are unknown. An ISR member gets the full ``replica.lag.time.max.ms`` to catch up.
    """
    # Without a fetch in this epoch, an ISR member counts as caught up now.
    fresh = FollowerProgress(last_caught_up_s=now_s if in_isr else float("-inf"))
    if previous is None:
        return fresh
    return fresh._replace(
        log_start_offset=previous.log_start_offset,
        local_log_start_offset=previous.local_log_start_offset,
    )


def after_leaving(progress: FollowerProgress) -> FollowerProgress:
    """Reset the lag clock of a follower that left the ISR or is refused there.

    It does not hold back the high watermark until it has caught up again. That its next fetch may
    prove it caught up at its previous one no longer counts.
    """
    return progress._replace(
        last_caught_up_s=float("-inf"), leader_next_offset_at_last_fetch=UNKNOWN
    )


def is_caught_up(
    progress: FollowerProgress, *, leader_next_offset: int, now_s: float, lag_max_s: float
) -> bool:
    """Return whether a follower is caught up by Kafka's rule: the same log end, or the leader's end
    within ``lag_max_s``.
    """
    if progress.next_offset == leader_next_offset:
        return True
    return now_s - progress.last_caught_up_s <= lag_max_s


def effective_min_isr(min_insync_replicas: int, replication_factor: int) -> int:
    """Limit ``min.insync.replicas`` to the partition's replication factor."""
    return min(min_insync_replicas, replication_factor)


class LeaderView(NamedTuple):
    """Input of the decisions below.

    ``maximal_isr`` includes replicas that an AlterPartition in flight adds. ``eligible`` are the
    followers that are unfenced and registered with the current broker epoch.
    """

    leader: int
    next_offset: int
    high_watermark: int
    epoch_start_offset: int
    isr: tuple[int, ...]
    maximal_isr: frozenset[int]
    followers: Mapping[int, FollowerProgress]
    eligible: frozenset[int]
    min_isr: int
    now_s: float
    lag_max_s: float
    #: Whether replicas outside the ISR are eligible leaders with all committed data (KIP-966).
    has_eligible_leaders: bool = False
    log_start_offset: int = 0


def high_watermark(view: LeaderView) -> int:
    """Return the high watermark: the smallest log end that counts, never lower than before."""
    # Advancing below the minimum would commit records that an eligible leader lacks.
    if len(view.isr) < view.min_isr or view.has_eligible_leaders:
        return view.high_watermark
    smallest = view.next_offset
    for node, progress in view.followers.items():
        if node in view.maximal_isr or _holds_back(view, node, progress):
            smallest = min(smallest, progress.next_offset)
    return max(view.high_watermark, smallest)


def _holds_back(view: LeaderView, node: int, progress: FollowerProgress) -> bool:
    """Return whether a follower outside the ISR must hold back the high watermark.

    It must while it is caught up and about to join the ISR.
    """
    # With a small ISR the high watermark could otherwise stay ahead of a follower, which
    # would then never join (Kafka's Partition.maybeIncrementLeaderHW).
    return (
        node in view.eligible
        and progress.next_offset != UNKNOWN
        and is_caught_up(
            progress,
            leader_next_offset=view.next_offset,
            now_s=view.now_s,
            lag_max_s=view.lag_max_s,
        )
    )


def may_join(view: LeaderView, node: int) -> bool:
    """Return whether a follower may join the ISR (Kafka's ``Partition.canAddReplicaToIsr``).

    It must be unfenced and have everything up to the high watermark and the start of this leader
    epoch. It must also have reported a durable log start as high as the leader's: once elected, it
    must not show records whose deletion a DeleteRecords has acknowledged (invariant 2).
    """
    progress = view.followers.get(node)
    # Each condition matches a promise: no pending change, a live registration, all committed data,
    # all of this epoch's start, and no lower log start.
    return (
        progress is not None
        and node not in view.maximal_isr
        and node in view.eligible
        and progress.next_offset >= view.high_watermark
        and progress.next_offset >= view.epoch_start_offset
        and progress.log_start_offset >= view.log_start_offset
    )


def out_of_sync(view: LeaderView) -> frozenset[int]:
    """Return ISR members that are behind for longer than ``lag_max_s``, never the leader."""
    members = (node for node in view.isr if node != view.leader)
    return frozenset(node for node in members if not _in_time(view, node))


def _in_time(view: LeaderView, node: int) -> bool:
    progress = view.followers.get(node)
    return progress is not None and is_caught_up(
        progress,
        leader_next_offset=view.next_offset,
        now_s=view.now_s,
        lag_max_s=view.lag_max_s,
    )


def expanded(isr: Iterable[int], node: int) -> tuple[int, ...]:
    """Return the ISR with one more member, in order of ids."""
    return tuple(sorted({*isr, node}))


def shrunk(isr: Iterable[int], gone: Collection[int]) -> tuple[int, ...]:
    """Return the ISR without some members, in order of ids."""
    return tuple(node for node in sorted(set(isr)) if node not in gone)


class AlterPartitionAnswer(enum.Enum):
    """Meaning of an answer to AlterPartition for the leader."""

    #: It has a newer partition state of this leader's epoch.
    ADOPT = enum.auto()
    #: The pending proposal was decided, and the answer's state is the leader's current one.
    SETTLED = enum.auto()
    #: It belongs to another proposal or epoch: the controller's next push decides.
    NOTHING = enum.auto()


def meaning(
    row: control.PartitionState,
    pending: tuple[int, ...] | None,
    change: control.IsrChange,
    result: control.IsrResult,
) -> AlterPartitionAnswer:
    """Return what the controller's answer to an AlterPartition means for the leader.

    ``row`` is the leader's current partition state, ``pending`` the ISR of its proposal in flight
    (None for none). ``result`` is the answer to ``change``, which may be an older proposal.

    A newer state is adopted even with an error, because an earlier attempt may have been committed.
    Only the answer to exactly the pending proposal (the same partition epoch and ISR) may end it.
    Until then any of its members may be in the ISR already.
    """
    # An answer of another epoch concerns a leadership that has ended or not begun.
    if result.leader_epoch != row.leader_epoch:
        return AlterPartitionAnswer.NOTHING
    # A newer partition epoch is the controller's committed state, whatever the error.
    if result.partition_epoch > row.partition_epoch:
        return AlterPartitionAnswer.ADOPT
    # The epochs of the answer and of the proposal must all be the current ones.
    proposed = (change.leader_epoch, change.partition_epoch, change.new_isr)
    if result.partition_epoch == row.partition_epoch and proposed == (
        row.leader_epoch,
        row.partition_epoch,
        pending,
    ):
        return AlterPartitionAnswer.SETTLED
    return AlterPartitionAnswer.NOTHING
