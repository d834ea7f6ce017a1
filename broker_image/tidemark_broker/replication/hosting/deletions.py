"""Completion of DeleteRecords (KIP-107) on all replicas, for clients and for the controller.

A leader raises its log start at once. The request waits until the low watermark has reached the
offset (two fetch rounds of the followers), the partition fails, or time is up. The wait is for the
same topic id, even if another topic gets the name meanwhile.
"""

import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark_broker.purgatory import PartitionChange, Purgatory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.partition import Partition, log_start
from tidemark_broker.replication.types import DeleteResult, TopicPartition

#: Seconds between two checks of a pending deletion, in addition to its notifications.
_LOOK_AGAIN_S = 1.0


@dataclass(slots=True)
class Deletion:
    """Deletion in one partition.

    While ``pending`` it has REQUEST_TIMED_OUT and the low watermark from its start.
    """

    tp: TopicPartition
    error: ErrorCode
    topic_id: uuid.UUID | None = None
    target: int = -1
    low_watermark: int = -1
    pending: bool = False
    lost_from: int = -1


def begun(partition: Partition, result: DeleteResult) -> Deletion:
    """Return the deletion after the leader's immediate part."""
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


async def wait_until_settled(
    deletions: Sequence[Deletion],
    manager: ReplicaManager,
    purgatory: Purgatory,
    timeout_s: float,
    *,
    who: Hashable,
) -> None:
    """Wait at most ``timeout_s`` until every pending deletion has ended.

    A deletion ends when the low watermark has reached its offset, or when it fails; its ``error``
    is set then. Deletions that are still pending afterwards have timed out. ``who``: the client,
    for the purgatory's limits.
    """
    # All wait together: one purgatory entry with the keys of every partition.
    pending = [deletion for deletion in deletions if deletion.pending]
    keys = [(PartitionChange.LOW_WATERMARK, item.tp) for item in pending]
    # There is no notification when a follower stops fetching, so check again at intervals.
    while pending:
        wait_s = min(timeout_s, _LOOK_AGAIN_S)
        timeout_s -= wait_s
        is_settled = await purgatory.wait(
            keys, lambda: _all_settled(pending, manager), wait_s, who=who
        )
        if is_settled or timeout_s <= 0:
            return


def _all_settled(pending: Sequence[Deletion], manager: ReplicaManager) -> bool:
    for item in pending:
        if item.pending:
            _check(item, manager)
    return not any(item.pending for item in pending)


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
