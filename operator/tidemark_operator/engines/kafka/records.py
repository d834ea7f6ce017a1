"""Deletion of records in Apache Kafka (KIP-107), behind the port that all engines share.

DeleteRecords and ListOffsets use the topic's name and no leader epoch of the records. The id of the
name is therefore checked right before, and a leader that has lost records is distinguished from one
that is only behind. Records that an unclean election put in the place of the resolved ones cannot
be recognised (docs/explanation/engines.md).
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from kio.schema.errors import ErrorCode

from tidemark.kafka_client import offsets
from tidemark.kafka_client.values import EARLIEST, LATEST, Offset, RequestFailure, TopicPartition
from tidemark.wire.deletions import (
    HIGH_WATERMARK,
    NO_TIME,
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.engines.base import Engine, EngineUnavailable
from tidemark_operator.engines.kafka.cluster import KafkaCluster, answers

CLEANUP_POLICY = "cleanup.policy"


class ApacheKafka(Engine):
    """Engine of one term."""

    def __init__(self, cluster: KafkaCluster, state: ControllerState) -> None:
        self.cluster = cluster
        self._state = state

    async def close(self) -> None:
        """Close at the end of the term."""
        await self.cluster.close()

    async def deletion_points(
        self, node_id: int, topic_id: UUID, queries: Sequence[DeletionPointQuery]
    ) -> list[DeletionPoint]:
        """Return the offset up to which a RecordDeletion would delete, per partition.

        Deletes nothing: it queries the leader ``node_id`` with ListOffsets for the log start, the
        high watermark and, where requested, the offset of a time. Partitions that the leader does
        not answer have an error code.
        """
        name = await self._name_of(topic_id)
        # DeleteRecords refuses a topic without the policy delete, so a dry run has to as well.
        policies = await self.cluster.topic_values([name], [CLEANUP_POLICY], in_force_on=node_id)
        if "delete" not in policies.get(name, {}).get(CLEANUP_POLICY, "delete"):
            code = ErrorCode.policy_violation.value
            return [DeletionPoint(partition=query.partition, error_code=code) for query in queries]
        parts = [query.partition for query in queries]
        starts = await self._list(node_id, name, dict.fromkeys(parts, EARLIEST))
        ends = await self._list(node_id, name, dict.fromkeys(parts, LATEST))
        times = {
            query.partition: query.before_time_ms
            for query in queries
            if query.before_time_ms != NO_TIME
        }
        timed = await self._list(node_id, name, times)
        return [
            _point(
                query,
                starts.get((name, query.partition)),
                ends.get((name, query.partition)),
                timed.get((name, query.partition)),
            )
            for query in queries
        ]

    async def delete_records(
        self,
        node_id: int,
        topic_id: UUID,
        deletions: Sequence[PartitionDeletion],
        timeout_ms: int,
    ) -> list[PartitionDeletionResult]:
        """Delete records on one leader with DeleteRecords; return the result of each partition."""
        # DeleteRecords addresses topics by name.
        name = await self._name_of(topic_id)
        targets = {(name, deletion.partition): deletion.offset for deletion in deletions}
        with answers():
            results = await offsets.delete_records(
                self.cluster.client, node_id, targets, timeout_ms
            )
        # Out of range may mean lost records or a leader that is behind; its log end tells which.
        beyond = [
            part
            for (_, part), (_, failure) in results.items()
            if failure is not None and failure.code is ErrorCode.offset_out_of_range
        ]
        ends = await self._list(node_id, name, dict.fromkeys(beyond, LATEST))
        return [
            _result(key[1], low_watermark, failure, targets[key], ends.get(key))
            for key, (low_watermark, failure) in results.items()
        ]

    async def _name_of(self, topic_id: UUID) -> str:
        """Return the topic's name if the name still has that id."""
        topic = self._state.topics.by_id(topic_id)
        if topic is None:
            raise EngineUnavailable("the Topic was deleted")
        found = (await self.cluster.topics([topic.name])).get(topic.name)
        if found is None or found.topic_id != topic_id:
            raise EngineUnavailable(f"topic {topic.name} is not the topic that was resolved")
        return topic.name

    async def _list(
        self, node_id: int, name: str, timestamps: Mapping[int, int]
    ) -> dict[TopicPartition, Offset | RequestFailure]:
        # A query without partitions would be refused.
        if not timestamps:
            return {}
        queries = {(name, part): timestamp for part, timestamp in timestamps.items()}
        with answers():
            return await offsets.list_offsets(self.cluster.client, node_id, queries)


def _point(
    query: DeletionPointQuery,
    start: Offset | RequestFailure | None,
    end: Offset | RequestFailure | None,
    timed: Offset | RequestFailure | None,
) -> DeletionPoint:
    """Return the offset up to which records are deleted, or an error code.

    ``start``, ``end`` and ``timed`` are the leader's ListOffsets answers for the log start, the
    high watermark and ``query.before_time_ms``; None: not queried or not answered.
    """
    # Any missing answer makes the point unknown; a known error is returned as such.
    needed = [start, end] if query.before_time_ms == NO_TIME else [start, end, timed]
    failures = [answer for answer in needed if not isinstance(answer, Offset)]
    if failures or not isinstance(start, Offset) or not isinstance(end, Offset):
        code = next((failure.code.value for failure in failures if failure is not None), None)
        return DeletionPoint(
            partition=query.partition, error_code=code or ErrorCode.offset_not_available.value
        )
    # An explicit offset is taken as requested.
    offset, last_epoch = query.before_offset, end.leader_epoch
    # A time resolves to the first later record; without one, everything is older than it.
    if isinstance(timed, Offset) and timed.offset >= 0:
        offset, last_epoch = timed.offset, timed.leader_epoch
    elif query.before_time_ms != NO_TIME or query.before_offset == HIGH_WATERMARK:
        offset = end.offset
    return DeletionPoint(
        partition=query.partition,
        log_start_offset=start.offset,
        high_watermark=end.offset,
        offset=offset,
        last_epoch=max(last_epoch, 0),
    )


def _result(
    partition: int,
    low_watermark: int,
    failure: RequestFailure | None,
    offset: int,
    end: Offset | RequestFailure | None,
) -> PartitionDeletionResult:
    """Return a partition's DeleteRecords answer as a result.

    ``offset`` is the requested one, and ``end`` the log end, queried after OFFSET_OUT_OF_RANGE
    only. If the leader's log reaches ``offset``, a newly elected leader may not know the high
    watermark yet: the error becomes OFFSET_NOT_AVAILABLE, which is retried. Otherwise records were
    lost, and ``lost_from_offset`` is the log end (-1: unknown).
    """
    if failure is None:
        return PartitionDeletionResult(partition=partition, low_watermark=low_watermark)
    # The leader's log reaches the offset: temporary. Otherwise those records were lost.
    code = failure.code
    if code is ErrorCode.offset_out_of_range and (
        not isinstance(end, Offset) or end.offset >= offset
    ):
        code, low_watermark, end = ErrorCode.offset_not_available, -1, None
    return PartitionDeletionResult(
        partition=partition,
        error_code=code.value,
        low_watermark=low_watermark,
        lost_from_offset=end.offset if isinstance(end, Offset) else -1,
    )
