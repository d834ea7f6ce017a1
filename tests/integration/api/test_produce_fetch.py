"""Produce and Fetch in every version, on a real log, over a real socket."""

import asyncio
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.api.api_broker import NODE, ApiBroker, running
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import CRC_COVERS_FROM, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records
from tidemark.wire.connection import ConnectionClosed
from tidemark_broker.replication.threads import in_record_thread

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)


async def _produce(broker: ApiBroker, version: int, *args: Any, **values: Any) -> list[Any]:
    answer = await broker.ask(
        kafka.produce(version, *args, **values), kafka.answer_type(0, version)
    )
    return list(answer.responses[0].partition_responses)


async def _fetch(broker: ApiBroker, version: int, *args: Any, **values: Any) -> list[Any]:
    answer = await broker.ask(kafka.fetch(version, *args, **values), kafka.answer_type(1, version))
    return list(answer.responses[0].partitions)


def _values(records: bytes | None) -> list[bytes | None]:
    """Record values of whole batches (bytes from offset 0 on)."""
    values: list[bytes | None] = []
    position = 0
    data = records or b""
    while position < len(data):
        # Bytes 8 to 12 of a batch are its length, without the 12 bytes up to there.
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        values += [record.value for record in decode_records(data[position : position + size])]
        position += size
    return values


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
async def test_produce_in_every_version(broker: ApiBroker, version: int, acks: int) -> None:
    topic_id = await broker.create("t", partitions=2)
    records = (kafka.batch(b"a", b"b"), kafka.batch(b"c"))
    first = await _produce(broker, version, "t", *records, acks=acks, topic_id=topic_id)
    second = await _produce(broker, version, "t", kafka.batch(b"d"), acks=acks, topic_id=topic_id)
    assert [(p.index, p.error_code, p.base_offset) for p in first] == [
        (0, ErrorCode.none, 0),
        (1, ErrorCode.none, 0),
    ]
    assert second[0].base_offset == 2
    # Only CreateTime is used: there is no append time.
    assert second[0].log_append_time is None
    (read,) = await _fetch(broker, 4, "t", 0)
    assert _values(read.records) == [b"a", b"b", b"d"]


@pytest.mark.parametrize(("version", "served"), [(6, False), (7, True)])
async def test_zstd_needs_a_recent_produce_version(
    broker: ApiBroker, version: int, served: bool
) -> None:
    await broker.create("t")
    sent = build_batch([Record(None, b"a", (), int(time.time() * 1000))], codec=4)
    (result,) = await _produce(broker, version, "t", sent)
    # zstd needs Produce version 7 and Fetch version 10 (KIP-110).
    refusal = ErrorCode.unsupported_compression_type
    assert result.error_code is (ErrorCode.none if served else refusal)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_fetch_in_every_version(broker: ApiBroker, version: int) -> None:
    topic_id = await broker.create("t")
    sent = kafka.batch(b"a", b"b")
    await _produce(broker, 9, "t", sent)
    answer = await broker.ask(
        kafka.fetch(version, "t", 0, topic_id=topic_id), kafka.answer_type(1, version)
    )
    (topic,) = answer.responses
    assert (topic.topic_id == topic_id) if version >= 13 else (topic.topic == "t")
    # Bytes 0 to 16 are offset, length and leader epoch, which the broker fills in.
    (part,) = topic.partitions
    assert part.error_code is ErrorCode.none
    assert part.high_watermark == part.last_stable_offset == 2
    # what was sent, with offset and leader epoch filled in and nothing else touched
    assert part.records[16:] == sent[16:]
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)


async def test_large_batch_keeps_its_bytes(broker: ApiBroker) -> None:
    await broker.create("t", config={"max.message.bytes": str(8 << 20)})
    sent = kafka.batch(bytes(range(256)) * 16_000)
    (result,) = await _produce(broker, 9, "t", sent)
    assert result.error_code is ErrorCode.none
    (small, *_) = await _fetch(broker, 12, "t", 0, partition_max_bytes=100, max_bytes=100)
    assert small.records[16:] == sent[16:]  # the first batch comes whole (KIP-74)


async def test_acks_0_has_no_answer_and_an_error_ends_the_connection(broker: ApiBroker) -> None:
    await broker.create("t")
    unanswered = asyncio.create_task(
        broker.ask(kafka.produce(9, "t", kafka.batch(b"a"), acks=0), kafka.answer_type(0, 9))
    )
    (read,) = await _fetch_other(broker, "t", 0, wait_ms=5000)
    # A fetch on another connection proves that the record was appended.
    assert _values(read.records) == [b"a"]
    assert not unanswered.done()
    unanswered.cancel()
    other = await broker.connect()
    with pytest.raises(ConnectionClosed):
        # acks=0 has no response, so an error ends the connection.
        await other.request(
            kafka.produce(9, "nope", kafka.batch(b"a"), acks=0), kafka.answer_type(0, 9), 5
        )
    await other.close()


@pytest.mark.parametrize("acks", [-1, 1, 0])
async def test_batch_validation_delays_no_other_partition(broker: ApiBroker, acks: int) -> None:
    """The order of one client's records is preserved in each partition, request by request."""
    await broker.create("t", partitions=2)
    now_ms = int(time.time() * 1000)
    # Records without timestamps have to be rewritten, which takes a record thread.
    odd = build_batch([Record(None, b"odd", (), -1)] * 9)
    x, first, second = (
        build_batch([Record(None, value, (), now_ms)]) for value in (b"x", b"first", b"second")
    )
    over = threading.Event()
    # Both record threads are busy, so the odd batch has to wait.
    busy = [asyncio.ensure_future(in_record_thread(over.wait)) for _ in range(2)]
    requests = [
        kafka.produce(9, "t", odd, first, acks=acks),
        kafka.produce(9, "t", x, second, acks=acks),
    ]
    sent = [
        asyncio.ensure_future(broker.ask(request, kafka.answer_type(0, 9))) for request in requests
    ]
    try:
        # Partition 1 of the first request is appended in the meantime.
        reads = await _fetch_other(broker, "t", 0, 0, wait_ms=5000)
    finally:
        over.set()
        await asyncio.gather(*busy)
    assert _values(reads[1].records)[:1] == [b"first"]
    # Then the odd batch, before the second request's record of the same partition.
    await _fetch_other(broker, "t", 9, wait_ms=5000)
    reads = await _fetch_other(broker, "t", 0, 0)
    assert [_values(read.records) for read in reads] == [
        [b"odd"] * 9 + [b"x"],
        [b"first", b"second"],
    ]
    for item in sent:
        item.cancel()
    await asyncio.gather(*sent, return_exceptions=True)


async def _fetch_other(broker: ApiBroker, topic: str, *offsets: int, **values: Any) -> list[Any]:
    """Over a connection of its own."""
    other = await broker.connect()
    answer: Any = await other.request(
        kafka.fetch(12, topic, *offsets, **values), kafka.answer_type(1, 12), 10
    )
    await other.close()
    return list(answer.responses[0].partitions)


async def test_produce_errors(broker: ApiBroker) -> None:
    await broker.create("t", config={"max.message.bytes": "1000"})
    await broker.create("away", replicas=(2,), leader=2)
    good = kafka.batch(b"x")
    spoilt = good[:-1] + bytes([good[-1] ^ 1])
    # Byte 16 is the magic: version 1 is refused (KIP-724).
    old = good[:16] + b"\x01" + good[17:]
    cases: list[tuple[str, Any, int, ErrorCode]] = [
        ("nope", good, -1, ErrorCode.unknown_topic_or_partition),
        ("away", good, -1, ErrorCode.not_leader_or_follower),
        ("t", spoilt, -1, ErrorCode.corrupt_message),
        ("t", good[:-5], -1, ErrorCode.invalid_record),
        ("t", b"", -1, ErrorCode.invalid_record),
        ("t", None, -1, ErrorCode.invalid_record),
        ("t", good + good, -1, ErrorCode.invalid_record),
        ("t", old, -1, ErrorCode.invalid_record),
        ("t", kafka.batch(bytes(2000)), -1, ErrorCode.message_too_large),
        ("t", good, 2, ErrorCode.invalid_required_acks),
        ("t", good, -1, ErrorCode.none),
    ]
    for topic, records, acks, error in cases:
        (result,) = await _produce(broker, 9, topic, records, acks=acks)
        assert result.error_code is error, (topic, acks, error)
        assert result.base_offset == (0 if error is ErrorCode.none else -1)
    (result,) = await _produce(broker, 9, "t", good, transactional_id="tx")
    assert result.error_code is ErrorCode.none  # the batch is in no transaction
    # A transactional batch needs a transactional id in the request.
    good_of_one = build_batch(
        [Record(b"k", b"v", (), 1)], producer_id=1, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip
    (result,) = await _produce(broker, 9, "t", good_of_one)
    assert result.error_code is ErrorCode.transactional_id_authorization_failed


async def test_produce_by_topic_id(broker: ApiBroker) -> None:
    topic_id = await broker.create("t")
    (taken,) = await _produce(broker, 13, "", kafka.batch(b"x"), topic_id=topic_id)
    assert (taken.error_code, taken.base_offset) == (ErrorCode.none, 0)
    for unknown in (uuid.uuid4(), None):
        (refused,) = await _produce(broker, 13, "", kafka.batch(b"x"), topic_id=unknown)
        assert refused.error_code is ErrorCode.unknown_topic_id


async def test_faulty_records_are_named(broker: ApiBroker) -> None:
    await broker.create("t", config={"cleanup.policy": "compact"})
    (refused,) = await _produce(broker, 9, "t", kafka.batch(b"a", b"b"))
    assert (refused.error_code, refused.base_offset) == (ErrorCode.invalid_record, -1)
    assert refused.log_start_offset == 0
    assert [record_error.batch_index for record_error in refused.record_errors] == [0, 1]
    (older,) = await _produce(broker, 7, "t", kafka.batch(b"a"))
    assert older.error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("count", [1, 100])
async def test_unreadable_records_are_refused(broker: ApiBroker, count: int) -> None:
    """The CRC is valid, but the records are unreadable: a consumer would stop there."""
    await broker.create("t")
    # Records whose CRC is right, but whose value's length is wrong.
    good = kafka.batch(*[b"x" * 20] * count)
    poison = bytearray(good)
    poison[-22] = 0x7E  # the length of the last value
    crc = compute_crc(poison, CRC_COVERS_FROM, len(poison))
    poison[17:21] = crc.to_bytes(4, "big")
    (refused,) = await _produce(broker, 9, "t", bytes(poison))
    assert refused.error_code is ErrorCode.invalid_record
    (taken,) = await _produce(broker, 9, "t", good)
    assert (taken.error_code, taken.base_offset) == (ErrorCode.none, 0)


async def test_refusal_names_the_current_leader(broker: ApiBroker) -> None:
    await broker.create("away", replicas=(2,), leader=2, leader_epoch=7)
    answer: Any = await broker.ask(
        kafka.produce(10, "away", kafka.batch(b"x")), kafka.answer_type(0, 10)
    )
    (part,) = answer.responses[0].partition_responses
    # KIP-951: the response names the new leader and its address.
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (2, 7)
    assert [(node.node_id, node.port) for node in answer.node_endpoints] == [(2, 9)]
    topic_id = broker.manager.metadata.topics["away"].topic_id
    fetched: Any = await broker.ask(
        kafka.fetch(16, "away", 0, topic_id=topic_id), kafka.answer_type(1, 16)
    )
    (read,) = fetched.responses[0].partitions
    assert read.error_code is ErrorCode.not_leader_or_follower
    assert (read.current_leader.leader_id, read.current_leader.leader_epoch) == (2, 7)
    assert [node.node_id for node in fetched.node_endpoints] == [2]


async def test_appends_of_one_connection_keep_their_order(broker: ApiBroker) -> None:
    await broker.create("t", partitions=2)
    requests = [
        broker.ask(
            # Different sizes on both partitions must not change the order of one of them.
            kafka.produce(9, "t", *[kafka.batch(b"%d" % number)] * (1 + number % 2), acks=-1),
            kafka.answer_type(0, 9),
        )
        for number in range(40)
    ]
    await asyncio.gather(*requests)
    (read,) = await _fetch(broker, 12, "t", 0)
    assert _values(read.records) == [b"%d" % number for number in range(40)]


async def test_waiting_fetch_returns_with_the_first_records(broker: ApiBroker) -> None:
    await broker.create("t")
    started = time.monotonic()
    waiting = asyncio.create_task(_fetch_other(broker, "t", 0, wait_ms=30_000))
    while not broker.purgatory.size:  # noqa: ASYNC110 - until the fetch has arrived
        await asyncio.sleep(0.001)
    await _produce(broker, 9, "t", kafka.batch(b"a"))
    (read,) = await waiting
    assert _values(read.records) == [b"a"]
    assert time.monotonic() - started < 10
    # The woken fetch left purgatory.
    assert broker.purgatory.size == 0


async def test_fetch_below_min_bytes_answers_after_max_wait(broker: ApiBroker) -> None:
    await broker.create("t")
    await _produce(broker, 9, "t", kafka.batch(b"a"))
    started = time.monotonic()
    (read,) = await _fetch(broker, 12, "t", 0, wait_ms=100, min_bytes=1 << 20)
    assert _values(read.records) == [b"a"]
    # The full wait of 100 ms, less a clock's tolerance.
    assert time.monotonic() - started >= 0.09
    (empty,) = await _fetch(broker, 12, "t", 1, wait_ms=50)
    assert (empty.error_code, empty.records) == (ErrorCode.none, b"")


async def test_fetch_waits_for_min_bytes(broker: ApiBroker) -> None:
    await broker.create("t", partitions=2)
    requests = kafka.fetch(12, "t", 0, 0, wait_ms=30_000, min_bytes=4000)
    other = await broker.connect()
    waiting = asyncio.create_task(other.request(requests, kafka.answer_type(1, 12), 30))
    # The sum over both partitions counts for min_bytes.
    for number in range(3):
        assert not waiting.done()
        records = [kafka.batch(bytes(1000))] * (1 + number % 2)
        await _produce(broker, 9, "t", *records)
    answer: Any = await asyncio.wait_for(waiting, 5)
    parts = answer.responses[0].partitions
    assert sum(len(part.records) for part in parts) > 4000
    await other.close()


async def test_waiting_fetch_ends_with_a_new_leader(broker: ApiBroker) -> None:
    topic_id = await broker.create("t", replicas=(NODE, 2))
    part = {"current_leader_epoch": 0}
    waiting = asyncio.create_task(_fetch_other(broker, "t", 0, wait_ms=30_000, part=part))
    while not broker.purgatory.size:  # noqa: ASYNC110 - until the fetch has arrived
        await asyncio.sleep(0.001)
    await broker.create("t", replicas=(NODE, 2), leader=2, topic_id=topic_id, leader_epoch=1)
    (read,) = await asyncio.wait_for(waiting, 5)
    # The epoch in the request is now outdated.
    assert read.error_code is ErrorCode.fenced_leader_epoch


async def test_max_bytes_is_shared_by_the_partitions(broker: ApiBroker) -> None:
    await broker.create("t", partitions=3)
    one = kafka.batch(bytes(1000))
    for _ in range(4):
        await _produce(broker, 9, "t", one, one, one)
    parts = await _fetch(broker, 12, "t", 0, 0, 0, max_bytes=2 * len(one) + 10)
    # The first partition fills the response; the others get nothing.
    assert [len(part.records) for part in parts] == [2 * len(one), 0, 0]
    parts = await _fetch(broker, 12, "t", 0, 0, 0, partition_max_bytes=len(one))
    assert [len(part.records) for part in parts] == [len(one)] * 3


async def test_fetch_errors(broker: ApiBroker) -> None:
    await broker.create("t", leader_epoch=5)
    await _produce(broker, 9, "t", kafka.batch(b"a"))
    (read,) = await _fetch(broker, 12, "nope", 0)
    assert read.error_code is ErrorCode.unknown_topic_or_partition
    (read,) = await _fetch(broker, 12, "t", 2)
    assert read.error_code is ErrorCode.offset_out_of_range
    (read,) = await _fetch(broker, 12, "t", 0, part={"current_leader_epoch": 4})
    assert read.error_code is ErrorCode.fenced_leader_epoch
    (read,) = await _fetch(broker, 12, "t", 0, part={"current_leader_epoch": 6})
    assert read.error_code is ErrorCode.unknown_leader_epoch
    (read,) = await _fetch(broker, 13, "", 0, topic_id=uuid.uuid4())
    assert read.error_code is ErrorCode.unknown_topic_id
    # Sessions and replica ids that a client must not use.
    refused: tuple[tuple[dict[str, Any], ErrorCode], ...] = (
        ({"session_id": 9, "session_epoch": 3}, ErrorCode.fetch_session_id_not_found),
        ({"session_epoch": 3}, ErrorCode.fetch_session_id_not_found),
        ({"replica_id": 2}, ErrorCode.invalid_request),
    )
    for values, error in refused:
        answer: Any = await broker.ask(kafka.fetch(12, "t", 0, **values), kafka.answer_type(1, 12))
        assert answer.error_code is error


async def test_diverging_consumer_receives_the_end_of_its_epoch(broker: ApiBroker) -> None:
    topic_id = await broker.create("t", leader_epoch=1)
    await _produce(broker, 9, "t", kafka.batch(b"a", b"b"))
    await broker.create("t", topic_id=topic_id, leader_epoch=3)
    await _produce(broker, 9, "t", kafka.batch(b"c", b"d"))
    # The fetch position is behind what epoch 1 has in the leader's log (KIP-595).
    part = {"current_leader_epoch": 3, "last_fetched_epoch": 1}
    (read,) = await _fetch(broker, 12, "t", 3, part=part)
    assert (read.diverging_epoch.epoch, read.diverging_epoch.end_offset) == (1, 2)
    assert read.records == b""


async def test_read_committed_gets_a_list_of_aborted_transactions(broker: ApiBroker) -> None:
    await broker.create("t")
    (read,) = await _fetch(broker, 12, "t", 0)
    # null for read_uncommitted, an empty list for read_committed.
    assert read.aborted_transactions is None
    (read,) = await _fetch(broker, 12, "t", 0, isolation_level=1)
    assert read.aborted_transactions == ()


async def test_broker_limits_a_fetch_by_fetch_max_bytes(tmp_path: Path) -> None:
    async with running(tmp_path / "log", {"fetch.max.bytes": "3000"}) as broker:
        await broker.create("t", partitions=2)
        one = kafka.batch(bytes(1000))
        for _ in range(4):
            await _produce(broker, 9, "t", one, one)
        parts = await _fetch(broker, 12, "t", 0, 0)
        # The broker's limit applies although the client allows more.
        assert sum(len(part.records) for part in parts) <= 3000


async def test_records_outside_the_page_cache_are_read_in_a_thread(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small segments: the first records are not in the page cache's reach of the active one.
    await broker.create("t", partitions=2, config={"segment.bytes": "500"})
    for number in range(20):
        await _produce(broker, 9, "t", *[kafka.batch(b"%d-%d" % (p, number)) for p in range(2)])
    readers, real = set[int](), os.pread

    def watching(*args: int) -> bytes:
        readers.add(threading.get_ident())
        return real(*args)

    # preadv with RWF_NOWAIT fails, as for data that is not in memory.
    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "pread", watching)
    monkeypatch.setattr(os, "preadv", refuse)
    answers = await _fetch(broker, 12, "t", 0, 3, partition_max_bytes=300)
    assert [part.error_code for part in answers] == [ErrorCode.none] * 2
    first = [_values(part.records) for part in answers]
    assert first[0] == [b"0-%d" % number for number in range(len(first[0]))]
    assert first[1] == [b"1-%d" % number for number in range(3, 3 + len(first[1]))]
    assert all(first)
    # The reads happened in other threads.
    assert readers
    assert threading.get_ident() not in readers
    (tail,) = await _fetch(broker, 12, "t", 19)
    assert _values(tail.records) == [b"0-19"]
    # The newest segment is read without a thread.
    assert threading.get_ident() in readers
