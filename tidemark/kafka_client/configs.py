"""Configurations of topics and brokers over Kafka's protocol.

They are read from any broker or from a particular one, and altered key by key (KIP-339).
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kio.schema.describe_configs.v4 import request as describe_request
from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
from kio.schema.incremental_alter_configs.v1 import request as alter_request
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.static.primitive import i8

from tidemark.kafka_client.admin import outcome
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import Unreachable
from tidemark.kafka_client.values import (
    BROKER,
    DYNAMIC_BROKER,
    DYNAMIC_TOPIC,
    TOPIC,
    ConfigChange,
    EffectiveConfig,
    RequestFailure,
)

#: Entries by key.
Configuration: TypeAlias = dict[str, EffectiveConfig]
_SET, _DELETE = i8(0), i8(1)
_OWN = {TOPIC: DYNAMIC_TOPIC, BROKER: DYNAMIC_BROKER}


async def topic_configs(
    client: KafkaClient,
    names: Iterable[str],
    *,
    keys: Sequence[str] | None = None,
    node_id: int | None = None,
) -> dict[str, Configuration | RequestFailure]:
    """Return configurations by topic, or the failure for a topic. Raises ``KafkaError``.

    ``keys``: only these keys, None for all. ``node_id``: those that this broker has applied;
    brokers receive the cluster's changes at different times. None: any broker answers.
    """
    resources = [(TOPIC, name) for name in names]
    # An empty request would only cost a round trip.
    described = await _describe(client, resources, keys, node_id) if resources else {}
    return {name: configuration for (_, name), configuration in described.items()}


async def broker_config(client: KafkaClient, node_id: int, keys: Sequence[str]) -> Configuration:
    """Return a broker's own configuration, its file's included. Raises ``KafkaError``."""
    described = await _describe(client, [(BROKER, str(node_id))], keys, node_id)
    answer = described.get((BROKER, str(node_id)))
    if answer is None or isinstance(answer, RequestFailure):
        raise Unreachable(f"the configuration of broker {node_id}: {answer or 'not answered'}")
    return answer


async def _describe(
    client: KafkaClient,
    resources: Sequence[tuple[int, str]],
    keys: Sequence[str] | None,
    node_id: int | None,
) -> dict[tuple[int, str], Configuration | RequestFailure]:
    """Describe resources, each given as (kind, name); return entries or the failure of each.

    ``keys``: only these keys, None for all. ``node_id`` None: any broker answers.
    """
    request = describe_request.DescribeConfigsRequest(
        resources=tuple(
            describe_request.DescribeConfigsResource(
                resource_type=i8(kind),
                resource_name=name,
                configuration_keys=None if keys is None else tuple(keys),
            )
            for kind, name in resources
        ),
    )
    # A broker's own configuration can only be answered by that broker.
    if node_id is None:
        answer = await client.request_any(request, DescribeConfigsResponse)
    else:
        answer = await client.request_node(node_id, request, DescribeConfigsResponse)
    # A result has either an error, or the entries.
    return {
        (int(result.resource_type), result.resource_name): outcome(
            result.error_code, result.error_message
        )
        or {
            entry.name: EffectiveConfig(
                entry.value, int(entry.config_source) == _OWN[int(result.resource_type)]
            )
            for entry in result.configs
        }
        for result in answer.results
    }


async def alter_broker(client: KafkaClient, change: ConfigChange) -> RequestFailure | None:
    """Alter the configuration of one broker, which only that broker accepts.

    Raises ``KafkaError``.
    """
    answers = await alter_configs(client, [change], node_id=int(change.name))
    return answers[BROKER, change.name]


async def alter_configs(
    client: KafkaClient, changes: Sequence[ConfigChange], *, node_id: int | None = None
) -> dict[tuple[int, str], RequestFailure | None]:
    """Alter single keys of configurations (KIP-339); return failures by kind and name.

    None stands for success. ``node_id``: the broker to send the request to, None for any. A
    broker's own dynamic configuration must be altered there. Raises ``KafkaError``.
    """
    if not changes:
        return {}
    request = alter_request.IncrementalAlterConfigsRequest(
        resources=tuple(_alterable(change) for change in changes),
        validate_only=False,
        # A broker alters its own dynamic configuration itself, so such a change names its receiver.
    )
    if node_id is None:
        answer = await client.request_any(request, IncrementalAlterConfigsResponse)
    else:
        answer = await client.request_node(node_id, request, IncrementalAlterConfigsResponse)
    return {
        (int(result.resource_type), result.resource_name): outcome(
            result.error_code, result.error_message
        )
        for result in answer.responses
    }


def _alterable(change: ConfigChange) -> alter_request.AlterConfigsResource:
    """Return a change on the wire. Keys are sorted, so that equal changes have equal bytes."""
    entries = [
        *((key, _SET, value) for key, value in sorted(change.set.items())),
        *((key, _DELETE, None) for key in sorted(change.unset)),
    ]
    return alter_request.AlterConfigsResource(
        resource_type=i8(change.kind),
        resource_name=change.name,
        configs=tuple(
            alter_request.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in entries
        ),
    )
