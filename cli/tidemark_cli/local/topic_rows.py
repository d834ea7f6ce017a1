"""What is where, read from the Kubernetes API alone: rows of the slices beside their Topics."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tidemark_cli.local.kube import Kube
from tidemark_operator.controller.model import PartitionRow
from tidemark_operator.controller.rows import decode_row


@dataclass(frozen=True, slots=True)
class TopicRows:
    """A Topic object with the rows of its partitions, ascending."""

    name: str
    obj: dict[str, Any]
    rows: tuple[PartitionRow, ...]

    @property
    def status(self) -> dict[str, Any]:
        """The object's status, {} before the first write."""
        return dict(self.obj.get("status") or {})

    @property
    def tiering(self) -> dict[str, Any]:
        """``status.tiering``, {} for a topic that never was tiered."""
        return dict(self.status.get("tiering") or {})

    @property
    def kafka_name(self) -> str:
        """The topic's name in Kafka."""
        return str(self.obj["spec"].get("topicName") or self.name)

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition, {} where it is not there."""
        return condition(self.obj, kind)

    def placeholders(self) -> int:
        """Replica ids below zero over all partitions (KIP-409)."""
        return sum(1 for row in self.rows for replica in row.replicas if replica < 0)


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition of an object, {} where it is not there."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c["type"] == kind), {})


def topics(kube: Kube) -> list[TopicRows]:
    """Every Topic of the namespace with its rows."""
    rows: dict[str, list[PartitionRow]] = defaultdict(list)
    for piece in kube.objects("PartitionSlice"):
        for text in piece.get("partitions") or []:
            row = decode_row(text)
            rows[str(row.topic_id)].append(row)
    by_name: dict[str, list[PartitionRow]] = defaultdict(list)
    for group in rows.values():
        by_name[group[0].name].extend(group)
    found = []
    for obj in kube.objects("Topic"):
        kafka_name = obj["spec"].get("topicName") or obj["metadata"]["name"]
        own = sorted(by_name.get(kafka_name, []), key=lambda row: row.partition)
        found.append(TopicRows(obj["metadata"]["name"], obj, tuple(own)))
    return found


def topic(kube: Kube, name: str) -> TopicRows:
    """One Topic; raises LookupError."""
    for topic in topics(kube):
        if topic.name == name:
            return topic
    raise LookupError(f"there is no topic {name!r} in namespace {kube.namespace}")
