"""Retention over both tiers of a topic: selects the segments of the tier that expire. Pure.

Segments expire oldest first and as a whole, up to the first one that stays. The new log start
offset describes the result, because the head's floor marks everything wholly below it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.tier.metadata.segment import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Retention limits of a topic.

    ``retention.ms`` and ``retention.bytes``, -1 for none. ``deletes``: its ``cleanup.policy``
    contains ``delete``.
    """

    retention_ms: int
    retention_bytes: int
    deletes: bool = True

    @property
    def are_set(self) -> bool:
        """Whether anything may expire."""
        return self.deletes and max(self.retention_ms, self.retention_bytes) >= 0


class Expiring:
    """Selection of the expired segments, oldest first.

    ``all_bytes``: log bytes of all segments of the partition, those that are only local included.
    """

    def __init__(self, limits: RetentionLimits, *, all_bytes: int, now_ms: int) -> None:
        self._limits, self._now_ms = limits, now_ms
        # Segments that are only local count too: retention.bytes covers the whole partition.
        self._excess = all_bytes - limits.retention_bytes
        self._goes_on = limits.deletes

    def takes(self, entry: SegmentEntry) -> bool:
        """Return whether a segment expires.

        It does if its newest record is older than the time limit, or if all of it exceeds the size
        limit. After the first segment that stays, none expires.
        """
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
    limits: RetentionLimits,
    *,
    live_bytes: int,
    local_bytes: int,
    now_ms: int,
) -> int | None:
    """Return the log start offset after retention, None if nothing is expired.

    ``live``: oldest first (read no further than needed). ``live_bytes``: their sum.
    ``local_bytes``: log bytes that are only local.
    """
    # Both tiers count towards retention.bytes, so local bytes are part of the sum.
    expiring = Expiring(limits, all_bytes=live_bytes + local_bytes, now_ms=now_ms)
    log_start: int | None = None
    # Without ``delete`` in cleanup.policy nothing expires.
    if limits.deletes:
        for entry in live:
            if not expiring.takes(entry):
                break
            log_start = entry.end_offset_inclusive + 1
    return log_start


def newest_ms(entry: SegmentEntry) -> int:
    """Return the time that retention uses. Records without timestamps are as old as their copy."""
    return entry.max_timestamp_ms if entry.max_timestamp_ms >= 0 else entry.event_time_ms
