"""What brokers have acknowledged of the rows that concern them: a row that is written is a plan.

A partition is led once its leader has taken in a row of the present leader epoch; a replica is one
once its broker has been told of it, and did not answer that its storage refuses. Only what is still
outstanding is kept, by topic: where nothing is under way this is empty. It is memory, and begins
anew with each term: of a row that was loaded nobody knows here whether its leader had heard of it
before, until that broker has applied a snapshot of this term (:meth:`Acknowledgements.has_told`).
"""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from tidemark.wire.control import PartitionError, PartitionStatesRequest, PartitionStatesResponse
from tidemark_operator.controller.model import NO_LEADER, BrokerInfo, PartitionRow, RowKey

#: So long nothing is said against brokers that have not answered yet.
PATIENCE_MS = 5_000


@dataclass(slots=True)
class _Outstanding:
    """Of one topic: partitions whose leader has not taken over, replicas that were never told.
    ``since_ms`` None: nobody has looked at the clock yet."""

    leaders: set[int] = field(default_factory=set)
    #: By partition, the brokers.
    replicas: dict[int, set[int]] = field(default_factory=dict)
    since_ms: int | None = None
    overdue: bool = False

    def __bool__(self) -> bool:
        return bool(self.leaders or self.replicas)

    def is_new(self, partition: int, node_id: int) -> bool:
        """Whether a broker was never told of its replica of a partition."""
        return node_id in self.replicas.get(partition, ())

    def told(self, partition: int, node_id: int) -> None:
        """A broker knows of its replica now."""
        waiting = self.replicas.get(partition)
        if waiting is not None:
            waiting.discard(node_id)
            if not waiting:
                del self.replicas[partition]


class Acknowledgements:
    """Belongs to the state; changed by commits that took effect and by what brokers answer."""

    def __init__(self) -> None:
        self._outstanding: dict[uuid.UUID, _Outstanding] = {}
        #: The broker epoch under which a broker has applied a snapshot of this term.
        self._told: dict[int, int] = {}
        #: By node id and row: why the broker could not do as it was told.
        self._refused: dict[int, dict[RowKey, PartitionError]] = {}

    # ------------------------------------------------------------ what is asked

    def has_told(self, broker: BrokerInfo | None) -> bool:
        """Whether this process of a broker has applied a snapshot of this term."""
        return broker is not None and self._told.get(broker.node_id) == broker.broker_epoch

    @property
    def has_told_any(self) -> bool:
        """Whether any broker has reached this controller."""
        return bool(self._told)

    def awaits_leader(self, row: PartitionRow) -> bool:
        """Whether a new leader has not acknowledged yet that it leads."""
        found = self._outstanding.get(row.topic_id)
        return found is not None and row.partition in found.leaders

    def awaits_anything(self, topic_id: uuid.UUID) -> bool:
        """Whether a broker has not answered yet to what concerns a topic."""
        return topic_id in self._outstanding

    def is_overdue(self, topic_id: uuid.UUID) -> bool:
        """Whether brokers have been waited for longer than they should be (:meth:`tick`)."""
        found = self._outstanding.get(topic_id)
        return found is not None and found.overdue

    def has_replica(self, row: PartitionRow, node_id: int) -> bool:
        """Whether a broker knows of a replica that the row gives it, and did not refuse it."""
        found = self._outstanding.get(row.topic_id)
        is_new = found is not None and found.is_new(row.partition, node_id)
        return not is_new and row.key not in self._refused.get(node_id, ())

    def doubted(self) -> Iterator[RowKey]:
        """Partitions with a replica that was never told of it, or refused."""
        for topic_id, found in self._outstanding.items():
            yield from ((topic_id, partition) for partition in found.replicas)
        for refused in self._refused.values():
            yield from refused

    def refusal(self, row: PartitionRow, node_id: int) -> PartitionError | None:
        """Why a broker could not do as a row told it; None: it could, or has not answered."""
        return self._refused.get(node_id, {}).get(row.key)

    def storage_refuses(self, row: PartitionRow, node_id: int) -> bool:
        """Whether it is the broker's storage that could not."""
        found = self.refusal(row, node_id)
        return found is not None and found.error_code == ErrorCode.kafka_storage_error.value

    # ------------------------------------------------------------ what becomes outstanding

    def landed(self, old: PartitionRow | None, new: PartitionRow) -> None:
        """A row was written: those whom it gives something new have not heard of it yet."""
        fresh = set(new.hosts).difference(old.hosts if old is not None else ())
        led_anew = old is None or new.leader_epoch != old.leader_epoch
        if not fresh and not led_anew:
            return
        found = self._outstanding.setdefault(new.topic_id, _Outstanding())
        if fresh:
            found.replicas.setdefault(new.partition, set()).update(fresh)
        if new.leader == NO_LEADER:
            found.leaders.discard(new.partition)
        elif led_anew:
            found.leaders.add(new.partition)
        self._settle(new.topic_id)

    def row_gone(self, row: PartitionRow) -> None:
        """A row was taken away, with all that was outstanding of it."""
        for refused in self._refused.values():
            refused.pop(row.key, None)
        found = self._outstanding.get(row.topic_id)
        if found is not None:
            found.leaders.discard(row.partition)
            found.replicas.pop(row.partition, None)
            self._settle(row.topic_id)

    def broker_gone(self, node_id: int) -> None:
        """A broker's object is gone, or another process of it has registered: what the former one
        answered counts no more."""
        self._told.pop(node_id, None)
        self._refused.pop(node_id, None)

    def _settle(self, topic_id: uuid.UUID) -> bool:
        """Forget a topic of which nothing is outstanding; whether that is so."""
        settled = not self._outstanding.get(topic_id)
        if settled:
            self._outstanding.pop(topic_id, None)
        return settled

    # ------------------------------------------------------------ what is heard

    def take(
        self,
        broker: BrokerInfo,
        present: Iterable[PartitionRow],
        request: PartitionStatesRequest,
        response: PartitionStatesResponse,
    ) -> set[uuid.UUID]:
        """A broker's answer to partition states; ``present`` are those rows that the request named,
        as they are by now. The topics of which something else is true since."""
        if response.error_code or response.broker_epoch != broker.broker_epoch:
            return set()
        node_id, news = broker.node_id, set[uuid.UUID]()
        errors = {(error.topic_id, error.partition): error for error in response.errors}
        told = {
            (topic.topic_id, state.partition): state.leader_epoch
            for topic in request.topics
            for state in topic.partitions
        }
        for row in present:
            if self._note_refusal(node_id, row.key, errors.get(row.key)):
                news.add(row.topic_id)
            if row.key not in errors and self._acknowledged(node_id, row, told[row.key]):
                news.add(row.topic_id)
        if request.full:
            self._told[node_id] = response.broker_epoch
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
        """One row; whether all leaders, or all replicas, of its topic are known now to be told."""
        found = self._outstanding.get(row.topic_id)
        if found is None:
            return False
        before = bool(found.leaders), bool(found.replicas)
        found.told(row.partition, node_id)
        if node_id == row.leader and leader_epoch == row.leader_epoch:
            found.leaders.discard(row.partition)
        after = bool(found.leaders), bool(found.replicas)
        self._settle(row.topic_id)
        return before != after or (found.overdue and bool(found))

    # ------------------------------------------------------------ the clock

    def tick(self, *, now_ms: int) -> list[uuid.UUID]:
        """Called every second or so: the topics for which brokers have not answered in
        :data:`PATIENCE_MS`, each told once."""
        late = []
        for topic_id, found in self._outstanding.items():
            if found.since_ms is None:
                found.since_ms = now_ms
            if not found.overdue and now_ms - found.since_ms >= PATIENCE_MS:
                found.overdue = True
                late.append(topic_id)
        return late


class NobodyIsTold(Acknowledgements):
    """Of an engine whose brokers hear of everything from their own controller: what its metadata
    say of a partition is so."""

    def has_told(self, broker: BrokerInfo | None) -> bool:
        return broker is not None
