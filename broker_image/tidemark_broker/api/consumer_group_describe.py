"""ConsumerGroupDescribe (69): groups of KIP-848, with each member's current and target
assignment.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.authorized_operations import group_operations
from tidemark_broker.api.schema import NOT_ASKED, ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.consumer_group import ConsumerGroup, ConsumerMember
from tidemark_broker.groups.core.values import shown
from tidemark_broker.security.acls import Operation, ResourceType

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
class ConsumerGroupDescribeResponse:
    """Groups in the order of the request."""

    groups: tuple[DescribedConsumerGroup, ...]
    throttle_time: timedelta = ZERO


async def handle(
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
                described.authorized_operations = group_operations(call.client, group_id)
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


API = Api(
    key=69,
    name="ConsumerGroupDescribe",
    version_min=0,
    version_max=1,
    request=ConsumerGroupDescribeRequest,
    answer=ConsumerGroupDescribeResponse,
    handler=handle,
    open_ended=True,
)
