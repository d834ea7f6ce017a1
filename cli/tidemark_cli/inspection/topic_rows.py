"""Topics with the rows of their partitions, read from the Kubernetes API alone."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemark.ids import parse_id
from tidemark_kube.client import KubeClient
from tidemark_operator.controller.rows import PartitionRow, decode_row
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
