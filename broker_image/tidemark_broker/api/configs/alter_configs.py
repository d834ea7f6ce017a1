"""IncrementalAlterConfigs (44) and AlterConfigs (33): configuration of topics, groups and brokers.

IncrementalAlterConfigs has versions 0 and 1 (flexible). It changes the named keys. AlterConfigs has
versions 0, 1 (the same) and 2 (flexible). It replaces all keys.

Behaviour:

- A topic's keys are changed in its ``Topic`` object. Keys of all brokers (a resource without a
  name) and of a consumer group are changed in the ``Cluster`` object. The levels of a broker's
  loggers are changed in this process.
- ALTER_CONFIGS on the topic or the group is required, else on the cluster.
- Keys of a single broker are in its file, which is read at its start. Changing them is rejected
  with Kafka's code.
- The answer waits up to 5 s until this broker has the new values.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kio.schema.alter_configs.v2 import request as whole
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as incremental

from tidemark.configuration.table import DYNAMIC, GROUP, TOPIC
from tidemark.wire.topics import ChangeKind, Setting, SettingOperation, TopicChange
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs import broker_loggers
from tidemark_broker.api.configs.described_configs import SETTINGS_MAX, TOO_MANY, ConfigResource
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.topic_change_requests import (
    AUTHORIZATION_FAILED,
    error_of,
    forward,
    wait_until_known,
)
from tidemark_broker.groups.core.settings import config_error

_IN_FILE = (
    "a broker reads its own file at its start, and the rest is spec.config of the Cluster object"
)
_FOR_ALL = (
    "this key is the same for all brokers: set it for all of them (no broker's name, or "
    "--entity-default), which is spec.config of the Cluster object"
)
#: A group's name is a key of a map in the Cluster object, which bounds its length.
_GROUP_NAME_MAX = 249
_ASK_S = 30.0
#: Longest wait for this broker to apply a change. Exceeding it is not an error.
_FOLLOW_S = 5.0


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    """Result of one topic, group or broker."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(slots=True, kw_only=True)
class AlterConfigsResponse(ThrottledAnswer):
    """Answer to both requests, with results in their order."""

    responses: tuple[AlterConfigsResourceResponse, ...]


_CHANGES: dict[int, ChangeKind] = {
    ConfigResource.TOPIC: ChangeKind.CONFIGURE,
    ConfigResource.BROKER: ChangeKind.CONFIGURE_CLUSTER,
    ConfigResource.GROUP: ChangeKind.CONFIGURE_GROUP,
}
_Resource: TypeAlias = incremental.AlterConfigsResource | whole.AlterConfigsResource
#: A resource: its type (``ConfigResource``) and name.
_Key = tuple[int, str]
#: Error code (NONE for success) and text of a result.
_Outcome = tuple[ErrorCode, str | None]


async def alter_incrementally(
    request: incremental.IncrementalAlterConfigsRequest, call: Call
) -> AlterConfigsResponse:
    """Change the named keys."""

    def settings(resource: incremental.AlterConfigsResource) -> tuple[Setting, ...]:
        return tuple(
            Setting(name=config.name, value=config.value, operation=config.config_operation)
            for config in resource.configs
        )

    return await _altered(request.resources, settings, call, validate_only=request.validate_only)


async def alter(request: whole.AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Replace all keys by the named ones; the others return to their defaults."""

    def settings(resource: whole.AlterConfigsResource) -> tuple[Setting, ...]:
        return tuple(
            Setting(name=config.name, value=config.value, operation=SettingOperation.SET)
            for config in resource.configs
        )

    return await _altered(
        request.resources, settings, call, validate_only=request.validate_only, replaces_all=True
    )


async def _altered(
    resources: Sequence[_Resource],
    settings_of: Callable[..., tuple[Setting, ...]],
    call: Call,
    *,
    validate_only: bool,
    replaces_all: bool = False,
) -> AlterConfigsResponse:
    """Change the configuration of the resources, and return one result for each.

    Common part of both Apis. ``settings_of`` returns the changed keys of a resource. With
    ``replaces_all`` (AlterConfigs) keys that are not named return to their defaults.
    """
    # Kafka rejects a resource that is named twice, since the order of its changes would be
    # undefined.
    counts = Counter[_Key](
        (resource.resource_type, resource.resource_name) for resource in resources
    )
    outcomes: dict[_Key, _Outcome] = {}
    # Checks that need only this broker run first. Only the remaining changes go to the operator.
    changes: dict[_Key, TopicChange] = {}
    for resource in resources:
        key: _Key = int(resource.resource_type), resource.resource_name
        refused = _refusal(*key, counts[key], call)
        if refused is None and len(resource.configs) > SETTINGS_MAX:
            refused = ErrorCode.invalid_request, TOO_MANY
        if refused is not None:
            outcomes[key] = refused
        elif key[0] == ConfigResource.BROKER_LOGGER:
            outcomes[key] = _alter_loggers(
                settings_of(resource), validate_only=validate_only, replaces_all=replaces_all
            )
        elif key[0] == ConfigResource.BROKER and key[1]:
            outcomes[key] = _broker_config_refusal(settings_of(resource))
        # The bounds of a group's keys are in this broker's configuration, which the operator does
        # not have.
        elif (wrong := _group_config_error(*key, settings_of(resource), call)) is not None:
            outcomes[key] = ErrorCode.invalid_config, wrong
        else:
            changes[key] = _change(*key, settings_of(resource), replaces_all=replaces_all)
        # Let other requests run: a request may contain thousands of resources.
        await call.time_slice.renew_if_over()
    # One call for all changes, so that the operator can apply them together.
    results = await forward(
        call, tuple(changes.values()), wait_s=_ASK_S, validate_only=validate_only
    )
    for key, result in zip(changes, results, strict=True):
        outcomes[key] = error_of(result.error_code), result.error_message
        await call.time_slice.renew_if_over()
    # A client that describes the resource next on this connection must find the new values.
    if not validate_only:
        await _follow(changes, outcomes, call)
    responses = await call.time_slice.collect(
        AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
        for (kind, name), (code, message) in outcomes.items()
    )
    return AlterConfigsResponse(responses=tuple(responses))


def _change(
    kind: int, name: str, settings: tuple[Setting, ...], *, replaces_all: bool
) -> TopicChange:
    return TopicChange(
        kind=_CHANGES[kind],
        name=name,
        topic_id=None,
        settings=settings,
        replaces_all=replaces_all,
    )


def _refusal(kind: int, name: str, times: int, call: Call) -> _Outcome | None:
    """Return the error of a resource that is rejected before its keys are read, else None.

    ``times`` is how often the request names the resource.
    """
    if times > 1:
        return ErrorCode.invalid_request, "Each resource must appear at most once."
    if kind == ConfigResource.TOPIC:
        if call.client.may(Operation.ALTER_CONFIGS, ResourceType.TOPIC, name):
            return None
        return ErrorCode.topic_authorization_failed, AUTHORIZATION_FAILED
    if kind == ConfigResource.GROUP:
        return _refusal_of_group(name, call)
    if kind not in (ConfigResource.BROKER, ConfigResource.BROKER_LOGGER):
        return ErrorCode.invalid_request, f"Unsupported resource type: {kind}"
    if not call.client.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER):
        return ErrorCode.cluster_authorization_failed, AUTHORIZATION_FAILED
    # A broker may be addressed as itself or, for keys of all brokers, with an empty name.
    me = call.services.replicas.context.node_id
    if name != str(me) and (name or kind == ConfigResource.BROKER_LOGGER):
        text = f"Unexpected broker id, expected {me}, but received {name[:100]}"
        return ErrorCode.invalid_request, text
    return None


def _refusal_of_group(name: str, call: Call) -> _Outcome | None:
    if not call.client.may(Operation.ALTER_CONFIGS, ResourceType.GROUP, name):
        return ErrorCode.group_authorization_failed, AUTHORIZATION_FAILED
    if not name:
        return ErrorCode.invalid_request, "Default group resources are not allowed."
    if len(name) > _GROUP_NAME_MAX:
        text = f"A group of a name of more than {_GROUP_NAME_MAX} characters has no configuration"
        return ErrorCode.invalid_request, text
    return None


def _group_config_error(
    kind: int, name: str, settings: Sequence[Setting], call: Call
) -> str | None:
    """Return why a group's resulting configuration is outside this broker's bounds, else None.

    The operator checks whether the values are numbers.
    """
    if kind != ConfigResource.GROUP:
        return None
    # The bounds relate keys to each other, so they are checked on the merged configuration.
    after = dict(call.services.cluster.group_config(name))
    for setting in settings:
        if setting.operation == SettingOperation.SET and setting.value is not None:
            after[setting.name] = setting.value
        else:
            after.pop(setting.name, None)
    numbers = {
        key: value
        for key, value in after.items()
        if key in GROUP and GROUP[key].type.accepts(value)
    }
    return config_error(numbers, call.services.groups.settings)


def _broker_config_refusal(settings: Sequence[Setting]) -> _Outcome:
    """Return the result for keys of one broker.

    No key can be set for one broker alone, so deleting one succeeds without a change.
    """
    added = {setting.name for setting in settings if setting.operation != SettingOperation.DELETE}
    static = sorted(added - DYNAMIC.keys())
    if static:
        text = f"Cannot update these configs dynamically: {', '.join(static)[:1000]}; {_IN_FILE}"
        return ErrorCode.invalid_request, text
    return (ErrorCode.policy_violation, _FOR_ALL) if added else (ErrorCode.none, None)


def _alter_loggers(
    settings: Sequence[Setting], *, validate_only: bool, replaces_all: bool
) -> _Outcome:
    # AlterConfigs would have to reset every logger that is not named. Kafka rejects it as well.
    if replaces_all:
        text = "AlterConfigs does not support the resource type BROKER_LOGGER"
        return ErrorCode.invalid_request, text
    try:
        broker_loggers.alter(settings, validate_only=validate_only)
    except broker_loggers.LoggerRefusal as refusal:
        return refusal.code, refusal.message
    return ErrorCode.none, None


async def _follow(
    changes: Mapping[_Key, TopicChange], outcomes: Mapping[_Key, _Outcome], call: Call
) -> None:
    """Wait until this broker's metadata contains the changes, at most :data:`_FOLLOW_S` seconds.

    Changes of a paused Topic object do not arrive. Exceeding the time is not an error.
    """
    cluster = call.services.cluster

    # A deleted key has no value to wait for, so only keys that were set are compared.
    def has_followed(key: _Key) -> bool:
        """Return whether this broker's metadata contains the new values of a resource."""
        kind, name = key
        if kind == ConfigResource.GROUP:
            return all(
                cluster.group_config(name).get(setting.name) == setting.value
                for setting in changes[key].settings
                if setting.operation == SettingOperation.SET
            )
        view = cluster.topics.get(name) if kind == ConfigResource.TOPIC else None
        config = cluster.cluster_config if view is None else view.config
        # The topic was deleted meanwhile, so there is nothing to wait for.
        if view is None and kind == ConfigResource.TOPIC:
            return True
        return all(
            _says(config, setting)
            for setting in changes[key].settings
            if setting.operation == SettingOperation.SET
        )

    made = [key for key in changes if outcomes[key][0] is ErrorCode.none]
    await wait_until_known(call, made, has_followed, _FOLLOW_S)


def _says(config: Mapping[str, str], setting: Setting) -> bool:
    """True if the configuration has the setting.

    Keys with their own manifest field are not sent to brokers, so they always count as applied.
    """
    if setting.name in config:
        return config[setting.name] == setting.value
    return setting.name in TOPIC and bool(TOPIC[setting.name].field)


INCREMENTAL = Api(alter_incrementally, versions=(0, 1))
WHOLE = Api(alter, versions=(0, 2))
