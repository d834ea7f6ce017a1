"""Location of each offset range of a partition, derived from the offsets that its leader returns.

The tier contains offsets below its end, and the leader's disk those from the local log start.
Ranges that are copied and not deleted locally yet are in both (KIP-405).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class RangePlace(enum.StrEnum):
    """Location of a range. NOWHERE: the offsets changed between two requests."""

    REMOTE = "remote"
    BOTH = "both"
    LOCAL = "local"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """Offsets of a partition; all ends are exclusive.

    ``tier_end`` None: the tier has no segment of it. ``log_ends``: of replicas by node id including
    the leader, if known.
    """

    log_start: int
    local_start: int
    tier_end: int | None
    high_watermark: int
    log_ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Return the end that consumers see: the high watermark, at least the log start."""
        return max(self.high_watermark, self.log_start)


class Range(NamedTuple):
    """Offsets from ``start`` to ``end``, exclusive."""

    place: RangePlace
    start: int
    end: int


def ranges(offsets: PartitionOffsets) -> tuple[Range, ...]:
    """Return where each offset range from the log start to the high watermark is stored.

    The ranges have no gap; () for an empty log.
    """
    start, end = offsets.log_start, offsets.end
    # Clamped: the offsets come from several requests, between which the log may have changed.
    tier_end = start if offsets.tier_end is None else min(max(offsets.tier_end, start), end)
    local_start = min(max(offsets.local_start, start), end)
    # If the tier ends below the local log start, no query has seen the offsets between them.
    if tier_end < local_start:
        cuts = (
            (RangePlace.REMOTE, tier_end),
            (RangePlace.NOWHERE, local_start),
            (RangePlace.LOCAL, end),
        )
    else:
        cuts = (
            (RangePlace.REMOTE, local_start),
            (RangePlace.BOTH, tier_end),
            (RangePlace.LOCAL, end),
        )
    placed = []
    for place, up_to in cuts:
        if up_to > start:
            placed.append(Range(place, start, up_to))
            start = up_to
    return tuple(placed)


def cells(spans: Sequence[Range], width: int) -> tuple[tuple[RangePlace, int], ...]:
    """Divide a bar of ``width`` cells among the ranges: (place, number of cells) for each.

    Each range gets its share, and at least one cell. ``width`` is at least three, the largest
    number of ranges.
    """
    total = sum(span.end - span.start for span in spans)
    if not total:
        return ()
    exact = [(span.end - span.start) * width / total for span in spans]
    counts = [max(1, int(share)) for share in exact]
    # Rounding is corrected one cell at a time, at the range that is furthest from its share.
    while sum(counts) != width:
        step = 1 if sum(counts) < width else -1
        off = [(share - count) * step for share, count in zip(exact, counts, strict=True)]
        may = [index for index, count in enumerate(counts) if step > 0 or count > 1]
        counts[max(may, key=off.__getitem__)] += step
    return tuple((span.place, count) for span, count in zip(spans, counts, strict=True))


def lag(offsets: PartitionOffsets, leader: int, replica: int) -> int | None:
    """Return the number of records that a follower lacks; None if an offset is unknown.

    The leader is queried before its followers, so a follower that is ahead of the answer lacks
    nothing.
    """
    ends = offsets.log_ends
    if leader not in ends or replica not in ends:
        return None
    return max(0, ends[leader] - ends[replica])
