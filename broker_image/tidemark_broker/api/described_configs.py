"""Kafka's configuration keys of a topic and of a broker with their values, and where each comes
from: what DescribeConfigs and CreateTopics tell.

From the strongest: the topic, the Cluster (Kafka's dynamic defaults of all brokers), the broker's
file, the table's default. A topic's configuration reaches brokers with the Cluster's defaults in
it, so one that equals the Cluster's counts as that. Numbers are those of Kafka's
``DescribeConfigsResponse.ConfigSource`` and ``ConfigType``.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tidemark.configuration.key import ConfigKey
from tidemark.configuration.layers import topic_defaults
from tidemark.configuration.table import BROKER, CLUSTER, DYNAMIC, GROUP, TOPIC
from tidemark.tiering import DisablePolicy, Tiering


class Source(enum.IntEnum):
    """Where a value comes from."""

    TOPIC = 1
    CLUSTER = 3
    BROKER_FILE = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_ENABLE = "remote.storage.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A key from which a value could come."""

    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One key. ``synonyms`` from the strongest, the one that counts first. ``read_only``: no client
    can set it."""

    name: str
    value: str | None
    source: Source
    type: int
    documentation: str
    synonyms: tuple[Synonym, ...]
    read_only: bool = False


def topic_configs(
    config: Mapping[str, str], cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterator[Described]:
    """All keys of a topic, by name. ``config``: what is set for it; ``entries``: the broker's
    file."""
    defaults = topic_defaults(cluster_config)
    for _, key in sorted(TOPIC.items()):
        synonyms = tuple(_topic_synonyms(key, config, defaults, cluster_config, entries))
        yield _described(key, synonyms)


def broker_configs(
    cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterator[Described]:
    """All keys of a broker, by name: its own, the Cluster's, and the defaults of topics."""
    keys = {**CLUSTER, **BROKER}
    for topic_key in TOPIC.values():
        for synonym in topic_key.synonyms[1:]:
            unset = replace(topic_key, name=synonym.name, default=None, field="", synonyms=())
            keys.setdefault(synonym.name, unset)
    for name, key in sorted(keys.items()):
        described = _described(key, tuple(_broker_synonyms(key, name, cluster_config, entries)))
        yield described if name in DYNAMIC else replace(described, read_only=True)


def cluster_configs(cluster_config: Mapping[str, str]) -> Iterator[Described]:
    """What is set for all brokers: Kafka's dynamic defaults."""
    for name in sorted(cluster_config.keys() & CLUSTER.keys()):
        value = Synonym(name=name, value=cluster_config[name], source=Source.CLUSTER)
        described = _described(CLUSTER[name], (value,))
        yield described if name in DYNAMIC else replace(described, read_only=True)


def group_configs(config: Mapping[str, str], entries: Mapping[str, str]) -> Iterator[Described]:
    """All keys of a consumer group, by name. ``config``: what is set for it; ``entries``: the
    broker's file."""
    for name, key in sorted(GROUP.items()):
        synonyms: list[Synonym] = []
        if name in config:
            synonyms.append(Synonym(name=name, value=config[name], source=Source.GROUP))
        for each in key.synonyms:
            if each.name in entries:
                value = entries[each.name]
                synonyms.append(Synonym(name=each.name, value=value, source=Source.BROKER_FILE))
            default = Synonym(name=each.name, value=key.default, source=Source.DEFAULT)
            synonyms.append(default)
        yield _described(key, tuple(synonyms))


def logger_configs(levels: Iterable[tuple[str, str]]) -> Iterator[Described]:
    """The levels of a broker's log, by logger."""
    for name, level in levels:
        yield Described(
            name=name,
            value=level,
            source=Source.LOGGER,
            type=_TYPES["string"],
            documentation="",
            synonyms=(),
        )


def tiering_config(tiering: Tiering) -> dict[str, str]:
    """A topic's tiering in the two vocabularies that Kafka's clients have for it: that of KIP-950's
    draft, and that of Kafka's releases. What is as by default is left out."""
    if not tiering.policy_holds:
        return {}
    if tiering.disable_policy is DisablePolicy.RETAIN:
        return {"remote.log.copy.disable": "true"}
    return {"remote.log.delete.on.disable": "true", "remote.log.disable.policy": "delete"}


def _described(key: ConfigKey, synonyms: tuple[Synonym, ...]) -> Described:
    first = synonyms[0]
    return Described(
        name=key.name,
        value=first.value,
        source=first.source,
        type=_TYPES.get(key.type.name, _TYPES["string"]),
        documentation=key.meaning or f"{key.name} {key.reason}",
        synonyms=synonyms,
    )


def _topic_synonyms(
    key: ConfigKey,
    config: Mapping[str, str],
    defaults: Mapping[str, str],
    cluster_config: Mapping[str, str],
    entries: Mapping[str, str],
) -> Iterable[Synonym]:
    own = config.get(key.name)
    is_default = own == defaults.get(key.name) or (key.name == _ENABLE and own == key.default)
    if own is not None and not is_default:
        yield Synonym(name=key.name, value=own, source=Source.TOPIC)
    if not key.synonyms:
        yield Synonym(name=key.name, value=key.default, source=Source.DEFAULT)
        return
    for synonym in key.synonyms:
        for layer, source in ((cluster_config, Source.CLUSTER), (entries, Source.BROKER_FILE)):
            if synonym.name in layer:
                value = _scaled(layer[synonym.name], synonym.factor)
                yield Synonym(name=synonym.name, value=value, source=source)
    name = key.synonyms[0].name
    yield Synonym(name=name, value=key.default, source=Source.DEFAULT)


def _broker_synonyms(
    key: ConfigKey, name: str, cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterable[Synonym]:
    if name in cluster_config:
        yield Synonym(name=name, value=cluster_config[name], source=Source.CLUSTER)
    if name in entries:
        yield Synonym(name=name, value=entries[name], source=Source.BROKER_FILE)
    yield Synonym(name=name, value=key.default, source=Source.DEFAULT)


def _scaled(text: str, factor: int) -> str:
    return text if factor == 1 or text.startswith("-") else str(int(text) * factor)
