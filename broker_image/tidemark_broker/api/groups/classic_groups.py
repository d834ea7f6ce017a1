"""JoinGroup (11), SyncGroup (14), Heartbeat (12) and LeaveGroup (13): members of classic groups.

JoinGroup, versions 0 to 9:

- 1: rebalance time-out
- 2: throttle time
- 4: a new member gets its id first and joins again with it (KIP-394)
- 5: static members (KIP-345)
- 6: flexible
- 7: protocol type in the answer (KIP-559)
- 8: reason (KIP-800)
- 9: the leader may skip the assignment (KIP-814)

SyncGroup, versions 0 to 5:

- 1: throttle time
- 3: static members
- 4: flexible
- 5: protocol type and name, which must match (KIP-559)

Heartbeat, versions 0 to 4:

- 1: throttle time
- 3: static members
- 4: flexible

LeaveGroup, versions 0 to 5:

- 1: throttle time
- 3: several members at once, also static ones of an administrator
- 4: flexible
- 5: reason (KIP-800)

Versions that are not named have the fields of the version before.

Behaviour:

- JoinGroup is answered when the generation starts, and SyncGroup when the leader has sent the
  assignment. Both may take as long as a rebalance. The coordinator bounds the wait.
- A member may name at most 100 protocols. Kafka has no limit.
- A heartbeat succeeds while the group is being loaded, as in Kafka.
"""

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.leave_group.v5 import request as v5
from kio.schema.sync_group.v5.request import SyncGroupRequest

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.admission.time_slice import in_parts
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import (
    UNKNOWN_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    MemberProtocol,
    SyncAnswer,
    SyncRequest,
)
from tidemark_broker.security.principal import host_of

# ---------------------------------------------------------------- JoinGroup


#: From these versions a new member gets its id first (KIP-394), an absent protocol is null instead
#: of empty, and a leader may skip the assignment (KIP-814).
_ID_FIRST_SINCE, _NULL_SINCE, _SKIP_SINCE = 4, 7, 9
_CLIENT_ID_MAX = 255
#: Protocols of one member. Clients have a handful of assignors.
PROTOCOLS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    """A member in the answer to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class JoinGroupResponse(ThrottledAnswer):
    """Answer to a join. See :class:`~tidemark_broker.groups.core.values.JoinAnswer`."""

    error_code: ErrorCode
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str
    members: tuple[JoinGroupResponseMember, ...] = ()


async def join(request: JoinGroupRequest, call: Call) -> JoinGroupResponse:
    """Let a member join its classic group, and answer when the next generation starts.

    That takes as long as the rebalance. The coordinator bounds it.
    """
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        answer = _not_joined(request, ErrorCode.group_authorization_failed)
    elif not request.group_id:
        answer = _not_joined(request, ErrorCode.invalid_group_id)
    elif len(request.protocols) > PROTOCOLS_MAX:
        answer = _not_joined(request, ErrorCode.invalid_request)
    else:
        try:
            # The request object is created by the coordinator, since its answer callback ends the
            # wait.
            answer = await call.services.groups.join(
                lambda deliver: _join_request(request, call, deliver), call.wait_s(math.inf)
            )
        except CoordinatorError as error:
            answer = _not_joined(request, error.error_code)
    return await _join_response(answer, call)


def _not_joined(request: JoinGroupRequest, error: ErrorCode) -> JoinAnswer:
    return JoinAnswer(error=error, member_id=request.member_id)


def _join_request(
    request: JoinGroupRequest, call: Call, deliver: Callable[[JoinAnswer], None]
) -> JoinRequest:
    """Convert the Kafka request into the group coordinator's request.

    ``deliver`` is called with the response once the generation starts.
    """
    session_ms = milliseconds(request.session_timeout)
    rebalance_ms = milliseconds(request.rebalance_timeout)
    client_id = call.client_id[:_CLIENT_ID_MAX]
    # As in Kafka: the instance id of a static member, the client id of a dynamic one.
    name = request.group_instance_id or client_id
    return JoinRequest(
        group_id=request.group_id,
        who=MemberIdentity(request.member_id, request.group_instance_id),
        client_id=client_id,
        client_host=f"/{host_of(call.client.peer)}",
        # Version 0 has no rebalance timeout. Kafka uses the session timeout.
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=session_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(
            MemberProtocol(protocol.name, bytes(protocol.metadata))
            for protocol in request.protocols
        ),
        needs_member_id=call.version >= _ID_FIRST_SINCE,
        may_skip_assignment=call.version >= _SKIP_SINCE,
        # The id contains the client's name, as in Kafka, so that admin tools show a readable one.
        new_id=f"{name}-{uuid.uuid4()}" if request.member_id == UNKNOWN_MEMBER_ID else "",
        answer=deliver,
    )


async def _join_response(answer: JoinAnswer, call: Call) -> JoinGroupResponse:
    """Return the Kafka response.

    Only the group leader's response contains the members, to whom it then assigns partitions.
    """
    # Built in time slices, because a group may have thousands of members.
    members = await call.time_slice.collect(
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata,
        )
        for member in answer.members
    )
    # Older clients cannot read null.
    name = answer.protocol_name
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name="" if name is None and call.version < _NULL_SINCE else name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=tuple(members),
    )


JOIN = Api(join, versions=(0, 9), open_ended=True, waits=True, by_client_id=True)


# ---------------------------------------------------------------- SyncGroup


#: From this version a member sends its protocol type and name (KIP-559).
_NAMED_SINCE = 5


@dataclass(slots=True, kw_only=True)
class SyncGroupResponse(ThrottledAnswer):
    """Assignment of the member."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


async def sync(request: SyncGroupRequest, call: Call) -> SyncGroupResponse:
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
        answer = await call.services.groups.sync(
            lambda deliver: _sync_request(request, deliver), call.wait_s(math.inf)
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


SYNC = Api(sync, versions=(0, 5))


# ---------------------------------------------------------------- Heartbeat


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse(ThrottledAnswer):
    """Answer. REBALANCE_IN_PROGRESS means that the member must rejoin."""

    error_code: ErrorCode


async def heartbeat(request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
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


HEARTBEAT = Api(heartbeat, versions=(0, 4))


# ---------------------------------------------------------------- LeaveGroup


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
class LeaveGroupResponse(ThrottledAnswer):
    """Results in the order of the request. Until version 2 the error is that of the only member."""

    error_code: ErrorCode
    members: tuple[MemberResponse, ...] = ()


async def leave(request: LeaveGroupRequest, call: Call) -> LeaveGroupResponse:
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


LEAVE = Api(leave, versions=(0, 5))
