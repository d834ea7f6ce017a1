"""Which segments of the tier expire: topic-wide retention over both tiers. Pure.

Always oldest first, a whole segment at a time, ending at the first that stays; what expires is told
by the new log start offset alone, since everything wholly below it is marked by the head's floor.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.tier.segment import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``retention.ms`` and ``retention.bytes`` of the topic, -1 for none; ``deletes``: its
    ``cleanup.policy`` holds ``delete``."""

    retention_ms: int
    retention_bytes: int
    deletes: bool = True


class Expiring:
    """What goes now, asked segment by segment, oldest first. ``all_bytes``: log bytes of all
    segments of the partition, those that only the local log holds included."""

    def __init__(self, limits: Limits, *, all_bytes: int, now_ms: int) -> None:
        self._limits, self._now_ms = limits, now_ms
        self._excess = all_bytes - limits.retention_bytes
        self._goes_on = limits.deletes

    def takes(self, entry: SegmentEntry) -> bool:
        """A segment goes when its newest record is older than the time limit, or when all of it
        lies above the size limit. Of those behind one that stays none goes."""
        if self._goes_on:
            by_size = self._limits.retention_bytes >= 0 and self._excess >= entry.size_bytes
            self._goes_on = by_size or self._is_too_old(entry)
            self._excess -= entry.size_bytes
        return self._goes_on

    def _is_too_old(self, entry: SegmentEntry) -> bool:
        limit_ms = self._limits.retention_ms
        return limit_ms >= 0 and self._now_ms - newest_ms(entry) > limit_ms


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
    ``local_bytes`` what only the local log holds.
    """
    expiring = Expiring(limits, all_bytes=live_bytes + local_bytes, now_ms=now_ms)
    log_start: int | None = None
    if limits.deletes:
        for entry in live:
            if not expiring.takes(entry):
                break
            log_start = entry.end_offset_inclusive + 1
    return log_start


def newest_ms(entry: SegmentEntry) -> int:
    """The time that retention goes by. Records without timestamps are as old as their copy."""
    return entry.max_timestamp_ms if entry.max_timestamp_ms >= 0 else entry.event_time_ms
