"""Producers, a coordinator that changes, and partitions, on one seeded heap of events.

The decisions are the product's: the coordinator's table and rules, its queue of markers, the
records of its log, and a partition log's knowledge of producers. The surroundings are simulated and
lose, double and delay messages. Producers end their transactions, crash and leave them open, or
continue as zombies beside their successors. At the end, a consumer's view is compared with the
producers' answers, under Jepsen's names of anomalies.
"""

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.records.control import EndMarker
from tidemark_broker.log import AppendOrigin, LogError
from tidemark_broker.log.producer_entry import NO_SEQUENCE, ProducerBatch
from tidemark_broker.log.producer_states import ProducerStates, VerificationGuard
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core import decisions
from tidemark_broker.transactions.core.decisions import Decision
from tidemark_broker.transactions.core.markers import UNKNOWN, Marker, MarkerQueue, MarkerWrite
from tidemark_broker.transactions.core.metadata import (
    PREPARED,
    Producer,
    TransactionMetadata,
    TransactionState,
)
from tidemark_broker.transactions.core.records import key_of, value_of
from tidemark_broker.transactions.core.transactional_ids import Transactions

PARTITIONS = [TopicPartition("t", number) for number in range(3)]
TIMEOUT_MS = 3000
OK = ErrorCode.none
#: Errors after which a producer retries, as it does without an answer.
RETRIABLE = {
    ErrorCode.concurrent_transactions,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas,
}
Reply = Callable[[Any], None]
Process = Generator[Callable[[Reply], None] | float, Any, None]


@dataclass
class Transaction:
    """A producer's transaction. Its outcome is committed, aborted or unknown."""

    name: str
    wants_commit: bool = False
    outcome: str = "unknown"
    values: dict[TopicPartition, list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class SimulatedBatch:
    """Value in a partition, or a marker if ``value`` is None."""

    producer_id: int
    value: str | None
    commits: bool = False


class Simulation:
    """Producers, partitions and one coordinator. ``bug`` is a deliberate defect."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.chance = random.Random(seed)
        self.bug = bug
        self.now_s = 0.0
        self.quiet = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.partitions = {tp: Partition(self) for tp in PARTITIONS}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.producer_ids = itertools.count(100)
        self.epoch = 0
        self.coordinator: SimulatedCoordinator | None = SimulatedCoordinator(self, 0)
        self.transactions: list[Transaction] = []

    def run(self, for_s: float = 60.0) -> list[str]:
        """Run the simulation and return the anomalies by name."""
        # Two producers use version 2 (KIP-890), and one uses the old protocol.
        for number, version in enumerate((2, 2, 0)):
            self.start(self.produce(f"id-{number}", version))
        self.after(self.chance.uniform(1, 5), self.fail_over)
        self._until(for_s)
        self.quiet = True  # no more losses, and no new transactions
        self._until(for_s + 60.0)
        return self.anomalies()

    def _until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = end_s

    @property
    def now_ms(self) -> int:
        return 1_000_000 + int(self.now_s * 1000)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), event))

    def send(self, event: Callable[[], None], *, doubles: bool = False) -> None:
        """Send over a network that loses messages, and may duplicate and delay them."""
        if not self.quiet and self.chance.random() < 0.08:
            return
        self.after(self.chance.expovariate(50), event)
        if doubles and self.chance.random() < 0.1:
            self.after(self.chance.uniform(0, 8), event)

    # ------------------------------------------------------------ processes

    def start(self, process: Process, sent: Any = None) -> None:
        """Run a process up to its next pause, or to its next call with an answer or None."""
        try:
            waits_for = process.send(sent)
        except StopIteration:
            return
        if isinstance(waits_for, float):
            self.after(waits_for, lambda: self.start(process))
            return
        # The answer or the timeout of 1 s resumes the process, whichever comes first.
        waiting = [True]

        def resume(answer: Any) -> None:
            if waiting:
                waiting.clear()
                self.start(process, answer)

        self.send(lambda: waits_for(lambda answer: self.send(partial(resume, answer))))
        self.after(1.0, lambda: resume(None))

    def ask(self, call: Callable[["SimulatedCoordinator", Reply], None]) -> Callable[[Reply], None]:
        """Return a call of the coordinator at the time of arrival."""

        def arrived(reply: Reply) -> None:
            if self.coordinator is None:
                reply(Decision(error=ErrorCode.not_coordinator))
            else:
                call(self.coordinator, reply)

        return arrived

    def fail_over(self) -> None:
        """Depose the coordinator. Its successor has any number of its uncommitted records."""
        old, self.coordinator = self.coordinator, None
        if old is not None:
            surviving = self.chance.randrange(len(old.uncommitted) + 1)
            self.log += [record for record, _ in old.uncommitted[:surviving]]
            old.uncommitted.clear()
            old.is_deposed = True  # It does not know yet, and continues to send.
            self.after(self.chance.uniform(0, 3), old.stop)
        self.epoch += 1
        self.after(self.chance.uniform(0, 1), self.take_over)

    def take_over(self) -> None:
        self.coordinator = SimulatedCoordinator(self, self.epoch)
        if not self.quiet:
            self.after(self.chance.uniform(1, 8), self.fail_over)

    # ------------------------------------------------------------ a producer

    def until_answered(self, call: Callable[[Reply], None]) -> Generator[Any, Any, Any]:
        """Repeat a call until it has an answer that is not retriable."""
        while True:
            answer = yield call
            if answer is not None and answer.error not in RETRIABLE:
                return answer
            yield self.chance.uniform(0.02, 0.2)

    def produce(self, transactional_id: str, version: int) -> Process:
        def init(coordinator: "SimulatedCoordinator", reply: Reply) -> None:
            coordinator.change(
                transactional_id,
                lambda known, fresh: decisions.init_producer_id(
                    known,
                    expected=None,
                    timeout_ms=TIMEOUT_MS,
                    now_ms=self.now_ms,
                    fresh_producer_id=fresh,
                ),
                reply,
            )

        answer = yield from self.until_answered(self.ask(init))
        if answer.error is not OK:
            raise AssertionError(answer)
        me: Producer = answer.producer
        sequences: Counter[TopicPartition] = Counter()
        while not self.quiet:
            transaction = Transaction(f"{transactional_id}/{len(self.transactions)}")
            self.transactions.append(transaction)
            tps = self.chance.sample(PARTITIONS, self.chance.randint(1, len(PARTITIONS)))
            fine = yield from self.write(transactional_id, me, version, tps, transaction, sequences)
            if self.chance.random() < 0.1:  # It crashes, or pauses while a successor starts.
                self.start(self.produce(transactional_id, version))
                if self.chance.random() < 0.5:
                    return
                yield self.chance.uniform(0, 6)
            transaction.wants_commit = fine and self.chance.random() < 0.75
            answer = yield from self.until_answered(
                self.ask(self.ending(transactional_id, me, version, transaction.wants_commit))
            )
            if answer.error is not OK:
                if answer.error is ErrorCode.producer_fenced:
                    return  # by its successor, or by the time-out
                break
            transaction.outcome = "committed" if transaction.wants_commit else "aborted"
            # In version 2 each transaction has a new epoch, whose sequences start at 0.
            if version == 2:
                sequences.clear()
                me = answer.producer
        if not self.quiet:
            self.start(self.produce(transactional_id, version))

    def ending(
        self, transactional_id: str, me: Producer, version: int, commit: bool
    ) -> Callable[["SimulatedCoordinator", Reply], None]:
        def rule(known: TransactionMetadata | None, fresh: int | None) -> Decision:
            return decisions.end(
                known,
                producer=me,
                commit=commit,
                version=version,
                now_ms=self.now_ms,
                fresh_producer_id=fresh,
            )

        return lambda coordinator, reply: coordinator.change(transactional_id, rule, reply)

    def write(
        self,
        transactional_id: str,
        me: Producer,
        version: int,
        tps: list[TopicPartition],
        transaction: Transaction,
        sequences: Counter[TopicPartition],
    ) -> Generator[Any, Any, bool]:
        """Write all values. Return False if the transaction has to be aborted."""
        # The old protocol adds partitions before it produces to them.
        if version == 0:
            call = partial(
                SimulatedCoordinator.add, transactional_id=transactional_id, me=me, tps=tps
            )
            answer = yield from self.until_answered(self.ask(partial(call, version=0)))
            if answer.error is not OK:
                return False
        for tp in tps:
            for number in range(self.chance.randint(1, 2)):
                value = f"{transaction.name}/{tp.partition}/{number}"
                transaction.values[tp].append(value)
                append = partial(
                    self.partitions[tp].produce, tp, transactional_id, me, version, value,
                    sequences[tp],
                )  # fmt: skip
                answer = yield from self.until_answered(append)
                if answer.error is not OK:
                    return False
                sequences[tp] += 1
        return True

    # ------------------------------------------------------------ results

    def anomalies(self) -> list[str]:
        found = []
        visible = {tp: partition.committed() for tp, partition in self.partitions.items()}
        for tp, values in visible.items():
            found += [f"duplicate {value}" for value, n in Counter(values).items() if n > 1]
            if self.partitions[tp].states.first_unstable_offset is not None:
                found.append(f"hanging transaction in {tp}")
        for transaction in self.transactions:
            are_visible = [
                v in visible[tp] for tp, values in transaction.values.items() for v in values
            ]
            if transaction.outcome == "committed" and not all(are_visible):
                found.append(f"lost write {transaction.name}")
            if not transaction.wants_commit and any(are_visible):
                found.append(f"G1a {transaction.name}")
            if transaction.outcome == "aborted" and any(are_visible):
                found.append(f"G1a {transaction.name}")
            if transaction.wants_commit and any(are_visible) and not all(are_visible):
                found.append(f"G0 {transaction.name}")  # Only a part of it is visible.
        # Once the faults have ended, there is a coordinator, and every transaction is complete.
        if self.coordinator is None:
            found.append("no coordinator")
        else:
            found += [
                f"{name} is {metadata.state.label}"
                for name, metadata in self.coordinator.table.all()
                if metadata.state in (*PREPARED, TransactionState.ONGOING)
            ]
        return found


class Partition:
    """Partition with data, on a broker that does not fail."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.states = ProducerStates()
        self.batches: list[SimulatedBatch] = []

    def committed(self) -> list[str]:
        """Return the records that a read_committed consumer gets in the end."""
        pending: dict[int, list[str]] = defaultdict(list)
        consumed: list[str] = []
        for batch in self.batches:
            if batch.value is not None:
                pending[batch.producer_id].append(batch.value)
                continue
            ended = pending.pop(batch.producer_id, [])
            consumed += ended if batch.commits else []
        return consumed

    def produce(
        self,
        tp: TopicPartition,
        transactional_id: str,
        me: Producer,
        version: int,
        value: str,
        sequence: int,
        reply: Reply,
    ) -> None:
        """Append a batch; the leader queries the coordinator first where it has to."""
        simulation = self.simulation
        guard = self.states.begin_verification(
            self._batch(me, sequence), simulation.now_ms, supports_epoch_bump=version == 2
        )
        append = partial(self._append, me, value, sequence)
        if guard is None or simulation.bug == "no verification":
            reply(append(guard))
            return

        def answered(answer: Decision) -> None:
            if answer.error is OK:
                reply(append(guard))
            elif answer.error in RETRIABLE:
                # The leader answers retriable errors with one that every producer retries.
                reply(Decision(error=ErrorCode.not_enough_replicas))
            else:
                reply(answer)

        call = partial(
            SimulatedCoordinator.add if version == 2 else SimulatedCoordinator.verify,
            transactional_id=transactional_id,
            me=me,
            tps=[tp],
        )
        verification = simulation.ask(partial(call, version=version))
        simulation.send(
            lambda: verification(lambda answer: simulation.send(partial(answered, answer)))
        )

    def _batch(self, me: Producer, sequence: int) -> ProducerBatch:
        offset = len(self.batches)
        return ProducerBatch(
            me.producer_id, me.epoch, sequence, offset, offset, self.simulation.now_ms,
            is_transactional=True,
        )  # fmt: skip

    def _append(
        self, me: Producer, value: str, sequence: int, guard: VerificationGuard | None
    ) -> Decision:
        batch = self._batch(me, sequence)
        try:
            if self.states.check(batch, AppendOrigin.CLIENT, guard) is not None:
                # A repeated batch is acknowledged, and not appended again.
                return Decision()
        except LogError as error:
            return Decision(error=error.error_code)
        self.states.note(batch)
        self.batches.append(SimulatedBatch(me.producer_id, value))
        return Decision()

    def write(self, marker: Marker) -> ErrorCode:
        offset = len(self.batches)
        batch = ProducerBatch(
            marker.producer_id,
            marker.producer_epoch,
            NO_SEQUENCE,
            offset,
            offset,
            self.simulation.now_ms,
            is_transactional=True,
            marker=EndMarker(marker.commit, marker.coordinator_epoch),
        )
        try:
            self.states.check_marker(batch, marker.version)
        except LogError as error:
            return error.error_code
        self.states.note(batch)
        self.batches.append(SimulatedBatch(marker.producer_id, None, marker.commit))
        # The partition has no follower, so that the marker is committed at once.
        self.states.on_high_watermark(len(self.batches))
        return OK


class SimulatedCoordinator:
    """Transaction coordinator of one broker, in one leader epoch."""

    def __init__(self, simulation: Simulation, epoch: int) -> None:
        self.simulation = simulation
        self.epoch = epoch
        self.is_deposed = self.is_stopped = False
        self.table = Transactions()
        self.uncommitted: list[tuple[tuple[bytes, bytes | None], Callable[[], None]]] = []
        self.queue = MarkerQueue(self._leader_of)
        for key, value in simulation.log:
            self.table.replay(key, value)
        # After loading, the coordinator continues with the markers of prepared transactions.
        for transactional_id, metadata in self.table.all():
            if simulation.bug != "prepared is forgotten":
                self._follow_up(transactional_id, metadata)
        self._tick()

    def stop(self) -> None:
        self.is_stopped = True

    def _leader_of(self, tp: TopicPartition) -> int:
        # Until the faults end, a tenth of all lookups finds no leader.
        away = not self.simulation.quiet and self.simulation.chance.random() < 0.1
        return UNKNOWN if away else tp.partition % 2

    def _tick(self) -> None:
        """Send markers that wait, and abort transactions that take too long."""
        if self.is_stopped:
            return
        now_ms = self.simulation.now_ms
        for transactional_id, metadata in list(self.table.all()):
            if metadata.has_timed_out(now_ms):
                self.change(transactional_id, self._abort, lambda answer: None)
        self._pump()
        self.simulation.after(0.1, self._tick)

    def _abort(self, known: TransactionMetadata | None, fresh: int | None) -> Decision:
        now_ms = self.simulation.now_ms
        if known is None or not known.has_timed_out(now_ms):
            return Decision()
        return decisions.fence(known, now_ms=now_ms, fresh_producer_id=fresh)

    # ------------------------------------------------------------ requests

    def change(
        self,
        transactional_id: str,
        rule: Callable[[TransactionMetadata | None, int | None], Decision],
        reply: Reply,
    ) -> None:
        decision = self.table.decide(transactional_id, lambda known: rule(known, None))
        if decision.needs_producer_id:
            # The decision is repeated with the producer id that it requested.
            fresh = next(self.simulation.producer_ids)
            decision = self.table.decide(transactional_id, lambda known: rule(known, fresh))
        if decision.change is None:
            reply(decision)
        else:
            self._append(transactional_id, decision.change, lambda: reply(decision))

    def add(
        self,
        reply: Reply,
        *,
        transactional_id: str,
        me: Producer,
        tps: list[TopicPartition],
        version: int,
    ) -> None:
        def rule(known: TransactionMetadata | None, _: int | None) -> Decision:
            return decisions.add_partitions(
                known,
                producer=me,
                partitions=set(tps),
                version=version,
                now_ms=self.simulation.now_ms,
            )

        self.change(transactional_id, rule, reply)

    def verify(
        self,
        reply: Reply,
        *,
        transactional_id: str,
        me: Producer,
        tps: list[TopicPartition],
        version: int,
    ) -> None:
        known = self.table.get(transactional_id)
        errors = decisions.verify_partitions(known, producer=me, partitions=set(tps))
        reply(Decision(error=errors[tps[0]]))

    # ------------------------------------------------------------ its log

    def _append(
        self, transactional_id: str, change: TransactionMetadata, then: Callable[[], None]
    ) -> None:
        record = (key_of(transactional_id), value_of(change))
        # The table knows the change at once, but the answer waits for its commit.
        self.table.appended(transactional_id, change)

        def committed() -> None:
            metadata = self.table.committed(transactional_id)
            assert metadata is not None
            self._follow_up(transactional_id, metadata)
            then()

        self.uncommitted.append((record, committed))
        end = len(self.simulation.log) + len(self.uncommitted)
        self.simulation.after(self.simulation.chance.expovariate(100), lambda: self._commit(end))

    def _commit(self, end: int) -> None:
        """Commit up to the offset on the other brokers; a deposed coordinator does not receive
        it.
        """
        while not self.is_deposed and self.uncommitted and len(self.simulation.log) < end:
            record, committed = self.uncommitted.pop(0)
            self.simulation.log.append(record)
            committed()

    def _follow_up(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        if metadata.state not in PREPARED:
            return
        marker = Marker(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.epoch,
            commit=metadata.state is TransactionState.PREPARE_COMMIT,
            version=metadata.version,
        )
        partitions = sorted(metadata.partitions)
        if self.simulation.bug == "a partition is left out":
            partitions = partitions[1:]
        self.queue.add((0, transactional_id), marker, partitions)
        self._pump()

    # ------------------------------------------------------------ markers

    def _pump(self) -> None:
        simulation = self.simulation
        for broker, batch in self.queue.batches(simulation.now_s).items():
            self._send(broker, batch)
        for (_, transactional_id), marker in self.queue.finished():
            known = self.table.get(transactional_id)
            # The id may have started another transaction since the marker was queued.
            if known is not None and known.producer_epoch == marker.producer_epoch:
                self._append(transactional_id, known.completed(simulation.now_ms), lambda: None)

    def _send(self, broker: int, batch: "list[MarkerWrite] | Any") -> None:
        simulation, waiting = self.simulation, [True]

        def answered(errors: dict[MarkerWrite, ErrorCode]) -> None:
            if waiting:
                waiting.clear()
                if not self.is_stopped:
                    error_of = partial(_error_of, errors)
                    self.queue.answered(broker, batch, error_of, simulation.now_s)
                    self._pump()

        def arrived() -> None:
            errors = {item: simulation.partitions[item.tp].write(item.marker) for item in batch}
            simulation.send(lambda: answered(errors))

        # A late marker of the old protocol could end the next transaction (KIP-890).
        simulation.send(arrived, doubles=all(item.marker.version == 2 for item in batch))
        # Without an answer after 1 s, all writes of the request count as failed.
        simulation.after(1.0, lambda: answered({}))


def _error_of(errors: dict[MarkerWrite, ErrorCode], write: MarkerWrite) -> ErrorCode:
    return errors.get(write, ErrorCode.network_exception)
