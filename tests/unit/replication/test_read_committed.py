"""Idempotent and transactional producers as clients see them. The tests cover duplicates, the last
stable offset, aborted transactions (KIP-98), and DescribeProducers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.counted_calls import counted_calls
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import T0, TOPIC, ReplicaNode
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker
from tidemark_broker.api.client import Client
from tidemark_broker.api.records import fetch
from tidemark_broker.api.table import Call
from tidemark_broker.api.transactions import transaction_admin
from tidemark_broker.log import appending, reading
from tidemark_broker.replication.partition import consumer_reads, produce
from tidemark_broker.replication.types import ProduceResult

Nodes = Callable[[int], ReplicaNode]
COMMITTED = 1


@pytest.fixture
async def pair(node: Nodes) -> tuple[ReplicaNode, ReplicaNode]:
    """Return leader 1 and follower 2, which has not fetched yet."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    return one, two


def batch(producer: int, sequence: int, *, transactional: bool = False, epoch: int = 0) -> bytes:
    return build_batch(
        [Record(b"k", bytes(30), (), T0)],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )


async def send(
    node: ReplicaNode, data: bytes, *, acks: int = 1, timeout_ms: int = 10_000
) -> ProduceResult:
    log = node.partition.log
    guard = appending.begin_verification(log, data, T0, supports_epoch_bump=False)
    return await produce.append(node.partition, data, acks=acks, timeout_ms=timeout_ms, guard=guard)


async def finish(
    node: ReplicaNode, producer: int, *, commit: bool, epoch: int = 0, timeout_ms: int = 0
) -> ProduceResult:
    appended = produce.begin_marker(
        node.partition,
        EndMarker(commit, 3),
        producer_id=producer,
        producer_epoch=epoch,
        transaction_version=1,
    )
    return await produce.acknowledged(node.partition, appended, acks=-1, timeout_ms=timeout_ms)


async def replicate(one: ReplicaNode, two: ReplicaNode) -> None:
    """Let the follower fetch everything and tell the leader so with another fetch."""
    await two.catch_up(one)
    await two.fetch_once(one)


def call(node: ReplicaNode, version: int) -> Call:
    shared = services(
        node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
    )
    return Call(shared, version, Client("10.0.0.1:1", "PLAINTEXT"), room())


async def fetch_partition(
    node: ReplicaNode, offset: int = 0, *, isolation_level: int = COMMITTED, **options: Any
) -> Any:
    body = kafka.fetch(12, TOPIC, offset, **{"wait_ms": 0} | options)
    body = replace(body, isolation_level=isolation_level)
    frame = kafka.request_as(fetch.API.request_type(12), body)
    answer = await fetch.handle(frame, call(node, 12))
    return answer.responses[0].partitions[0]


def aborted(part: Any) -> list[tuple[int, int]]:
    return [
        (aborted_transaction.producer_id, aborted_transaction.first_offset)
        for aborted_transaction in part.aborted_transactions
    ]


# ---------------------------------------------------------------- idempotence


async def test_a_retried_batch_waits_for_its_original_offset(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    first = asyncio.create_task(send(one, batch(1, 0), acks=-1))
    # The client lost its connection and retries while the first request still waits for the ISR.
    again = asyncio.create_task(send(one, batch(1, 0), acks=-1))
    await asyncio.sleep(0)
    assert one.partition.next_offset == 1
    assert not first.done()
    assert not again.done()
    await replicate(one, two)
    results = await asyncio.gather(first, again)
    assert [(result.error, result.base_offset) for result in results] == [(ErrorCode.none, 0)] * 2


async def test_a_new_leader_detects_duplicates_of_replicated_batches(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    # Retries with the new leader return the offsets of the old one.
    for sequence in range(3):
        await send(one, batch(1, sequence))
    await replicate(one, two)
    await one.follow(2, 2)
    await two.lead(2)
    for sequence in range(3):
        result = await send(two, batch(1, sequence))
        assert (result.error, result.base_offset) == (ErrorCode.none, sequence)
    assert (await send(two, batch(1, 3))).base_offset == 3
    result = await send(two, batch(1, 5))
    assert result.error is ErrorCode.out_of_order_sequence_number
    assert two.partition.next_offset == 4


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch(1, 2), ErrorCode.out_of_order_sequence_number),
        (batch(1, 1, epoch=1), ErrorCode.out_of_order_sequence_number),
        (batch(2, 0, epoch=3), ErrorCode.invalid_producer_epoch),
    ],
    ids=["a gap", "a new epoch", "an old epoch"],
)
async def test_gaps_and_old_epochs_of_a_producer_are_rejected(
    pair: tuple[ReplicaNode, ReplicaNode], data: bytes, error: ErrorCode
) -> None:
    one, _ = pair
    await send(one, batch(1, 0))
    await send(one, batch(2, 0, epoch=4))
    assert (await send(one, data)).error is error


async def test_an_unverified_transaction_is_rejected(pair: tuple[ReplicaNode, ReplicaNode]) -> None:
    data = batch(1, 0, transactional=True)
    result = await produce.append(pair[0].partition, data, acks=1, timeout_ms=0)
    assert result.error is ErrorCode.invalid_txn_state


async def test_an_idle_producer_expires(pair: tuple[ReplicaNode, ReplicaNode]) -> None:
    one, _ = pair
    await send(one, batch(1, 0))
    for idle_ms in (0, 1):  # it has written before the first check
        await one.upkeep.expire_producers(idle_ms)
    assert len(one.partition.log.producers) == 1
    await one.upkeep.expire_producers(0)
    assert len(one.partition.log.producers) == 0
    assert (await send(one, batch(1, 9))).error is ErrorCode.none


# ---------------------------------------------------------------- read_committed


async def test_an_open_transaction_is_not_read(pair: tuple[ReplicaNode, ReplicaNode]) -> None:
    one, two = pair
    await one.append(1)
    await send(one, batch(1, 0, transactional=True))
    await one.append(1)
    await replicate(one, two)
    # Three records are committed by replication, but the transaction at offset 1 is open.
    part = await fetch_partition(one)
    assert (part.high_watermark, part.last_stable_offset) == (3, 1)
    assert len(part.records) < len((await fetch_partition(one, isolation_level=0)).records)
    assert aborted(part) == []
    assert (await fetch_partition(one, isolation_level=0)).aborted_transactions is None
    assert (await fetch_partition(one, 1)).records == b""
    # ListOffsets answers with the last stable offset for read_committed, else the high watermark.
    found = await consumer_reads.list_offset(
        one.partition, consumer_reads.LATEST, read_committed=True
    )
    assert found.offset == 1
    assert (await consumer_reads.list_offset(one.partition, consumer_reads.LATEST)).offset == 3


async def test_a_waiting_fetch_reads_a_transaction_once_its_marker_is_committed(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    await send(one, batch(1, 0, transactional=True))
    await replicate(one, two)
    waiting = asyncio.create_task(fetch_partition(one, wait_ms=10_000))
    await asyncio.sleep(0)
    await send(one, batch(9, 0))
    await replicate(one, two)  # more records are committed, but they are not stable
    assert not waiting.done()
    # The marker is appended, but the follower has not replicated it yet.
    marker = asyncio.create_task(finish(one, 1, commit=True, timeout_ms=10_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    await replicate(one, two)
    assert (await marker).error is ErrorCode.none
    part = await waiting
    assert (part.last_stable_offset, aborted(part)) == (3, [])
    assert part.records


async def test_aborted_transactions_are_returned_with_the_records(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    await send(one, batch(1, 0, transactional=True))
    await send(one, batch(2, 0, transactional=True))
    await finish(one, 1, commit=False)
    await finish(one, 2, commit=True)
    await send(one, batch(1, 1, transactional=True))
    await finish(one, 1, commit=False)
    await replicate(one, two)
    # Two transactions of producer 1 were aborted, at 0 and 4. A fetch gets those that overlap its
    # records.
    assert aborted(await fetch_partition(one)) == [(1, 0), (1, 4)]
    assert aborted(await fetch_partition(one, 3)) == [(1, 4)]
    one_batch = await fetch_partition(one, partition_max_bytes=1)
    assert aborted(one_batch) == [(1, 0)]
    assert reading.aborted_transactions(two.partition.log, 0, 6) == (
        reading.aborted_transactions(one.partition.log, 0, 6)
    )


async def test_many_aborted_transactions_are_collected_in_a_thread(
    pair: tuple[ReplicaNode, ReplicaNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    monkeypatch.setattr(consumer_reads, "_ABORTED_MAX", 1)
    for number in range(3):
        await send(one, batch(1, number, transactional=True))
        await finish(one, 1, commit=False)
    await replicate(one, two)
    assert aborted(await fetch_partition(one)) == [(1, 0), (1, 2), (1, 4)]
    # The thread reads the records too, so the event loop does not read them in vain.
    with counted_calls("tidemark_broker") as calls:
        found = consumer_reads.fetch(
            one.partition, 0, max_bytes=1 << 20, min_one=True, read_committed=True
        )
    assert found.from_disk is not None
    assert not calls["read_cached"]


async def test_an_open_transaction_stays_unstable_under_a_new_leader(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    await send(one, batch(1, 0, transactional=True))
    await replicate(one, two)
    await one.follow(2, 2)
    await two.lead(2)
    await replicate(two, one)
    assert two.partition.log.last_stable_offset == 0
    assert two.partition.high_watermark == 1
    await finish(two, 1, commit=False)
    await replicate(two, one)
    assert two.partition.log.last_stable_offset == 2


# ---------------------------------------------------------------- DescribeProducers


async def test_the_producers_of_a_partition_are_described(
    pair: tuple[ReplicaNode, ReplicaNode],
) -> None:
    one, two = pair
    await send(one, batch(1, 0))
    # A marker alone creates a producer entry: no sequence number yet.
    await finish(one, 2, commit=True, epoch=4)
    await send(one, batch(2, 0, epoch=4, transactional=True))
    request: Any = transaction_admin.DescribeProducersRequest
    topic: Any = request.__dataclass_fields__["topics"].type.__args__[0]
    body = request(topics=(topic(name=TOPIC, partition_indexes=(0, 7)),))
    [topic_response] = (await transaction_admin.describe_producers(body, call(one, 0))).topics
    first, absent = topic_response.partitions
    assert absent.error_code is ErrorCode.unknown_topic_or_partition
    assert [
        (producer.producer_id, producer.producer_epoch, producer.last_sequence,
         producer.coordinator_epoch, producer.current_txn_start_offset)
        for producer in first.active_producers
    ] == [(1, 0, 0, -1, -1), (2, 4, 0, 3, 2)]  # fmt: skip
    # A follower answers from its own knowledge, as in Kafka: kafka-transactions.sh find-hanging
    # queries a broker for all of its replicas, and gives up at the first that is missing.
    await replicate(one, two)
    [followers] = (await transaction_admin.describe_producers(body, call(two, 0))).topics
    assert followers.partitions[0] == first
