"""Heartbeat (12): keep a member in its group, and report whether it must rejoin."""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import MemberIdentity
from tidemark_broker.security.acls import Operation, ResourceType


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse:
    """Answer. REBALANCE_IN_PROGRESS means that the member must rejoin."""

    error_code: ErrorCode
    throttle_time: timedelta = ZERO


async def handle(request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.group_authorization_failed)
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.invalid_group_id)
    who = MemberIdentity(request.member_id, request.group_instance_id)
    try:
        error = await call.services.groups.heartbeat(request.group_id, who, request.generation_id)
    except CoordinatorError as failed:
        # As in Kafka, success while loading: members are known again once the group is loaded.
        loads = failed.error_code is ErrorCode.coordinator_load_in_progress
        error = ErrorCode.none if loads else failed.error_code
    return HeartbeatResponse(error_code=error)


API = Api(
    key=12,
    name="Heartbeat",
    version_min=0,
    version_max=4,
    request=HeartbeatRequest,
    answer=HeartbeatResponse,
    handler=handle,
)
