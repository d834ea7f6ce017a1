"""DeleteRecords (KIP-107) until the replicas have it, for clients and for the controller.

A leader raises its log start at once; who asked waits until the low watermark has reached what was
asked (two fetch rounds of the followers), or the partition failed, or time is up. What is waited
for is the very topic whose records were deleted, though another may have its name by then.
"""

import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark_broker.purgatory import Change, Purgatory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, log_start
from tidemark_broker.replication.types import DeleteResult, TopicPartition


@dataclass(slots=True)
class Deletion:
    """One partition on its way. ``pending`` ones hold REQUEST_TIMED_OUT, and the low watermark of
    the moment when they began, until they get there."""

    tp: TopicPartition
    error: ErrorCode
    topic_id: uuid.UUID | None = None
    target: int = -1
    low_watermark: int = -1
    pending: bool = False
    lost_from: int = -1


def begun(partition: Partition, result: DeleteResult) -> Deletion:
    """What the leader has done at once."""
    if result.error is not ErrorCode.none:
        return Deletion(partition.tp, result.error, lost_from=result.lost_from)
    pending = result.low_watermark < result.offset
    return Deletion(
        partition.tp,
        ErrorCode.request_timed_out if pending else ErrorCode.none,
        partition.topic_id,
        result.offset,
        result.low_watermark,
        pending,
    )


async def until_settled(
    deletions: Sequence[Deletion],
    manager: ReplicaManager,
    purgatory: Purgatory,
    timeout_s: float,
    *,
    who: Hashable,
) -> None:
    """Wait for those that are pending, at most so long."""
    pending = [each for each in deletions if each.pending]
    if pending:
        await purgatory.wait(
            [(Change.LOW_WATERMARK, each.tp) for each in pending],
            lambda: _all_settled(pending, manager),
            timeout_s,
            who=who,
        )


def _all_settled(pending: Sequence[Deletion], manager: ReplicaManager) -> bool:
    for each in pending:
        if each.pending:
            _check(each, manager)
    return not any(each.pending for each in pending)


def _check(deletion: Deletion, manager: ReplicaManager) -> None:
    name, number = deletion.tp
    partition = None if deletion.topic_id is None else manager.by_id(deletion.topic_id, number)
    error = manager.error_of(name, number) if partition is None else partition.check_leader()
    if partition is None or error is not ErrorCode.none:
        deletion.error, deletion.low_watermark, deletion.pending = error, -1, False
        return
    low_watermark = log_start.low_watermark(partition)
    if low_watermark >= deletion.target:
        deletion.error, deletion.low_watermark, deletion.pending = error, low_watermark, False
