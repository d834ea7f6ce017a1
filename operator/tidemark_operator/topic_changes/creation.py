"""CreateTopics: the manifest of a new ``Topic`` from a client's request, or Kafka's error.

The checks are those of Kafka's ``ReplicationControlManager``, in its order. Name, existing topics,
collisions of metric names (``.`` and ``_`` are the same there), counts, assignments, configuration.
Finally enough brokers must be live, because a client expects an error rather than a wait. KIP-409:
fewer are enough if the Cluster creates topics under-replicated, or if the topic is an internal one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.configuration.broker_keys import (
    AUTO_CREATE_TOPICS,
    DEFAULT_REPLICATION_FACTOR,
    NUM_PARTITIONS,
)
from tidemark.configuration.table import CLUSTER
from tidemark.configuration.table import TOPIC as TOPIC_KEYS
from tidemark.logfiles.names import COORDINATORS_TOPICS, INTERNAL_TOPICS
from tidemark.message_text import count
from tidemark.wire.topics import Assignment, TopicChange
from tidemark_operator.controller.placement import required_brokers, staying
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.kube.kinds import TOPIC, Json
from tidemark_operator.objects.conversions import topic_info
from tidemark_operator.resources.assignments import assignments_text
from tidemark_operator.resources.names import (
    ASSIGNMENT_ANNOTATION,
    INTERNAL_LABEL,
    PARTITIONS_MAX,
    REPLICAS_MAX,
)
from tidemark_operator.topic_changes.refusal import refused
from tidemark_operator.topic_changes.settings import TopicSettings, changed

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: Kafka's ``LogConfig`` rejects the first if it is above the second.
_COMPACTION_LAGS = "min.compaction.lag.ms", "max.compaction.lag.ms"
#: Stands for the id of an object that is not created yet.
_NO_UID = "00000000-0000-0000-0000-000000000000"


def manifest(state: ControllerState, change: TopicChange, *, namespace: str, name: str) -> Json:
    """Return the Topic object ``name`` for a CreateTopics request. Raises :class:`ChangeRefusal`.

    The checks are in Kafka's order, because the first error is the one that the client receives.
    """
    # Name, counts, assignments and configuration.
    topic = change.name or ""
    _check_name(state, topic)
    if change.automatic and topic not in INTERNAL_TOPICS:
        _check_automatic(state)
    partitions, replicas = counts(state, change)
    _check_given(change)
    described = changed(TopicSettings({}, None), change.settings, replaces_all=False)
    # The spec has only what the client set: defaults stay the Cluster's to change.
    spec: dict[str, Any] = {
        "clusterRef": {"name": state.cluster.key.rpartition("/")[2]},
        "partitions": partitions,
        "replicationFactor": replicas,
    }
    # A topic's name may contain characters that an object's name may not.
    if topic != name:
        spec["topicName"] = topic
    if described.config:
        spec["config"] = dict(described.config)
    if described.tiering is not None:
        spec["tiering"] = dict(described.tiering)
    meta: dict[str, Any] = {"name": name, "namespace": namespace}
    if topic in INTERNAL_TOPICS:
        meta["labels"] = {INTERNAL_LABEL: "true"}
    if change.assignments:
        meta["annotations"] = {ASSIGNMENT_ANNOTATION: assignments_text(as_map(change.assignments))}
    body = {"apiVersion": TOPIC.api_version, "kind": TOPIC.kind, "metadata": meta, "spec": spec}
    # The controller's own view of the object decides about configuration and brokers.
    info = known_as(state, body)
    check_configuration(state, info)
    check_brokers(state, info)
    return body


def known_as(state: ControllerState, body: Json) -> TopicInfo:
    """Return the topic of an object as the controller will read it."""
    meta = {"uid": _NO_UID, **body["metadata"]}
    return topic_info({**body, "metadata": meta}, dict(state.cluster.config))


def check_configuration(state: ControllerState, info: TopicInfo) -> None:
    """Check what no single key shows. Raises :class:`Refusal`.

    Lags may contradict each other, and tiering may be impossible.
    """
    least_ms, most_ms = (_number(info.config, name) for name in _COMPACTION_LAGS)
    if least_ms > most_ms:
        text = f"{_COMPACTION_LAGS[0]} {least_ms} exceeds {_COMPACTION_LAGS[1]} {most_ms}"
        raise refused(ErrorCode.invalid_config, text)
    if info.config_problem:
        raise refused(ErrorCode.invalid_config, info.config_problem)
    if info.tiering_spec.enabled and not state.cluster.tiering_available:
        text = "the Cluster has no tiered storage. Set spec.remoteStorage and enable it"
        raise refused(ErrorCode.invalid_config, text)


def _number(config: Mapping[str, str], name: str) -> int:
    return int(config.get(name) or TOPIC_KEYS[name].default or "")


def check_brokers(state: ControllerState, info: TopicInfo) -> None:
    """Check that enough brokers are live to place a new partition. Raises :class:`Refusal`."""
    draft = Draft(state)
    live, required = len(staying(draft)), required_brokers(draft, info)
    if live < required and not info.assignments:
        text = (
            f"Unable to replicate the partition {info.replication_factor} "
            f"time(s): {required} brokers are required and {live} are live. "
            "Start more, lower the replication factor, or set "
            "enable.under.replicated.topic.creation in the Cluster's config"
        )
        raise refused(ErrorCode.invalid_replication_factor, text)


def as_map(assignments: Iterable[Assignment]) -> Mapping[int, tuple[int, ...]]:
    """Return the replicas by partition."""
    return {assignment.partition: assignment.replicas for assignment in assignments}


# ---------------------------------------------------------------- checks


def check_legal(topic: str) -> None:
    """Check that a topic can have that name. Raises :class:`Refusal`."""
    if not _LEGAL_NAME.fullmatch(topic) or topic in (".", ".."):
        text = (
            f"invalid topic name {topic[:300]!r}. Use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        )
        raise refused(ErrorCode.invalid_topic_exception, text)


def _check_name(state: ControllerState, topic: str) -> None:
    """Check that a topic of this name can be created. Raises :class:`ChangeRefusal`."""
    check_legal(topic)
    if topic in INTERNAL_TOPICS - COORDINATORS_TOPICS:
        text = f"{topic} is an internal topic that is not supported"
        raise refused(ErrorCode.invalid_topic_exception, text)
    # The new Topic adopts a coordinators' topic whose Topic was lost.
    rows = () if topic in COORDINATORS_TOPICS else state.partitions.ids_named(topic)
    if state.topics.named(topic) or rows:
        raise refused(ErrorCode.topic_already_exists, f"Topic '{topic}' already exists.")
    # Kafka's names of metrics replace dots by underscores.
    alike = state.topics.names_like(topic)
    if alike:
        text = f"Topic '{topic}' collides with existing topic: {alike[0]}"
        raise refused(ErrorCode.invalid_topic_exception, text)


def _check_given(change: TopicChange) -> None:
    """Check that every setting has a value (Kafka's ``createTopics``).

    A new topic has nothing to reset.
    """
    for setting in change.settings:
        if setting.value is None:
            text = f"{setting.name} has no value. Omit it for its default"
            raise refused(ErrorCode.invalid_config, text)


def _check_automatic(state: ControllerState) -> None:
    if not state.cluster.flag(AUTO_CREATE_TOPICS):
        text = f"automatic topic creation is disabled. Set {AUTO_CREATE_TOPICS} in the Cluster"
        raise refused(ErrorCode.policy_violation, text)


def counts(state: ControllerState, change: TopicChange) -> tuple[int, int]:
    """Return partitions and replication factor of a new topic. Raises :class:`ChangeRefusal`."""
    if change.assignments:
        return _assigned(state, change)
    partitions = change.partitions
    # KIP-464: -1 means the broker's default.
    if partitions == -1:
        partitions = _default(state, NUM_PARTITIONS)
    replicas = change.replication_factor
    if replicas == -1:
        replicas = _default(state, DEFAULT_REPLICATION_FACTOR)
    # Kafka checks the replication factor before the number of partitions.
    if replicas < 1 or replicas > REPLICAS_MAX:
        text = (
            "Replication factor must be larger than 0, or -1 to use the default value, and at most "
            f"{REPLICAS_MAX}."
        )
        raise refused(ErrorCode.invalid_replication_factor, text)
    if partitions < 1:
        text = "Number of partitions was set to an invalid non-positive value."
        raise refused(ErrorCode.invalid_partitions, text)
    check_count(partitions)
    return partitions, replicas


def check_count(partitions: int) -> None:
    """Check that the number of partitions is within the limit."""
    if partitions > PARTITIONS_MAX:
        text = f"{count(partitions, 'partition', 'exceeds')} the limit of {PARTITIONS_MAX}"
        raise refused(ErrorCode.policy_violation, text)


def _default(state: ControllerState, key: str) -> int:
    return int(state.cluster.config.get(key) or CLUSTER[key].default or "")


def _assigned(state: ControllerState, change: TopicChange) -> tuple[int, int]:
    """Return partitions and replication factor that a client's replica assignments imply.

    Raises :class:`ChangeRefusal` if the assignments are invalid.
    """
    # Kafka requires -1 for both counts when assignments are given.
    if change.replication_factor != -1:
        text = "with a manual assignment the replication factor has to be -1"
        raise refused(ErrorCode.invalid_request, text)
    if change.partitions != -1:
        text = "with a manual assignment the number of partitions has to be -1"
        raise refused(ErrorCode.invalid_request, text)
    check_count(len(change.assignments))
    named = sorted(assignment.partition for assignment in change.assignments)
    if named != list(range(len(named))):
        text = "partitions should be a consecutive 0-based integer sequence"
        raise refused(ErrorCode.invalid_replica_assignment, text)
    factor = len(change.assignments[0].replicas)
    check_assignments(state, change.assignments, factor)
    return len(change.assignments), factor


def check_assignments(
    state: ControllerState, assignments: Iterable[Assignment], factor: int
) -> None:
    """Check that each assignment names ``factor`` registered brokers, at least one of them live.

    Raises :class:`ChangeRefusal`.
    """
    for assignment in assignments:
        brokers = assignment.replicas
        # The first problem of an assignment is reported.
        problem = ""
        if len(brokers) != factor or not brokers:
            problem = f"has {count(len(brokers), 'replica')}, where the others have {factor}"
        elif len(set(brokers)) < len(brokers):
            problem = "names a broker twice"
        elif unknown := [node for node in brokers if node not in state.brokers]:
            problem = f"names broker {unknown[0]}, which is not registered"
        elif readers := [node for node in brokers if state.brokers[node].is_reader]:
            problem = f"names broker {readers[0]}, a Reader, which has no replicas"
        elif not any(state.brokers[node].live for node in brokers):
            problem = "names only brokers that are fenced or shutting down"
        if problem:
            text = f"the assignment of partition {assignment.partition} {problem}"
            raise refused(ErrorCode.invalid_replica_assignment, text)
