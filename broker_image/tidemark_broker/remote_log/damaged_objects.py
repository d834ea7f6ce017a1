"""Record of damaged or missing objects of the tier, until a read succeeds.

Objects are only examined by reads, so this is what reads have found. A partition's status reports
it until the records expire or a read of that place succeeds, since only an administrator can repair
it.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.lru import Lru
from tidemark.reasons import Reason
from tidemark.tier.segment import SegmentEntry
from tidemark.wire.control import TIER_INTEGRITY
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.remote_log.tier_failure import TierFailure
from tidemark_broker.replication.types import TopicIdPartition

#: Limit of remembered segments for each partition, and of partitions.
_SEGMENTS_MAX = 16
_PARTITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Damage:
    entry: SegmentEntry
    offset: int
    reason: str
    message: str


class Damages:
    """Damage by topic id and partition. Safe between threads."""

    def __init__(self) -> None:
        self._found: Lru[TopicIdPartition, dict[uuid.UUID, _Damage]] = Lru(_PARTITIONS_MAX)
        self._lock = ordered_lock(LockRank.LEAF)

    def add(self, key: TopicIdPartition, entry: SegmentEntry, offset: int, message: str) -> bool:
        """Record a damaged object of the segment, found when reading ``offset``.

        Return whether it is new.
        """
        return self._remember(key, _Damage(entry, offset, TIER_INTEGRITY, message))

    def miss(self, key: TopicIdPartition, entry: SegmentEntry, offset: int, message: str) -> bool:
        """Record a missing object of the segment, though the newest manifest names it.

        Return whether it is new.
        """
        text = (
            f"{message}, but the manifest names it: restore the object from a copy, or give up its "
            f"records with a RecordDeletion before offset {entry.end_offset_inclusive + 1}"
        )
        return self._remember(key, _Damage(entry, offset, Reason.REMOTE_OBJECT_MISSING, text))

    def _remember(self, key: TopicIdPartition, damage: _Damage) -> bool:
        """Record one damage; return whether its segment was not known as damaged."""
        segment_id = damage.entry.segment_id
        with self._lock:
            of_partition = self._found.get(key) or {}
            known = segment_id in of_partition
            of_partition[segment_id] = damage
            # A status can show only one of them, so a few suffice.
            if len(of_partition) > _SEGMENTS_MAX:
                del of_partition[next(iter(of_partition))]
            self._found.put(key, of_partition)
            self._found.evict()
        return not known

    def sound(
        self, key: TopicIdPartition, entry: SegmentEntry, start_offset: int, next_offset: int
    ) -> None:
        """Record a successful read of the segment's offsets, which clears damage in between."""
        if not self._found:
            return
        with self._lock:
            damage = (self._found.get(key) or {}).get(entry.segment_id)
            # A good read of another part of the segment proves nothing about this one.
            if damage is not None and start_offset <= damage.offset < next_offset:
                self._drop(key, entry)

    def failure(
        self, key: TopicIdPartition, is_live: Callable[[SegmentEntry], bool]
    ) -> TierFailure | None:
        """Return the first damage of a live segment, for the partition's status."""
        if not self._found:
            return None
        with self._lock:
            # Expired segments are not served any more, so their damage is dropped.
            for damage in tuple((self._found.get(key) or {}).values()):
                if is_live(damage.entry):
                    return TierFailure(damage.reason, damage.message)
                self._drop(key, damage.entry)
        return None

    def forget(self, key: TopicIdPartition) -> None:
        """Drop the records of a removed replica."""
        with self._lock:
            self._found.pop(key)

    def _drop(self, key: TopicIdPartition, entry: SegmentEntry) -> None:
        of_partition = self._found.get(key) or {}
        of_partition.pop(entry.segment_id, None)
        if not of_partition:
            self._found.pop(key)
