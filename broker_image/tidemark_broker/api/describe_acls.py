"""DescribeAcls (29): the ACLs of the cluster, as received from the controller."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.errors import ErrorCode

from tidemark.wire.users import UserState
from tidemark_broker.api.acl_changes import NONE_DECIDE
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acl_filter import AclFilter
from tidemark_broker.security.acls import Operation, ResourceType

#: Type, name and pattern type.
_Resource: TypeAlias = tuple[int, str, int]


@dataclass(slots=True, kw_only=True)
class AclDescription:
    """One ACL: principal, host, operation, and whether it allows or denies."""

    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(slots=True, kw_only=True)
class DescribeAclsResource:
    """ACLs of one resource."""

    resource_type: int
    resource_name: str
    pattern_type: int
    acls: tuple[AclDescription, ...]


@dataclass(slots=True, kw_only=True)
class DescribeAclsResponse:
    """Matching ACLs, with each resource once."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    resources: tuple[DescribeAclsResource, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    """Return the ACLs that match the filter, grouped by resource. Needs DESCRIBE on the cluster."""
    if not call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeAclsResponse(error_code=ErrorCode.cluster_authorization_failed)
    users = call.services.users
    # Kafka without an authorizer answers SECURITY_DISABLED, which admin tools print.
    if not users.authorizer.decides:
        return DescribeAclsResponse(
            error_code=ErrorCode.security_disabled, error_message=NONE_DECIDE
        )
    acl_filter = AclFilter(
        resource_type=request.resource_type_filter,
        resource_name=request.resource_name_filter,
        pattern_type=request.pattern_type_filter,
        principal=request.principal_filter,
        host=request.host_filter,
        operation=request.operation,
        permission=request.permission_type,
    )
    if not acl_filter.is_known:
        return DescribeAclsResponse(
            error_code=ErrorCode.invalid_request, error_message="unknown type in the filter"
        )
    # ACLs are stored by user, but the answer groups them by resource.
    grouped: dict[_Resource, list[AclDescription]] = {}
    users_by_name = users.users
    for user in users_by_name.values():
        _add(acl_filter, user, grouped)
        # A cluster may have thousands of users, so the loop yields.
        if call.time_slice.is_over:
            await call.time_slice.renew()
    return DescribeAclsResponse(resources=tuple(await call.time_slice.collect(_resources(grouped))))


def _add(
    acl_filter: AclFilter, user: UserState, grouped: dict[_Resource, list[AclDescription]]
) -> None:
    for principal, acl in acl_filter.select(user):
        made = AclDescription(
            principal=principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        resource = acl.resource_type, acl.resource_name, acl.pattern_type
        grouped.setdefault(resource, []).append(made)


def _resources(
    grouped: Mapping[_Resource, list[AclDescription]],
) -> Iterator[DescribeAclsResource]:
    for (kind, name, pattern), acls in grouped.items():
        yield DescribeAclsResource(
            resource_type=kind, resource_name=name, pattern_type=pattern, acls=tuple(acls)
        )


API = Api(
    key=29,
    name="DescribeAcls",
    version_min=1,
    version_max=3,
    request=DescribeAclsRequest,
    answer=DescribeAclsResponse,
    handler=handle,
    open_ended=True,
)
