"""Index of a cluster's objects in which a change costs only what it touches.

There may be ten thousand Topics. Only the fields that are shown are kept. A topic's line is rebuilt
when the Topic or one of its rows changes; a frame sorts the lines and reads the few that fit.
Objects may arrive in any order, a slice before or after the Topics of its rows.
"""

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tidemark_cli.inspection.topic_rows import TopicRows, ready_of, ready_text, topic_id_of
from tidemark_cli.inspection.verdict import (
    PENDING,
    HealthCounts,
    HealthFinding,
    Severity,
    in_order,
    object_findings,
    operator_findings,
)
from tidemark_operator.controller.state.rows import BadRow, PartitionRow, decode_row

CLUSTER, BROKER, TOPIC, SLICE = ("Cluster", "Broker", "Topic", "PartitionSlice")
EXPORT = "Export"
#: Kinds that an older version of the definitions may lack.
OTHERS = ("User", EXPORT, "RecordDeletion")
KINDS = (CLUSTER, BROKER, TOPIC, SLICE, *OTHERS)
#: Characters kept of an object's message, as ten thousand objects may have one.
_MESSAGE_MAX = 1_000
#: Fields of statuses that are shown.
_TOPIC_FIELDS = ("topicId", "tiering", "replicas", "partitionsPlaced")
_EXPORT_FIELDS = ("lag", "lagSeconds", "exportedOffsets", "observedTime", "cost")


@dataclass(frozen=True, slots=True)
class TopicLine:
    """Line of the topic list with its sort keys.

    ``ready``: True, or the reason why not. ``behind``: partitions with replicas out of sync.
    ``leaderless``: partitions without a leader. ``severity``: that of the worst finding, 0 without
    one.
    """

    name: str
    kafka_name: str
    is_internal: bool
    ready: str
    partitions: int
    leaderless: int
    behind: int
    placeholders: int
    remote_bytes: int
    disabling: bool
    severity: int

    @property
    def is_well(self) -> bool:
        """Return whether nothing of the topic needs attention or is in progress."""
        return not (self.severity or self.leaderless or self.behind or self.disabling)


class ObjectIndex:
    """Latest version of each object; ``version`` rises with each change."""

    def __init__(self) -> None:
        self.version = 0
        self.lines: dict[str, TopicLine] = {}
        #: Problems of slices with unreadable rows, by slice.
        self.unreadable: dict[str, str] = {}
        self._objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        # Findings of each object that has any, by kind and name; and the new objects without a
        # status, whose finding becomes a problem with time.
        self._findings: dict[tuple[str, str], tuple[HealthFinding, ...]] = {}
        self._pending: dict[tuple[str, str], dict[str, Any]] = {}
        # Findings about the operator, and the time of the last read of its Lease.
        self._of_operator: tuple[HealthFinding, ...] = ()
        self._now = dt.datetime.now(dt.UTC)
        # Decoded rows by their encoded text, by slice; and by topic ID and partition.
        self._slices: dict[str, dict[str, PartitionRow]] = {}
        self._rows: dict[uuid.UUID, dict[int, PartitionRow]] = {}
        #: Topic ids by the name in rows; Topics by their id, and by their name in Kafka.
        self._ids: dict[str, uuid.UUID] = {}
        self._topic_of: dict[uuid.UUID, str] = {}
        self._named: dict[str, str] = {}
        # Number of partitions that each broker leads, and of its replicas, by node ID.
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()

    # ------------------------------------------------------------ changes

    def put(self, kind: str, objects: Iterable[dict[str, Any]]) -> None:
        """Add new or changed objects."""
        for body in objects:
            name = str(body["metadata"]["name"])
            if kind == SLICE:
                self._put_rows(name, body.get("partitions") or ())
                continue
            self._put_findings(kind, name, body)
            self._objects[kind][name] = body if kind in (CLUSTER, BROKER) else _shown(kind, body)
            if kind == TOPIC:
                self._put_line(name)
        self.version += 1

    def put_lease(self, lease: dict[str, Any] | None, now: dt.datetime) -> None:
        """Set the operator's Lease (see :class:`ClusterSnapshot`) as of ``now``."""
        self._now = now
        self._of_operator = tuple(operator_findings(lease, now))
        # Nothing of a pending object changes when it has been pending for too long.
        for (kind, name), body in list(self._pending.items()):
            self._put_findings(kind, name, body)
            if kind == TOPIC:
                self._put_line(name)
        self.version += 1

    def drop(self, kind: str, names: Iterable[str]) -> None:
        """Remove deleted objects of one kind, with what was derived from them."""
        for name in names:
            if kind == SLICE:
                self._put_rows(name, ())
                self._slices.pop(name, None)
                self.unreadable.pop(name, None)
            if kind == TOPIC and name in self.lines:
                self._forget_topic(name)
            self._objects[kind].pop(name, None)
            self._findings.pop((kind, name), None)
            self._pending.pop((kind, name), None)
        self.version += 1

    def keep(self, kind: str, names: Collection[str]) -> None:
        """Remove all objects that are not among ``names``."""
        stored = self._slices if kind == SLICE else self._objects[kind]
        self.drop(kind, [name for name in stored if name not in names])

    # ------------------------------------------------------------ queries

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind by name, reduced to what is shown."""
        by_name = self._objects[kind]
        return [by_name[name] for name in sorted(by_name)]

    def leaders(self, node_id: int) -> int:
        """Return the number of partitions that a broker leads."""
        return self._leaders[node_id]

    def replicas(self, node_id: int) -> int:
        """Return the number of replicas on a broker."""
        return self._replicas[node_id]

    def findings(self) -> list[HealthFinding]:
        """Return the findings of all objects in the order of ``tidemark status``."""
        by_name = sorted(self._findings.items())
        return in_order([*self._of_operator, *(item for _, own in by_name for item in own)])

    def counts(self) -> HealthCounts:
        """Return the numbers of objects for the verdict."""
        return HealthCounts(
            by_kind={kind: len(objects) for kind, objects in self._objects.items()},
            ready_brokers=sum(ready_of(body) == "True" for body in self._objects[BROKER].values()),
        )

    @property
    def now(self) -> dt.datetime:
        """Return the time of the last read of the operator's Lease."""
        return self._now

    @property
    def partitions(self) -> int:
        """Return the number of partitions of all topics."""
        return sum(map(len, self._slices.values()))

    def topic(self, name: str) -> TopicRows | None:
        """Return a Topic with its rows by its object's name, or None."""
        obj = self._objects[TOPIC].get(name)
        if obj is None:
            return None
        bare = TopicRows(name, obj, ())
        topic_id = topic_id_of(bare, self._ids)
        own = self._rows.get(topic_id, {}) if topic_id is not None else {}
        return TopicRows(name, obj, tuple(own[number] for number in sorted(own)))

    # ------------------------------------------------------------ updates

    def _put_findings(self, kind: str, name: str, body: dict[str, Any]) -> None:
        """Set the findings of one object, which are made from its conditions."""
        own = tuple(
            # Messages of users' tools may be arbitrarily long.
            replace(item, message=item.message[:_MESSAGE_MAX])
            for item in object_findings(kind, body, self._now)
        )
        self._pending.pop((kind, name), None)
        self._findings.pop((kind, name), None)
        if own:
            self._findings[kind, name] = own
        if any(item.reason == PENDING and item.severity is Severity.PROGRESS for item in own):
            self._pending[kind, name] = body

    def _put_rows(self, name: str, texts: Collection[str]) -> None:
        """Replace the partition rows of a PartitionSlice; only changed rows are decoded.

        ``name``: of the slice. ``texts``: its encoded rows. An unreadable slice keeps its old rows.
        """
        old = self._slices.get(name, {})
        try:
            added = {text: decode_row(text) for text in texts if text not in old}
        except BadRow as error:
            self.unreadable[name] = f"PartitionSlice {name}: {error}"
            return
        self.unreadable.pop(name, None)
        kept = frozenset(texts)
        removed = {text: row for text, row in old.items() if text not in kept}
        # Removed first: a changed row is both removed and added, for the same partition.
        for row in removed.values():
            self._remove_row(row)
        for row in added.values():
            self._add_row(row)
        self._slices[name] = {text: row for text, row in old.items() if text in kept} | added
        changed = {self._topic_of.get(row.topic_id) for row in (*removed.values(), *added.values())}
        # Until a Topic's status has the topic ID, its rows are found by name.
        changed |= {self._named.get(row.name) for row in added.values() if row.name}
        for topic in changed:
            if topic is not None:
                self._put_line(topic)

    def _add_row(self, row: PartitionRow) -> None:
        self._count(row, 1)
        self._rows.setdefault(row.topic_id, {})[row.partition] = row
        if row.name:
            self._ids[row.name] = row.topic_id

    def _remove_row(self, row: PartitionRow) -> None:
        self._count(row, -1)
        of_topic = self._rows.get(row.topic_id, {})
        # The row of the partition may be a newer one, from a slice that was read earlier.
        if of_topic.get(row.partition) == row:
            del of_topic[row.partition]
        if not of_topic:
            self._rows.pop(row.topic_id, None)
        if row.name and self._ids.get(row.name) == row.topic_id:
            del self._ids[row.name]

    def _put_line(self, name: str) -> None:
        view = self.topic(name)
        if view is None:
            return
        self._named[view.kafka_name] = name
        topic_id = topic_id_of(view, self._ids)
        if topic_id is not None:
            self._topic_of[topic_id] = name
        own = self._findings.get((TOPIC, name), ())
        severity = max((item.severity for item in own), default=0)
        self.lines[name] = topic_line(view, severity)

    def _forget_topic(self, name: str) -> None:
        view = self.topic(name)
        del self.lines[name]
        if view is None:
            return
        topic_id = topic_id_of(view, self._ids)
        if topic_id is not None and self._topic_of.get(topic_id) == name:
            del self._topic_of[topic_id]
        if self._named.get(view.kafka_name) == name:
            del self._named[view.kafka_name]

    def _count(self, row: PartitionRow, step: int) -> None:
        if row.leader >= 0:
            self._leaders[row.leader] += step
        for replica in row.hosts:
            self._replicas[replica] += step


def topic_line(topic: TopicRows, severity: int) -> TopicLine:
    """Return a topic's line of the list, with the values it is sorted by.

    ``severity``: that of its worst finding, 0 without one.
    Without partition rows, as with Apache Kafka, the counts are those of the Topic's status.
    """
    tiering = topic.tiering
    # Placeholders count as out of sync: a partition with one is behind until a broker fills it.
    behind = sum(len(row.isr) < len(row.replicas) for row in topic.rows)
    return TopicLine(
        name=topic.name,
        kafka_name=topic.kafka_name,
        is_internal=topic.is_internal,
        ready=ready_text(topic.obj),
        partitions=len(topic.rows) or int(topic.status.get("partitionsPlaced") or 0),
        leaderless=sum(row.leader < 0 for row in topic.rows),
        behind=behind,
        placeholders=topic.placeholders(),
        remote_bytes=int(tiering.get("remoteBytes") or 0),
        disabling=tiering.get("state") == "Disabling",
        severity=severity,
    )


def _shown(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return an object reduced to the fields that are shown.

    These are few of its fields, and thousands of Topics stay in memory.
    """
    names = _EXPORT_FIELDS if kind == EXPORT else _TOPIC_FIELDS
    metadata, status = body["metadata"], body.get("status") or {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {"topicName": body["spec"].get("topicName")},
        "status": {
            **{key: status[key] for key in names if key in status},
            # The other conditions are only needed for the findings.
            "conditions": [
                {key: condition.get(key, "") for key in ("type", "status", "reason")}
                for condition in status.get("conditions") or ()
                if condition["type"] == "Ready"
            ],
        },
    }
