"""CreateAcls (30) and DeleteAcls (31): rejected, with a message that names the ``User`` objects.

ACLs are part of ``User`` objects. A change by a client would be lost when its object is applied
again.
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType

MESSAGE = "ACLs are declared in User objects: change spec.authorization.acls there (kubectl apply)"
NONE_DECIDE = (
    "this cluster has no ACLs: set spec.authorization of the Cluster object to enable them"
)


@dataclass(slots=True, kw_only=True)
class AclCreationResult:
    error_code: ErrorCode
    error_message: str | None


@dataclass(slots=True, kw_only=True)
class CreateAclsResponse:
    """Results in the order of the request."""

    results: tuple[AclCreationResult, ...]
    throttle_time: timedelta = ZERO


@dataclass(slots=True, kw_only=True)
class DeleteAclsFilterResult:
    """Result of one filter. Nothing is ever deleted."""

    error_code: ErrorCode
    error_message: str | None
    matching_acls: tuple[()] = ()


@dataclass(slots=True, kw_only=True)
class DeleteAclsResponse:
    """Results in the order of the request."""

    filter_results: tuple[DeleteAclsFilterResult, ...]
    throttle_time: timedelta = ZERO


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


CREATE = Api(
    key=30,
    name="CreateAcls",
    version_min=1,
    version_max=3,
    request=CreateAclsRequest,
    answer=CreateAclsResponse,
    handler=create,
)
DELETE = Api(
    key=31,
    name="DeleteAcls",
    version_min=1,
    version_max=3,
    request=DeleteAclsRequest,
    answer=DeleteAclsResponse,
    handler=delete,
)
