"""Divergence of two logs: leader epochs decide what a follower truncates, never the high watermark.

With fetch-based truncation (KIP-595's DivergingEpoch) the follower names the epoch of its last
record. The leader answers with the end of that epoch, or of the largest one before it, in its own
log.
"""

from tidemark.logfiles.leader_epochs import EpochEnd

UNKNOWN = -1


def diverging(
    *, fetch_offset: int, last_fetched_epoch: int, leaders_end: EpochEnd
) -> EpochEnd | None:
    """Return the point where a follower's log diverges from the leader's, or None.

    ``leaders_end`` is the leader's end of ``last_fetched_epoch``.
    """
    if last_fetched_epoch == UNKNOWN:
        return None
    if leaders_end.epoch < last_fetched_epoch or leaders_end.end_offset < fetch_offset:
        return leaders_end
    return None


def truncation_offset(*, leaders_end: EpochEnd, own_end: EpochEnd, own_next_offset: int) -> int:
    """Return the offset at which the follower truncates: the lower of the two ends of that epoch.

    ``own_end`` is the follower's own end of ``leaders_end.epoch``. If it has no such epoch, the
    leader's end alone decides. The next fetch finds an earlier point, if there is one.
    """
    limit = min(leaders_end.end_offset, own_next_offset)
    if own_end.end_offset == UNKNOWN:
        return max(limit, 0)
    return max(min(limit, own_end.end_offset), 0)
