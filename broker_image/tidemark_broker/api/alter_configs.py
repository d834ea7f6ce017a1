"""IncrementalAlterConfigs (44) and AlterConfigs (33): a topic's keys, in its ``Topic`` object.

ALTER_CONFIGS on the topic decides. Brokers have their configuration from their file and, what is
the same for all, from the ``Cluster`` object: what a client wrote here would be lost with the next
change there, so it is refused and told where to write it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from kio.schema.alter_configs.v2 import request as whole
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as incremental

from tidemark.wire.topics import ChangeKind, Setting, SettingOperation, TopicChange
from tidemark_broker.api.changed_topics import (
    AUTHORIZATION_FAILED,
    error_of,
    pass_on,
    until_known,
)
from tidemark_broker.api.config_resources import ConfigResource
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType

_WHERE = (
    "a broker's configuration is in its own file, what is the same for all brokers in spec.config "
    "of the Cluster object (kubectl apply)"
)
_ASK_S = 30.0
#: How long an answer waits for this broker to follow; it is no error if it does not.
_FOLLOW_S = 5.0


@dataclass(slots=True, kw_only=True)
class AlterConfigsResourceResponse:
    """One topic or broker."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(slots=True, kw_only=True)
class AlterConfigsResponse:
    """Of both requests, in their order."""

    responses: tuple[AlterConfigsResourceResponse, ...]
    throttle_time: timedelta = ZERO


_Resource: TypeAlias = incremental.AlterConfigsResource | whole.AlterConfigsResource
_Key = tuple[int, str]
_Told = tuple[ErrorCode, str | None]


async def alter_incrementally(
    request: incremental.IncrementalAlterConfigsRequest, call: Call
) -> AlterConfigsResponse:
    """Change the keys that are named."""

    def change(resource: incremental.AlterConfigsResource) -> TopicChange:
        settings = tuple(
            Setting(name=each.name, value=each.value, operation=each.config_operation)
            for each in resource.configs
        )
        return _change(resource.resource_name, settings)

    return await _altered(request.resources, change, call, validate_only=request.validate_only)


async def alter(request: whole.AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    """Replace all keys by those that are named: the others go back to their defaults."""

    def change(resource: whole.AlterConfigsResource) -> TopicChange:
        settings = tuple(
            Setting(name=each.name, value=each.value, operation=SettingOperation.SET)
            for each in resource.configs
        )
        return _change(resource.resource_name, settings, is_whole=True)

    return await _altered(request.resources, change, call, validate_only=request.validate_only)


def _change(topic: str, settings: tuple[Setting, ...], *, is_whole: bool = False) -> TopicChange:
    return TopicChange(
        kind=ChangeKind.CONFIGURE, name=topic, topic_id=None, settings=settings, is_whole=is_whole
    )


async def _altered(
    resources: Sequence[_Resource],
    change: Callable[..., TopicChange],
    call: Call,
    *,
    validate_only: bool,
) -> AlterConfigsResponse:
    asked = Counter((each.resource_type, each.resource_name) for each in resources)
    told: dict[_Key, _Told] = {}
    for (kind, name), times in asked.items():
        refused = _refusal(kind, name, times, call)
        if refused is not None:
            told[kind, name] = refused
        if call.turns.over:
            await call.turns.give()
    made = await call.turns.all_of(
        change(resource)
        for resource in resources
        if (resource.resource_type, resource.resource_name) not in told
    )
    changes = {each.name: each for each in made if each.name is not None}
    results = await pass_on(
        call, tuple(changes.values()), wait_s=_ASK_S, validate_only=validate_only
    )
    for name, result in zip(changes, results, strict=True):
        told[ConfigResource.TOPIC, name] = error_of(result.error_code), result.error_message
        if call.turns.over:
            await call.turns.give()
    if not validate_only:
        await _follow(changes, told, call)
    responses = await call.turns.all_of(
        AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )
        for (kind, name), (code, message) in told.items()
    )
    return AlterConfigsResponse(responses=tuple(responses))


def _refusal(kind: int, name: str, times: int, call: Call) -> _Told | None:
    """Why it is not passed on."""
    if times > 1:
        return ErrorCode.invalid_request, "Duplicate resource."
    if kind == ConfigResource.TOPIC:
        if call.client.may(Operation.ALTER_CONFIGS, ResourceType.TOPIC, name):
            return None
        return ErrorCode.topic_authorization_failed, AUTHORIZATION_FAILED
    if kind == ConfigResource.BROKER:
        if call.client.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER):
            return ErrorCode.policy_violation, _WHERE
        return ErrorCode.cluster_authorization_failed, AUTHORIZATION_FAILED
    return ErrorCode.invalid_request, f"Unsupported resource type: {kind}"


async def _follow(
    changes: Mapping[str, TopicChange], told: Mapping[_Key, _Told], call: Call
) -> None:
    """Whoever asks this broker next finds what was set, but for a topic that is paused."""
    topics = call.services.cluster.topics

    def has_followed(name: str) -> bool:
        view = topics.get(name)
        return view is None or all(
            view.config.get(setting.name, setting.value) == setting.value
            for setting in changes[name].settings
            if setting.operation == SettingOperation.SET
        )

    made = [name for name in changes if told[ConfigResource.TOPIC, name][0] is ErrorCode.none]
    await until_known(call, made, has_followed, _FOLLOW_S)


INCREMENTAL = Api(
    key=44,
    name="IncrementalAlterConfigs",
    version_min=0,
    version_max=1,
    request=incremental.IncrementalAlterConfigsRequest,
    answer=AlterConfigsResponse,
    handler=alter_incrementally,
)
WHOLE = Api(
    key=33,
    name="AlterConfigs",
    version_min=0,
    version_max=2,
    request=whole.AlterConfigsRequest,
    answer=AlterConfigsResponse,
    handler=alter,
)
