"""Whether a log still contains the records that a reader has passed.

An offset alone does not identify a record. A topic that is restored from its tier, or whose leader
is elected uncleanly, loses its tail and gives the same offsets to other records. So every offset
that outlives a cluster (a table, a checkpoint of a stream) is recorded together with a leader
epoch, and is compared with the log before it is used again, as consumers do it by KIP-320.

A log keeps its epochs only as long as its records. A restore is therefore recorded for good, in the
topic object of the tier: the first leader epoch after it, and where each partition ended. That also
judges offsets that were recorded without an epoch.

Pure: :func:`divergence` is the one decision, for every reader.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.leader_epochs import GENERATION

#: Restores of one topic that are recorded one by one; older ones are folded together.
RESTORES_MAX = 16
#: 2026-01-01 in seconds since 1970, from which epochs of restores count.
_EPOCHS_SINCE_S = 1_767_225_600
#: Epochs from a clock stay far below the largest that a manifest may name.
_CLOCK_EPOCH_MAX = 2**29


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Recorded read position in a partition.

    ``offset``: the next offset to read. ``leader_epoch``: epoch of a leader that had all records
    below the offset; None if an older version of Tidemark recorded the offset alone."""

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """Restore of a topic from its tier.

    ``leader_epoch``: of the first leaders after it, above every earlier epoch. ``ends``: first lost
    offset by partition; a partition that is not named started empty."""

    leader_epoch: int
    ends: Mapping[int, int] = field(default_factory=dict)

    def end(self, partition: int) -> int:
        """Return the first offset of the partition that the restore lost."""
        return self.ends.get(partition, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLineage:
    """Present state of a partition's log, None where it is not known.

    ``leader_epoch``: of the leader. ``end``: the first offset that the log does not have.
    ``later_epoch_start``: the first offset known to have a later epoch than the position, or the
    end of the log."""

    partition: int
    restores: tuple[Restore, ...] = ()
    leader_epoch: int | None = None
    end: int | None = None
    later_epoch_start: int | None = None


def divergence(position: ReadPosition, log: LogLineage) -> int | None:
    """Return the first offset below a read position whose record the log has lost, else None.

    None: no loss is known, so the reader may continue. ``position``: next offset to read, with the
    leader epoch under which it was recorded. ``log``: the log's restores, end and epochs.
    """
    epoch = position.leader_epoch
    # Each restore after the position's epoch has cut the log at its own end.
    ends = [
        restore.end(log.partition)
        for restore in log.restores
        if epoch is None or epoch < restore.leader_epoch
    ]
    # The log ends below the position: an unclean election, or a rebuild.
    if log.end is not None:
        ends.append(log.end)
    # The log has a later epoch from this offset on: records of the position's epoch end there.
    if epoch is not None and log.later_epoch_start is not None:
        ends.append(log.later_epoch_start)
    # Epochs never decrease within one log, so this log was re-created and shares no records.
    if epoch is not None and log.leader_epoch is not None and log.leader_epoch < epoch:
        ends.append(0)
    # The earliest loss counts. A loss behind the position does not concern the reader.
    lost_from = min(ends, default=position.offset)
    return lost_from if lost_from < position.offset else None


def restored_epoch(highest_epoch: int, now_ms: int) -> int:
    """Return the leader epoch of a restored topic's first leaders. ``highest_epoch``: of its heads.

    The lost cluster may have elected leaders, and rebuilt partitions, that never claimed a head:
    two generations above the highest are above these. The clock separates restores from the same
    heads, such as those of a bucket that was put back to an older state."""
    # Two restores of the same heads must not get the same epoch.
    by_clock = min(now_ms // 1000 - _EPOCHS_SINCE_S, _CLOCK_EPOCH_MAX)
    return max(highest_epoch + 2 * GENERATION, by_clock)


def merge_restores(known: Iterable[Restore], more: Iterable[Restore]) -> tuple[Restore, ...]:
    """Return the union of both, ordered by leader epoch.

    Beyond :data:`RESTORES_MAX` the two oldest become one restore with the lower ends. That may
    refuse a valid position, but never accepts an invalid one."""
    by_epoch = {restore.leader_epoch: restore for restore in (*known, *more)}
    merged = [by_epoch[epoch] for epoch in sorted(by_epoch)]
    while len(merged) > RESTORES_MAX:
        first, second = merged[:2]
        # A partition that either restore does not name ends at 0 there, and so in the union.
        ends = {part: min(first.end(part), second.end(part)) for part in first.ends}
        merged[:2] = [Restore(second.leader_epoch, ends)]
    return tuple(merged)


def loss_text(name: str, position: ReadPosition, lost_from: int) -> str:
    """Describe, for messages, which records the partition ``name`` has lost and why."""
    epoch = "" if position.leader_epoch is None else f" (leader epoch {position.leader_epoch})"
    return (
        f"{name}: the log has lost the records from offset {lost_from} up to {position.offset}"
        f"{epoch}, and reuses these offsets: the topic was restored from its tier, or a leader was "
        "elected uncleanly"
    )
