"""DeleteGroups (42): delete groups without members, with their committed offsets."""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.security.acls import Operation, ResourceType


@dataclass(slots=True, kw_only=True)
class DeletableGroupResult:
    group_id: str
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class DeleteGroupsResponse:
    """Results, with each group once."""

    results: tuple[DeletableGroupResult, ...]
    throttle_time: timedelta = ZERO


async def handle(request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
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


API = Api(
    key=42,
    name="DeleteGroups",
    version_min=0,
    version_max=2,
    request=DeleteGroupsRequest,
    answer=DeleteGroupsResponse,
    handler=handle,
)
