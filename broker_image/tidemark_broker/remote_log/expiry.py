"""Which remote segments expire: topic-wide retention over both tiers. Pure.

Always oldest first, a whole segment at a time, ending at the first that stays; what expires is told
by the new log start offset alone, since everything wholly below it is marked by the head's floor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.tier.segment import SegmentEntry
from tidemark_broker.log import SegmentInfo
from tidemark_broker.remote_log.eligibility import first_ending_behind

NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``retention.ms`` and ``retention.bytes`` of the topic, -1 for none; ``deletes``: its
    ``cleanup.policy`` holds ``delete``."""

    retention_ms: int
    retention_bytes: int
    deletes: bool = True


def local_only_bytes(segments: Sequence[SegmentInfo], highest_remote_offset: int) -> int:
    """Bytes of the local log that the tier does not hold; what is in both counts once."""
    first = first_ending_behind(segments, highest_remote_offset + 1)
    return sum(segments[at].size_bytes for at in range(first, len(segments)))


def expired_up_to(
    live: Iterable[SegmentEntry],
    limits: Limits,
    *,
    live_bytes: int,
    local_bytes: int,
    now_ms: int,
) -> int | None:
    """The log start offset that retention asks for, None where nothing is expired.

    ``live`` oldest first (read no further than needed); ``live_bytes`` is the sum of all of it,
    ``local_bytes`` what only the local log holds. A segment goes when its newest record is older
    than the time limit, or when all of it lies above the size limit.
    """
    if not limits.deletes:
        return None
    excess = live_bytes + local_bytes - limits.retention_bytes
    log_start: int | None = None
    for entry in live:
        by_size = limits.retention_bytes >= 0 and excess >= entry.size_bytes
        if not (by_size or _too_old(entry, limits.retention_ms, now_ms)):
            break
        excess -= entry.size_bytes
        log_start = entry.end_offset_inclusive + 1
    return log_start


def _too_old(entry: SegmentEntry, retention_ms: int, now_ms: int) -> bool:
    """Records without timestamps are as old as their copy."""
    if retention_ms < 0:
        return False
    newest_ms = entry.max_timestamp_ms if entry.max_timestamp_ms >= 0 else entry.event_time_ms
    return now_ms - newest_ms > retention_ms
