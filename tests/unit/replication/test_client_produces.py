"""Produce requests of clients, handled over real replicas. The tests cover topics by name and by
id, the index of the invalid record, and records that are rejected although the header is valid."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import T0, TOPIC, TOPIC_ID, ReplicaNode, row
from tidemark.records.batch import CRC_COVERS_FROM, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode_response, encode_request, encode_response_pieces
from tidemark_broker.api.client import Client
from tidemark_broker.api.records import produce
from tidemark_broker.api.serving.dispatcher import Dispatcher
from tidemark_broker.api.table import Call
from tidemark_broker.log import FIRST_BATCHES, LogConfig, is_sampled
from tidemark_broker.replication.partition import isr_and_high_watermark
from tidemark_broker.replication.threads import in_record_thread
from tidemark_broker.tasks import Deferred

Nodes = Callable[[int], ReplicaNode]


class ProducerConnection:
    """One connection to a broker."""

    def __init__(self, node: ReplicaNode) -> None:
        self.shared = services(
            node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
        )
        self.client = Client("10.0.0.1:1", "PLAINTEXT")

    async def send(
        self, *records: bytes | None, version: int = 9, topic: str = TOPIC, topic_id: Any = TOPIC_ID
    ) -> Any:
        """Send the records in one request. Return the response's partitions as a client decodes
        them."""
        body = kafka.produce(
            version, topic, *records, acks=1, topic_id=topic_id if version >= 13 else None
        )
        request = kafka.request_as(produce.API.request_type(version), body)
        call = Call(self.shared, version, self.client, room())
        answer = await produce.handle(request, call)
        # Encode and decode the response, as a client of this version does.
        frame = b"".join(encode_response_pieces(answer, 1, produce.API.answer_type(version)))
        _, read = decode_response(kafka.answer_type(0, version), frame[4:])
        (topic_response,) = read.responses
        assert (
            (topic_response.topic_id == topic_id)
            if version >= 13
            else (topic_response.name == topic)
        )
        return topic_response.partition_responses


@pytest.fixture
async def leader(node: Nodes) -> ReplicaNode:
    one = node(1)
    await one.receive(row(leader=1, leader_epoch=1, partition_epoch=1, isr=(1,)))
    return one


def records(*keys: bytes | None, value: bytes = b"value") -> bytes:
    return build_batch([Record(key, value, (), T0) for key in keys])


def poisoned(data: bytes) -> bytes:
    """Return the batch with a last value that exceeds its record, and a valid CRC."""
    poison = bytearray(data)
    poison[-7] = 0x7E
    poison[17:21] = compute_crc(poison, CRC_COVERS_FROM, len(poison)).to_bytes(4, "big")
    return bytes(poison)


async def test_a_small_batch_does_not_overtake_one_whose_records_are_read_in_a_thread(
    leader: ReplicaNode,
) -> None:
    connection = ProducerConnection(leader)
    dispatcher = Dispatcher(connection.shared)

    def begin(*keys: bytes) -> Any:
        request = kafka.produce(9, TOPIC, records(*keys), acks=1)
        return dispatcher.begin(encode_request(request, 1, "")[4:], room(), connection.client)

    large, small = begin(*[b"k"] * 9), begin(b"k")
    # Whichever of the two coroutines starts first.
    answers = await asyncio.gather(small, large)
    offsets = [
        decode_response(kafka.answer_type(0, 9), b"".join(pieces)[4:])[1]
        .responses[0]
        .partition_responses[0]
        .base_offset
        for pieces in answers
    ]
    assert offsets == [9, 0]
    # Nothing waits any more, so the next one is answered at once.
    assert isinstance(begin(b"k"), list)


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version_appends_and_rejects(leader: ReplicaNode, version: int) -> None:
    (part,) = await ProducerConnection(leader).send(records(b"k"), version=version)
    assert (part.error_code, part.base_offset) == (ErrorCode.none, 0)
    (refused,) = await ProducerConnection(leader).send(b"", version=version)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.invalid_record, -1)


@pytest.mark.parametrize("topic_id", [None, "00000000-0000-0000-0000-000000000005"])
async def test_an_unknown_topic_id_is_rejected(leader: ReplicaNode, topic_id: str | None) -> None:
    unknown = None if topic_id is None else type(TOPIC_ID)(topic_id)
    (part,) = await ProducerConnection(leader).send(
        records(b"k"), version=13, topic="", topic_id=unknown
    )
    assert part.error_code is ErrorCode.unknown_topic_id


# Up to 8 records are decoded on the event loop, more in a thread.
@pytest.mark.parametrize("count", [1, 9])
async def test_an_invalid_batch_is_rejected(leader: ReplicaNode, count: int) -> None:
    data = records(*[b"k"] * count)
    producer = ProducerConnection(leader)
    (refused,) = await producer.send(poisoned(data))
    assert refused.error_code is ErrorCode.invalid_record
    assert "cannot be read" in refused.error_message
    assert refused.log_start_offset == 0
    (taken,) = await producer.send(data)
    assert (taken.error_code, taken.base_offset) == (ErrorCode.none, 0)


async def test_early_batches_of_a_connection_are_inspected_and_later_ones_sampled(
    leader: ReplicaNode,
) -> None:
    # Every batch is invalid, so a rejected one was inspected and an accepted one was not.
    batches = [poisoned(records(*[b"k"] * 9, value=b"%05d" % n)) for n in range(400)]
    producer, unread = ProducerConnection(leader), 0
    for number, data in enumerate(batches):
        (part,) = await producer.send(data)
        refused = part.error_code is ErrorCode.invalid_record
        unread += not refused
        assert refused is is_sampled(data, is_early=number < FIRST_BATCHES), number
    assert 300 < unread < 400 - FIRST_BATCHES


async def test_optional_inspection_is_skipped_while_the_threads_are_busy(
    leader: ReplicaNode,
) -> None:
    """Inspection must not delay other clients' first batches. Small batches
    are always inspected."""
    over = threading.Event()
    # Occupy all threads that decode records, and fill their queue.
    busy = [asyncio.ensure_future(in_record_thread(over.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        producer = ProducerConnection(leader)
        (taken,) = await producer.send(poisoned(records(*[b"k"] * 9)))
        (refused,) = await producer.send(poisoned(records(b"k")))
    finally:
        over.set()
        await asyncio.gather(*busy)
    assert taken.error_code is ErrorCode.none
    assert refused.error_code is ErrorCode.invalid_record
    # With free threads the same batch is inspected and rejected.
    (refused,) = await producer.send(poisoned(records(*[b"k"] * 9)))
    assert refused.error_code is ErrorCode.invalid_record


async def test_a_compacted_topic_reports_each_record_without_a_key(leader: ReplicaNode) -> None:
    leader.partition.log.config = LogConfig.of({"cleanup.policy": "compact"})
    for keys, at_fault in (((b"k", None), [1]), ((None,) * 9, list(range(9)))):
        (part,) = await ProducerConnection(leader).send(records(*keys))
        assert part.error_code is ErrorCode.invalid_record
        assert [record_error.batch_index for record_error in part.record_errors] == at_fault
    (part,) = await ProducerConnection(leader).send(records(*[b"k"] * 9))
    assert part.error_code is ErrorCode.none


async def test_a_wrong_largest_timestamp_is_corrected(leader: ReplicaNode) -> None:
    # maxTimestamp is at byte 35 of the batch. Below the base timestamp it cannot be right, so the
    # leader computes it from the records.
    understated = bytearray(records(b"k", b"k"))
    understated[35:43] = (T0 - 1000).to_bytes(8, "big")
    understated[17:21] = compute_crc(understated, CRC_COVERS_FROM, len(understated)).to_bytes(
        4, "big"
    )
    (part,) = await ProducerConnection(leader).send(bytes(understated))
    assert part.error_code is ErrorCode.none
    assert leader.bytes()[35:43] == T0.to_bytes(8, "big")


async def test_a_produce_that_waits_for_replicas_is_answered_in_the_turn_of_the_commit(
    node: Nodes,
) -> None:
    one = node(1)
    await one.receive(row(leader=1, leader_epoch=1, partition_epoch=1, isr=(1, 2)))
    connection = ProducerConnection(one)

    def begun() -> Deferred[Any]:
        body = kafka.produce(9, TOPIC, records(b"k"), acks=-1, topic_id=None)
        request = kafka.request_as(produce.API.request_type(9), body)
        later = produce.begin(request, Call(connection.shared, 9, connection.client, room()))
        assert isinstance(later, Deferred)
        return later

    # A client that disconnects leaves nothing behind.
    begun().cancel()
    assert one.context.purgatory.size == 0
    answers: list[Any] = []
    begun().then(answers.append, pytest.fail)
    # The follower has both batches now.
    isr_and_high_watermark.follower_fetched(
        one.partition, 2, isr_and_high_watermark.FollowerFetch(2, 0, 0, 2, 2, one.now_s)
    )
    assert answers == []
    await asyncio.sleep(0)
    (answer,) = answers
    assert answer.responses[0].partition_responses[0].base_offset == 1
    assert one.context.purgatory.size == 0
