"""DescribeGroups (15): state and members of classic groups."""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.authorized_operations import group_operations
from tidemark_broker.api.schema import NOT_ASKED, ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.classic_group import ClassicMember
from tidemark_broker.groups.core.values import GroupState
from tidemark_broker.security.acls import Operation, ResourceType

#: From this version a missing group is an error (KIP-1043). Before it was reported as Dead.
_NOT_FOUND_SINCE = 6
#: Longest part of a group's id in a message, since a message is a string of limited length.
_SHOWN_MAX = 300
_BARE_BYTES = 300


@dataclass(slots=True, kw_only=True)
class DescribedGroupMember:
    """One member. Subscription and assignment are set once the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(slots=True, kw_only=True)
class DescribedGroup:
    """One group. ``protocol_data`` is the assignor, once the group is stable."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: int = NOT_ASKED


@dataclass(slots=True, kw_only=True)
class DescribeGroupsResponse:
    """Groups in the order of the request."""

    groups: tuple[DescribedGroup, ...]
    throttle_time: timedelta = ZERO


async def handle(request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
    """Describe classic consumer groups within the memory limit of a response.

    A group that does not fit gets COORDINATOR_LOAD_IN_PROGRESS, which the client retries.
    """
    groups: list[DescribedGroup] = []
    weight_bytes = 0
    for group_id in request.groups:
        if not call.client.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            error = ErrorCode.group_authorization_failed
            groups.append(DescribedGroup(group_id=group_id, error_code=error))
            continue
        # The weight is counted before the members are built, so that a large answer is never
        # started.
        weight_bytes += _weight_bytes(group_id, call)
        if not call.has_room(weight_bytes):
            error = ErrorCode.coordinator_load_in_progress
            groups.append(DescribedGroup(group_id=group_id, error_code=error))
            continue
        described = await _described(group_id, call)
        if request.include_authorized_operations and described.error_code is ErrorCode.none:
            described.authorized_operations = group_operations(call.client, group_id)
        groups.append(described)
        # Let other requests run, since a group may have thousands of members.
        if call.time_slice.is_over:
            await call.time_slice.renew()
    return DescribeGroupsResponse(groups=tuple(groups))


def _weight_bytes(group_id: str, call: Call) -> int:
    """Return the approximate size of the group's description."""
    try:
        group = call.services.groups.group(group_id)
    except CoordinatorError:
        group = None
    return _BARE_BYTES + (0 if group is None else group.weight_bytes)


async def _described(group_id: str, call: Call) -> DescribedGroup:
    """Return state and members of one group.

    If this broker has no classic group of that id, the state is Dead (from version 6 an error).
    """
    try:
        group = call.services.groups.group(group_id)
        is_other = call.services.groups.consumer_group(group_id) is not None
    except CoordinatorError as error:
        return DescribedGroup(group_id=group_id, error_code=error.error_code)
    # A group of the consumer protocol is not visible here. Admin clients then use Api 69.
    if group is None:
        dead = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if call.version >= _NOT_FOUND_SINCE:
            dead.error_code = ErrorCode.group_id_not_found
            wrong = "is not a classic group" if is_other else "not found"
            dead.error_message = f"Group {group_id[:_SHOWN_MAX]} {wrong}."
        return dead
    # Kafka shows assignor and assignment only in the Stable state; during a rebalance they change.
    name = group.protocol_name if group.state is GroupState.STABLE else None
    described = DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=name or "",
    )
    # Copied first, since the group may change while the event loop serves other requests.
    members = await call.time_slice.collect(
        _member(member, name) for member in tuple(group.members.values())
    )
    described.members = tuple(members)
    return described


def _member(member: ClassicMember, protocol_name: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol_name is None else member.metadata_of(protocol_name),
        member_assignment=b"" if protocol_name is None else member.assignment,
    )


API = Api(
    key=15,
    name="DescribeGroups",
    version_min=0,
    version_max=6,
    request=DescribeGroupsRequest,
    answer=DescribeGroupsResponse,
    handler=handle,
    open_ended=True,
)
