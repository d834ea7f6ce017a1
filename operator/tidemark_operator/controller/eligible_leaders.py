"""Eligible leader replicas (KIP-966): who outside the ISR still holds all that is committed.

While the ISR is below min.insync.replicas, or nobody leads, the high watermark stands still. So
whoever leaves the ISR then had all that is committed when it left, and still has it as long as it
lost nothing: it stays in the row's ``elr``. A replica that came back without proof of a clean
shutdown may have lost what it had not synced: it moves to ``last_known_elr``. One that came back
with another log directory is in neither. With a leader and enough in-sync replicas both are empty.

Of several replicas that each may have lost a tail, the one with the largest (last epoch, log end)
has all that any of them has of what is committed. Which of them has all that is committed needs
one of two things: that all holders have reported, or that as many have as min.insync.replicas
demands (fewer than that lose unsynced bytes at once: invariant 1). Where the minimum is 1 nothing
is promised about such a loss, so all are waited for.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from tidemark_operator.controller.model import NO_LEADER, LogEnd, PartitionRow


def carried(
    old: PartitionRow, new: PartitionRow, min_isr: int, *, lost: Collection[int] = ()
) -> PartitionRow:
    """``new`` with the eligible leaders that follow from ``old`` and from the new ISR (Kafka's
    ``PartitionChangeBuilder``). ``lost``: replicas that hold nothing any more. A partition that is
    RECOVERING has none: only its leader counts until it has seen to its log (KIP-704)."""
    if new.recovering or (new.leader != NO_LEADER and len(new.isr) >= min_isr):
        return dataclasses.replace(new, elr=(), last_known_elr=())
    unproven = set(new.last_known_elr).difference(new.isr, lost)
    kept = set(old.isr).union(old.elr).difference(new.isr, unproven, lost)
    return dataclasses.replace(
        new,
        elr=tuple(replica for replica in new.hosts if replica in kept),
        last_known_elr=tuple(replica for replica in new.hosts if replica in unproven),
    )


def elected(
    row: PartitionRow,
    is_live: Callable[[int], bool],
    min_isr: int,
    logs: Mapping[int, LogEnd | None],
) -> int:
    """Who leads when no member of the ISR is live: an eligible replica, else the best of those that
    reported once they are enough, else nobody (-1). ``logs``: what live brokers reported."""
    proven = next((replica for replica in row.hosts if replica in row.elr and is_live(replica)), -1)
    if proven != NO_LEADER:
        return proven
    ends = reported(row, is_live, logs)
    return longest(row, ends) if is_enough(row, ends, min_isr) else NO_LEADER


def reported(
    row: PartitionRow, is_live: Callable[[int], bool], logs: Mapping[int, LogEnd | None]
) -> dict[int, LogEnd]:
    """The log ends that count: of live replicas that may have lost a tail."""
    ends = ((replica, logs.get(replica)) for replica in row.last_known_elr if is_live(replica))
    return {replica: end for replica, end in ends if end is not None}


def is_enough(row: PartitionRow, replicas: Collection[int], min_isr: int) -> bool:
    """Whether one of these holders has all that is committed (see the module)."""
    if not replicas:
        return False
    return set(row.holders) <= set(replicas) or len(replicas) >= min_isr > 1


def longest(row: PartitionRow, ends: Mapping[int, LogEnd]) -> int:
    """The replica whose log reaches furthest, of equal ones the preferred; -1 of none."""
    order = {replica: -place for place, replica in enumerate(row.hosts)}
    return max(ends, key=lambda replica: (ends[replica], order[replica]), default=NO_LEADER)


def in_sight(
    row: PartitionRow,
    is_live: Callable[[int], bool],
    min_isr: int,
    logs: Mapping[int, LogEnd | None],
) -> bool:
    """Whether a clean election only waits for reports of brokers that are there to give them."""
    may_report = [
        replica
        for replica in row.last_known_elr
        if is_live(replica) and (replica not in logs or logs[replica] is not None)
    ]
    return is_enough(row, may_report, min_isr)


def awaits_logs(row: PartitionRow) -> bool:
    """Whether replicas of this partition are asked how far their logs reach: to elect the longest,
    or, where every complete copy was lost, to say what a person may accept."""
    return row.leader == NO_LEADER and (bool(row.last_known_elr) or not row.holders)
