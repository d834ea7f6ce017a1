"""Eligible leader replicas (KIP-966), which have all committed records outside the ISR.

While the ISR is below min.insync.replicas, or there is no leader, the high watermark does not
advance. A replica that leaves the ISR then has all committed records, and still has them as long as
it loses nothing: it stays in the row's ``elr``. A replica that returned without proof of a clean
shutdown may have lost what it had not synced: it moves to ``last_known_elr``. One that returned
with another log directory is in neither. With a leader and enough in-sync replicas both are empty.

Of several replicas that may each have lost a tail, the one with the largest (last epoch, log end)
has every committed record that any of them has. That it has all committed records needs one of two
things. Either all holders have reported, or at least min.insync.replicas of them have (fewer than
that lose unsynced bytes at once: invariant 1). If the minimum is 1, nothing is guaranteed about
such a loss, so all must report.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from tidemark_operator.controller.state.model import NO_LEADER, LogEnd, PartitionRow


def with_eligible_leaders(
    old: PartitionRow, new: PartitionRow, min_isr: int, *, lost: Collection[int] = ()
) -> PartitionRow:
    """Return ``new`` with the eligible leader replicas (ELR) that follow from its ISR (KIP-966).

    Same rules as Kafka's ``PartitionChangeBuilder``. ``lost``: replicas that no longer have any
    records. A partition in RECOVERING has no ELR: only its leader counts until it has checked its
    log (KIP-704).
    """
    if new.recovering or (new.leader != NO_LEADER and len(new.isr) >= min_isr):
        return dataclasses.replace(new, elr=(), last_known_elr=())
    # "Unproven" replicas may have lost the end of their log in a crash. They return to the ELR only
    # through the ISR.
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
    """Return the leader of a partition whose ISR has no live member, -1 for none.

    A live member of the ELR leads. Otherwise it is the replica with the longest log among those
    that reported their log ends (``logs``, by node id), once enough have reported.
    """
    proven = next((replica for replica in row.hosts if replica in row.elr and is_live(replica)), -1)
    # A proven replica needs no comparison of logs.
    if proven != NO_LEADER:
        return proven
    ends = reported(row, is_live, logs)
    return longest(row, ends) if is_enough(row, ends, min_isr) else NO_LEADER


def reported(
    row: PartitionRow, is_live: Callable[[int], bool], logs: Mapping[int, LogEnd | None]
) -> dict[int, LogEnd]:
    """Return the log ends that count: of live replicas that may have lost a tail."""
    ends = ((replica, logs.get(replica)) for replica in row.last_known_elr if is_live(replica))
    return {replica: end for replica, end in ends if end is not None}


def is_enough(row: PartitionRow, replicas: Collection[int], min_isr: int) -> bool:
    """Return whether one of the given replicas has all committed records (see the module)."""
    if not replicas:
        return False
    # With a minimum of 1 any single replica could have acknowledged records alone.
    return set(row.holders) <= set(replicas) or len(replicas) >= min_isr > 1


def longest(row: PartitionRow, ends: Mapping[int, LogEnd]) -> int:
    """Return the replica with the longest log, of equal ones the preferred one; -1 for none."""
    # The preferred leader wins among equal logs, so that no second election is needed.
    order = {replica: -place for place, replica in enumerate(row.hosts)}
    return max(ends, key=lambda replica: (ends[replica], order[replica]), default=NO_LEADER)


def only_awaits_live_brokers(
    row: PartitionRow,
    is_live: Callable[[int], bool],
    min_isr: int,
    logs: Mapping[int, LogEnd | None],
) -> bool:
    """Return whether a clean election only waits for reports of live brokers."""
    # A live replica that answered with failed storage will not report an end by waiting.
    may_report = [
        replica
        for replica in row.last_known_elr
        if is_live(replica) and (replica not in logs or logs[replica] is not None)
    ]
    return is_enough(row, may_report, min_isr)


def awaits_logs(row: PartitionRow) -> bool:
    """Return whether replicas of this partition have to report the ends of their logs.

    The longest is elected, or, if every complete copy was lost, offered to a person.
    """
    return row.leader == NO_LEADER and (bool(row.last_known_elr) or not row.holders)
