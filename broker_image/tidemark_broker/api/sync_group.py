"""SyncGroup (14): distribute the leader's assignment to the members of a generation."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.sync_group.v5.request import SyncGroupRequest

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import MemberIdentity, SyncAnswer, SyncRequest
from tidemark_broker.security.acls import Operation, ResourceType

#: From this version a member sends its protocol type and name (KIP-559).
_NAMED_SINCE = 5
_WAIT_MAX_S = 24 * 3600.0


@dataclass(slots=True, kw_only=True)
class SyncGroupResponse:
    """Assignment of the member."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
    throttle_time: timedelta = ZERO


async def handle(request: SyncGroupRequest, call: Call) -> SyncGroupResponse:
    """Return the member's assignment, once the leader of the group's generation has sent it."""
    # Authorization first, so that an error does not reveal whether the group exists.
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.group_authorization_failed)
    # Kafka checks this before the group id, so the code depends on the order.
    if call.version >= _NAMED_SINCE and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.invalid_group_id)
    try:
        # The wait is bounded only against leaks; the group itself ends it much earlier.
        answer = await call.services.groups.sync(
            lambda deliver: _sync_request(request, deliver), call.wait_s(_WAIT_MAX_S)
        )
    except CoordinatorError as error:
        return SyncGroupResponse(error_code=error.error_code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _sync_request(request: SyncGroupRequest, deliver: Callable[[SyncAnswer], None]) -> SyncRequest:
    return SyncRequest(
        group_id=request.group_id,
        who=MemberIdentity(request.member_id, request.group_instance_id),
        generation_id=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(
            (assignment.member_id, bytes(assignment.assignment))
            for assignment in request.assignments
        ),
        answer=deliver,
    )


API = Api(
    key=14,
    name="SyncGroup",
    version_min=0,
    version_max=5,
    request=SyncGroupRequest,
    answer=SyncGroupResponse,
    handler=handle,
)
