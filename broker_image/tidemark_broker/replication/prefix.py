"""The prefix rule: what is in the tier is a prefix of every leader's log.

Every replica keeps the last known end of the manifest, (offset, epoch). A replica whose own log
ends below it, or holds another epoch there, must not lead: it first takes the log over from the
tier (design: "The remote tier"; invariant 4). What it last heard may be out of date. Who was elected
from the ISR holds all that is committed whatever it heard, and must not depend on the tier; who was
elected uncleanly (the row is RECOVERING) asks the tier for its end in any case.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The last copied offset (inclusive) and the leader epoch of the record there."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TierEnd:
    """What the tier itself says, read under the asker's own claim: nobody else can add to it.
    ``end`` is (-1, -1) for an empty one; below ``log_start_offset`` everything was deleted."""

    end: RemoteEnd
    log_start_offset: int

    @property
    def next_offset(self) -> int:
        """The first offset that was never in the tier."""
        return max(self.end.offset + 1, self.log_start_offset)


def lacks(tier: TierEnd, *, next_offset: int, epoch_at_end: int) -> bool:
    """Does a log that ends at ``next_offset`` lack or contradict what is, or was, in the tier? If
    it does, it would give out offsets a second time."""
    if next_offset < tier.log_start_offset:
        return True
    return contradicts(tier.end, next_offset=next_offset, epoch_at_end=epoch_at_end)


def contradicts(end: RemoteEnd | None, *, next_offset: int, epoch_at_end: int) -> bool:
    """Does a log that ends at ``next_offset`` lack or contradict the tier's last record?

    ``epoch_at_end`` is the log's own epoch at ``end.offset``, -1 where it knows none (what lies
    below its local start may be known by the tier only: then nothing contradicts).
    """
    if end is None or end.offset < 0:
        return False
    if next_offset <= end.offset:
        return True
    return epoch_at_end >= 0 and end.epoch >= 0 and epoch_at_end != end.epoch


def later(known: RemoteEnd | None, offset: int, epoch: int) -> RemoteEnd:
    """The end to remember: it only grows (a deletion of old segments does not lower it).

    (-1, -1) is a tier known to be empty, which is more than to know nothing (None).
    """
    if known is not None and offset <= known.offset:
        return known
    return RemoteEnd(offset, epoch) if offset >= 0 else RemoteEnd(-1, -1)
