"""Which followers are in sync, and how far the log is committed.

Pure decisions of a leader (Kafka's ``Partition``/``Replica``): time and offsets come in, an
answer goes out. While an AlterPartition is under way the *maximal* ISR (committed plus being
added) bounds the high watermark and the *committed* one counts for ``min.insync.replicas``, so
that whichever of the two the controller has persisted, no acknowledged record lacks in an
electable replica (invariant 1). The high watermark never goes back (invariant 2) and stands
still while the committed ISR is below its minimum, or the row has eligible leaders (KIP-966): the
controller may count with another minimum than we for a moment, and elects by what the row says.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tidemark.wire import control

UNKNOWN = -1


class FollowerProgress(NamedTuple):
    """What the leader knows of one follower since it became leader. Times: monotonic seconds."""

    next_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    local_log_start_offset: int = UNKNOWN
    tiered_epoch: int = UNKNOWN
    broker_epoch: int = UNKNOWN
    last_fetch_s: float = float("-inf")
    leader_next_offset_at_last_fetch: int = UNKNOWN
    last_caught_up_s: float = float("-inf")


class FollowerFetch(NamedTuple):
    """One fetch of a follower as the leader saw it."""

    fetch_offset: int
    log_start_offset: int
    local_log_start_offset: int
    broker_epoch: int
    leader_next_offset: int
    now_s: float
    #: The tiered epoch that the follower has stored.
    tiered_epoch: int = UNKNOWN


def after_fetch(progress: FollowerProgress, fetch: FollowerFetch) -> FollowerProgress:
    """The follower has everything below its fetch offset: note it, and when it last had all.

    It is caught up *now* if it asks for the leader's end, and was caught up at its previous fetch
    if it has by now what was the end then.
    """
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
    """What fetches of a session (KIP-227) have made of it that did not name the partition, the last
    of them at ``last_round_s``: each asked for the same offset again while the leader's end stood
    still, as :func:`after_fetch` would have noted one by one."""
    if last_round_s <= progress.last_fetch_s:
        return progress
    caught_up_s = progress.last_caught_up_s
    if progress.next_offset >= progress.leader_next_offset_at_last_fetch != UNKNOWN:
        caught_up_s = max(caught_up_s, last_round_s)
    return progress._replace(last_fetch_s=last_round_s, last_caught_up_s=caught_up_s)


def at_new_epoch(
    previous: FollowerProgress | None, *, in_isr: bool, now_s: float
) -> FollowerProgress:
    """A leader epoch begins: offsets are unknown again; who is in the ISR has a fresh lag clock."""
    fresh = FollowerProgress(last_caught_up_s=now_s if in_isr else float("-inf"))
    if previous is None:
        return fresh
    return fresh._replace(
        log_start_offset=previous.log_start_offset,
        local_log_start_offset=previous.local_log_start_offset,
    )


def after_leaving(progress: FollowerProgress) -> FollowerProgress:
    """The controller has taken it out of the ISR: not waited for before it has caught up again.
    That it had all at its last fetch, as its next one may prove, does not count any more."""
    return progress._replace(
        last_caught_up_s=float("-inf"), leader_next_offset_at_last_fetch=UNKNOWN
    )


def is_caught_up(
    progress: FollowerProgress, *, leader_next_offset: int, now_s: float, lag_max_s: float
) -> bool:
    """Kafka's rule: the same log end, or it had the leader's end within ``lag_max_s``."""
    if progress.next_offset == leader_next_offset:
        return True
    return now_s - progress.last_caught_up_s <= lag_max_s


def effective_min_isr(min_insync_replicas: int, replication_factor: int) -> int:
    """``min.insync.replicas`` never asks for more replicas than the partition is meant to have."""
    return min(min_insync_replicas, replication_factor)


class LeaderView(NamedTuple):
    """What the decisions below look at. ``maximal_isr`` includes replicas that an AlterPartition
    under way adds; ``eligible`` are the followers that are unfenced and of the current epoch."""

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
    #: The controller keeps replicas outside the ISR as holders of all that is committed (KIP-966).
    has_eligible_leaders: bool = False
    log_start_offset: int = 0


def high_watermark(view: LeaderView) -> int:
    """The end of what is committed: the smallest log end that counts, never lower than before."""
    if len(view.isr) < view.min_isr or view.has_eligible_leaders:
        return view.high_watermark
    smallest = view.next_offset
    for node, progress in view.followers.items():
        if node in view.maximal_isr or _holds_back(view, node, progress):
            smallest = min(smallest, progress.next_offset)
    return max(view.high_watermark, smallest)


def _holds_back(view: LeaderView, node: int, progress: FollowerProgress) -> bool:
    """A follower outside the ISR that is about to join it is waited for too."""
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
    """May this follower enter the ISR: committed data complete, in this leader epoch, unfenced.
    It must also have told a (durable) log start as high as the leader's: who is elected must not
    show an earlier one than a DeleteRecords has acknowledged (invariant 2)."""
    progress = view.followers.get(node)
    return (
        progress is not None
        and node not in view.maximal_isr
        and node in view.eligible
        and progress.next_offset >= view.high_watermark
        and progress.next_offset >= view.epoch_start_offset
        and progress.log_start_offset >= view.log_start_offset
    )


def out_of_sync(view: LeaderView) -> frozenset[int]:
    """ISR members that fell behind for longer than ``lag_max_s``; the leader is never one."""
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
    """The ISR with one more member, in order of ids."""
    return tuple(sorted({*isr, node}))


def shrunk(isr: Iterable[int], gone: Collection[int]) -> tuple[int, ...]:
    """The ISR without some members, in order of ids."""
    return tuple(node for node in sorted(set(isr)) if node not in gone)


class Answer(enum.Enum):
    """What an answer to AlterPartition is to the leader that gets it."""

    #: It brings a newer row of this leader's epoch.
    ADOPT = enum.auto()
    #: The proposal that is pending was decided, and the row is the one that the leader has.
    SETTLED = enum.auto()
    #: It belongs to another proposal, or to another epoch: a push will tell.
    NOTHING = enum.auto()


def meaning(
    row: control.PartitionState,
    pending: tuple[int, ...] | None,
    change: control.IsrChange,
    result: control.IsrResult,
) -> Answer:
    """What the answer ``result`` to the proposal ``change`` means to the leader of ``row``.

    A newer row is adopted even with an error: an earlier try may have been committed. Only the
    answer to the very proposal that is pending (the same partition epoch and the same ISR) may end
    it: until then any of its members may be in the ISR already, whatever was said of an older one.
    """
    if result.leader_epoch != row.leader_epoch:
        return Answer.NOTHING
    if result.partition_epoch > row.partition_epoch:
        return Answer.ADOPT
    proposed = (change.leader_epoch, change.partition_epoch, change.new_isr)
    if result.partition_epoch == row.partition_epoch and proposed == (
        row.leader_epoch,
        row.partition_epoch,
        pending,
    ):
        return Answer.SETTLED
    return Answer.NOTHING
