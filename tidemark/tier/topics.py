"""Topic objects: name, configuration and partitions of each topic that has data in the tier.

They let a reader find a topic by name without any broker, and are what a restore starts from. The
leader of partition 0 keeps its topic's object up to date.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from tidemark.ids import id_text, parse_id
from tidemark.tier.codec import ManifestCorrupt
from tidemark.tier.layout import TOPICS_PREFIX, topic_key
from tidemark.tier.objects import ObjectNotFound, ObjectStore

_FORMAT_VERSION = 1


class TopicNotFound(Exception):
    """No topic of this name or id has an object in the tier."""


class TopicAmbiguous(Exception):
    """Several topics have this name; the message names their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObject:
    """``config``: Kafka keys that were set, as text."""

    topic_id: uuid.UUID
    name: str
    cluster_id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


class TopicCatalog:
    """Topic objects of one store. Calls block."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, topic: TopicObject) -> bool:
        """Write the object if it is new or differs; says whether it wrote."""
        try:
            if self.get(topic.topic_id) == topic:
                return False
        except TopicNotFound:
            pass
        self._store.put(topic_key(topic.topic_id), _encode(topic))
        return True

    def get(self, topic_id: uuid.UUID) -> TopicObject:
        """Raises TopicNotFound."""
        key = topic_key(topic_id)
        try:
            return _decode(self._store.get(key).data, key)
        except ObjectNotFound as error:
            raise TopicNotFound(
                f"no topic with id {id_text(topic_id)} in {self._store.describe()}"
            ) from error

    def all(self) -> Iterator[TopicObject]:
        """Every topic, in the order of the ids' texts; one that goes meanwhile is passed over."""
        for info in self._store.list(TOPICS_PREFIX):
            try:
                yield _decode(self._store.get(info.key).data, info.key)
            except ObjectNotFound:
                continue

    def find(self, name: str) -> TopicObject:
        """The topic of this name. Raises TopicNotFound, TopicAmbiguous. Reads every topic object:
        whoever knows the id uses ``get``."""
        found = [topic for topic in self.all() if topic.name == name]
        if not found:
            raise TopicNotFound(
                f"no topic {name!r} in {self._store.describe()}: nothing of it was tiered there yet"
            )
        if len(found) > 1:
            ids = ", ".join(id_text(topic.topic_id) for topic in found)
            raise TopicAmbiguous(f"{name!r} is the name of several topics ({ids}): give the id")
        return found[0]

    def remove(self, topic_id: uuid.UUID) -> None:
        """Remove the object of a deleted topic."""
        self._store.delete(topic_key(topic_id))


def _encode(topic: TopicObject) -> bytes:
    fields = {
        "formatVersion": _FORMAT_VERSION,
        "topicId": id_text(topic.topic_id),
        "name": topic.name,
        "clusterId": topic.cluster_id,
        "partitions": topic.partitions,
        "config": dict(sorted(topic.config.items())),
    }
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _decode(data: bytes, where: str) -> TopicObject:
    try:
        return _topic_of(cast("dict[str, object]", json.loads(data)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestCorrupt(
            f"{where} is no topic object that this version of Tidemark reads ({error}); upgrade it"
        ) from error


def _topic_of(fields: dict[str, object]) -> TopicObject:
    if fields["formatVersion"] != _FORMAT_VERSION:
        raise ValueError(f"format version {fields['formatVersion']}")
    config = cast("dict[object, object]", fields["config"])
    return TopicObject(
        topic_id=parse_id(str(fields["topicId"])),
        name=str(fields["name"]),
        cluster_id=str(fields["clusterId"]),
        partitions=int(str(fields["partitions"])),
        config={str(key): str(value) for key, value in config.items()},
    )
