"""Transactions with a decided end: the marker of each must reach its partition.

A producer writes a transaction to one partition, and its coordinator decides to commit it.
Decisions are durable, like ``__transaction_state``: when the coordinator's process dies, another
broker continues under a higher coordinator epoch. The real :class:`MarkerSender` of that broker
looks for the partition's leader. Once it has nothing left to do, no leader may have the transaction
open. Otherwise ``read_committed`` consumers never see its records, and the last stable offset is
stuck.
"""

from functools import partial
from typing import Any

from tests.simulation.brokers import BrokerProcess
from tests.simulation.checks import Key
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import appending
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.markers import Marker, TransactionKey

_EVERY_S = 0.7
_COORDINATOR_EVERY_S = 1.0
_PRODUCE_TIMEOUT_MS = 1200
_FIRST_PRODUCER_ID = 1000


class SimulatedTransactions:
    """Transactions of one run."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._started = self._epoch = 0
        self._coordinator: BrokerProcess | None = None
        #: Decided, and not known to be complete, by producer id.
        self._decided: dict[int, Key] = {}
        #: Complete, as its coordinator believes.
        self._complete: dict[int, Key] = {}

    def begin(self) -> None:
        self._produce()
        self._coordinate()

    # ------------------------------------------------------------ producers

    def _produce(self) -> None:
        cluster, world = self._cluster, self._world
        if not cluster.clients.producing:
            return
        world.after(_EVERY_S * 2 * world.chance.random(), self._produce)
        key = world.chance.choice(cluster.clients.keys)
        row = cluster.checks.rows.get(key)
        machine = None if row is None else cluster.machines.get(row.leader)
        process = None if machine is None else machine.alive
        if process is not None:
            self._started += 1
            world.network.send(world.ether, process.loop, self._append, process, key, self._started)

    def _append(self, process: BrokerProcess, key: Key, number: int) -> None:
        partition = process.partition(*key)
        if partition is not None and partition.is_leader:
            process.loop.create_task(self._appended(process, partition, key, number))

    async def _appended(
        self, process: BrokerProcess, partition: Partition, key: Key, number: int
    ) -> None:
        """Register a transaction that may have begun, whatever the answer, so that it is ended."""
        producer_id, now_ms = _FIRST_PRODUCER_ID + number, self._world.wall_ms()
        data = build_batch(
            [Record(b"", b"transaction %d" % number, (), now_ms)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        guard = appending.begin_verification(partition.log, data, now_ms, supports_epoch_bump=False)
        result = await produce.append(
            partition, data, acks=-1, timeout_ms=_PRODUCE_TIMEOUT_MS, guard=guard
        )
        if not result.error.value:
            self._world.after_step.append(partial(self._decide, producer_id, key))

    def _decide(self, producer_id: int, key: Key) -> None:
        """Decide a transaction: EndTxn is answered."""
        self._decided[producer_id] = key
        self._hand_over(self._coordinator, producer_id, key)

    # ------------------------------------------------------------ the coordinator

    def _coordinate(self) -> None:
        """Choose a broker as coordinator; replace it, with all decisions, when it dies."""
        world = self._world
        if world.over:
            return
        world.after(_COORDINATOR_EVERY_S, self._coordinate)
        present = self._coordinator
        if present is not None and present.machine.alive is present:
            return
        alive = [machine.alive for machine in self._cluster.machines.values()]
        ready = [item for item in alive if item is not None and item.broker is not None]
        if not ready:
            return
        self._coordinator = world.chance.choice(ready)
        self._epoch += 1
        for producer_id, key in self._decided.items():
            self._hand_over(self._coordinator, producer_id, key)

    def _hand_over(self, process: BrokerProcess | None, producer_id: int, key: Key) -> None:
        if process is None or process.broker is None or process.loop.dead:
            return
        marker = Marker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=self._epoch,
            commit=True,
            version=1,
        )
        sender = process.broker.transactions.markers
        sender._finished = self._finished
        name = (0, str(producer_id))
        process.loop.call_soon(sender.add, name, marker, [TopicPartition(*key)])

    def _finished(self, name: TransactionKey, marker: Marker) -> None:
        key = self._decided.pop(marker.producer_id, None)
        if key is not None:
            self._complete[marker.producer_id] = key

    # ------------------------------------------------------------ the end

    def unfinished(self) -> str:
        """Return why a decided transaction has not ended, empty if all have."""
        for producer_id, key in self._decided.items():
            return f"the transaction of producer {producer_id} waits for its marker in {key}"
        return ""

    def check(self) -> None:
        """Invariant 28: no leader has a transaction open that its coordinator has completed."""
        cluster = self._cluster
        for producer_id, key in self._complete.items():
            # A lost tail may have contained the marker: the coordinator never writes it again, so
            # the transaction stays open, as in Kafka.
            if cluster.checks.has_lost_tail(key):
                continue
            row = cluster.checks.rows.get(key)
            machine = None if row is None else cluster.machines.get(row.leader)
            process = None if machine is None else machine.alive
            partition = None if process is None else process.partition(*key)
            if partition is not None and partition.log.producers.has_ongoing_transaction(
                producer_id, 0
            ):
                cluster.checks.fail(
                    "28",
                    f"{key}: the marker of producer {producer_id} was given up, and its "
                    f"transaction is open: last stable offset {partition.log.last_stable_offset}",
                )
