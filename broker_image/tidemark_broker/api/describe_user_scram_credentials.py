"""DescribeUserScramCredentials (50): users with a SCRAM credential, and its mechanism and
iterations (KIP-554).

Salts, keys and passwords are never returned.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
)
from kio.schema.errors import ErrorCode

from tidemark.wire.users import UserState
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType


@dataclass(slots=True, kw_only=True)
class CredentialInfo:
    """One credential, with the number of Kafka's ``ScramMechanism``."""

    mechanism: int
    iterations: int


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResult:
    user: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


@dataclass(slots=True, kw_only=True)
class DescribeUserScramCredentialsResponse:
    """Results of the requested users, each once."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(
    request: DescribeUserScramCredentialsRequest, call: Call
) -> DescribeUserScramCredentialsResponse:
    """Return mechanism and iterations of the users' SCRAM credentials.

    Needs DESCRIBE on the cluster.
    """
    if not call.client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.cluster_authorization_failed
        )
    users = call.services.users.users
    # An empty list requests all users with a credential.
    requested = Counter(user.name for user in request.users or ())
    if not requested:
        requested = Counter(name for name, user in users.items() if user.scram)
    results = await call.time_slice.collect(
        _result(name, times, users.get(name)) for name, times in requested.items()
    )
    return DescribeUserScramCredentialsResponse(results=tuple(results))


def _result(name: str, times: int, user: UserState | None) -> DescribeUserScramCredentialsResult:
    """Return the credentials of one user, or an error.

    ``times`` is how often the request names the user. ``user`` is None if it does not exist.
    """
    # Kafka rejects a repeated name instead of answering it twice (KIP-554).
    if times > 1:
        return DescribeUserScramCredentialsResult(
            user=name, error_code=ErrorCode.duplicate_resource, error_message="user is named twice"
        )
    if user is None or not user.scram:
        return DescribeUserScramCredentialsResult(
            user=name,
            error_code=ErrorCode.resource_not_found,
            error_message="no user of this name has a SCRAM credential",
        )
    infos = tuple(
        CredentialInfo(mechanism=credential.mechanism, iterations=credential.iterations)
        for credential in user.scram
    )
    return DescribeUserScramCredentialsResult(user=name, credential_infos=infos)


API = Api(
    key=50,
    name="DescribeUserScramCredentials",
    version_min=0,
    version_max=0,
    request=DescribeUserScramCredentialsRequest,
    answer=DescribeUserScramCredentialsResponse,
    handler=handle,
    open_ended=True,
)
