"""Requests of the control protocol on a command connection, and their answers. Pure."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DeleteRemoteTopicResponse,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    ReplicaLogInfoRequest,
    ReplicaLogInfoResponse,
    TopicPartitions,
)
from tidemark.wire.deletions import (
    DeleteTopicRecordsRequest,
    DeleteTopicRecordsResponse,
    DeletionPointsRequest,
    DeletionPointsResponse,
    WireDeletionPointQuery,
    WirePartitionDeletion,
)
from tidemark_operator.controller.broker_calls import (
    DisabledReplica,
    Disablement,
    DisablementAnswer,
    ReplicaLogAnswer,
    ReplicaLogsAnswer,
    TierDeletion,
    TierDeletionAnswer,
)
from tidemark_operator.controller.deletion_values import (
    DeleteCommand,
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletionResult,
)
from tidemark_operator.controller.model import LogEnd, RowKey


def disable_remote_topic(
    disablement: Disablement, controller_epoch: int, timeout_ms: int
) -> DisableRemoteTopicRequest:
    """Return KIP-950's request; it is repeated if a broker needs longer than ``timeout_ms``."""
    return DisableRemoteTopicRequest(
        controller_epoch=controller_epoch,
        topic_id=disablement.topic_id,
        tiered_epoch=disablement.tiered_epoch,
        disable_policy=int(disablement.policy),
        partitions=disablement.partitions,
        timeout_ms=timeout_ms,
    )


def disablement_of(response: DisableRemoteTopicResponse) -> DisablementAnswer:
    """Convert a broker's response to a KIP-950 disablement request; its error code is 0.

    Partitions that failed have an error code and a message of their own.
    """
    return DisablementAnswer(
        broker_epoch=response.broker_epoch,
        tiered_epoch=response.tiered_epoch,
        replicas=tuple(
            DisabledReplica(
                partition=result.partition,
                error_code=result.error_code,
                leader_epoch=result.leader_epoch,
                is_leader=result.is_leader,
                message=result.message,
            )
            for result in response.results
        ),
    )


def delete_remote_topic(deletion: TierDeletion, controller_epoch: int) -> DeleteRemoteTopicRequest:
    """Return the request to remove a deleted topic's remote data."""
    return DeleteRemoteTopicRequest(
        controller_epoch=controller_epoch,
        topic_id=deletion.topic_id,
        name=deletion.name,
        tiered_epoch=deletion.tiered_epoch,
        partitions=deletion.partitions,
    )


def tier_deletion_of(response: DeleteRemoteTopicResponse) -> TierDeletionAnswer:
    """Convert the answer: done, still in progress, or the error."""
    return TierDeletionAnswer(error_code=response.error_code, message=response.message)


def replica_log_info(keys: Iterable[RowKey], controller_epoch: int) -> ReplicaLogInfoRequest:
    """Return KIP-966's request about some partitions."""
    # Sorted keys put the partitions of a topic next to each other in the request.
    topics: dict[object, TopicPartitions] = {}
    for topic_id, partition in sorted(keys):
        former = topics.get(topic_id)
        partitions = (partition,) if former is None else (*former.partitions, partition)
        topics[topic_id] = TopicPartitions(topic_id=topic_id, partitions=partitions)
    return ReplicaLogInfoRequest(controller_epoch=controller_epoch, topics=tuple(topics.values()))


def replica_logs_of(response: ReplicaLogInfoResponse) -> ReplicaLogsAnswer:
    """Convert a broker's response about log ends (KIP-966); its error code is 0."""
    return ReplicaLogsAnswer(
        broker_epoch=response.broker_epoch,
        logs=tuple(
            ReplicaLogAnswer(
                #: (topic id, partition) of the replica.
                key=(log.topic_id, log.partition),
                error_code=log.error_code,
                leader_epoch=log.leader_epoch,
                end=LogEnd(log.last_epoch, log.next_offset),
                # An empty range means that nothing is lost.
                lost=range(log.lost_start_offset, log.lost_end_offset),
            )
            for log in response.logs
        ),
    )


def deletion_points(
    topic_id: UUID, queries: Sequence[DeletionPointQuery], controller_epoch: int
) -> DeletionPointsRequest:
    """Return the request for the offsets up to which a RecordDeletion deletes (ListOffsets by id).

    All queries are for partitions that the receiving broker leads.
    """
    # On the wire, -1 means that no time was requested.
    return DeletionPointsRequest(
        controller_epoch=controller_epoch,
        topic_id=topic_id,
        partitions=tuple(
            WireDeletionPointQuery(
                partition=query.partition,
                leader_epoch=query.leader_epoch,
                before_offset=query.before_offset,
                before_time_ms=-1 if query.before_time_ms is None else query.before_time_ms,
            )
            for query in queries
        ),
    )


def points_of(response: DeletionPointsResponse) -> dict[int, DeletionPoint]:
    """Convert an answer that has no error of its own; by partition."""
    return {
        point.partition: DeletionPoint(
            error_code=point.error_code,
            log_start_offset=point.log_start_offset,
            high_watermark=point.high_watermark,
            offset=point.offset,
            last_epoch=point.last_epoch,
            size_bytes=point.size_bytes,
        )
        for point in response.points
    }


def delete_topic_records(
    command: DeleteCommand, controller_epoch: int, timeout_ms: int
) -> DeleteTopicRecordsRequest:
    """Return the request to delete records up to the offsets that the RecordDeletion has stored.

    A broker whose followers need longer than ``timeout_ms`` answers with a timeout; the caller then
    repeats the request, which is idempotent.
    """
    # The leader epoch lets a former leader refuse, and the last epoch proves that the offset is of
    # the same log.
    return DeleteTopicRecordsRequest(
        controller_epoch=controller_epoch,
        topic_id=command.topic_id,
        timeout_ms=timeout_ms,
        partitions=tuple(
            WirePartitionDeletion(
                partition=partition,
                leader_epoch=point.leader_epoch,
                offset=point.offset,
                last_epoch=point.last_epoch,
            )
            for partition, point in sorted(command.points.items())
        ),
    )


def deletions_of(response: DeleteTopicRecordsResponse) -> dict[int, PartitionDeletionResult]:
    """Convert an answer that has no error of its own; by partition."""
    return {
        result.partition: PartitionDeletionResult(
            error_code=result.error_code,
            low_watermark=result.low_watermark,
            lost_from=result.lost_from_offset,
        )
        for result in response.results
    }
