"""LeaveGroup (13): members leave, or an administrator removes static members (KIP-345)."""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.leave_group.v5 import request as v5

from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import MemberIdentity
from tidemark_broker.security.acls import Operation, ResourceType

#: From this version several members leave at once.
_BATCHED_SINCE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest(v5.LeaveGroupRequest):
    """Request with one ``member_id`` until version 2."""

    member_id: str = ""


@dataclass(slots=True, kw_only=True)
class MemberResponse:
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class LeaveGroupResponse:
    """Results in the order of the request. Until version 2 the error is that of the only member."""

    error_code: ErrorCode
    members: tuple[MemberResponse, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: LeaveGroupRequest, call: Call) -> LeaveGroupResponse:
    """Remove members from a classic group, and answer at once. The other members rebalance."""
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.group_authorization_failed)
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.invalid_group_id)
    # Up to version 2 the request names one member.
    members = [MemberIdentity(request.member_id)]
    if call.version >= _BATCHED_SINCE:
        members = [
            MemberIdentity(member.member_id, member.group_instance_id) for member in request.members
        ]
    errors: list[ErrorCode] = []
    try:
        # In parts, so that the event loop serves other connections between them. An empty list
        # still calls the coordinator, which checks that it coordinates the group.
        for part in in_parts(members) if members else ((),):
            errors += await call.services.groups.leave(request.group_id, part)
            await call.time_slice.renew_if_over()
    except CoordinatorError as error:
        return LeaveGroupResponse(error_code=error.error_code)
    # Old versions have no list, so the only error is that of the answer.
    if call.version < _BATCHED_SINCE:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        error_code=ErrorCode.none,
        members=tuple(
            MemberResponse(
                member_id=who.member_id, group_instance_id=who.instance_id, error_code=error
            )
            for who, error in zip(members, errors, strict=True)
        ),
    )


API = Api(
    key=13,
    name="LeaveGroup",
    version_min=0,
    version_max=5,
    request=LeaveGroupRequest,
    answer=LeaveGroupResponse,
    handler=handle,
)
