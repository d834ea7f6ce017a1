"""Objects of the tier that were found not to be what was copied, or not to be there, until they are
seen to be good.

Nobody looks at an object unless it is read, so this is what readers have met: a partition's status
tells of it for as long as its records are not expired and nobody has read that place soundly, since
only a person can mend it.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.lru import Lru
from tidemark.reasons import Reason
from tidemark.tier.segment import SegmentEntry
from tidemark.wire.control import TIER_INTEGRITY
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.remote_log.tier_failure import Failure
from tidemark_broker.replication.types import TopicIdPartition

#: What is remembered of one partition, and of how many partitions.
_SEGMENTS_MAX = 16
_PARTITIONS_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Damage:
    entry: SegmentEntry
    offset: int
    reason: str
    message: str


class Damages:
    """By topic id and partition. Safe between threads."""

    def __init__(self) -> None:
        self._found: Lru[TopicIdPartition, dict[uuid.UUID, _Damage]] = Lru(_PARTITIONS_MAX)
        self._lock = ordered_lock(LockRank.LEAF)

    def add(self, key: TopicIdPartition, entry: SegmentEntry, offset: int, message: str) -> bool:
        """Reading ``offset`` has met a damaged object of this segment; whether that is news."""
        return self._remember(key, _Damage(entry, offset, TIER_INTEGRITY, message))

    def miss(self, key: TopicIdPartition, entry: SegmentEntry, offset: int, message: str) -> bool:
        """Reading ``offset`` has found that an object of this segment is not there, though the
        newest manifest names it; whether that is news."""
        text = (
            f"{message}, and the manifest names it: restore the object from a copy, or give up its "
            f"records with a RecordDeletion before offset {entry.end_offset_inclusive + 1}"
        )
        return self._remember(key, _Damage(entry, offset, Reason.REMOTE_OBJECT_MISSING, text))

    def _remember(self, key: TopicIdPartition, damage: _Damage) -> bool:
        segment_id = damage.entry.segment_id
        with self._lock:
            of_partition = self._found.get(key) or {}
            known = segment_id in of_partition
            of_partition[segment_id] = damage
            if len(of_partition) > _SEGMENTS_MAX:
                del of_partition[next(iter(of_partition))]
            self._found.put(key, of_partition)
            self._found.evict()
        return not known

    def sound(
        self, key: TopicIdPartition, entry: SegmentEntry, start_offset: int, next_offset: int
    ) -> None:
        """These offsets of the segment were read, and are what was copied."""
        if not self._found:
            return
        with self._lock:
            damage = (self._found.get(key) or {}).get(entry.segment_id)
            if damage is not None and start_offset <= damage.offset < next_offset:
                self._drop(key, entry)

    def failure(
        self, key: TopicIdPartition, is_live: Callable[[SegmentEntry], bool]
    ) -> Failure | None:
        """For the partition's status: the first that is still served."""
        if not self._found:
            return None
        with self._lock:
            for damage in tuple((self._found.get(key) or {}).values()):
                if is_live(damage.entry):
                    return Failure(damage.reason, damage.message)
                self._drop(key, damage.entry)
        return None

    def forget(self, key: TopicIdPartition) -> None:
        """The replica goes."""
        with self._lock:
            self._found.pop(key)

    def _drop(self, key: TopicIdPartition, entry: SegmentEntry) -> None:
        of_partition = self._found.get(key) or {}
        of_partition.pop(entry.segment_id, None)
        if not of_partition:
            self._found.pop(key)
