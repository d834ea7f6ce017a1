"""Acknowledgements of brokers: which written rows they have received and applied.

A partition is led once its leader has applied a row of the present leader epoch. A replica exists
once its broker has received it and did not answer that its storage fails. Only outstanding
acknowledgements are stored, by topic, so this is empty while nothing changes. It is in memory and
starts empty with each term: a loaded row may or may not have reached its leader, until that broker
has applied a snapshot of this term (:meth:`Acknowledgements.has_snapshot`).
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.wire.control import PartitionError, PartitionStatesRequest, PartitionStatesResponse
from tidemark_operator.controller.state.model import NO_LEADER, BrokerInfo, PartitionRow, RowKey

#: Time without an answer before a broker counts as overdue.
PATIENCE_MS = 5_000


@dataclass(slots=True)
class _Outstanding:
    """Outstanding acknowledgements of one topic: new leaders and new replicas.

    ``since_ms`` is None before the first :meth:`Acknowledgements.tick`.
    """

    leaders: set[int] = field(default_factory=set)
    #: Brokers by partition.
    replicas: dict[int, set[int]] = field(default_factory=dict)
    since_ms: int | None = None
    overdue: bool = False

    def __bool__(self) -> bool:
        return bool(self.leaders or self.replicas)

    def is_new(self, partition: int, node_id: int) -> bool:
        """Return whether a broker has not acknowledged its replica of a partition."""
        return node_id in self.replicas.get(partition, ())

    def note_received(self, partition: int, node_id: int) -> None:
        """Note that a broker has received its replica."""
        waiting = self.replicas.get(partition)
        if waiting is not None:
            waiting.discard(node_id)
            if not waiting:
                del self.replicas[partition]


class Acknowledgements:
    """Part of the state, changed by stored commits and by brokers' answers."""

    def __init__(self) -> None:
        self._outstanding: dict[uuid.UUID, _Outstanding] = {}
        #: The broker epoch under which a broker has applied a snapshot of this term.
        self._snapshot_epochs: dict[int, int] = {}
        #: By node id and row: the error with which the broker answered.
        self._refused: dict[int, dict[RowKey, PartitionError]] = {}

    # ------------------------------------------------------------ queries

    def has_snapshot(self, broker: BrokerInfo | None) -> bool:
        """Return whether this process of a broker has applied a snapshot of this term."""
        return (
            broker is not None and self._snapshot_epochs.get(broker.node_id) == broker.broker_epoch
        )

    @property
    def has_any_snapshot(self) -> bool:
        """Return whether any broker has reached this controller."""
        return bool(self._snapshot_epochs)

    def awaits_leader(self, row: PartitionRow) -> bool:
        """Return whether a new leader has not acknowledged its leadership yet."""
        found = self._outstanding.get(row.topic_id)
        return found is not None and row.partition in found.leaders

    def awaits_anything(self, topic_id: uuid.UUID) -> bool:
        """Return whether an answer about a topic is outstanding."""
        return topic_id in self._outstanding

    def is_overdue(self, topic_id: uuid.UUID) -> bool:
        """Return whether a topic's answers are late (:meth:`tick`)."""
        found = self._outstanding.get(topic_id)
        return found is not None and found.overdue

    def has_replica(self, row: PartitionRow, node_id: int) -> bool:
        """Return whether a broker has received its replica of a row and did not refuse it."""
        found = self._outstanding.get(row.topic_id)
        is_new = found is not None and found.is_new(row.partition, node_id)
        return not is_new and row.key not in self._refused.get(node_id, ())

    def unacknowledged(self) -> Iterator[RowKey]:
        """Yield the partitions with a replica that is not acknowledged, or refused."""
        for topic_id, found in self._outstanding.items():
            yield from ((topic_id, partition) for partition in found.replicas)
        for refused in self._refused.values():
            yield from refused

    def refusal(self, row: PartitionRow, node_id: int) -> PartitionError | None:
        """Return the error of a broker's answer to a row.

        None if there is none, or no answer yet.
        """
        return self._refused.get(node_id, {}).get(row.key)

    def storage_refuses(self, row: PartitionRow, node_id: int) -> bool:
        """Return whether a broker answered that its storage fails."""
        found = self.refusal(row, node_id)
        return found is not None and found.error_code == ErrorCode.kafka_storage_error.value

    # ------------------------------------------------------------ outstanding

    def row_stored(self, old: PartitionRow | None, new: PartitionRow) -> None:
        """Note a stored row: its new leader and its new replicas have to acknowledge it.

        ``old`` is the partition's former row, None for a new partition.
        """
        fresh = set(new.hosts).difference(old.hosts if old is not None else ())
        is_newly_led = old is None or new.leader_epoch != old.leader_epoch
        if not fresh and not is_newly_led:
            return
        found = self._outstanding.setdefault(new.topic_id, _Outstanding())
        if fresh:
            found.replicas.setdefault(new.partition, set()).update(fresh)
        # Nothing is outstanding from a leader that does not exist.
        if new.leader == NO_LEADER:
            found.leaders.discard(new.partition)
        elif is_newly_led:
            found.leaders.add(new.partition)
        self._settle(new.topic_id)

    def row_removed(self, row: PartitionRow) -> None:
        """Forget a removed row with everything outstanding."""
        for refused in self._refused.values():
            refused.pop(row.key, None)
        found = self._outstanding.get(row.topic_id)
        if found is not None:
            found.leaders.discard(row.partition)
            found.replicas.pop(row.partition, None)
            self._settle(row.topic_id)

    def broker_gone(self, node_id: int) -> None:
        """Forget a former process's answers.

        Its object has disappeared, or another process has registered.
        """
        self._snapshot_epochs.pop(node_id, None)
        self._refused.pop(node_id, None)

    def _settle(self, topic_id: uuid.UUID) -> bool:
        """Forget a topic without outstanding answers; return whether it was forgotten."""
        settled = not self._outstanding.get(topic_id)
        if settled:
            self._outstanding.pop(topic_id, None)
        return settled

    # ------------------------------------------------------------ answers

    def take(
        self,
        broker: BrokerInfo,
        present: Iterable[PartitionRow],
        request: PartitionStatesRequest,
        response: PartitionStatesResponse,
    ) -> set[uuid.UUID]:
        """Take a broker's response to a PartitionStates request; return the topics with news.

        ``present``: the current rows of the partitions in the request. A partition that changed
        after the request was sent counts as acknowledged only for the leader epoch in the request.
        The returned topics' status may change.
        """
        # An answer of a former process says nothing about the present one.
        if response.error_code or response.broker_epoch != broker.broker_epoch:
            return set()
        node_id, news = broker.node_id, set[uuid.UUID]()
        errors = {(error.topic_id, error.partition): error for error in response.errors}
        sent = {
            (topic.topic_id, state.partition): state.leader_epoch
            for topic in request.topics
            for state in topic.partitions
        }
        for row in present:
            if self._note_refusal(node_id, row.key, errors.get(row.key)):
                news.add(row.topic_id)
            if row.key not in errors and self._acknowledged(node_id, row, sent[row.key]):
                news.add(row.topic_id)
        # Only a full snapshot shows that the broker has everything of this term.
        if request.full:
            self._snapshot_epochs[node_id] = response.broker_epoch
        return news

    def _note_refusal(self, node_id: int, key: RowKey, error: PartitionError | None) -> bool:
        refused = self._refused.setdefault(node_id, {})
        before = refused.pop(key, None)
        if error is not None:
            refused[key] = error
        after = refused.get(key)
        if not refused:
            del self._refused[node_id]
        return before != after

    def _acknowledged(self, node_id: int, row: PartitionRow, leader_epoch: int) -> bool:
        """Note that a broker has received one partition.

        Return whether its topic's status may change. That is so when the last leader or the last
        replica of the topic has acknowledged.
        """
        found = self._outstanding.get(row.topic_id)
        if found is None:
            return False
        before = bool(found.leaders), bool(found.replicas)
        found.note_received(row.partition, node_id)
        # Only an acknowledgement of the present leader epoch shows that the leader serves.
        if node_id == row.leader and leader_epoch == row.leader_epoch:
            found.leaders.discard(row.partition)
        after = bool(found.leaders), bool(found.replicas)
        self._settle(row.topic_id)
        return before != after or (found.overdue and bool(found))

    # ------------------------------------------------------------ time

    def tick(self, *, now_ms: int) -> list[uuid.UUID]:
        """Return the topics whose brokers have not answered for :data:`PATIENCE_MS`, each once.

        Called about once a second. The time of an entry starts with the first call after it.
        """
        late = []
        for topic_id, found in self._outstanding.items():
            if found.since_ms is None:
                found.since_ms = now_ms
            if not found.overdue and now_ms - found.since_ms >= PATIENCE_MS:
                found.overdue = True
                late.append(topic_id)
        return late


class AlwaysAcknowledged(Acknowledgements):
    """Acknowledgements for an engine whose brokers follow their own controller.

    The state comes from its metadata, so every row counts as acknowledged.
    """

    def has_snapshot(self, broker: BrokerInfo | None) -> bool:
        return broker is not None
