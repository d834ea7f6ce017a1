"""Rules for topics of Apache Kafka: ownership by a Topic, and refused parts of a spec. Pure.

An existing topic belongs to a Topic only by the annotation that names its id, and only if it
matches the spec: taking it over changes nothing.
"""

import uuid
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.configuration.table import TOPIC
from tidemark.configuration.topic_keys import (
    COPY_PAUSED,
    MAX_LAG_BYTES,
    MAX_LAG_MS,
    REMOTE_COMPRESSION,
)
from tidemark.ids import id_text
from tidemark.kafka_client.values import NewTopic, RequestFailure, TopicView
from tidemark.message_text import count, quoted
from tidemark.reasons import Reason
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller.adoption import Adoption, parse_topic_id
from tidemark_operator.controller.state.model import Blocker, PersistedTiering, TopicInfo
from tidemark_operator.engines.kafka import desired_configs
from tidemark_operator.engines.kafka.cluster import FoundTopic

_SHOWN = 5
#: Keys of a Topic's tiering that Apache Kafka does not have.
_ONLY_OWN_BROKERS = (MAX_LAG_MS, MAX_LAG_BYTES, COPY_PAUSED, REMOTE_COMPRESSION)
#: Reasons of errors that a person has to fix; other errors are shown as they are.
_REASONS = {
    ErrorCode.invalid_config: Reason.CONFIG_REFUSED,
    ErrorCode.policy_violation: Reason.POLICY_VIOLATION,
    ErrorCode.topic_authorization_failed: Reason.ACCESS_DENIED,
    ErrorCode.cluster_authorization_failed: Reason.ACCESS_DENIED,
    ErrorCode.invalid_topic_exception: Reason.NAME_REFUSED,
}


def refused(failure: RequestFailure, action: str) -> Blocker:
    """Return the blocker of Kafka's error; it resolves by itself if a retry may succeed."""
    code = failure.code
    if code.retriable:
        return Blocker(reason=Reason.KAFKA_BUSY, message=f"{action}: {failure}", goes_on=True)
    return Blocker(reason=_REASONS.get(code, Reason.KAFKA_REJECTED), message=f"{action}: {failure}")


def tiering_found(own: Mapping[str, str]) -> Tiering:
    """Return the tiering state of an adopted topic's switches."""
    # Copying may be off without a recorded disablement, which is Retain.
    if own.get(desired_configs.ENABLE) != "true":
        return Tiering()
    if own.get(desired_configs.COPY_DISABLE) == "true":
        return Tiering(TieringState.DISABLED, 0, DisablePolicy.RETAIN)
    return Tiering(TieringState.ENABLED, 0)


def mismatches(
    topic: TopicInfo, found: FoundTopic, *, accepts_fewer_replicas: bool = False
) -> list[str]:
    """Return how an existing topic differs from the Topic's spec, one text for each difference.

    Compares partitions, replication factor, tiering and configuration. With
    ``accepts_fewer_replicas``, fewer replicas than in the spec are no difference.
    """
    view, problems = found.view, []
    if len(view.partitions) != topic.partitions:
        problems.append(
            f"it has {count(len(view.partitions), 'partition')}, not {topic.partitions}"
        )
    factors = sorted({len(partition.replicas) for partition in view.partitions})
    # Kafka cannot create placeholders, so an under-replicated topic has fewer replicas.
    has_fewer = accepts_fewer_replicas and factors[-1:] < [topic.replication_factor]
    if factors != [topic.replication_factor] and not has_fewer:
        text = " or ".join(count(factor, "replica") for factor in factors)
        problems.append(f"its partitions have {text}, not {topic.replication_factor}")
    tiering = tiering_found(found.own)
    # With another tiering state the other keys are not comparable.
    if tiering.copies != topic.tiering_spec.enabled:
        is_, not_ = ("", "not ") if tiering.copies else ("not ", "")
        problems.append(
            f"it is {is_}tiered, but spec.tiering.enabled says that it is {not_}to be tiered"
        )
        return problems
    # Only keys that the spec sets are compared; the topic may have others.
    values = desired_configs.of_topic(topic, tiering).values
    missing = desired_configs.difference(found.own, desired_configs.DesiredConfigs(values), ()).set
    for key in list(missing)[:_SHOWN]:
        has = quoted(found.own[key]) if key in found.own else "no value of its own"
        problems.append(f"{key} has {has}, not {quoted(missing[key])}")
    if len(missing) > _SHOWN:
        problems.append(f"{count(len(missing) - _SHOWN, 'more key', 'differs')}")
    return problems


def claim(
    topic: TopicInfo,
    found: FoundTopic,
    *,
    is_requested: bool,
    created: uuid.UUID | None = None,
    accepts_fewer_replicas: bool = False,
) -> Adoption | Blocker:
    """Decide whether a Topic without a topic id may manage an existing topic of its name.

    Returns the adoption, or a :class:`Blocker` with the reason and the user's next step.

    Adoption needs a proof that the topic belongs to this Topic: the adoption annotation names its
    id; this operator created it (``created``: the id of the created topic); or the operator sent a
    CreateTopics request and never received the answer (``is_requested``).
    ``accepts_fewer_replicas``: the topic may have fewer replicas than the spec (KIP-409).
    """
    view, annotated = found.view, topic.annotations.get(ADOPT_TOPIC_ID, "")
    # A topic that this operator has just created needs no comparison.
    is_made = created == view.topic_id
    problems = (
        [] if is_made else mismatches(topic, found, accepts_fewer_replicas=accepts_fewer_replicas)
    )
    named = parse_topic_id(annotated) == view.topic_id
    # Without the answer to CreateTopics, another client may have created the topic, so it has to
    # match the spec in everything.
    # An unknown creation counts only if the topic matches the spec in everything.
    if (named or is_made or (is_requested and not annotated)) and not problems:
        tiering_status = PersistedTiering(
            tiering=tiering_found(found.own), since_ms=topic.created_ms
        )
        return Adoption(
            topic_id=view.topic_id,
            partitions=len(view.partitions),
            tiering_status=tiering_status,
            annotation=ADOPT_TOPIC_ID if named else "",
        )
    # Refused: the annotation names another topic, the topic differs, or there is no annotation.
    id_ = id_text(view.topic_id)
    if annotated and not named:
        text = (
            f"{ADOPT_TOPIC_ID} names {quoted(annotated)}, but topic "
            f"{topic.name} of the Kafka cluster has the id {id_}. Set it to "
            "that id to adopt the topic"
        )
        return Blocker(reason=Reason.ADOPTION_REFUSED, message=text)
    if named:
        text = (
            f"topic {topic.name} differs from the manifest: "
            f"{'; '.join(problems)}. Change the manifest to match the topic, "
            "adopt it, then apply changes"
        )
        return Blocker(reason=Reason.ADOPTION_REFUSED, message=text)
    text = (
        f"topic {topic.name} already exists in the Kafka cluster under id "
        f"{id_}, and belongs to no Topic. To adopt it, annotate this Topic with "
        f"{ADOPT_TOPIC_ID}: {id_}; otherwise delete this Topic and create it "
        "with another topicName"
    )
    return Blocker(reason=Reason.ADOPTION_REQUIRED, message=text)


def is_made_of(found: FoundTopic, new: NewTopic) -> bool:
    """Return whether a topic is exactly what was requested, each replica on its broker."""
    placed = [partition.replicas for partition in found.view.partitions]
    if placed != [tuple(brokers) for brokers in new.assignment]:
        return False
    return not desired_configs.difference(
        found.own, desired_configs.DesiredConfigs(new.config), set(found.own)
    )


def gone(topic: TopicInfo, view: TopicView | None) -> Blocker:
    """Return the blocker of a topic that was deleted outside Tidemark, which never recreates it.

    ``view`` is the present topic of that name, which has another id; None if there is none.
    """
    if view is None:
        text = (
            f"topic {topic.name} (id {id_text(topic.id)}) no longer exists in "
            "the Kafka cluster. It was deleted outside Tidemark. To create a "
            "new, empty topic, delete this Topic and apply it again"
        )
        return Blocker(reason=Reason.TOPIC_MISSING, message=text)
    text = (
        f"topic {topic.name} was deleted outside Tidemark and created again, as "
        f"{id_text(view.topic_id)} in place of {id_text(topic.id)}. It is not "
        "changed. To adopt the new one, delete this Topic with deletionPolicy "
        f"Orphan, and apply it again with the annotation {ADOPT_TOPIC_ID}"
    )
    return Blocker(reason=Reason.TOPIC_REPLACED, message=text)


def refusals(topic: TopicInfo, partitions: int, why_not_tiered: str) -> list[Blocker]:
    """Return a blocker for each part of an existing topic's spec that cannot be fulfilled.

    ``partitions`` is the present number in the Kafka cluster. ``why_not_tiered`` is the reason why
    the cluster cannot tier topics, "" if it can.
    """
    # Each part is independent of the others: all blockers are reported.
    found = []
    if topic.config_reason == Reason.OBJECT_UNREADABLE and topic.config_problem:
        found.append(Blocker(reason=topic.config_reason, message=topic.config_problem))
    if topic.tiering_spec.enabled and topic.tiering.is_off and why_not_tiered:
        text = f"tiering cannot start: {why_not_tiered}"
        found.append(Blocker(reason=Reason.STORAGE_UNAVAILABLE, message=text))
    if partitions > topic.partitions:
        text = (
            f"topic {topic.name} has {count(partitions, 'partition')}, which "
            "were added outside Tidemark and cannot be removed. Set "
            f"spec.partitions to {partitions}"
        )
        found.append(Blocker(reason=Reason.PARTITIONS_ADDED, message=text))
    if topic.deletion_blocked:
        text = "its deletion is blocked by the deletion protection annotation"
        found.append(Blocker(reason=Reason.DELETION_PROTECTED, message=text))
    if topic.refuses_client_changes:
        text = (
            "spec.clientChanges Refuse has no effect with engine kafka: clients change topics at "
            "Apache Kafka's brokers. Restrict them by ACLs of that cluster, and remove the field"
        )
        found.append(Blocker(reason=Reason.CLIENT_CHANGES_NOT_REFUSED, message=text))
    fields = [TOPIC[key].field for key in _ONLY_OWN_BROKERS if key in topic.config]
    if fields:
        text = (
            f"{' and '.join(fields)} has no effect with engine kafka: Apache Kafka copies a "
            "segment once it is closed. Remove it, and set segment.ms in spec.config to close "
            "segments earlier"
        )
        found.append(Blocker(reason=Reason.TIERING_FIELD_NOT_SUPPORTED, message=text))
    return found


def tiered_externally(topic: TopicInfo, own: Mapping[str, str]) -> Blocker | None:
    """Return the blocker of a topic that another client has started to tier."""
    if topic.tiering.ever_tiered or own.get(desired_configs.ENABLE) != "true":
        return None
    text = (
        f"{desired_configs.ENABLE} of topic {topic.name} was set outside Tidemark. "
        "Set spec.tiering.enabled to manage it and to disable it with a policy"
    )
    return Blocker(reason=Reason.TIERING_ENABLED_EXTERNALLY, message=text)
