"""Kafka configuration and object name of a Topic.

The configuration is made from its config, its typed fields and the defaults.

There are three layers, and the later ones win: the Cluster's defaults for topics, ``spec.config``,
the typed fields under ``spec.tiering``. Keys and values are Kafka's, so a broker can use the result
unchanged.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from tidemark.configuration.table import TOPIC
from tidemark.configuration.topic_keys import (
    COPY_LAG_BYTES,
    COPY_LAG_MS,
    COPY_PAUSED,
    MAX_LAG_BYTES,
    MAX_LAG_MS,
)
from tidemark.configuration.values import INT64_MAX
from tidemark.tiering import Tiering
from tidemark_operator.resources.scalars import duration_ms, quantity_bytes
from tidemark_operator.resources.topic import TopicSpec

#: Object names: DNS subdomains, and the parts of a name that is made from a topic's.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_CHARS_MAX = 253
_SLUG_CHARS_MAX = 60
_HASH_CHARS = 10
#: Keys with a field of their own.
TYPED = frozenset(name for name, key in TOPIC.items() if key.field)
#: ``local.retention.*``: the same as the topic-wide limit.
_AS_TOTAL = -2
#: Keys that delay copies, with the retention that a -1 refers to.
_COPY_LAGS = {COPY_LAG_MS: "retention.ms", COPY_LAG_BYTES: "retention.bytes"}


def kafka_config(spec: TopicSpec, defaults: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the topic's configuration by Kafka's keys, without Kafka's own defaults."""
    return dict(sorted({**(defaults or {}), **(spec.config or {}), **_typed(spec)}.items()))


def _typed(spec: TopicSpec) -> dict[str, str]:
    tiering = spec.tiering
    if tiering is None:
        return {"remote.storage.enable": "false"}
    entries = {"remote.storage.enable": str(tiering.enabled).lower()}
    for block, time_key, size_key in (
        (tiering.local_retention, "local.retention.ms", "local.retention.bytes"),
        (tiering.max_lag, MAX_LAG_MS, MAX_LAG_BYTES),
    ):
        if block is not None and block.time is not None:
            entries[time_key] = str(duration_ms(block.time))
        if block is not None and block.size is not None:
            entries[size_key] = str(quantity_bytes(block.size))
    if tiering.paused:
        entries[COPY_PAUSED] = "true"
    return entries


def spec_of_kafka_config(config: Mapping[str, str], tiering: Tiering) -> dict[str, Any]:
    """Return ``spec.config`` and ``spec.tiering`` for a topic's Kafka configuration.

    Keys that topics no longer have are left out.
    """
    plain = {name: value for name, value in config.items() if name in TOPIC and name not in TYPED}
    block: dict[str, Any] = {"enabled": tiering.copies}
    if tiering.policy_applies:
        block["disablePolicy"] = tiering.disable_policy.name.capitalize()
    # -1, -2 and the largest number mean no limit of its own, which the field expresses by its
    # absence.
    for field, time_key, size_key in (
        ("localRetention", "local.retention.ms", "local.retention.bytes"),
        ("maxLag", MAX_LAG_MS, MAX_LAG_BYTES),
    ):
        limits = {
            name: config[key] + unit
            for key, name, unit in ((time_key, "time", "ms"), (size_key, "size", ""))
            if config.get(key, "").isdigit() and config[key] != TOPIC[key].default
        }
        if limits:
            block[field] = limits
    if config.get(COPY_PAUSED) == "true":
        block["paused"] = True
    return {"tiering": block, **({"config": plain} if plain else {})}


def retention_problem(config: Mapping[str, str]) -> str | None:
    """Return why local retention exceeds total retention, None if it does not.

    CEL cannot see a total that comes from the Cluster's defaults or from Kafka's.
    """
    for key in ("retention.ms", "retention.bytes"):
        total, local = _integer(config, key), _integer(config, f"local.{key}")
        if total >= 0 and local > total:
            return (
                f"local.{key} {local} exceeds {key} {total}. Lower "
                f"spec.tiering.localRetention, or set {key} in spec.config."
            )
    return None


def copy_lag_problem(config: Mapping[str, str]) -> str | None:
    """Return why the delay of copies (KIP-1241) contradicts another limit, None if it does not.

    As in Kafka it must not exceed the local retention. It must not exceed a quarter of the maximum
    lag either: half of that passes until a segment is closed, and the upload needs the rest.
    """
    for key, retention in _COPY_LAGS.items():
        local, lag = _local_limit(config, retention), _integer(config, key)
        if 0 <= local < lag:
            return (
                f"{key} {lag} exceeds the local retention of {local} (local.{retention}). Lower "
                f"{key}, or raise spec.tiering.localRetention."
            )
    # -1 is the local retention, and -1 again if that is unlimited.
    delays = {
        key: _local_limit(config, retention) if _integer(config, key) < 0 else _integer(config, key)
        for key, retention in _COPY_LAGS.items()
    }
    # A segment is copied when one of both permits it, so a 0 never delays it.
    if 0 in delays.values():
        return None
    for (key, delay), longest in zip(delays.items(), (MAX_LAG_MS, MAX_LAG_BYTES), strict=True):
        limit, field = _integer(config, longest), TOPIC[longest].field
        if limit < INT64_MAX and not 0 <= delay <= limit // 4:
            value = f"{key} {delay}" if delay >= 0 else f"{key} without a limit"
            return (
                f"{value} delays copies for more than a quarter of {field} ({longest} {limit}). "
                f"Set {COPY_LAG_MS} to 0 in spec.config, or raise {field}."
            )
    return None


def _local_limit(config: Mapping[str, str], retention: str) -> int:
    """Return the local retention, -1 for unlimited; ``retention`` is the key of the total one."""
    local = _integer(config, f"local.{retention}")
    # -2: the local retention follows the total one.
    return _integer(config, retention) if local == _AS_TOTAL else local


def _integer(config: Mapping[str, str], key: str) -> int:
    return int(config.get(key, TOPIC[key].default or ""))


COMPACTED = (
    "a compacted topic cannot be tiered, and cleanup.policy is compact (from "
    "spec.config or log.cleanup.policy of the Cluster). Set cleanup.policy to "
    "delete in spec.config, or disable tiering."
)


def is_compacted(config: Mapping[str, str]) -> bool:
    """Return whether a configuration enables compaction."""
    return "compact" in config.get("cleanup.policy", "")


def object_name(cluster: str, topic: str, is_taken: Callable[[str], bool]) -> str:
    """Return the object's name; ``is_taken``: the name belongs to the object of another topic."""
    if len(topic) <= _NAME_CHARS_MAX and _NAME.fullmatch(topic) and not is_taken(topic):
        return topic
    digest = hashlib.sha256(f"{cluster}/{topic}".encode()).hexdigest()[:_HASH_CHARS]
    slug = re.sub("[^a-z0-9]+", "-", topic.lower())[:_SLUG_CHARS_MAX].strip("-")
    return f"{slug}-{digest}" if slug else f"topic-{digest}"
