"""ListConfigResources (74): names of resources with a configuration (KIP-1142; in version 0 only
client metrics, KIP-714).

DESCRIBE_CONFIGS on the cluster is required. Client metrics are not supported, so none are listed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

from tidemark_broker.api.config_resources import ConfigResource
from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType

_BROKER_LOGGER, _CLIENT_METRICS = ConfigResource.BROKER_LOGGER, 16
#: Types in the order in which they are listed.
_KINDS = (
    ConfigResource.GROUP,
    _CLIENT_METRICS,
    _BROKER_LOGGER,
    ConfigResource.BROKER,
    ConfigResource.TOPIC,
)


@dataclass(slots=True, kw_only=True)
class ListedConfigResource:
    """One resource. ``resource_type`` is a number of Kafka's ``ConfigResource.Type``."""

    resource_name: str
    resource_type: int


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesResponse:
    error_code: ErrorCode = ErrorCode.none
    config_resources: tuple[ListedConfigResource, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: ListConfigResourcesRequest, call: Call) -> ListConfigResourcesResponse:
    """List the requested types; without types, all that the version knows."""
    if not call.client.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return ListConfigResourcesResponse(error_code=ErrorCode.cluster_authorization_failed)
    # Version 0 is ListClientMetricsResources under its old name.
    known = _KINDS if call.version > 0 else (_CLIENT_METRICS,)
    requested = set(map(int, request.resource_types or known))
    # Kafka rejects the whole request if one type is unknown to its version.
    if not requested.issubset(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.unsupported_version)
    listed = await call.time_slice.collect(_listed(sorted(requested, key=known.index), call))
    return ListConfigResourcesResponse(config_resources=tuple(listed))


def _listed(kinds: Iterable[int], call: Call) -> Iterator[ListedConfigResource]:
    for kind in kinds:
        for name in _names(kind, call):
            yield ListedConfigResource(resource_name=name, resource_type=kind)


def _names(kind: int, call: Call) -> Iterable[str]:
    cluster = call.services.cluster
    if kind == ConfigResource.TOPIC:
        return tuple(cluster.topics)
    if kind == ConfigResource.GROUP:
        return tuple(cluster.groups)
    if kind in (ConfigResource.BROKER, _BROKER_LOGGER):
        listener = call.client.listener
        return tuple(
            str(node)
            for node, row in sorted(cluster.brokers.items())
            if endpoint_of(row, listener) is not None
        )
    return ()


API = Api(
    key=74,
    name="ListConfigResources",
    version_min=0,
    version_max=1,
    request=ListConfigResourcesRequest,
    answer=ListConfigResourcesResponse,
    handler=handle,
    open_ended=True,
)
