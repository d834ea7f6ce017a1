"""Record deletions of the controller: resolution of offsets, and the deletion itself.

Both requests identify the topic by id and contain the leader epoch of this broker. A request for an
earlier topic of the same name, or for an earlier leadership, therefore changes nothing (invariants
12 to 14).
"""

import asyncio
import uuid
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from tidemark.wire import deletions as wire
from tidemark_broker.log import PartitionLog
from tidemark_broker.replication.hosting import deletions
from tidemark_broker.replication.hosting.deletions import Deletion
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, consumer_reads, log_start
from tidemark_broker.replication.remote import RemoteUnavailable
from tidemark_broker.replication.threads import ThreadsBusy, in_lookup_thread
from tidemark_broker.replication.types import TopicPartition

#: Concurrent look-ups by time, and in the tier, of one request.
_AT_ONCE = 16
#: Partitions that are started or answered before the loop is yielded.
_SOME = 50
#: Time-out of the look-ups. The controller waits a little longer for the answer.
_LOOKUPS_S = 20.0
WAIT_MAX_MS = 60_000


class _DeletionRefused(Exception):
    """An error code that ends the processing of a partition."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


async def deletion_points(
    manager: ReplicaManager, request: wire.DeletionPointsRequest
) -> tuple[wire.DeletionPoint, ...]:
    """Resolve deletion requests to offsets. Return one result per partition, in request order.

    Nothing is deleted. The controller shows the results in a dry run, and sends the offsets back in
    a ``DeleteTopicRecords`` request.
    """
    gate, found = asyncio.Semaphore(_AT_ONCE), []
    until_s = asyncio.get_running_loop().time() + _LOOKUPS_S

    async def limited(point: wire.DeletionPointQuery) -> wire.DeletionPoint:
        """Resolve one partition, with at most :data:`_AT_ONCE` look-ups at a time."""
        async with gate:
            return await _point(manager, request.topic_id, point, until_s)

    # In slices, so that a topic with thousands of partitions does not create as many tasks at once.
    for start in range(0, len(request.partitions), _SOME):
        async with asyncio.TaskGroup() as group:
            some = request.partitions[start : start + _SOME]
            tasks = [group.create_task(limited(point)) for point in some]
        found += [task.result() for task in tasks]
    return tuple(found)


async def _point(
    manager: ReplicaManager, topic_id: uuid.UUID, point: wire.DeletionPointQuery, until_s: float
) -> wire.DeletionPoint:
    """Resolve one partition's query, or return its error code with all offsets set to -1.

    ``until_s`` is the deadline in seconds of the loop's clock.
    """
    try:
        # One deadline for all partitions, so that the answer arrives while the controller waits.
        async with asyncio.timeout_at(until_s):
            partition = _hosted(manager, topic_id, point.partition, point.leader_epoch)
            return await _resolved(partition, point)
    except _DeletionRefused as refused:
        error = refused.error
    except TimeoutError:
        error = ErrorCode.request_timed_out
    return wire.DeletionPoint(partition=point.partition, error_code=int(error.value))


def _hosted(
    manager: ReplicaManager, topic_id: uuid.UUID, number: int, leader_epoch: int
) -> Partition:
    if leader_epoch < 0:  # elsewhere "any epoch"; a deletion must name the exact one
        raise _DeletionRefused(ErrorCode.fenced_leader_epoch)
    partition = manager.by_id(topic_id, number)
    if partition is not None:
        return partition
    offline = manager.is_offline(topic_id, number)
    raise _DeletionRefused(ErrorCode.kafka_storage_error if offline else ErrorCode.unknown_topic_id)


async def _resolved(partition: Partition, point: wire.DeletionPointQuery) -> wire.DeletionPoint:
    """Translate "before this offset" or "before this time" into the offset to delete up to.

    The result also contains the bounds of the log, the leader epoch of the last record below the
    offset, and the size of what would be deleted. Raises :class:`_DeletionRefused`.
    """
    if not partition.log.config.deletes:  # a dry run fails like the deletion itself
        raise _DeletionRefused(ErrorCode.policy_violation)
    # The high watermark is read first: records that arrive during the look-ups are not covered.
    high_watermark = await _offset(partition, consumer_reads.LATEST, point.leader_epoch)
    # A negative ``before_offset`` means everything that is committed.
    offset = high_watermark if point.before_offset < 0 else point.before_offset
    if point.before_time_ms >= 0:
        # The first record with at least that timestamp is the first one that stays. Without such a
        # record all committed records are older.
        by_time = await _offset(partition, point.before_time_ms, point.leader_epoch)
        offset = high_watermark if by_time < 0 else min(by_time, high_watermark)
    size_bytes = await _bytes_below(partition, min(offset, high_watermark))
    # Another leader may have been elected during the look-ups, and truncated records.
    error = partition.check_leader(point.leader_epoch)
    if error is not ErrorCode.none:
        raise _DeletionRefused(error)
    return wire.DeletionPoint(
        partition=point.partition,
        error_code=0,
        log_start_offset=partition.log_start_offset,
        high_watermark=high_watermark,
        offset=offset,
        last_epoch=log_start.last_epoch_below(partition, offset),
        size_bytes=size_bytes,
    )


async def _offset(partition: Partition, timestamp: int, leader_epoch: int) -> int:
    found = await consumer_reads.list_offset(
        partition, timestamp, current_leader_epoch=leader_epoch
    )
    if found.error is not ErrorCode.none:
        raise _DeletionRefused(found.error)
    return found.offset


async def _bytes_below(partition: Partition, offset: int) -> int:
    """Return the size in bytes of a partition's records below ``offset``, for display.

    Segments in remote storage are included. -1 if the size is unknown because remote storage or the
    thread pool is not available.
    """
    remote, end, tiered = partition.context.remote, partition.remote_end, 0
    try:
        # Segments in both places count once, so the local part starts above the copied offset.
        if remote is not None and end is not None and partition.tiering.reads_tier:
            tiered = await remote.bytes_below(partition, offset)
        else:
            end = None
        copied = -1 if end is None else end.offset
        return tiered + await in_lookup_thread(_local_bytes, partition.log, copied, offset)
    except (RemoteUnavailable, ThreadsBusy):
        return -1


def _local_bytes(log: PartitionLog, copied: int, offset: int) -> int:
    """Size of the segments wholly below the offset and above ``copied``, the end of the tier."""
    return sum(
        segment.size_bytes
        for segment in log.segment_infos()
        if not segment.is_active and copied < segment.next_base_offset - 1 < offset
    )


async def delete_topic_records(
    manager: ReplicaManager, request: wire.DeleteTopicRecordsRequest, *, who: str
) -> tuple[wire.PartitionDeletionResult, ...]:
    """Delete records up to the given offsets and return one result per partition, in request order.

    Waits at most ``timeout_ms`` until all followers have deleted them too (the low watermark).
    ``who`` identifies the requester for the limit of waiting operations.
    """
    begun: list[Deletion] = []
    # Deletions start at once on all partitions, and then a single wait covers all of them.
    for number, below in enumerate(request.partitions):
        if number % _SOME == _SOME - 1:
            await asyncio.sleep(0)
        begun.append(_begin(manager, request.topic_id, below))
    timeout_s = min(max(request.timeout_ms, 0), WAIT_MAX_MS) / 1000
    purgatory = manager.context.purgatory
    await deletions.wait_until_settled(begun, manager, purgatory, timeout_s, who=who)
    return _results(begun)


def _begin(manager: ReplicaManager, topic_id: uuid.UUID, below: wire.PartitionDeletion) -> Deletion:
    """Start the deletion on one partition.

    ``below`` contains the offset and the leader epochs that the controller resolved. Conditions are
    checked in the same step of the event loop that moves the log start, so nothing can change
    between.
    """
    try:
        partition = _hosted(manager, topic_id, below.partition, below.leader_epoch)
    except _DeletionRefused as refused:
        return Deletion(TopicPartition("", below.partition), refused.error)
    # The leader epochs prevent a deletion of other records after an unclean election.
    result = log_start.delete_intended(
        partition,
        below.offset,
        leader_epoch=below.leader_epoch,
        last_epoch=below.last_epoch,
    )
    return deletions.begun(partition, result)


def _results(ended: Sequence[Deletion]) -> tuple[wire.PartitionDeletionResult, ...]:
    return tuple(
        wire.PartitionDeletionResult(
            partition=deletion.tp.partition,
            error_code=int(deletion.error.value),
            low_watermark=deletion.low_watermark,
            lost_from_offset=deletion.lost_from,
        )
        for deletion in ended
    )
