"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): consumer groups of KIP-848.

ConsumerGroupHeartbeat, versions 0 and 1:

- 1: regular expression of topics, and the member generates its own id (KIP-1082)

ConsumerGroupDescribe, versions 0 and 1:

- 1: type of each member (KIP-1099)

Behaviour:

- A heartbeat lets a member join, stay or leave. The answer contains the member's epoch, and the
  assigned partitions if they have changed.
- A regular expression is resolved by the coordinator, which leaves out topics that the client may
  not describe.
- A described group that does not fit in memory gets COORDINATOR_LOAD_IN_PROGRESS, and the client
  retries.
- A group is hidden from a client that may not describe one of its topics, as in Kafka.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import NOT_ASKED, ZERO, ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.values import (
    JOIN,
    HeartbeatAnswer,
    HeartbeatRequest,
    shown,
)
from tidemark_broker.security.principal import host_of

# ---------------------------------------------------------------- ConsumerGroupHeartbeat


#: From this version a member generates its own id (KIP-1082).
_OWN_ID_SINCE = 1
_CLIENT_ID_MAX = 255


@dataclass(slots=True, kw_only=True)
class HeartbeatTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID | None
    partitions: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class AssignmentAnswer:
    """All partitions that the member may consume."""

    topic_partitions: tuple[HeartbeatTopicPartitions, ...]


@dataclass(slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse(ThrottledAnswer):
    """Answer to a heartbeat. ``assignment`` is None if it has not changed."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: timedelta = ZERO
    assignment: AssignmentAnswer | None = None


async def heartbeat(
    request: ConsumerGroupHeartbeatRequest, call: Call
) -> ConsumerGroupHeartbeatResponse:
    """Let a member join, stay in or leave a consumer group (KIP-848).

    Answers once the group's new state is committed to its log. The response contains the member's
    epoch and, if it has changed, its assignment.
    """
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.group_authorization_failed)
    names = request.subscribed_topic_names or ()
    # Only names are checked here. A regex is resolved by the coordinator, which filters its
    # matches.
    if await call.denied(Operation.DESCRIBE, names):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.topic_authorization_failed)

    # Passed to the coordinator, which filters the topics that match a subscribed regular
    # expression.
    async def denied(topics: Any) -> Any:
        return await call.denied(Operation.DESCRIBE, topics)

    try:
        answer = await call.services.groups.consumer_heartbeat(
            await _heartbeat_request(request, call), denied, call.time_slice.renew_if_over
        )
    except CoordinatorError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.error_code, error_message=str(error))
    return await _heartbeat_response(answer, call)


async def _heartbeat_request(
    request: ConsumerGroupHeartbeatRequest, call: Call
) -> HeartbeatRequest:
    """Convert the Kafka request into the group coordinator's request."""
    member_id = request.member_id
    # Older members leave the id empty when they join, and read the generated one in the answer.
    if call.version < _OWN_ID_SINCE and request.member_epoch == JOIN and not member_id:
        member_id = str(uuid.uuid4())
    # The partitions that the member owns now.
    owned: dict[uuid.UUID, set[int]] | None = None
    # A missing list means unchanged, an empty one that the member owns nothing.
    if request.topic_partitions is not None:
        owned = {}
        for topic in request.topic_partitions:
            if topic.topic_id is not None:
                owned.setdefault(topic.topic_id, set()).update(topic.partitions)
            # A member may own thousands of partitions: let other requests run.
            await call.time_slice.renew_if_over()
    return HeartbeatRequest(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topic_names=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
        client_id=call.client_id[:_CLIENT_ID_MAX],
        client_host=f"/{host_of(call.client.peer)}",
    )


async def _heartbeat_response(
    answer: HeartbeatAnswer, call: Call
) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        assignment = AssignmentAnswer(topic_partitions=await partitions_of(answer.assignment, call))
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
        assignment=assignment,
    )


async def partitions_of(assignment: Assignment, call: Call) -> tuple[HeartbeatTopicPartitions, ...]:
    """Return an assignment in the form of Kafka's messages."""
    return tuple(
        await call.time_slice.collect(
            HeartbeatTopicPartitions(topic_id=topic, partitions=tuple(sorted(numbers)))
            for topic, numbers in assignment.items()
            if numbers
        )
    )


HEARTBEAT = Api(heartbeat, versions=(0, 1), open_ended=True, by_client_id=True)


# ---------------------------------------------------------------- ConsumerGroupDescribe


_BARE_BYTES = 300
#: Values of ``member_type``.
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


@dataclass(slots=True, kw_only=True)
class DescribedTopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID | None
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class AssignmentOfMember:
    topic_partitions: tuple[DescribedTopicPartitions, ...]


@dataclass(slots=True, kw_only=True)
class DescribedConsumer:
    """One member. ``member_type`` is sent from version 1 (KIP-1099)."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: AssignmentOfMember
    target_assignment: AssignmentOfMember
    member_type: int


@dataclass(slots=True, kw_only=True)
class DescribedConsumerGroup:
    """One group. ``assignor_name`` is the assignor that most members prefer."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumer, ...] = ()
    authorized_operations: int = NOT_ASKED


@dataclass(slots=True, kw_only=True)
class ConsumerGroupDescribeResponse(ThrottledAnswer):
    """Groups in the order of the request."""

    groups: tuple[DescribedConsumerGroup, ...]


async def describe(
    request: ConsumerGroupDescribeRequest, call: Call
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups (KIP-848) within the memory limit of a response.

    A group that does not fit gets COORDINATOR_LOAD_IN_PROGRESS, which the client retries.
    """
    groups: list[DescribedConsumerGroup] = []
    weight_bytes = 0
    for group_id in request.group_ids:
        described = DescribedConsumerGroup(group_id=group_id)
        groups.append(described)
        # A group can have thousands of members, so the loop yields between groups.
        await call.time_slice.renew_if_over()
        if not call.client.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            described.error_code = ErrorCode.group_authorization_failed
            continue
        if not group_id:
            described.error_code = ErrorCode.invalid_group_id
            described.error_message = "The group id must not be empty."
            continue
        try:
            group = call.services.groups.consumer_group(group_id)
        except CoordinatorError as error:
            described.error_code = error.error_code
            continue
        # Weights are summed before the members are built, so that a large answer is never started.
        weight_bytes += _BARE_BYTES + (0 if group is None else group.weight_bytes)
        if group is None:
            described.error_code = ErrorCode.group_id_not_found
            described.error_message = f"Group {shown(group_id)} not found."
        elif not call.has_room(weight_bytes):
            described.error_code = ErrorCode.coordinator_load_in_progress
        # Kafka hides the whole group if the client may not describe one of its topics.
        elif await call.denied(Operation.DESCRIBE, group.subscribed):
            described.error_code = ErrorCode.topic_authorization_failed
            described.error_message = (
                "The group has described topic(s) that the client is not authorized to describe."
            )
        else:
            # Members are copied first, since the group may change while the loop yields.
            await _describe(described, group, call)
            if request.include_authorized_operations:
                described.authorized_operations = call.client.operations(
                    ResourceType.GROUP, group_id
                )
    return ConsumerGroupDescribeResponse(groups=tuple(groups))


async def _describe(described: DescribedConsumerGroup, group: ConsumerGroup, call: Call) -> None:
    described.group_state = group.state.value
    described.group_epoch = group.epoch
    described.assignment_epoch = group.assignment_epoch
    described.assignor_name = group.preferred_assignor(
        call.services.groups.settings.consumer_assignors[0]
    )
    members = await call.time_slice.collect(
        _member(member, group, call) for member in tuple(group.members.values())
    )
    described.members = tuple(members)


def _member(member: ConsumerMember, group: ConsumerGroup, call: Call) -> DescribedConsumer:
    """Return the description of one member, with its current and its target assignment.

    During a rebalance they differ: the target is what the group coordinator wants the member to
    own.
    """
    metadata = member.metadata
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.position.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        subscribed_topic_regex=metadata.subscribed_topic_regex or "",
        # What the member has acknowledged to own, and what the group coordinator wants it to own.
        assignment=_named(member.position.assigned, call),
        target_assignment=_named(group.target_of(member.member_id), call),
        member_type=_CONSUMER_MEMBER if metadata.classic is None else _CLASSIC_MEMBER,
    )


def _named(assignment: "Assignment | Any", call: Call) -> AssignmentOfMember:
    return AssignmentOfMember(topic_partitions=tuple(_partitions(assignment, call)))


def _partitions(assignment: "Assignment | Any", call: Call) -> Iterator[DescribedTopicPartitions]:
    """Yield partitions of topics that still exist."""
    for topic_id, numbers in assignment.items():
        view = call.services.cluster.by_id(topic_id)
        if view is not None and numbers:
            yield DescribedTopicPartitions(
                topic_id=topic_id, topic_name=view.name, partitions=tuple(sorted(numbers))
            )


DESCRIBE = Api(describe, versions=(0, 1), open_ended=True)
