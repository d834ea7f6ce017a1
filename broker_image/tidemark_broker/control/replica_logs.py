"""``ReplicaLogInfo`` (KIP-966): log ends of this broker's replicas, for an unclean election.

Each replica may have lost unsynced records. Answered from memory. A log with a storage failure is
reported as such, because its content is in doubt.
"""

import uuid

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.log import PartitionLog
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager

_UNKNOWN = int(ErrorCode.unknown_topic_or_partition.value)
_STORAGE = int(ErrorCode.kafka_storage_error.value)


def replica_logs(
    manager: ReplicaManager, request: control.ReplicaLogInfoRequest
) -> tuple[control.ReplicaLog, ...]:
    """Return one answer for each partition, in the order of the request."""
    return tuple(
        _replica_log(manager, topic.topic_id, partition)
        for topic in request.topics
        for partition in topic.partitions
    )


def last_epoch(log: PartitionLog) -> int:
    """Return the leader epoch of the last record.

    For an empty log this is the epoch in which it starts (its records have expired or were
    deleted), or -1 if none was ever known.
    """
    epochs = log.epochs
    found = epochs.epoch_for_offset(log.next_offset - 1)
    return epochs.entries[0].epoch if found < 0 and epochs.entries else found


def _replica_log(manager: ReplicaManager, topic_id: uuid.UUID, number: int) -> control.ReplicaLog:
    """Return the log end of one replica, for the controller's choice in an unclean election.

    KAFKA_STORAGE_ERROR means that the replica exists but its content is in doubt, and
    UNKNOWN_TOPIC_OR_PARTITION that this broker has none.
    """
    partition = manager.by_id(topic_id, number)
    if partition is None:
        # An offline replica may hold records that no other replica has, unlike a missing one.
        code = _STORAGE if manager.is_offline(topic_id, number) else _UNKNOWN
        return _answer(topic_id, number, code)
    log = partition.log
    # A failing disk may return an old log end, which must not win an election.
    if log.failure is not None or partition.context.failures.has_failed(partition.tp):
        return _answer(topic_id, number, _STORAGE, leader_epoch=partition.leader_epoch)
    # Range of offsets that were committed once and were missing when the log was opened.
    lost = log.lost_at_open
    return control.ReplicaLog(
        topic_id=topic_id,
        partition=number,
        error_code=0,
        last_epoch=last_epoch(log),
        next_offset=log.next_offset,
        leader_epoch=partition.leader_epoch,
        lost_start_offset=-1 if lost is None else lost[0],
        lost_end_offset=-1 if lost is None else lost[1],
    )


def _answer(
    topic_id: uuid.UUID, number: int, code: int, *, leader_epoch: int = -1
) -> control.ReplicaLog:
    return control.ReplicaLog(
        topic_id=topic_id,
        partition=number,
        error_code=code,
        last_epoch=-1,
        next_offset=-1,
        leader_epoch=leader_epoch,
        lost_start_offset=-1,
        lost_end_offset=-1,
    )
