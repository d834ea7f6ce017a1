"""Where two logs part: leader epochs decide what a follower cuts off, never the high watermark.

Fetch-based truncation (KIP-595's DivergingEpoch): the follower names the epoch of its last
record; the leader answers where that epoch, or the largest one before it, ended in its own log.
"""

from tidemark.logfiles.leader_epochs import EpochEnd

UNKNOWN = -1


def diverging(
    *, fetch_offset: int, last_fetched_epoch: int, leaders_end: EpochEnd
) -> EpochEnd | None:
    """The leader's answer to a fetch: the point where the follower's log parts from its own.

    ``leaders_end`` is the leader's end of ``last_fetched_epoch``. None: the logs agree so far.
    """
    if last_fetched_epoch == UNKNOWN:
        return None
    if leaders_end.epoch < last_fetched_epoch or leaders_end.end_offset < fetch_offset:
        return leaders_end
    return None


def truncation_offset(*, leaders_end: EpochEnd, own_end: EpochEnd, own_next_offset: int) -> int:
    """Where the follower cuts its log: the lower of the two ends of that epoch.

    ``own_end`` is the follower's own end of ``leaders_end.epoch``; where it has no such epoch the
    leader's end alone decides. The next fetch finds the point before that, if there is one.
    """
    limit = min(leaders_end.end_offset, own_next_offset)
    if own_end.end_offset == UNKNOWN:
        return max(limit, 0)
    return max(min(limit, own_end.end_offset), 0)
