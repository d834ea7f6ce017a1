"""Answers to a client's Produce by the handler over real replicas.

The tests cover topics by name and by id, the index of the faulty record, and records refused
although the header is right.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tests.unit.api import api_requests as kafka
from tests.unit.replication.replica_nodes import T0, TOPIC, TOPIC_ID, Node, row
from tidemark.records.batch import CRC_COVERS_FROM, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode_response, encode_response_pieces
from tidemark_broker.api import produce
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Call
from tidemark_broker.log import FIRST_BATCHES, LogConfig, is_sampled
from tidemark_broker.replication.threads import in_record_thread

Nodes = Callable[[int], Node]


class Producer:
    """One connection to a broker."""

    def __init__(self, node: Node) -> None:
        self.shared = services(
            node.context.metadata, replicas=node.manager, purgatory=node.context.purgatory
        )
        self.client = Client("10.0.0.1:1", "PLAINTEXT")

    async def send(
        self, *records: bytes | None, version: int = 9, topic: str = TOPIC, topic_id: Any = TOPIC_ID
    ) -> Any:
        """The answer's partitions, as a client reads them."""
        asked = kafka.produce(
            version, topic, *records, acks=1, topic_id=topic_id if version >= 13 else None
        )
        request = kafka.request_as(produce.API.request_type(version), asked)
        call = Call(self.shared, version, self.client, room())
        answer = await produce.handle(request, call)
        frame = b"".join(encode_response_pieces(answer, 1, produce.API.answer_type(version)))
        _, read = decode_response(kafka.answer_type(0, version), frame[4:])
        (told,) = read.responses
        assert (told.topic_id == topic_id) if version >= 13 else (told.name == topic)
        return told.partition_responses


@pytest.fixture
async def leader(node: Nodes) -> Node:
    one = node(1)
    await one.told(row(leader=1, leader_epoch=1, partition_epoch=1, isr=(1,)))
    return one


def records(*keys: bytes | None, value: bytes = b"value") -> bytes:
    return build_batch([Record(key, value, (), T0) for key in keys])


def poisoned(data: bytes) -> bytes:
    """The last value is longer than its record; the CRC is right."""
    whole = bytearray(data)
    whole[-7] = 0x7E
    whole[17:21] = compute_crc(whole, CRC_COVERS_FROM, len(whole)).to_bytes(4, "big")
    return bytes(whole)


@pytest.mark.parametrize("version", range(3, 14))
async def test_every_version(leader: Node, version: int) -> None:
    (part,) = await Producer(leader).send(records(b"k"), version=version)
    assert (part.error_code, part.base_offset) == (ErrorCode.none, 0)
    (refused,) = await Producer(leader).send(b"", version=version)
    assert (refused.error_code, refused.base_offset) == (ErrorCode.invalid_record, -1)


@pytest.mark.parametrize("topic_id", [None, "00000000-0000-0000-0000-000000000005"])
async def test_an_unknown_id(leader: Node, topic_id: str | None) -> None:
    unknown = None if topic_id is None else type(TOPIC_ID)(topic_id)
    (part,) = await Producer(leader).send(records(b"k"), version=13, topic="", topic_id=unknown)
    assert part.error_code is ErrorCode.unknown_topic_id


@pytest.mark.parametrize("count", [1, 9])
async def test_poison_is_refused(leader: Node, count: int) -> None:
    data = records(*[b"k"] * count)
    producer = Producer(leader)
    (refused,) = await producer.send(poisoned(data))
    assert refused.error_code is ErrorCode.invalid_record
    assert "cannot be read" in refused.error_message
    assert refused.log_start_offset == 0
    (taken,) = await producer.send(data)
    assert (taken.error_code, taken.base_offset) == (ErrorCode.none, 0)


async def test_which_batches_of_a_connection_are_read(leader: Node) -> None:
    """The first batches are read, and then one in each interval."""
    batches = [poisoned(records(*[b"k"] * 9, value=b"%05d" % n)) for n in range(400)]
    producer, unread = Producer(leader), 0
    for number, data in enumerate(batches):
        (part,) = await producer.send(data)
        refused = part.error_code is ErrorCode.invalid_record
        unread += not refused
        assert refused is is_sampled(data, is_early=number < FIRST_BATCHES), number
    assert 300 < unread < 400 - FIRST_BATCHES


async def test_nothing_is_read_on_suspicion_while_much_is_being_read(leader: Node) -> None:
    """Others' first batches are not held up; what must be read is."""
    over = threading.Event()
    busy = [asyncio.ensure_future(in_record_thread(over.wait)) for _ in range(40)]
    await asyncio.sleep(0)
    try:
        producer = Producer(leader)
        (taken,) = await producer.send(poisoned(records(*[b"k"] * 9)))
        (refused,) = await producer.send(poisoned(records(b"k")))
    finally:
        over.set()
        await asyncio.gather(*busy)
    assert taken.error_code is ErrorCode.none
    assert refused.error_code is ErrorCode.invalid_record
    (refused,) = await producer.send(poisoned(records(*[b"k"] * 9)))
    assert refused.error_code is ErrorCode.invalid_record


async def test_which_records_have_no_key(leader: Node) -> None:
    leader.partition.log.config = LogConfig.of({"cleanup.policy": "compact"})
    for keys, at_fault in (((b"k", None), [1]), ((None,) * 9, list(range(9)))):
        (part,) = await Producer(leader).send(records(*keys))
        assert part.error_code is ErrorCode.invalid_record
        assert [record_error.batch_index for record_error in part.record_errors] == at_fault
    (part,) = await Producer(leader).send(records(*[b"k"] * 9))
    assert part.error_code is ErrorCode.none


async def test_a_wrong_largest_timestamp_is_corrected(leader: Node) -> None:
    whole = bytearray(records(b"k", b"k"))
    whole[35:43] = (T0 - 1000).to_bytes(8, "big")
    whole[17:21] = compute_crc(whole, CRC_COVERS_FROM, len(whole)).to_bytes(4, "big")
    (part,) = await Producer(leader).send(bytes(whole))
    assert part.error_code is ErrorCode.none
    assert leader.bytes()[35:43] == T0.to_bytes(8, "big")
