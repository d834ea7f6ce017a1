"""Convert a topic as Kafka describes it to a Topic manifest that can be applied with adoption.

Settings without a counterpart are left out and reported. On an existing Apache Kafka a setting that
the manifest does not name stays unchanged, so leaving it out is never a change.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.configuration.table import TOPIC as TOPIC_KEYS
from tidemark.configuration.topic_keys import MAX_LAG_MS
from tidemark.wire.topics import Setting, SettingOperation
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import API_VERSION, PAUSED_ANNOTATION
from tidemark_operator.resources.scalars import DURATION_PATTERN, duration_ms
from tidemark_operator.resources.topic import DeletionPolicyName, Topic
from tidemark_operator.resources.topic_config import (
    COMPACTED,
    TYPED,
    is_compacted,
    kafka_config,
    object_name,
    retention_problem,
)
from tidemark_operator.topic_changes.refusal import ChangeRefusal
from tidemark_operator.topic_changes.settings import TopicSettings, changed

_UNITS_MS = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))
_BINARY = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
#: Value that means "no own limit", so the topic's total retention applies.
_UNLIMITED = "-1"
_LOCAL = ("local.retention.ms", "local.retention.bytes")
#: Keys whose values become durations.
_TIMES = ("local.retention.ms", MAX_LAG_MS)


def is_internal(name: str) -> bool:
    """Return whether a topic contains the state of a Kafka program rather than a user's records.

    By convention such names start with two underscores: Kafka's coordinators
    (``__consumer_offsets``, ``__transaction_state``), Strimzi's operators
    (``__strimzi_store_topic``, ``__strimzi-topic-operator-…-changelog``), managed services.
    """
    return name.startswith("__")


class NotImported(ValueError):
    """Topic for which no manifest exists that leaves it unchanged; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTopic:
    """Topic to import: name in Kafka, own configuration (not inherited), and if known its id and
    object name.

    ``source`` says where it comes from, for messages.
    """

    source: str
    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    topic_id: str = ""
    object_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_paused: bool = False
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportedManifest:
    """Manifest, with remarks about what it does not contain, and commands to run before it is
    applied."""

    source: str
    manifest: dict[str, Any]
    remarks: tuple[str, ...]
    commands: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the object's name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def adopts(self) -> bool:
        """Return whether the manifest names the topic to adopt."""
        return ADOPT_TOPIC_ID in self.manifest["metadata"].get("annotations", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """Cluster and namespace ("": none in the manifest) of the manifests that are written.

    ``creates_topics``: the Topics create topics instead of adopting existing ones.
    """

    cluster: str
    namespace: str
    deletion_policy: DeletionPolicyName
    creates_topics: bool = False

    def manifest(
        self,
        kind: str,
        name: str,
        labels: Mapping[str, str],
        annotations: Mapping[str, str],
        spec: dict[str, Any],
    ) -> dict[str, Any]:
        """Return a manifest with its keys in the conventional order, as the YAML keeps it."""
        meta: dict[str, Any] = {"name": name}
        if self.namespace:
            meta["namespace"] = self.namespace
        if labels:
            meta["labels"] = dict(sorted(labels.items()))
        if annotations:
            meta["annotations"] = dict(annotations)
        return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": spec}


def to_manifest(
    topic: ImportedTopic, target: ImportTarget, is_taken: Callable[[str], bool]
) -> ImportedManifest:
    """Return the Topic manifest of an imported topic.

    ``is_taken``: whether another manifest has an object name. Raises :class:`NotImported`.
    """
    described, problems = _described(topic.config)
    # A key that the manifest does not name stays unchanged, but a new topic has the default.
    effect = (
        "the new topic has the default" if target.creates_topics else "it stays unchanged in Kafka"
    )
    remarks = [f"{problem}; left out, so {effect}" for problem in problems]
    name = topic.object_name or object_name(target.cluster, topic.name, is_taken)
    # Keys in the conventional order of a manifest, as the YAML keeps it.
    spec: dict[str, Any] = {"clusterRef": {"name": target.cluster}}
    if name != topic.name:
        spec["topicName"] = topic.name
    spec["partitions"] = topic.partitions
    spec["replicationFactor"] = topic.replication_factor
    if described.config:
        spec["config"] = dict(sorted(described.config.items()))
    if described.tiering is not None:
        spec["tiering"] = _readable(described.tiering)
    spec["deletionPolicy"] = str(target.deletion_policy)
    annotations = dict(sorted(topic.annotations.items()))
    # The id makes the operator adopt the existing topic instead of refusing the name.
    if topic.topic_id and not target.creates_topics:
        annotations[ADOPT_TOPIC_ID] = topic.topic_id
    if topic.is_paused and not target.creates_topics:
        annotations[PAUSED_ANNOTATION] = "true"
        remarks.append("Strimzi does not reconcile it, so the Topic has tidemark.dev/paused")
    manifest = target.manifest("Topic", name, topic.labels, annotations, spec)
    _check(manifest)
    return ImportedManifest(topic.source, manifest, (*topic.remarks, *remarks))


def _check(manifest: Mapping[str, Any]) -> None:
    """Raise :class:`NotImported` if the API server or the operator would refuse the manifest.

    Values that the topic inherits from its brokers are unknown here.
    """
    try:
        topic = Topic.parse(manifest)
    except InvalidResource as error:
        raise NotImported(str(error)) from error
    config = kafka_config(topic.spec)
    # A local retention is only comparable with a total retention that the topic sets itself.
    own = {name: value for name, value in config.items() if name.removeprefix("local.") in config}
    problem = retention_problem(own)
    if problem is None and topic.spec.tiering_enabled and is_compacted(config):
        problem = COMPACTED
    if problem is not None:
        raise NotImported(problem)


def _described(config: Mapping[str, str]) -> tuple[TopicSettings, list[str]]:
    """Return the topic's ``spec.config`` and ``spec.tiering``, and problems of other keys.

    Raises :class:`NotImported` if the values contradict each other.
    """
    kept, problems = {}, []
    for name, value in config.items():
        problem = _problem(name, value)
        if problem:
            problems.append(problem)
        elif not (name in _LOCAL and value == _UNLIMITED):
            kept[name] = value
    # The same conversion as for a configuration change by a Kafka client.
    settings = [
        Setting(name=name, value=value, operation=SettingOperation.SET)
        for name, value in kept.items()
    ]
    try:
        return changed(TopicSettings({}, None), settings, replaces_all=False), problems
    except ChangeRefusal as error:
        raise NotImported(error.message) from error


def _problem(name: str, value: str) -> str:
    """Return why a key cannot be in a manifest; "" if it can."""
    key = TOPIC_KEYS.get(name)
    if key is None:
        return f"{name} is not a known topic configuration key"
    if name not in TYPED and not key.served and value != key.only:
        return f"{name} {key.reason}"
    if not key.type.accepts(value):
        return f"{name} {value!r}: it {key.type.requirement}"
    if name in _TIMES and value != key.default and not value.startswith("-") and _too_long(value):
        return f"{name} {value} is too long for {key.field}"
    return ""


def _too_long(value: str) -> bool:
    try:
        duration_ms(duration_text(int(value)))
    except ValueError:
        return True
    return False


def _readable(tiering: Mapping[str, Any]) -> dict[str, Any]:
    """Return local retention and maximum lag in readable units with exactly the same values."""
    block = dict(tiering)
    for name in ("localRetention", "maxLag"):
        limits = dict(block.get(name) or {})
        if "time" in limits:
            limits["time"] = duration_text(int(str(limits["time"]).removesuffix("ms")))
        if "size" in limits:
            limits["size"] = size_text(int(limits["size"]))
        if limits:
            block[name] = limits
    return block


def duration_text(total_ms: int) -> str:
    """Return a duration in the largest unit that divides it: ``24h``, ``90m``, ``1500ms``.

    It has several units if a single number would have more digits than a duration may have.
    """
    factor, unit = next((f, u) for f, u in _UNITS_MS if total_ms % f == 0)
    text = f"{total_ms // factor}{unit}"
    return text if re.fullmatch(DURATION_PATTERN, text) else _compound(total_ms)


def _compound(total_ms: int) -> str:
    text = ""
    for factor, unit in _UNITS_MS:
        count, total_ms = divmod(total_ms, factor)
        text += f"{count}{unit}" if count else ""
    return text


def size_text(total: int) -> str:
    """Return a size in the largest unit that divides it: ``10Gi``, ``1500``."""
    return next((f"{total // f}{u}" for f, u in _BINARY if total and total % f == 0), str(total))
