"""JoinGroup (11): a member joins the next generation of its group.

The answer is sent when the generation starts, which may take as long as a rebalance.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.request import JoinGroupRequest

from tidemark_broker.api.schema import ZERO, milliseconds
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.values import (
    UNKNOWN_MEMBER_ID,
    JoinAnswer,
    JoinRequest,
    MemberIdentity,
    MemberProtocol,
)
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.security.principal import host_of

#: From these versions a new member gets its id first (KIP-394), an absent protocol is null instead
#: of empty, and a leader may skip the assignment (KIP-814).
_ID_FIRST_SINCE, _NULL_SINCE, _SKIP_SINCE = 4, 7, 9
_CLIENT_ID_MAX = 255
#: Protocols of one member. Clients have a handful of assignors.
PROTOCOLS_MAX = 100
#: Upper bound of a wait, longer than any rebalance.
_WAIT_MAX_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    """A member in the answer to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(slots=True, kw_only=True)
class JoinGroupResponse:
    """Answer to a join. See :class:`~tidemark_broker.groups.core.values.JoinAnswer`."""

    error_code: ErrorCode
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str
    members: tuple[JoinGroupResponseMember, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: JoinGroupRequest, call: Call) -> JoinGroupResponse:
    """Let a member join its classic group, and answer when the next generation starts.

    That takes as long as the rebalance. The coordinator bounds it.
    """
    if not call.client.may(Operation.READ, ResourceType.GROUP, request.group_id):
        answer = _error(request, ErrorCode.group_authorization_failed)
    elif not request.group_id:
        answer = _error(request, ErrorCode.invalid_group_id)
    elif len(request.protocols) > PROTOCOLS_MAX:
        answer = _error(request, ErrorCode.invalid_request)
    else:
        try:
            # The request object is created by the coordinator, since its answer callback ends the
            # wait.
            answer = await call.services.groups.join(
                lambda deliver: _join_request(request, call, deliver), call.wait_s(_WAIT_MAX_S)
            )
        except CoordinatorError as error:
            answer = _error(request, error.error_code)
    return await _answer(answer, call)


def _error(request: JoinGroupRequest, error: ErrorCode) -> JoinAnswer:
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


async def _answer(answer: JoinAnswer, call: Call) -> JoinGroupResponse:
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


API = Api(
    key=11,
    name="JoinGroup",
    version_min=0,
    version_max=9,
    request=JoinGroupRequest,
    answer=JoinGroupResponse,
    handler=handle,
    open_ended=True,
    waits=True,
    by_client_id=True,
)
