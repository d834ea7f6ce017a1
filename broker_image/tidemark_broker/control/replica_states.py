"""States and logs of this broker's replicas: ``ReplicaStates`` and ``ReplicaLogInfo``.

``ReplicaStates``: recorded states of this broker's replicas, sent before it is registered.

The controller may have lost its decisions, or been restored from an old backup. The state files
beside the brokers' logs are then the remaining copy. Every replica is listed, open or not. A
replica without a state, or with an unreadable file, is listed without one. Pages are small, because
a peer without a session's secret may only send small requests.
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kio.schema.errors import ErrorCode

from tidemark.tiering import NEVER_TIERED
from tidemark.wire import control
from tidemark_broker.log import PartitionLog
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager, StoredReplica
from tidemark_broker.replication.metadata import unknown_row
from tidemark_broker.replication.threads import in_thread

#: Estimated size of a page, rounded up. The controller accepts 64 KiB.
_PAGE_BYTES = 32 * 1024
_ROW_BYTES = 64
_TOPIC_BYTES = 64
_NODE_BYTES = 5


@dataclass(frozen=True, slots=True)
class ReplicaStatesPage:
    """Content of one request."""

    topics: tuple[control.TopicState, ...]
    is_last: bool


async def pages(manager: ReplicaManager) -> list[ReplicaStatesPage]:
    """Return all pages, at least one."""
    opened = manager.open_replicas()
    # State files of replicas that are not open are read from disk, so in a thread.
    unopened = await in_thread(manager.unopened_replicas)
    parts = list(
        # Sorted, so that a topic's replicas share its entry.
        _parts(
            sorted([*opened, *unopened], key=lambda replica: (replica.topic_id, replica.partition))
        )
    )
    return [ReplicaStatesPage(part, index == len(parts) - 1) for index, part in enumerate(parts)]


def _parts(replicas: Iterable[StoredReplica]) -> Iterator[tuple[control.TopicState, ...]]:
    page: dict[uuid.UUID, list[StoredReplica]] = {}
    size = 0
    for replica in replicas:
        more = _size(replica, is_new=replica.topic_id not in page)
        if page and size + more > _PAGE_BYTES:
            yield _topics(page)
            page, size = {}, 0
            more = _size(replica, is_new=True)
        page.setdefault(replica.topic_id, []).append(replica)
        size += more
    yield _topics(page)


def _size(replica: StoredReplica, *, is_new: bool) -> int:
    row = replica.row
    lists = () if row is None else (row.replicas, row.isr, row.adding, row.removing, row.elr)
    named = len(replica.topic) + _TOPIC_BYTES if is_new else 0
    return named + _ROW_BYTES + _NODE_BYTES * (2 * sum(map(len, lists)))


def _topics(page: dict[uuid.UUID, list[StoredReplica]]) -> tuple[control.TopicState, ...]:
    return tuple(_topic(topic_id, replicas) for topic_id, replicas in page.items())


def _topic(topic_id: uuid.UUID, replicas: list[StoredReplica]) -> control.TopicState:
    """Return the topic with the newest tiering state among its replicas."""
    tierings = (replica.tiering for replica in replicas if replica.tiering is not None)
    tiering = max(tierings, key=lambda state: state.epoch, default=NEVER_TIERED)
    return control.TopicState(
        topic_id=topic_id,
        name=replicas[0].topic,
        config=(),
        tiering_state=int(tiering.state),
        tiered_epoch=tiering.epoch,
        disable_policy=int(tiering.disable_policy),
        partitions=tuple(map(_recorded_row, replicas)),
        partition_count=max(replica.partition_count for replica in replicas),
    )


def _recorded_row(replica: StoredReplica) -> control.PartitionState:
    if replica.row is None:
        return unknown_row(replica.partition)
    return replace(replica.row, has_all_records=replica.has_all_records)


# ------------------------------------------------------------ logs of single replicas

# ``ReplicaLogInfo`` (KIP-966): log ends of this broker's replicas, for an unclean election.
#
# Each replica may have lost unsynced records. Answered from memory. A log with a storage failure is
# reported as such, because its content is in doubt.

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
        return control.ReplicaLog(topic_id=topic_id, partition=number, error_code=code)
    log = partition.log
    # A failing disk may return an old log end, which must not win an election.
    if log.failure is not None or partition.context.failures.has_failed(partition.tp):
        return control.ReplicaLog(
            topic_id=topic_id,
            partition=number,
            error_code=_STORAGE,
            leader_epoch=partition.leader_epoch,
        )
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
