"""Topics by object key, topic id and name, and the number in each tiering state."""

import uuid
from collections import Counter
from collections.abc import Iterator, KeysView, Mapping, ValuesView

from tidemark.tiering import TieringState
from tidemark_operator.controller.state.model import TopicInfo


def collision_key(topic: str) -> str:
    """Return the key of names that collide in names of metrics (Kafka's
    ``Topic.unifyCollisionChars``).
    """
    return topic.replace(".", "_")


class TopicIndex(Mapping[str, TopicInfo]):
    """Topics by object key (namespace/name).

    Invariant: all other look-ups and counts are of exactly these Topics. Two Topics with one id
    exist only by mistake; the first one that was added keeps it, because one must decide.
    """

    def __init__(self) -> None:
        #: Number of topics in each tiering state, and the topics that are being disabled.
        self.tierings: Counter[TieringState] = Counter()
        self.disabling: set[str] = set()
        self._by_key: dict[str, TopicInfo] = {}
        self._key_by_id: dict[uuid.UUID, str] = {}
        self._keys_by_name: dict[str, set[str]] = {}
        #: By collision key: names that contain ``.`` or ``_``.
        self._alike: dict[str, set[str]] = {}

    def __getitem__(self, key: str) -> TopicInfo:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def values(self) -> ValuesView[TopicInfo]:
        # Mapping's own method would look each key up again.
        return self._by_key.values()

    def put(self, topic: TopicInfo) -> None:
        """Add a Topic, or replace the one with its object key."""
        self.drop(topic.key)
        self._by_key[topic.key] = topic
        self.tierings[topic.tiering.state] += 1
        if topic.tiering.is_disabling:
            self.disabling.add(topic.key)
        self._key_by_id.setdefault(topic.id, topic.key)
        self._keys_by_name.setdefault(topic.name, set()).add(topic.key)
        if "." in topic.name or "_" in topic.name:
            self._alike.setdefault(collision_key(topic.name), set()).add(topic.name)

    def drop(self, key: str) -> None:
        """Remove a Topic; no effect if there is none."""
        old = self._by_key.pop(key, None)
        if old is None:
            return
        self.tierings[old.tiering.state] -= 1
        self.disabling.discard(key)
        if self._key_by_id.get(old.id) == key:
            del self._key_by_id[old.id]
        names = self._keys_by_name[old.name]
        names.discard(key)
        if names:
            return
        # No Topic has this name any more.
        del self._keys_by_name[old.name]
        alike = self._alike.get(collision_key(old.name), set())
        alike.discard(old.name)
        if not alike:
            self._alike.pop(collision_key(old.name), None)

    def by_id(self, topic_id: uuid.UUID) -> TopicInfo | None:
        key = self._key_by_id.get(topic_id)
        return None if key is None else self._by_key[key]

    def ids(self) -> KeysView[uuid.UUID]:
        """Return the ids of all Topics."""
        return self._key_by_id.keys()

    def named(self, name: str) -> list[TopicInfo]:
        """Return every Topic object that claims a Kafka name."""
        return [self._by_key[key] for key in sorted(self._keys_by_name.get(name, ()))]

    def names_like(self, name: str) -> list[str]:
        """Return the names of Topics that differ from a name only in ``.`` and ``_``, itself
        included.
        """
        return sorted(self._alike.get(collision_key(name), ()))
