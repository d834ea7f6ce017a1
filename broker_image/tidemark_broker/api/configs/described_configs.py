"""Resource types of configuration requests, by the numbers of Kafka's ``ConfigResource.Type``."""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tidemark.configuration.key import ConfigKey
from tidemark.configuration.layers import topic_defaults
from tidemark.configuration.table import BROKER, CLUSTER, DYNAMIC, GROUP, TOPIC
from tidemark.tiering import DisablePolicy, Tiering

#: Settings of one resource in a request. Dozens of keys exist, so more can only be abuse.
SETTINGS_MAX = 1000
TOO_MANY = f"At most {SETTINGS_MAX} settings are accepted for one resource."


class ConfigResource(enum.IntEnum):
    """Resource types that this broker supports."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Origin of a value."""

    TOPIC = 1
    CLUSTER = 3
    BROKER_FILE = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8


_TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}
_ENABLE = "remote.storage.enable"


@dataclass(slots=True, kw_only=True)
class ConfigSynonym:
    """A key from which a value may be taken, as an answer contains it."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(slots=True, kw_only=True)
class DescribedConfig:
    """One key, as an answer contains it.

    ``synonyms`` are in descending precedence. ``read_only``: no client can set it.
    """

    name: str
    value: str | None
    config_source: ConfigSource
    config_type: int
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]
    read_only: bool = False
    is_sensitive: bool = False


def topic_configs(
    config: Mapping[str, str], cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterator[DescribedConfig]:
    """Yield all keys of a topic, by name.

    ``config`` is the topic's own configuration, ``entries`` the broker's file.
    """
    # The operator merges the Cluster's defaults, so they must be recognized to report their source.
    defaults = topic_defaults(cluster_config)
    for _, key in sorted(TOPIC.items()):
        synonyms = tuple(_topic_synonyms(key, config, defaults, cluster_config, entries))
        yield _described(key, synonyms)


def broker_configs(
    cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterator[DescribedConfig]:
    """Yield all keys of a broker, by name: its own, the Cluster's, and the defaults of topics."""
    keys = {**CLUSTER, **BROKER}
    for topic_key in TOPIC.values():
        # A topic default has its own broker key, such as log.retention.ms for retention.ms.
        for synonym in topic_key.synonyms[1:]:
            unset = replace(topic_key, name=synonym.name, default=None, field="", synonyms=())
            keys.setdefault(synonym.name, unset)
    for name, key in sorted(keys.items()):
        described = _described(key, tuple(_broker_synonyms(key, name, cluster_config, entries)))
        yield described if name in DYNAMIC else replace(described, read_only=True)


def cluster_configs(cluster_config: Mapping[str, str]) -> Iterator[DescribedConfig]:
    """Yield the keys that are set for all brokers: Kafka's dynamic defaults."""
    for name in sorted(cluster_config.keys() & CLUSTER.keys()):
        value = ConfigSynonym(name=name, value=cluster_config[name], source=ConfigSource.CLUSTER)
        described = _described(CLUSTER[name], (value,))
        yield described if name in DYNAMIC else replace(described, read_only=True)


def group_configs(
    config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterator[DescribedConfig]:
    """Yield all configuration keys of a consumer group with their values, by name.

    ``config`` is the group's own configuration, ``entries`` the broker's file. Each key has the
    values that it may take, in descending precedence: the group's, the broker's file, the default.
    """
    for name, key in sorted(GROUP.items()):
        synonyms: list[ConfigSynonym] = []
        if name in config:
            synonyms.append(ConfigSynonym(name=name, value=config[name], source=ConfigSource.GROUP))
        # Kafka lists the broker's key as a synonym of the group's key, with its file before its
        # default.
        for synonym in key.synonyms:
            if synonym.name in entries:
                value = entries[synonym.name]
                synonyms.append(
                    ConfigSynonym(name=synonym.name, value=value, source=ConfigSource.BROKER_FILE)
                )
            default = ConfigSynonym(
                name=synonym.name, value=key.default, source=ConfigSource.DEFAULT
            )
            synonyms.append(default)
        yield _described(key, tuple(synonyms))


def logger_configs(levels: Iterable[tuple[str, str]]) -> Iterator[DescribedConfig]:
    """Yield the levels of a broker's loggers."""
    for name, level in levels:
        yield DescribedConfig(
            name=name,
            value=level,
            config_source=ConfigSource.LOGGER,
            config_type=_TYPES["string"],
            documentation="",
            synonyms=(),
        )


def tiering_config(tiering: Tiering) -> dict[str, str]:
    """Return a topic's tiering in both vocabularies that Kafka clients know.

    They are that of KIP-950's draft and that of Kafka's releases. Defaults are left out.
    """
    if not tiering.policy_applies:
        return {}
    if tiering.disable_policy is DisablePolicy.RETAIN:
        return {"remote.log.copy.disable": "true"}
    return {"remote.log.delete.on.disable": "true", "remote.log.disable.policy": "delete"}


def _described(key: ConfigKey, synonyms: tuple[ConfigSynonym, ...]) -> DescribedConfig:
    first = synonyms[0]
    return DescribedConfig(
        name=key.name,
        value=first.value,
        config_source=first.source,
        config_type=_TYPES.get(key.type.name, _TYPES["string"]),
        documentation=key.meaning or f"{key.name} {key.reason}",
        synonyms=synonyms,
    )


def _topic_synonyms(
    key: ConfigKey,
    config: Mapping[str, str],
    defaults: Mapping[str, str],
    cluster_config: Mapping[str, str],
    entries: Mapping[str, str],
) -> Iterable[ConfigSynonym]:
    """Yield the values that a topic key may take, in descending precedence.

    The first one is in effect. ``config`` is the topic's configuration (merged with the Cluster's
    defaults), ``defaults`` those defaults by topic key, ``cluster_config`` the keys set for all
    brokers and ``entries`` the broker's file.
    """
    # The operator merges the Cluster's defaults into a topic's configuration. A value that equals
    # the default is therefore reported as the default: they cannot be distinguished here.
    own = config.get(key.name)
    is_default = own == defaults.get(key.name) or (key.name == _ENABLE and own == key.default)
    if own is not None and not is_default:
        yield ConfigSynonym(name=key.name, value=own, source=ConfigSource.TOPIC)
    if not key.synonyms:
        yield ConfigSynonym(name=key.name, value=key.default, source=ConfigSource.DEFAULT)
        return
    # Each synonym is looked up in both layers, since an earlier one takes precedence in either.
    for synonym in key.synonyms:
        for layer, source in (
            (cluster_config, ConfigSource.CLUSTER),
            (entries, ConfigSource.BROKER_FILE),
        ):
            if synonym.name in layer:
                value = _scaled(layer[synonym.name], synonym.factor)
                yield ConfigSynonym(name=synonym.name, value=value, source=source)
    # Last the built-in default, under the name of the broker's key, as in Kafka.
    name = key.synonyms[0].name
    yield ConfigSynonym(name=name, value=key.default, source=ConfigSource.DEFAULT)


def _broker_synonyms(
    key: ConfigKey, name: str, cluster_config: Mapping[str, str], entries: Mapping[str, str]
) -> Iterable[ConfigSynonym]:
    if name in cluster_config:
        yield ConfigSynonym(name=name, value=cluster_config[name], source=ConfigSource.CLUSTER)
    if name in entries:
        yield ConfigSynonym(name=name, value=entries[name], source=ConfigSource.BROKER_FILE)
    yield ConfigSynonym(name=name, value=key.default, source=ConfigSource.DEFAULT)


def _scaled(text: str, factor: int) -> str:
    # Negative values mean unlimited, and a unit conversion must not change them.
    return text if factor == 1 or text.startswith("-") else str(int(text) * factor)
