"""DescribeConfigs (32) and ListConfigResources (74): configuration of topics, groups and brokers.

DescribeConfigs, versions 1 to 4:

- 1: source and synonyms of each key (KIP-226)
- 3: type and documentation (KIP-569)
- 4: flexible

Version 2 has the fields of version 1.

ListConfigResources, versions 0 and 1:

- 0: client metrics only (KIP-714)
- 1: resources of all types (KIP-1142)

Behaviour:

- DESCRIBE_CONFIGS on the topic or the group is required, else on the cluster.
- Those broker keys that are defaults of topics are writable for all brokers. Other keys are
  read-only, because a broker reads its file at its start.
- A broker describes its own keys only.
- A resource that does not fit in memory gets REQUEST_TIMED_OUT. At most 1000 are described at once.
- Client metrics are not supported, so none are listed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs import broker_loggers
from tidemark_broker.api.configs.described_configs import (
    ConfigResource,
    DescribedConfig,
    broker_configs,
    cluster_configs,
    group_configs,
    logger_configs,
    tiering_config,
    topic_configs,
)
from tidemark_broker.api.endpoints import endpoint_of
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call, missing_topic
from tidemark_broker.api.topic_change_requests import AUTHORIZATION_FAILED

# ---------------------------------------------------------------- DescribeConfigs


#: Resources of one request. Each has dozens of keys.
RESOURCES_MAX = 1000
#: Approximate size of a resource, and of a key of it, in an answer.
_BARE_BYTES, _KEY_BYTES = 200, 400


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResult:
    """Result of one topic, group or broker."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribedConfig, ...] = ()


@dataclass(slots=True, kw_only=True)
class DescribeConfigsResponse(ThrottledAnswer):
    """Results in the order of the request."""

    results: tuple[DescribeConfigsResult, ...]


class _ConfigRefused(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


async def describe_configs(request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    """Describe the configuration of topics, groups or this broker, within the memory limit.

    A resource that does not fit gets REQUEST_TIMED_OUT, and the client must request fewer.
    """
    if len(request.resources) > RESOURCES_MAX:
        return _too_many(request)
    results: list[DescribeConfigsResult] = []
    # Each key is a few hundred bytes, so a small request can cause a very large answer.
    weight_bytes = 0
    for resource in request.resources:
        result = _result(resource, request, call)
        weight_bytes += _BARE_BYTES + len(result.configs) * _KEY_BYTES
        if not call.has_room(weight_bytes):
            result.configs, result.error_code = (), ErrorCode.request_timed_out
            result.error_message = "not enough memory for this answer: request fewer resources"
        results.append(result)
        # Let other requests run if this one has used up its time slice.
        await call.time_slice.renew_if_over()
    return DescribeConfigsResponse(results=tuple(results))


def _too_many(request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    text = f"At most {RESOURCES_MAX} resources are described at once."
    results = tuple(
        DescribeConfigsResult(
            error_code=ErrorCode.invalid_request,
            error_message=text,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    )
    return DescribeConfigsResponse(results=results)


def _result(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, call: Call
) -> DescribeConfigsResult:
    """Return the configuration of one resource, or its error.

    ``configuration_keys`` of the resource selects keys. ``request`` says whether synonyms and
    documentation are included.
    """
    try:
        found = _described(resource.resource_type, resource.resource_name, call)
    except _ConfigRefused as refused:
        return DescribeConfigsResult(
            error_code=refused.code,
            error_message=refused.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    # Keys that the request selects, None for all.
    selected = (
        set(resource.configuration_keys or ()) or None
    )  # an empty list means all, as in Kafka
    return DescribeConfigsResult(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _shown(key, request) for key in found if selected is None or key.name in selected
        ),
    )


def _described(kind: int, name: str, call: Call) -> Iterable[DescribedConfig]:
    """Return the configuration keys of a resource of Kafka's type ``kind``.

    Raises ``_ConfigRefused`` if the client may not see it, it does not exist or another broker has
    it.
    """
    services, client = call.services, call.client
    cluster = services.cluster
    # Each type checks authorization first, so that an error does not reveal what exists.
    if kind == ConfigResource.TOPIC:
        if not client.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
            raise _ConfigRefused(ErrorCode.topic_authorization_failed, AUTHORIZATION_FAILED)
        view = cluster.topics.get(name)
        if view is None:
            missing = missing_topic(name)
            is_legal = missing is ErrorCode.unknown_topic_or_partition
            raise _ConfigRefused(
                missing, None if is_legal else f"{name[:300]!r} is not a topic name"
            )
        # Tiering is a field of its own in the manifest. Kafka's clients expect it among the keys.
        config = {**view.config, **tiering_config(view.tiering)}
        return topic_configs(config, cluster.cluster_config, services.entries)
    if kind == ConfigResource.GROUP:
        if not client.may(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, name):
            raise _ConfigRefused(ErrorCode.group_authorization_failed, AUTHORIZATION_FAILED)
        if not name:
            raise _ConfigRefused(ErrorCode.invalid_request, "Group name must not be empty")
        return group_configs(cluster.group_config(name), services.entries)
    if kind not in (ConfigResource.BROKER, ConfigResource.BROKER_LOGGER):
        raise _ConfigRefused(ErrorCode.invalid_request, f"Unsupported resource type: {kind}")
    if not client.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        raise _ConfigRefused(ErrorCode.cluster_authorization_failed, AUTHORIZATION_FAILED)
    if kind == ConfigResource.BROKER_LOGGER and not name:
        raise _ConfigRefused(ErrorCode.invalid_request, "Broker id must not be empty")
    # An empty name stands for Kafka's dynamic defaults of all brokers.
    if not name:
        return cluster_configs(cluster.cluster_config)
    # Only a broker has its own file, so a request for another broker must be sent there.
    me = services.replicas.context.node_id
    if name != str(me):
        text = f"Unexpected broker id, expected {me} or empty string, but received {name[:100]}"
        raise _ConfigRefused(ErrorCode.invalid_request, text)
    if kind == ConfigResource.BROKER_LOGGER:
        return logger_configs(broker_loggers.levels())
    return broker_configs(cluster.cluster_config, services.entries)


def _shown(key: DescribedConfig, request: DescribeConfigsRequest) -> DescribedConfig:
    """Remove the parts of a key that the request does not include."""
    if not request.include_synonyms:
        key.synonyms = ()
    if not request.include_documentation:
        key.documentation = None
    return key


DESCRIBE = Api(describe_configs, versions=(1, 4), open_ended=True)


# ---------------------------------------------------------------- ListConfigResources


_CLIENT_METRICS = 16
#: Types in the order in which they are listed.
_KINDS = (
    ConfigResource.GROUP,
    _CLIENT_METRICS,
    ConfigResource.BROKER_LOGGER,
    ConfigResource.BROKER,
    ConfigResource.TOPIC,
)


@dataclass(slots=True, kw_only=True)
class ListedConfigResource:
    """One resource. ``resource_type`` is a number of Kafka's ``ConfigResource.Type``."""

    resource_name: str
    resource_type: int


@dataclass(slots=True, kw_only=True)
class ListConfigResourcesResponse(ThrottledAnswer):
    error_code: ErrorCode = ErrorCode.none
    config_resources: tuple[ListedConfigResource, ...] = ()


async def list_resources(
    request: ListConfigResourcesRequest, call: Call
) -> ListConfigResourcesResponse:
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
    if kind in (ConfigResource.BROKER, ConfigResource.BROKER_LOGGER):
        listener = call.client.listener
        return tuple(
            str(node)
            for node, row in sorted(cluster.brokers.items())
            if endpoint_of(row, listener) is not None
        )
    return ()


LIST_RESOURCES = Api(list_resources, versions=(0, 1), open_ended=True)
