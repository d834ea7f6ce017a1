"""AlterPartitionReassignments (45) and ListPartitionReassignments (46): KIP-455.

AlterPartitionReassignments, versions 0 and 1:

- 1: whether the replication factor may change (KIP-860)

ListPartitionReassignments has version 0.

Behaviour:

- Starting or cancelling a move requires ALTER on the cluster, listing requires DESCRIBE.
- A move is answered once it is stored, not once it is complete.
- The list contains the moves in this broker's metadata.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kio.schema.alter_partition_reassignments.v1 import request as altering
from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0 import request as listing

from tidemark.wire import control
from tidemark.wire.topics import Assignment, ChangeKind, TopicChange, TopicChangeResult
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.topic_change_requests import AUTHORIZATION_FAILED, error_of, forward
from tidemark_broker.replication.metadata import TopicMetadata


@dataclass(slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]


@dataclass(slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse(ThrottledAnswer):
    """Results by topic. ``error_code`` is set if the whole request was rejected."""

    allow_replication_factor_change: bool
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    responses: tuple[ReassignableTopicResponse, ...] = ()


@dataclass(slots=True, kw_only=True)
class OngoingPartitionReassignment:
    """One partition that is being moved."""

    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class OngoingTopicReassignment:
    """Moving partitions of one topic."""

    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]


@dataclass(slots=True, kw_only=True)
class ListPartitionReassignmentsResponse(ThrottledAnswer):
    """Topics with moving partitions."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    topics: tuple[OngoingTopicReassignment, ...] = ()


async def alter(
    request: altering.AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    """Have the operator start or cancel reassignments, and answer once they are stored.

    Needs ALTER on the cluster.
    """
    allowed = request.allow_replication_factor_change
    if not call.client.may(Operation.ALTER, ResourceType.CLUSTER):
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allowed,
            error_code=ErrorCode.cluster_authorization_failed,
            error_message=AUTHORIZATION_FAILED,
        )
    # Each topic is one change, so that its partitions move together or fail by themselves.
    changes = await call.time_slice.collect(
        _change(topic, keeps_factor=not allowed) for topic in request.topics
    )
    # The answer does not wait for the move, which may take hours.
    outcomes = await forward(call, changes, wait_s=milliseconds(request.timeout) / 1000)
    answers = await call.time_slice.collect(
        _response(topic, result) for topic, result in zip(request.topics, outcomes, strict=True)
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allowed, responses=tuple(answers)
    )


def _change(topic: altering.ReassignableTopic, *, keeps_factor: bool) -> TopicChange:
    """Return the operator's change for one topic's partitions.

    Partitions with an empty replica list are left out, because :func:`_response` rejects them. With
    ``keeps_factor`` the number of replicas must not change (KIP-860).
    """
    return TopicChange(
        kind=ChangeKind.REASSIGN,
        name=topic.name,
        topic_id=None,
        assignments=tuple(
            Assignment(partition=part.partition_index, replicas=part.replicas or ())
            for part in topic.partitions
            if part.replicas is None or part.replicas
        ),
        keeps_factor=keeps_factor,
    )


def _response(
    topic: altering.ReassignableTopic, result: TopicChangeResult
) -> ReassignableTopicResponse:
    """Return the results of one topic's partitions, in the order of the request."""
    # A partition without a result of its own gets the result of its topic.
    of_all = error_of(result.error_code), result.error_message
    found = {
        part.partition: (error_of(part.error_code), part.error_message) for part in result.parts
    }
    empty = ErrorCode.invalid_replica_assignment, "The replica list is empty."
    parts = []
    # Null cancels a move, while an empty list is an error.
    for part in topic.partitions:
        is_empty = part.replicas is not None and not part.replicas
        code, message = empty if is_empty else found.get(part.partition_index, of_all)
        parts.append(
            ReassignablePartitionResponse(
                partition_index=part.partition_index, error_code=code, error_message=message
            )
        )
    return ReassignableTopicResponse(name=topic.name, partitions=tuple(parts))


async def list_reassignments(
    request: listing.ListPartitionReassignmentsRequest, call: Call
) -> ListPartitionReassignmentsResponse:
    """List all moves, or those of the named partitions."""
    if not call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return ListPartitionReassignmentsResponse(
            error_code=ErrorCode.cluster_authorization_failed, error_message=AUTHORIZATION_FAILED
        )
    found = await call.time_slice.collect(_moving(request, call))
    return ListPartitionReassignmentsResponse(
        topics=tuple(topic for topic in found if topic.partitions)
    )


def _moving(
    request: listing.ListPartitionReassignmentsRequest, call: Call
) -> Iterator[OngoingTopicReassignment]:
    topics = call.services.cluster.topics
    if request.topics is None:
        for view in tuple(topics.values()):
            # Partitions that do not exist are left out, as in Kafka.
            yield _topic(view, view.partitions)
        return
    for requested in request.topics:
        known = topics.get(requested.name)
        if known is not None:
            rows = known.partitions
            yield _topic(known, [index for index in requested.partition_indexes if index in rows])


def _topic(view: TopicMetadata, partitions: Iterable[int]) -> OngoingTopicReassignment:
    """Return those of the given partitions that are being reassigned, with their replicas.

    ``adding`` and ``removing`` are the differences between the current and the target replicas.
    Both are empty for a partition that is not being reassigned.
    """
    rows: Iterator[control.PartitionState] = (
        view.partitions[partition] for partition in partitions
    )
    # A partition that keeps its replicas is not listed, as in Kafka.
    return OngoingTopicReassignment(
        name=view.name,
        partitions=tuple(
            OngoingPartitionReassignment(
                partition_index=row.partition,
                replicas=row.replicas,
                adding_replicas=row.adding,
                removing_replicas=row.removing,
            )
            for row in rows
            if row.adding or row.removing
        ),
    )


ALTER = Api(alter, versions=(0, 1))
LIST = Api(list_reassignments, versions=(0, 0), open_ended=True)
