"""ListGroups (16), DescribeGroups (15) and DeleteGroups (42): groups that this broker coordinates.

ListGroups, versions 0 to 5:

- 1: throttle time
- 3: flexible
- 4: filter by state (KIP-518)
- 5: filter by type (KIP-848)

DescribeGroups, versions 0 to 6:

- 1: throttle time
- 3: authorized operations (KIP-430)
- 4: static members (KIP-345)
- 5: flexible
- 6: a missing group is GROUP_ID_NOT_FOUND (KIP-1043), not a group in the state Dead

DeleteGroups, versions 0 to 2:

- 2: flexible

Versions that are not named have the fields of the version before.

Behaviour:

- DESCRIBE on the cluster lists all groups, as in Kafka.
- DescribeGroups knows classic groups only. ConsumerGroupDescribe describes the others.
- Answers that do not fit in memory are COORDINATOR_LOAD_IN_PROGRESS, and the client retries.
- A group that DeleteGroups names twice is deleted once and answered once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import NOT_ASKED, ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.classic_group import ClassicMember
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.values import GroupState

# ---------------------------------------------------------------- ListGroups


_CLASSIC, _CONSUMER = "classic", "consumer"
#: Approximate size of a group in the list.
_GROUP_BYTES = 200


@dataclass(slots=True, kw_only=True)
class ListedGroup:
    """One group. State and type are sent from versions 4 and 5."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


@dataclass(slots=True, kw_only=True)
class ListGroupsResponse(ThrottledAnswer):
    """The groups that the client may describe."""

    error_code: ErrorCode = ErrorCode.none
    groups: tuple[ListedGroup, ...] = ()


async def list_groups(request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """List all groups, or those of the requested states and types."""
    if not call.has_room(call.services.groups.count * _GROUP_BYTES):
        return ListGroupsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    try:
        found = await call.time_slice.collect(_listed(request, call))
    except CoordinatorError as error:
        return ListGroupsResponse(error_code=error.error_code)
    return ListGroupsResponse(groups=tuple(group for group in found if group is not None))


def _listed(request: ListGroupsRequest, call: Call) -> Iterator[ListedGroup | None]:
    """Yield the groups that the client may describe and that match the filters, None for others.

    The caller yields the event loop between items, also between groups that do not match.
    """
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    # DESCRIBE on the cluster shows all groups without a check for each of them, as in Kafka.
    sees_all = call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER)
    for group in call.services.groups.groups():
        seen = sees_all or call.client.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        kind = _CONSUMER if isinstance(group, ConsumerGroup) else _CLASSIC
        state = group.state.value if seen and (not types or kind in types) else None
        if state is not None and (not states or state.lower() in states):
            protocol = _CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type
            yield ListedGroup(
                group_id=group.group_id,
                protocol_type=protocol or "",
                group_state=state,
                group_type=kind,
            )
        # None instead of nothing, so that the caller can yield the event loop here as well.
        else:
            yield None


LIST = Api(list_groups, versions=(0, 5), open_ended=True)


# ---------------------------------------------------------------- DescribeGroups


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
class DescribeGroupsResponse(ThrottledAnswer):
    """Groups in the order of the request."""

    groups: tuple[DescribedGroup, ...]


async def describe_groups(request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
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
            described.authorized_operations = call.client.operations(ResourceType.GROUP, group_id)
        groups.append(described)
        # Let other requests run, since a group may have thousands of members.
        await call.time_slice.renew_if_over()
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


DESCRIBE = Api(describe_groups, versions=(0, 6), open_ended=True)


# ---------------------------------------------------------------- DeleteGroups


@dataclass(slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: str
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class DeleteGroupsResponse(ThrottledAnswer):
    """Results, with each group once."""

    results: tuple[DeletableGroupResult, ...]


async def delete_groups(request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    """Delete the groups one after the other."""
    results = []
    # A group that is named twice is deleted once; the second attempt would return an error.
    for group_id in dict.fromkeys(request.groups_names):
        error = await _delete(group_id, call)
        results.append(DeletableGroupResult(group_id=group_id, error_code=error))
    return DeleteGroupsResponse(results=tuple(results))


async def _delete(group_id: str, call: Call) -> ErrorCode:
    if not call.client.may(Operation.DELETE, ResourceType.GROUP, group_id):
        return ErrorCode.group_authorization_failed
    try:
        return await call.services.groups.delete_group(group_id, call.time_slice.renew_if_over)
    except CoordinatorError as error:
        return error.error_code


DELETE = Api(delete_groups, versions=(0, 2))
