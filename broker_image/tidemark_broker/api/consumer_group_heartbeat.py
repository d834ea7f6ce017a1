"""ConsumerGroupHeartbeat (68): a member of a KIP-848 group joins, stays and leaves.

The answer contains the member's epoch, and the assigned partitions if they have changed.
"""

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.assignors import Assignment
from tidemark_broker.groups.core.values import (
    JOIN,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.security.principal import host_of

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
class ConsumerGroupHeartbeatResponse:
    """Answer to a heartbeat. ``assignment`` is None if it has not changed."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval: timedelta = ZERO
    assignment: AssignmentAnswer | None = None
    throttle_time: timedelta = ZERO


async def handle(
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
    return await _answer(answer, call)


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


async def _answer(answer: HeartbeatAnswer, call: Call) -> ConsumerGroupHeartbeatResponse:
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


API = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    version_min=0,
    version_max=1,
    request=ConsumerGroupHeartbeatRequest,
    answer=ConsumerGroupHeartbeatResponse,
    handler=handle,
    open_ended=True,
    by_client_id=True,
)
