"""What is known of a cluster's objects, kept so that one change costs what it touches.

There may be ten thousand Topics. Of each only what is shown is kept, and its line in the list is
made when it, or a row of a slice that is its own, changes; a frame sorts the lines and looks at
the few that fit. Objects come in any order, a slice before or after the Topics of its rows.
"""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tidemark_cli.local.object_summaries import TOLD, ready_of, troubles
from tidemark_cli.local.topic_rows import TopicRows, topic_id_of
from tidemark_operator.controller.model import PartitionRow
from tidemark_operator.controller.rows import BadRow, decode_row

CLUSTER, BROKER, TOPIC, SLICE = KINDS = ("Cluster", "Broker", "Topic", "PartitionSlice")
#: An object's message is told up to here: ten thousand may have one.
_MESSAGE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class TopicLine:
    """What the list of topics sorts by. ``behind``: partitions with replicas that are not in sync;
    ``leaderless``: partitions without a leader; ``troubles``: messages of conditions that are not
    well."""

    name: str
    kafka_name: str
    ready: str
    partitions: int
    leaderless: int
    behind: int
    placeholders: int
    remote_bytes: int
    disabling: bool
    troubles: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Nothing of it needs somebody, or time."""
        return not (self.troubles or self.leaderless or self.behind or self.disabling)


class Holdings:
    """The latest of each object. ``version`` rises with each change."""

    def __init__(self) -> None:
        self.version = 0
        self.lines: dict[str, TopicLine] = {}
        #: What of the objects could not be read, by slice.
        self.unreadable: dict[str, str] = {}
        self._objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
        self._slices: dict[str, dict[str, PartitionRow]] = {}
        self._rows: dict[uuid.UUID, dict[int, PartitionRow]] = {}
        #: The ids of rows with a name; Topics by the id that they have, and by their name in Kafka.
        self._ids: dict[str, uuid.UUID] = {}
        self._topic_of: dict[uuid.UUID, str] = {}
        self._named: dict[str, str] = {}
        self._leaders: Counter[int] = Counter()
        self._replicas: Counter[int] = Counter()

    # ------------------------------------------------------------ what changes

    def put(self, kind: str, objects: Iterable[dict[str, Any]]) -> None:
        """These are new, or have changed."""
        for body in objects:
            name = str(body["metadata"]["name"])
            if kind == SLICE:
                self._put_rows(name, body.get("partitions") or ())
            else:
                self._objects[kind][name] = _shown(body) if kind == TOPIC else body
            if kind == TOPIC:
                self._put_line(name)
        self.version += 1

    def drop(self, kind: str, names: Iterable[str]) -> None:
        """These are gone."""
        for name in names:
            if kind == SLICE:
                self._put_rows(name, ())
                self._slices.pop(name, None)
                self.unreadable.pop(name, None)
            if kind == TOPIC and name in self.lines:
                self._forget_topic(name)
            self._objects[kind].pop(name, None)
        self.version += 1

    def keep(self, kind: str, names: Collection[str]) -> None:
        """There are no others than these."""
        there = self._slices if kind == SLICE else self._objects[kind]
        self.drop(kind, [name for name in there if name not in names])

    # ------------------------------------------------------------ what is asked

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Clusters or brokers, by name."""
        found = self._objects[kind]
        return [found[name] for name in sorted(found)]

    def leaders(self, node_id: int) -> int:
        """Partitions that a broker leads."""
        return self._leaders[node_id]

    def replicas(self, node_id: int) -> int:
        """Replicas that a broker has."""
        return self._replicas[node_id]

    @property
    def partitions(self) -> int:
        """Of all topics."""
        return sum(map(len, self._slices.values()))

    def topic(self, name: str) -> TopicRows | None:
        """A Topic by its object's name, with its rows; None where there is none."""
        obj = self._objects[TOPIC].get(name)
        if obj is None:
            return None
        bare = TopicRows(name, obj, ())
        topic_id = topic_id_of(bare, self._ids)
        own = self._rows.get(topic_id, {}) if topic_id is not None else {}
        return TopicRows(name, obj, tuple(own[number] for number in sorted(own)))

    # ------------------------------------------------------------ inside

    def _put_rows(self, name: str, texts: Collection[str]) -> None:
        """Only rows that have changed are decoded."""
        old = self._slices.get(name, {})
        try:
            come = {text: decode_row(text) for text in texts if text not in old}
        except BadRow as error:
            self.unreadable[name] = f"PartitionSlice {name}: {error}"
            return
        self.unreadable.pop(name, None)
        left = frozenset(texts)
        gone = {text: row for text, row in old.items() if text not in left}
        for row in gone.values():
            self._take(row)
        for row in come.values():
            self._give(row)
        self._slices[name] = {text: row for text, row in old.items() if text in left} | come
        changed = {self._topic_of.get(row.topic_id) for row in (*gone.values(), *come.values())}
        changed |= {self._named.get(row.name) for row in come.values() if row.name}
        for topic in changed:
            if topic is not None:
                self._put_line(topic)

    def _give(self, row: PartitionRow) -> None:
        self._count(row, 1)
        self._rows.setdefault(row.topic_id, {})[row.partition] = row
        if row.name:
            self._ids[row.name] = row.topic_id

    def _take(self, row: PartitionRow) -> None:
        self._count(row, -1)
        of_topic = self._rows.get(row.topic_id, {})
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
        self.lines[name] = topic_line(view)

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


def topic_line(topic: TopicRows) -> TopicLine:
    """A topic as the list has it; where none of its rows is known by what its status counts."""
    tiering = topic.tiering
    behind = sum(len(row.isr) < len(row.replicas) for row in topic.rows)
    return TopicLine(
        name=topic.name,
        kafka_name=topic.kafka_name,
        ready=ready_of(topic.obj),
        partitions=len(topic.rows) or int(topic.status.get("partitionsPlaced") or 0),
        leaderless=sum(row.leader < 0 for row in topic.rows),
        behind=behind,
        placeholders=topic.placeholders(),
        remote_bytes=int(tiering.get("remoteBytes") or 0),
        disabling=tiering.get("state") == "Disabling",
        troubles=tuple(troubles(topic)),
    )


def _shown(body: dict[str, Any]) -> dict[str, Any]:
    """A Topic without what is never shown: that is most of it."""
    metadata, status = body["metadata"], body.get("status") or {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {"topicName": body["spec"].get("topicName")},
        "status": {
            **{
                key: status[key]
                for key in ("topicId", "tiering", "replicas", "partitionsPlaced")
                if key in status
            },
            "conditions": [
                {
                    "type": each["type"],
                    "status": each["status"],
                    "reason": each.get("reason", ""),
                    "message": str(each.get("message", ""))[:_MESSAGE_MAX],
                }
                for each in status.get("conditions") or ()
                if each["type"] in TOLD
            ],
        },
    }
