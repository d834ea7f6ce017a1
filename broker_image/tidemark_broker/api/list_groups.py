"""ListGroups (16): the groups that this broker coordinates."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.security.acls import Operation, ResourceType

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
class ListGroupsResponse:
    """The groups that the client may describe."""

    error_code: ErrorCode = ErrorCode.none
    groups: tuple[ListedGroup, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
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


API = Api(
    key=16,
    name="ListGroups",
    version_min=0,
    version_max=5,
    request=ListGroupsRequest,
    answer=ListGroupsResponse,
    handler=handle,
    open_ended=True,
)
