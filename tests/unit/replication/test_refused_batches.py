"""Consecutive batches of a producer that the log does not know.

The first one is refused, and its cause disappears before the second one is read. The client would
take the second one's success for the first one's.
"""

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import T0, TOPIC, Node, row
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import LogConfig, producer_states
from tidemark_broker.log.producer_states import ProducerLimit
from tidemark_broker.replication.partition import produce, refused_batches
from tidemark_broker.replication.partition.refused_batches import KEPT_S, RefusedBatches
from tidemark_broker.replication.types import ProduceResult, TopicPartition

Nodes = Callable[[int], Node]
TP = TopicPartition(TOPIC, 0)
PRODUCER = 77
LAST = 2**31 - 1


def batch(sequence: int, *, producer_id: int = PRODUCER, epoch: int = 0) -> bytes:
    return build_batch(
        [Record(b"k", b"v", (), T0)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


async def send(node: Node, sequence: int, *, epoch: int = 0, acks: int = 1) -> ProduceResult:
    data = batch(sequence, epoch=epoch)
    return await produce.append(node.partition, data, acks=acks, timeout_ms=1000)


async def follows(node: Node) -> None:
    await node.told(row(leader=2, leader_epoch=1, partition_epoch=1))


async def leads(node: Node) -> None:
    await node.told(row(leader=1, leader_epoch=2, partition_epoch=2, isr=(1,)))


async def test_the_second_batch_does_not_overtake_the_first(node: Nodes) -> None:
    one = node(1)
    await follows(one)
    assert (await send(one, 0)).error is ErrorCode.not_leader_or_follower
    await leads(one)
    refused = await send(one, 1)
    assert refused.error is ErrorCode.out_of_order_sequence_number
    assert "sequence number 0" in (refused.message or "")
    results = [await send(one, sequence) for sequence in (0, 1)]
    assert [(result.error, result.base_offset) for result in results] == [
        (ErrorCode.none, 0),
        (ErrorCode.none, 1),
    ]
    assert not one.context.refused


async def test_the_isr_is_large_enough_again(node: Nodes) -> None:
    one = node(1)
    await leads(one)
    config = one.partition.log.config
    one.partition.log.config = LogConfig.of({"min.insync.replicas": "2"})
    assert (await send(one, 5, acks=-1)).error is ErrorCode.not_enough_replicas
    one.partition.log.config = config
    assert (await send(one, 6)).error is ErrorCode.out_of_order_sequence_number
    assert (await send(one, 5)).error is ErrorCode.none


async def test_a_disk_that_failed(node: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node(1)
    await leads(one)
    may_try = one.context.failures.may_try
    monkeypatch.setattr(one.context.failures, "may_try", lambda *_: False)
    assert (await send(one, 0)).error is ErrorCode.kafka_storage_error
    monkeypatch.setattr(one.context.failures, "may_try", may_try)
    assert (await send(one, 1)).error is ErrorCode.out_of_order_sequence_number
    assert (await send(one, 0)).error is ErrorCode.none


async def test_of_a_known_producer_its_sequence_numbers_tell(node: Nodes) -> None:
    one = node(1)
    await leads(one)
    assert (await send(one, 0)).error is ErrorCode.none
    await one.told(row(leader=2, leader_epoch=3, partition_epoch=3))
    assert (await send(one, 1)).error is ErrorCode.not_leader_or_follower
    assert not one.context.refused


async def test_a_batch_of_another_epoch_is_not_refused(node: Nodes) -> None:
    """The client has given the first one up."""
    one = node(1)
    await follows(one)
    await send(one, 0)
    await leads(one)
    assert (await send(one, 0, epoch=1)).error is ErrorCode.none


async def test_batches_of_no_producer_are_not_looked_at(node: Nodes) -> None:
    one = node(1)
    await follows(one)
    for data in (b"", batch(-1, producer_id=-1), b"x" * 200):
        await produce.append(one.partition, data, acks=1, timeout_ms=1000)
    assert not one.context.refused


def unknown(_: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("refused", "sent", "missing"),
    [
        ([0], 1, 0),
        ([0], 0, None),
        ([3, 1, 2], 2, 1),
        ([3], 2, None),
        ([LAST], 0, LAST),
        ([0, LAST], 1, LAST),
        ([0], LAST, None),
    ],
)
def test_what_has_to_come_before(refused: list[int], sent: int, missing: int | None) -> None:
    batches = RefusedBatches()
    for sequence in refused:
        batches.note(TP, batch(sequence), 10.0, unknown)
    assert batches.before(TP, batch(sent), 11.0, unknown) == missing
    assert len(batches) == (missing is not None)


def test_it_is_forgotten_in_time() -> None:
    """A client may continue after the batch that it gave up."""
    batches = RefusedBatches()
    batches.note(TP, batch(0), 10.0, unknown)
    assert batches.before(TP, batch(1), 10.0 + KEPT_S - 1, unknown) == 0
    assert batches.before(TP, batch(1), 10.0 + KEPT_S, unknown) is None
    assert not batches


def test_it_is_over_once_the_log_knows_the_producer() -> None:
    batches = RefusedBatches()
    batches.note(TP, batch(0), 10.0, unknown)
    assert batches.before(TP, batch(1), 10.0, {PRODUCER}.__contains__) is None
    assert not batches


def test_the_oldest_are_forgotten_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_batches, "REFUSED_MAX", 3)
    batches = RefusedBatches()
    for producer_id in (1, 2, 1, 3, 4):
        batches.note(TP, batch(0, producer_id=producer_id), 10.0, unknown)
    found = [batches.before(TP, batch(1, producer_id=n), 10.0, unknown) for n in range(1, 5)]
    assert found == [0, None, 0, 0]


async def test_behind_a_batch_that_waits_for_a_thread(node: Nodes) -> None:
    """Both had begun before the first one was refused."""
    one = node(1)
    await leads(one)
    turn = one.partition.turns.take("c")
    begun = [
        produce.begin(one.partition, batch(n), acks=1, peer="c", is_early=True) for n in (0, 1)
    ]
    ends = [
        asyncio.ensure_future(produce.acknowledged(one.partition, item, acks=1, timeout_ms=1000))
        for item in begun
    ]
    await one.told(row(leader=2, leader_epoch=3, partition_epoch=3))
    turn.end()
    first = await ends[0]
    assert first.error is ErrorCode.not_leader_or_follower
    assert (await ends[1]).error is ErrorCode.not_leader_or_follower
    assert len(one.context.refused) == 1


async def test_first_batch_of_a_producer_beyond_the_limit_can_be_retried(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await leads(one)
    states = one.partition.log.state.producers
    monkeypatch.setattr(producer_states, "PRODUCERS_RESERVED", 0)
    monkeypatch.setattr(states, "_limit", ProducerLimit(0))
    refused = await send(one, 0)
    assert refused.error is ErrorCode.not_enough_replicas
    assert "tidemark.producer.ids.max" in (refused.message or "")
    assert one.context.refused.of_new_producers == 1
    monkeypatch.setattr(states, "_limit", ProducerLimit(1))
    assert (await send(one, 1)).error is ErrorCode.out_of_order_sequence_number
    results = [await send(one, sequence) for sequence in (0, 1)]
    assert [result.error for result in results] == [ErrorCode.none] * 2
