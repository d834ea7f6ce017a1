"""Topics with the rows of their partitions, and one-line summaries of objects.

They are read from the Kubernetes API alone, for ``tidemark status`` and ``tidemark top``.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from tidemark.ids import parse_id
from tidemark.message_text import count, numbered
from tidemark_cli.sizes import size_text
from tidemark_kube.client import KubeClient
from tidemark_operator.controller.state.rows import PartitionRow, decode_row
from tidemark_operator.resources.names import INTERNAL_LABEL


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Topic object with the rows of its partitions, ascending."""

    name: str
    obj: dict[str, Any]
    rows: tuple[PartitionRow, ...]

    @property
    def status(self) -> dict[str, Any]:
        """Return the object's status, {} before the first write."""
        return dict(self.obj.get("status") or {})

    @property
    def tiering(self) -> dict[str, Any]:
        """Return ``status.tiering``, {} for a topic that was never tiered."""
        return dict(self.status.get("tiering") or {})

    @property
    def kafka_name(self) -> str:
        """Return the topic's name in Kafka."""
        return str(self.obj["spec"].get("topicName") or self.name)

    @property
    def is_internal(self) -> bool:
        """Return whether a broker created it for its coordinators."""
        return INTERNAL_LABEL in (self.obj.get("metadata", {}).get("labels") or {})

    def condition(self, kind: str) -> dict[str, Any]:
        """Return one condition, {} if it is absent."""
        return condition(self.obj, kind)

    def placeholders(self) -> int:
        """Return the number of replica ids below zero over all partitions (KIP-409).

        Without rows, as for a topic of Apache Kafka, it is the status' count.
        """
        if self.rows:
            return sum(1 for row in self.rows for replica in row.replicas if replica < 0)
        return int((self.status.get("replicas") or {}).get("placeholders") or 0)


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return one condition of an object, {} if it is absent."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c["type"] == kind), {})


def topics(kube: KubeClient) -> list[TopicRows]:
    """Return every Topic of the namespace with its rows."""
    pieces = kube.objects("PartitionSlice")
    rows = [decode_row(text) for piece in pieces for text in piece.get("partitions") or []]
    return joined(kube.objects("Topic"), rows)


def joined(objects: Iterable[dict[str, Any]], rows: Iterable[PartitionRow]) -> list[TopicRows]:
    """Return the Topic objects, each with the rows of its partitions.

    They are joined by topic ID. Only the row of partition 0 has the topic's name. It identifies the
    rows until the Topic's status has the ID, unless they belong to another Topic: two objects may
    name the same topic, and one of them is refused.
    """
    # Group the rows, and note the names in those of partition 0.
    by_id: dict[uuid.UUID, list[PartitionRow]] = defaultdict(list)
    ids: dict[str, uuid.UUID] = {}
    for row in rows:
        by_id[row.topic_id].append(row)
        if row.name:
            ids[row.name] = row.topic_id
    # A name whose owner is known by its status identifies no other object.
    views = [TopicRows(obj["metadata"]["name"], obj, ()) for obj in objects]
    owned = {view.kafka_name for view in views if view.status.get("topicId")}
    ids = {name: topic_id for name, topic_id in ids.items() if name not in owned}
    topics = []
    for view in views:
        topic_id = topic_id_of(view, ids)
        own = by_id.get(topic_id, []) if topic_id is not None else []
        topics.append(replace(view, rows=tuple(sorted(own, key=lambda row: row.partition))))
    return topics


def topic_id_of(topic: TopicRows, ids: Mapping[str, uuid.UUID]) -> uuid.UUID | None:
    """Return the id in the status, else the id of the rows with the topic's name (``ids``)."""
    text = topic.status.get("topicId")
    return parse_id(text) if text else ids.get(topic.kafka_name)


def topic(kube: KubeClient, name: str) -> TopicRows:
    """Return one Topic; raises LookupError."""
    for topic in topics(kube):
        if topic.name == name:
            return topic
    raise LookupError(f"namespace {kube.namespace} has no topic {name!r}")


def cluster_line(cluster: dict[str, Any]) -> str:
    """Return the message of Ready, preceded by the reason if the cluster needs attention."""
    ready, stalled = condition(cluster, "Ready"), condition(cluster, "Stalled")
    text = f"cluster {cluster['metadata']['name']}: {ready.get('message', 'not reconciled yet')}"
    is_well = ready.get("status") == "True" and stalled.get("status") != "True"
    return text if is_well or not ready else f"{ready['reason']}: {text}"


def is_named(topic: TopicRows, patterns: Iterable[str]) -> bool:
    """Return whether the topic's name in Kafka or its object name matches a shell pattern."""
    names = (topic.kafka_name, topic.name)
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def both_names(topic: TopicRows) -> str:
    """Return the name in Kafka, and the object's name if it differs."""
    same = topic.kafka_name == topic.name
    return topic.name if same else f"{topic.kafka_name}\n(object {topic.name})"


def ready_of(obj: dict[str, Any]) -> str:
    """Return the status of the condition Ready."""
    return str(condition(obj, "Ready").get("status", "Unknown"))


def ready_text(obj: dict[str, Any]) -> str:
    """Return "True", or the reason why the object is not ready."""
    status = ready_of(obj)
    return status if status == "True" else str(condition(obj, "Ready").get("reason", status))


def tiering_text(topic: TopicRows) -> str:
    """Return the tiering state and its epoch, and the progress of a disablement."""
    tiering = topic.tiering
    if not tiering:
        return "never"
    text = f"{tiering['state']} (epoch {tiering.get('epoch', 0)})"
    if tiering["state"] == "Disabling":
        pending = tiering.get("pendingBrokers")
        waiting = numbered("broker", pending) if pending else "no broker"
        left = tiering.get("remainingSegments")
        text += f", {tiering.get('policy')}; waiting for {waiting}"
        text += f"; {count(left, 'segment')} left" if left is not None else ""
    return text


def remote_text(topic: TopicRows) -> str:
    """Return the number and size of the segments in the tier."""
    tiering = topic.tiering
    if not tiering or tiering.get("remoteSegments") is None:
        return "-"
    return (
        f"{count(tiering['remoteSegments'], 'segment')}, {size_text(tiering.get('remoteBytes', 0))}"
    )


def figure(value: int | None) -> str:
    """Return a number with thousands separators, or "-" if it is unknown."""
    return "-" if value is None else f"{value:,}"
