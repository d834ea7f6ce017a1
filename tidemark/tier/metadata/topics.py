"""Topic objects: name, configuration and partitions of each topic that has data in the tier.

A reader finds a topic by name through them, without brokers, and a restore starts from them. The
leader of partition 0 keeps its topic's object up to date. The object of a deleted topic stays as a
tombstone, and every write is conditional: a write that was in flight when the topic was deleted
cannot revive it.
"""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

from tidemark.ids import id_text, parse_id
from tidemark.log_lineage import Restore, merge_restores
from tidemark.reasons import Reason
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.layout import TOPICS_PREFIX, topic_key
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)

#: Written if a restore is recorded, because an older program would lose the record; otherwise 1.
_FORMAT_VERSION = 2
_ATTEMPTS = 4


class TopicNotFound(Exception):
    """No topic of this name or id has an object in the tier."""


class TopicAmbiguous(Exception):
    """Several topics have this name; the message names their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicObject:
    """Topic object.

    ``config``: Kafka keys that were set, as text. ``deleted``: it is a tombstone.
    ``replication_factor``: 0 if an older broker wrote the object. ``restores``: oldest first, see
    :mod:`tidemark.log_lineage`.
    """

    topic_id: uuid.UUID
    name: str
    cluster_id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    deleted: bool = False
    replication_factor: int = 0
    restores: tuple[Restore, ...] = ()


class TopicCatalog:
    """Topic objects of one store. Calls block."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, topic: TopicObject) -> bool:
        """Write a topic's object if it is new or differs; return whether it was written.

        Never overwrites the object of a deleted topic. Keeps the recorded restores, which brokers
        do not know. Raises StoreUnavailable if other writers win every attempt.
        """
        # Compare-and-set: after a lost race, read and merge again.
        for _ in range(_ATTEMPTS):
            found = self._load(topic.topic_id)
            if found is not None:
                # Merged, because a broker that rewrites the object does not know the restores.
                topic = replace(topic, restores=merge_restores(found[0].restores, topic.restores))
            # Nothing to write, or a tombstone, which is final.
            if found is not None and (found[0] == topic or found[0].deleted):
                return False
            if self._write(topic, None if found is None else found[1]):
                return True
        raise StoreUnavailable(
            f"{topic_key(topic.topic_id)} is changed by other writers at the same time; the "
            "write is retried later",
            reason=Reason.MANIFEST_CONTENDED,
            retriable=True,
        )

    def put_tombstone(self, topic: TopicObject) -> None:
        """Make the object of a deleted topic a tombstone, also if there was none yet."""
        self.put(replace(topic, deleted=True))

    def _write(self, topic: TopicObject, expected: Version | None) -> bool:
        """Write unless another writer was first; return whether it was written."""
        key, data = topic_key(topic.topic_id), _encode(topic)
        try:
            if expected is None:
                self._store.create(key, data)
            else:
                self._store.replace(key, data, expected)
        except (AlreadyExists, PreconditionFailed):
            return False
        return True

    def _load(self, topic_id: uuid.UUID) -> tuple[TopicObject, Version] | None:
        key = topic_key(topic_id)
        try:
            got = self._store.get(key)
        except ObjectNotFound:
            return None
        return _decode(got.data, key), got.version

    def get(self, topic_id: uuid.UUID) -> TopicObject:
        """Return the topic. Raises TopicNotFound, also for a deleted one."""
        found = self._load(topic_id)
        if found is None or found[0].deleted:
            raise TopicNotFound(f"no topic with id {id_text(topic_id)} in {self._store.describe()}")
        return found[0]

    def is_deleted(self, topic_id: uuid.UUID) -> bool:
        """Return whether a tombstone records that the topic existed."""
        found = self._load(topic_id)
        return found is not None and found[0].deleted

    def all(self) -> Iterator[TopicObject]:
        """Yield every topic that is not deleted, ordered by the ids' texts.

        A topic that is deleted meanwhile is skipped.
        """
        for info in self._store.list(TOPICS_PREFIX):
            try:
                topic = _decode(self._store.get(info.key).data, info.key)
            except ObjectNotFound:
                continue
            if not topic.deleted:
                yield topic

    def find(self, name: str) -> TopicObject:
        """Return the topic object with this name.

        Reads every topic object: use ``get`` if the id is known. Raises TopicNotFound, and
        TopicAmbiguous if several topics have had the name.
        """
        # Names are not keys of the store, since a name can be reused after a deletion.
        found = [topic for topic in self.all() if topic.name == name]
        if not found:
            raise TopicNotFound(
                f"no topic {name!r} in {self._store.describe()}: nothing of it was tiered there "
                "yet, or it was deleted"
            )
        if len(found) > 1:
            ids = ", ".join(id_text(topic.topic_id) for topic in found)
            raise TopicAmbiguous(
                f"{name!r} is the name of several topics in {self._store.describe()} ({ids}): "
                f"remove {TOPICS_PREFIX}<id>.json of each that is no longer needed (a Topic that "
                "was deleted with deletionPolicy Orphan keeps its name here)"
            )
        return found[0]


def _encode(topic: TopicObject) -> bytes:
    """Return the topic object as JSON; ``_topic_of`` reads it back.

    Fields with their usual value are left out.
    """
    fields: dict[str, object] = {
        # The lowest version that can express the object, so that older programs can read it.
        "formatVersion": _FORMAT_VERSION if topic.restores else 1,
        "topicId": id_text(topic.topic_id),
        "name": topic.name,
        "clusterId": topic.cluster_id,
        "partitions": topic.partitions,
        "config": dict(sorted(topic.config.items())),
    }
    if topic.replication_factor:
        fields["replicationFactor"] = topic.replication_factor
    if topic.deleted:
        fields["deleted"] = True
    if topic.restores:
        fields["restores"] = [
            {
                "leaderEpoch": restore.leader_epoch,
                "ends": {str(part): end for part, end in sorted(restore.ends.items())},
            }
            for restore in topic.restores
        ]
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _decode(data: bytes, where: str) -> TopicObject:
    try:
        return _topic_of(cast("dict[str, object]", json.loads(data)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestCorrupt(
            f"{where} is no topic object that this version of Tidemark reads ({error}); upgrade it"
        ) from error


def _topic_of(fields: dict[str, object]) -> TopicObject:
    """Return the topic object from its JSON fields; the inverse of ``_encode``.

    Raises ValueError, KeyError or TypeError for anything else.
    """
    if fields["formatVersion"] not in range(1, _FORMAT_VERSION + 1):
        raise ValueError(f"format version {fields['formatVersion']}")
    config = cast("dict[object, object]", fields["config"])
    restores = cast("list[dict[str, object]]", fields.get("restores", []))
    return TopicObject(
        topic_id=parse_id(str(fields["topicId"])),
        name=str(fields["name"]),
        cluster_id=str(fields["clusterId"]),
        partitions=int(str(fields["partitions"])),
        config={str(key): str(value) for key, value in config.items()},
        deleted=fields.get("deleted", False) is True,
        replication_factor=int(str(fields.get("replicationFactor", 0))),
        restores=tuple(map(_restore_of, restores)),
    )


def _restore_of(fields: dict[str, object]) -> Restore:
    ends = cast("dict[object, object]", fields["ends"])
    return Restore(
        int(str(fields["leaderEpoch"])),
        {int(str(part)): int(str(end)) for part, end in ends.items()},
    )
