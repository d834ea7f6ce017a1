"""The prefix rule: what is in the tier is a prefix of every leader's log.

Every replica keeps the last known end of the manifest, (offset, epoch). A replica whose own log
ends below it, or holds another epoch there, must not lead: it first takes the log over from the
tier (design: "The remote tier"; invariant 4).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The last copied offset (inclusive) and the leader epoch of the record there."""

    offset: int
    epoch: int


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
