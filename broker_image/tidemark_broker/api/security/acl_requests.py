"""DescribeAcls (29), CreateAcls (30) and DeleteAcls (31): ACLs, which are part of ``User`` objects.

All three have versions 1 to 3:

- 1: pattern type of a resource (KIP-290)
- 2: flexible
- 3: resources of type USER

Behaviour:

- The ACLs are those of the cluster, as received from the controller.
- Creation and deletion are rejected with a message that names the ``User`` objects. A change by a
  client would be lost when its object is applied again.
- Without authorization all three are SECURITY_DISABLED, as in Kafka.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.errors import ErrorCode

from tidemark.wire.users import Operation, ResourceType, UserState
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import AclFilter

# ---------------------------------------------------------------- CreateAcls and DeleteAcls


MESSAGE = "ACLs are declared in User objects: change spec.authorization.acls there (kubectl apply)"
NONE_DECIDE = (
    "this cluster has no ACLs: set spec.authorization of the Cluster object to enable them"
)


@dataclass(slots=True, kw_only=True)
class AclCreationResult:
    error_code: ErrorCode
    error_message: str | None


@dataclass(slots=True, kw_only=True)
class CreateAclsResponse(ThrottledAnswer):
    """Results in the order of the request."""

    results: tuple[AclCreationResult, ...]


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilterResult:
    """Result of one filter. Nothing is ever deleted."""

    error_code: ErrorCode
    error_message: str | None
    matching_acls: tuple[()] = ()


@dataclass(slots=True, kw_only=True)
class DeleteAclsResponse(ThrottledAnswer):
    """Results in the order of the request."""

    filter_results: tuple[DeleteAclsFilterResult, ...]


def _refusal(call: Call) -> tuple[ErrorCode, str | None]:
    # Authorization comes first, so that an unauthorized client cannot probe whether ACLs are
    # enabled.
    if not call.client.may(Operation.ALTER, ResourceType.CLUSTER):
        return ErrorCode.cluster_authorization_failed, None
    if not call.services.users.authorizer.decides:
        return ErrorCode.security_disabled, NONE_DECIDE
    return ErrorCode.policy_violation, MESSAGE


async def create(request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    """Reject each creation with the same message."""
    # One result for each creation, because clients match them by position.
    code, message = _refusal(call)
    refused = AclCreationResult(error_code=code, error_message=message)
    return CreateAclsResponse(results=(refused,) * len(request.creations))


async def delete(request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    """Reject each filter with the same message."""
    code, message = _refusal(call)
    refused = DeleteAclsFilterResult(error_code=code, error_message=message)
    return DeleteAclsResponse(filter_results=(refused,) * len(request.filters))


CREATE = Api(create, versions=(1, 3))
DELETE = Api(delete, versions=(1, 3))


# ---------------------------------------------------------------- DescribeAcls


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
class DescribeAclsResponse(ThrottledAnswer):
    """Matching ACLs, with each resource once."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    resources: tuple[DescribeAclsResource, ...] = ()


async def describe(request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
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
        await call.time_slice.renew_if_over()
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


DESCRIBE = Api(describe, versions=(1, 3), open_ended=True)
