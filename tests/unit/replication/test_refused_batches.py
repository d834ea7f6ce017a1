"""Consecutive batches of a producer that the log does not know. The first one is rejected, and the
cause disappears before the second one is handled. If the second one were appended, the producer
would lose the first one's place in the order."""

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import T0, TOPIC, ReplicaNode, row
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import LogConfig, producer_states
from tidemark_broker.log.producer_states import ProducerLimit
from tidemark_broker.replication.partition import produce, refused_batches
from tidemark_broker.replication.partition.refused_batches import KEPT_S, RefusedBatches
from tidemark_broker.replication.types import ProduceResult, TopicPartition

Nodes = Callable[[int], ReplicaNode]
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


async def send(node: ReplicaNode, sequence: int, *, epoch: int = 0, acks: int = 1) -> ProduceResult:
    data = batch(sequence, epoch=epoch)
    return await produce.append(node.partition, data, acks=acks, timeout_ms=1000)


async def follows(node: ReplicaNode) -> None:
    await node.receive(row(leader=2, leader_epoch=1, partition_epoch=1))


async def leads(node: ReplicaNode) -> None:
    await node.receive(row(leader=1, leader_epoch=2, partition_epoch=2, isr=(1,)))


async def test_the_second_batch_does_not_overtake_the_first(node: Nodes) -> None:
    one = node(1)
    await follows(one)
    assert (await send(one, 0)).error is ErrorCode.not_leader_or_follower
    # The broker becomes leader between the two batches. An unknown producer may begin with any
    # sequence number, so only the memory of the rejection can catch the gap.
    await leads(one)
    rejected = await send(one, 1)
    assert rejected.error is ErrorCode.out_of_order_sequence_number
    assert "sequence number 0" in (rejected.message or "")
    # The client retries both in order.
    results = [await send(one, sequence) for sequence in (0, 1)]
    assert [(result.error, result.base_offset) for result in results] == [
        (ErrorCode.none, 0),
        (ErrorCode.none, 1),
    ]
    assert not one.context.refused


async def test_a_batch_rejected_for_a_small_isr_is_required_first(node: Nodes) -> None:
    one = node(1)
    await leads(one)
    config = one.partition.log.config
    one.partition.log.config = LogConfig.of({"min.insync.replicas": "2"})
    assert (await send(one, 5, acks=-1)).error is ErrorCode.not_enough_replicas
    one.partition.log.config = config
    assert (await send(one, 6)).error is ErrorCode.out_of_order_sequence_number
    assert (await send(one, 5)).error is ErrorCode.none


async def test_a_batch_rejected_for_a_failed_disk_is_required_first(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await leads(one)
    may_try = one.context.failures.may_try
    monkeypatch.setattr(one.context.failures, "may_try", lambda *_: False)
    assert (await send(one, 0)).error is ErrorCode.kafka_storage_error
    monkeypatch.setattr(one.context.failures, "may_try", may_try)
    assert (await send(one, 1)).error is ErrorCode.out_of_order_sequence_number
    assert (await send(one, 0)).error is ErrorCode.none


async def test_rejections_of_known_producers_are_not_recorded(node: Nodes) -> None:
    """The sequence numbers in the log detect the gap."""
    one = node(1)
    await leads(one)
    assert (await send(one, 0)).error is ErrorCode.none
    await one.receive(row(leader=2, leader_epoch=3, partition_epoch=3))
    assert (await send(one, 1)).error is ErrorCode.not_leader_or_follower
    assert not one.context.refused


async def test_a_batch_of_a_new_producer_epoch_is_accepted(node: Nodes) -> None:
    """A new epoch means that the client has given up the first batch."""
    one = node(1)
    await follows(one)
    await send(one, 0)
    await leads(one)
    assert (await send(one, 0, epoch=1)).error is ErrorCode.none


async def test_batches_without_a_producer_are_not_recorded(node: Nodes) -> None:
    one = node(1)
    await follows(one)
    for data in (b"", batch(-1, producer_id=-1), b"x" * 200):
        await produce.append(one.partition, data, acks=1, timeout_ms=1000)
    assert not one.context.refused


@pytest.mark.parametrize(
    ("refused", "sent", "missing"),
    [
        ([0], 1, 0),
        ([0], 0, None),
        ([3, 1, 2], 2, 1),
        ([3], 2, None),
        ([LAST], 0, LAST),
        # Sequence numbers wrap after 2^31 - 1, so LAST precedes 0.
        ([0, LAST], 1, LAST),
        ([0], LAST, None),
    ],
)
def test_the_missing_sequence_number_before_a_batch(
    refused: list[int], sent: int, missing: int | None
) -> None:
    batches = RefusedBatches()
    for sequence in refused:
        batches.note(TP, batch(sequence), 10.0, frozenset())
    assert batches.before(TP, batch(sent), 11.0, frozenset()) == missing
    assert len(batches) == (missing is not None)


def test_a_rejection_expires() -> None:
    """A client may continue after a batch that it has given up."""
    batches = RefusedBatches()
    batches.note(TP, batch(0), 10.0, frozenset())
    assert batches.before(TP, batch(1), 10.0 + KEPT_S - 1, frozenset()) == 0
    assert batches.before(TP, batch(1), 10.0 + KEPT_S, frozenset()) is None
    assert not batches


def test_a_rejection_is_dropped_once_the_log_knows_the_producer() -> None:
    batches = RefusedBatches()
    batches.note(TP, batch(0), 10.0, frozenset())
    assert batches.before(TP, batch(1), 10.0, {PRODUCER}) is None
    assert not batches


def test_the_oldest_rejections_are_dropped_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused_batches, "REFUSED_MAX", 3)
    batches = RefusedBatches()
    # Producer 1 is rejected twice, so producer 2 is the oldest when the fourth one comes.
    for producer_id in (1, 2, 1, 3, 4):
        batches.note(TP, batch(0, producer_id=producer_id), 10.0, frozenset())
    found = [batches.before(TP, batch(1, producer_id=n), 10.0, frozenset()) for n in range(1, 5)]
    assert found == [0, None, 0, 0]


async def test_pipelined_batches_are_rejected_together(node: Nodes) -> None:
    """Both batches were accepted for inspection before the first one is rejected."""
    one = node(1)
    await leads(one)
    place = one.partition.append_order.take("c")
    begun = [
        produce.begin(one.partition, batch(n), acks=1, peer="c", is_early=True) for n in (0, 1)
    ]
    ends = [
        asyncio.ensure_future(produce.acknowledged(one.partition, item, acks=1, timeout_ms=1000))
        for item in begun
    ]
    await one.receive(row(leader=2, leader_epoch=3, partition_epoch=3))
    place.leave()
    first = await ends[0]
    assert first.error is ErrorCode.not_leader_or_follower
    assert (await ends[1]).error is ErrorCode.not_leader_or_follower
    assert len(one.context.refused) == 1


async def test_a_new_producer_beyond_the_limit_can_retry_its_first_batch(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await leads(one)
    states = one.partition.log.producers
    monkeypatch.setattr(producer_states, "PRODUCERS_RESERVED", 0)
    monkeypatch.setattr(states, "_limit", ProducerLimit(0))
    refused = await send(one, 0)
    assert refused.error is ErrorCode.not_enough_replicas
    assert "tidemark.producer.ids.max" in (refused.message or "")
    assert one.context.refused.of_new_producers == 1
    # Another producer has expired, so there is room for this one.
    monkeypatch.setattr(states, "_limit", ProducerLimit(1))
    assert (await send(one, 1)).error is ErrorCode.out_of_order_sequence_number
    results = [await send(one, sequence) for sequence in (0, 1)]
    assert [result.error for result in results] == [ErrorCode.none] * 2
