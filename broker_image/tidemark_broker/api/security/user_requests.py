"""DescribeClientQuotas (48) and DescribeUserScramCredentials (50): users of the controller.

DescribeClientQuotas has versions 0 and 1 (flexible, KIP-546). DescribeUserScramCredentials has
version 0 (KIP-554).

Behaviour:

- Quotas exist for users and client ids. The type ``ip`` is known and has no entries.
- Of a credential the mechanism and the iterations are returned, never salt, keys or password.
- AlterClientQuotas and AlterUserScramCredentials are not served. Quotas and passwords are part of
  ``User`` objects.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kio.schema.describe_client_quotas.v1.request import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from kio.schema.describe_user_scram_credentials.v0.request import (
    DescribeUserScramCredentialsRequest,
)
from kio.schema.errors import ErrorCode

from tidemark.wire.users import ClientQuota, Operation, ResourceType, UserState
from tidemark_broker.admission.client_quotas import DEFAULT, QuotaKind
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call

# ---------------------------------------------------------------- DescribeClientQuotas


USER, CLIENT_ID, IP = "user", "client-id", "ip"
#: Match types of Kafka's request: a given name, the default entity, any name.
_EXACT, _DEFAULT, _ANY = 0, 1, 2


@dataclass(slots=True, kw_only=True)
class EntityData:
    """Part of an entity. ``entity_name`` None is the default entity."""

    entity_type: str
    entity_name: str | None


@dataclass(slots=True, kw_only=True)
class ValueData:
    """Value of one of Kafka's quota keys."""

    key: str
    value: float


@dataclass(slots=True, kw_only=True)
class EntryData:
    """Quotas of one entity."""

    entity: tuple[EntityData, ...]
    values: tuple[ValueData, ...]


@dataclass(slots=True, kw_only=True)
class DescribeClientQuotasResponse(ThrottledAnswer):
    """Matching quotas. ``entries`` is None with an error."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    entries: tuple[EntryData, ...] | None = None


async def describe_quotas(
    request: DescribeClientQuotasRequest, call: Call
) -> DescribeClientQuotasResponse:
    """Return the quotas to clients that may describe the cluster's configuration."""
    if not call.client.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return DescribeClientQuotasResponse(error_code=ErrorCode.cluster_authorization_failed)
    filters = {component.entity_type: component for component in request.components}
    problem = _problem(request, filters)
    if problem is not None:
        code, text = problem
        return DescribeClientQuotasResponse(error_code=code, error_message=text)
    entries = await call.time_slice.collect(_entries(request, filters, call))
    # Entries that do not match are yielded as None, so that the loop can yield between them.
    return DescribeClientQuotasResponse(
        entries=tuple(entry for entry in entries if entry is not None)
    )


def _problem(
    request: DescribeClientQuotasRequest, filters: Mapping[str, ComponentData]
) -> tuple[ErrorCode, str] | None:
    """Return the error code and text of an invalid request, None for a valid one.

    ``filters`` contains the request's components by entity type. The codes are those of Kafka's
    ``ClientQuotasImage.describe``.
    """
    invalid = ErrorCode.invalid_request
    # Entity types: named once, not empty, and among those that this broker has quotas for.
    if len(filters) < len(request.components):
        return invalid, "an entity type is named twice"
    if "" in filters:
        return invalid, "an entity type is empty"
    unknown = filters.keys() - {USER, CLIENT_ID, IP}
    if unknown:
        text = f"quotas exist for {USER} and {CLIENT_ID}, not for {', '.join(sorted(unknown))}"
        return ErrorCode.unsupported_version, text
    # Match types: known, and with a name exactly if the match is exact.
    if any(not _EXACT <= component.match_type <= _ANY for component in request.components):
        return invalid, "unknown match type"
    if any(
        (component.match_type == _EXACT) is (component.match is None)
        for component in request.components
    ):
        return invalid, "an exact match needs a name, other matches must not have one"
    return None


def _entries(
    request: DescribeClientQuotasRequest, filters: Mapping[str, ComponentData], call: Call
) -> Iterator[EntryData | None]:
    for quota in call.services.users.quotas.entries:
        given = {USER: quota.user, CLIENT_ID: quota.client_id, IP: None}
        # With strict, an entity that has more parts than the filter does not match.
        is_match = all(_fits(component, given[kind]) for kind, component in filters.items())
        is_more = any(name is not None for kind, name in given.items() if kind not in filters)
        yield _entry(quota, given) if is_match and not (request.strict and is_more) else None


def _fits(component: ComponentData, name: str | None) -> bool:
    if name is None:
        return False
    if component.match_type == _ANY:
        return True
    return name == (DEFAULT if component.match_type == _DEFAULT else component.match)


def _entry(quota: ClientQuota, given: Mapping[str, str | None]) -> EntryData:
    values = ((kind.value, getattr(quota, kind.value)) for kind in QuotaKind)
    return EntryData(
        entity=tuple(
            EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
            for kind, name in given.items()
            if name is not None
        ),
        # A quota of 0 is not set. Kafka's answer contains only the values that are set.
        values=tuple(ValueData(key=key, value=float(value)) for key, value in values if value > 0),
    )


DESCRIBE_QUOTAS = Api(describe_quotas, versions=(0, 1), open_ended=True)


# ---------------------------------------------------------------- DescribeUserScramCredentials


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
class DescribeUserScramCredentialsResponse(ThrottledAnswer):
    """Results of the requested users, each once."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()


async def describe_scram(
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


DESCRIBE_SCRAM = Api(describe_scram, versions=(0, 0), open_ended=True)
