"""Where each range of a partition's offsets lives, from the few offsets that its leader tells.

The tier has what lies below its end, the leader's disk what lies from the local log start on; what
has been copied and is not gone locally yet is in both (KIP-405).
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Place(enum.StrEnum):
    """Who has a range. Nowhere: the offsets were asked one after another, and something changed."""

    REMOTE = "remote"
    BOTH = "both"
    LOCAL = "local"
    NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """What brokers told of a partition. All ends are exclusive. ``tier_end`` None: nothing of it is
    in the tier. ``log_ends``: of replicas by node id, the leader's among them, where they were
    told."""

    log_start: int
    local_start: int
    tier_end: int | None
    high_watermark: int
    log_ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Of the leader's log; at least what is committed."""
        return max(self.high_watermark, self.log_start)


class Range(NamedTuple):
    """From ``start`` to ``end``, exclusive."""

    place: Place
    start: int
    end: int


def ranges(offsets: Offsets) -> tuple[Range, ...]:
    """From the log start to the high watermark without a hole, ascending; () of an empty log."""
    start, end = offsets.log_start, offsets.end
    tier_end = start if offsets.tier_end is None else min(max(offsets.tier_end, start), end)
    local_start = min(max(offsets.local_start, start), end)
    if tier_end < local_start:
        cuts = ((Place.REMOTE, tier_end), (Place.NOWHERE, local_start), (Place.LOCAL, end))
    else:
        cuts = ((Place.REMOTE, local_start), (Place.BOTH, tier_end), (Place.LOCAL, end))
    found = []
    for place, up_to in cuts:
        if up_to > start:
            found.append(Range(place, start, up_to))
            start = up_to
    return tuple(found)


def cells(found: Sequence[Range], width: int) -> tuple[tuple[Place, int], ...]:
    """A bar of ``width`` cells: each range has its share, and one at least. ``width`` is three or
    more: there are no more ranges."""
    total = sum(each.end - each.start for each in found)
    if not total:
        return ()
    exact = [(each.end - each.start) * width / total for each in found]
    counts = [max(1, int(share)) for share in exact]
    while sum(counts) != width:
        step = 1 if sum(counts) < width else -1
        off = [(share - count) * step for share, count in zip(exact, counts, strict=True)]
        may = [index for index, count in enumerate(counts) if step > 0 or count > 1]
        counts[max(may, key=off.__getitem__)] += step
    return tuple((each.place, count) for each, count in zip(found, counts, strict=True))


def lag(offsets: Offsets, leader: int, replica: int) -> int | None:
    """Records that a follower's log lacks of its leader's; None where one of them is not known. A
    leader is asked before its followers, so one that is ahead of the answer lacks nothing."""
    ends = offsets.log_ends
    if leader not in ends or replica not in ends:
        return None
    return max(0, ends[leader] - ends[replica])
