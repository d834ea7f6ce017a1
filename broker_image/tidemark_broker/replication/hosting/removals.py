"""Effect of the controller's removals on this broker's replicas. Absence never deletes.

Only a tombstone of the topic's id, or a newer partition epoch without this broker, removes one.
"""

import uuid
from collections.abc import Collection, Iterable

from tidemark.wire import control
from tidemark_broker.replication.types import TopicIdPartition


class Removals:
    """Removals of one message, for one broker."""

    def __init__(self, removals: Iterable[control.Removal], node_id: int) -> None:
        self._by_topic: dict[uuid.UUID, list[control.Removal]] = {}
        for removal in removals:
            self._by_topic.setdefault(removal.topic_id, []).append(removal)
        self._node_id = node_id

    @property
    def topic_ids(self) -> Collection[uuid.UUID]:
        """Ids of the topics with removals."""
        return self._by_topic.keys()

    def name(self, key: TopicIdPartition) -> bool:
        """Return whether any removal names the replica (partition -1: every one of the topic)."""
        return any(_names(item, key) for item in self._by_topic.get(key[0], ()))

    def take(self, key: TopicIdPartition, row: control.PartitionState | None) -> bool:
        """Return whether the replica must be removed.

        ``row`` is its last state, None if unknown.
        """
        return any(_takes(item, key, row, self._node_id) for item in self._by_topic.get(key[0], ()))


def _names(removal: control.Removal, key: TopicIdPartition) -> bool:
    return removal.topic_id == key[0] and removal.partition in (-1, key[1])


def _takes(
    removal: control.Removal,
    key: TopicIdPartition,
    row: control.PartitionState | None,
    node_id: int,
) -> bool:
    """Return whether one removal of the controller removes this broker's replica.

    ``row``: the replica's last known state, None if unknown.
    """
    if not _names(removal, key):
        return False
    # A tombstone removes every replica of the topic id.
    if removal.partition < 0:
        return True
    # A newer epoch without this broker is a completed reassignment.
    known_epoch = -1 if row is None else row.partition_epoch
    if removal.partition_epoch > known_epoch:
        return True
    # The same epoch: the replica has stored the reassignment already, but was not removed yet.
    return (
        row is not None
        and removal.partition_epoch == row.partition_epoch
        and node_id not in row.replicas
    )
