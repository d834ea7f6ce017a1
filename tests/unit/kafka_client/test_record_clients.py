"""Decisions of the record clients: a key's partition, and which fetched records are returned."""

import uuid

import pytest

from tidemark.kafka_client import topic_leaders
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.consumer import Fetched, RecordReader
from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.kafka_client.producer import murmur2
from tidemark.kafka_client.topic_leaders import TopicLeaders, UnknownTopic
from tidemark.kafka_client.values import EARLIEST
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker, build_end_marker


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        # As in UtilsTest.testMurmur2 of Apache Kafka.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hash_of_a_key_is_that_of_kafkas_clients(key: bytes, hash_: int) -> None:
    assert murmur2(key) == hash_ % 2**32


def reader(*, committed: bool = True) -> RecordReader:
    client = KafkaClient(KafkaAccess(()))
    return RecordReader(TopicLeaders(client, "orders"), committed=committed)


def batch(base_offset: int, count: int, **fields: int) -> bytes:
    records = [Record(None, b"%d" % (base_offset + at)) for at in range(count)]
    return build_batch(records, base_offset=base_offset, **fields)  # type: ignore[arg-type]


def offsets(of: RecordReader, data: bytes, aborted: tuple[tuple[int, int], ...] = ()) -> list[int]:
    fetched = Fetched(0, of.positions[0], data, aborted)
    return [record.offset for record in of.records(fetched)]


def test_records_below_the_position_and_from_the_end_on_are_left_out() -> None:
    of = reader()
    of.assign({0: 3}, {0: 7})
    assert offsets(of, batch(0, 5) + batch(5, 5)) == [3, 4, 5, 6]
    assert of.positions == {0: 7}
    assert of.unfinished == []


def test_position_follows_each_record_that_was_taken() -> None:
    of = reader()
    of.assign({0: 0})
    records = of.records(Fetched(0, 0, batch(0, 5), ()))
    next(records), next(records)
    assert of.positions == {0: 2}


def test_position_passes_gaps_and_markers() -> None:
    of = reader()
    of.assign({0: 0}, {0: 6})
    marker = bytearray(
        build_end_marker(EndMarker(True, 0), producer_id=1, producer_epoch=0, timestamp_ms=0)
    )
    marker[:8] = (5).to_bytes(8, "big")
    assert offsets(of, batch(0, 2) + bytes(marker)) == [0, 1]
    assert of.positions == {0: 6}
    assert of.unfinished == []


def test_aborted_records_are_read_only_uncommitted() -> None:
    data = batch(0, 2, producer_id=7, producer_epoch=0, is_transactional=True) + batch(2, 1)
    of = reader()
    of.assign({0: 0})
    assert offsets(of, data, ((7, 0),)) == [2]
    of = reader(committed=False)
    of.assign({0: 0})
    assert offsets(of, data) == [0, 1, 2]


def test_a_cut_batch_is_left_for_the_next_answer_and_a_damaged_one_is_refused() -> None:
    of = reader()
    of.assign({0: 0})
    whole = batch(0, 2)
    assert offsets(of, whole + batch(2, 2)[:-5]) == [0, 1]
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 1
    with pytest.raises(ClusterRefused, match="partition 0 of orders has a damaged batch"):
        offsets(of, bytes(damaged))


def test_an_unassigned_partition_returns_nothing() -> None:
    of = reader()
    of.assign({0: 0})
    fetched = Fetched(0, 0, batch(0, 2), ())
    of.unassign([0])
    assert list(of.records(fetched)) == []


async def test_a_partition_without_a_leader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_leaders, "PATIENCE_S", -1.0)
    leaders = TopicLeaders(KafkaClient(KafkaAccess(())), "orders")
    leaders.topic_id, leaders.of = uuid.uuid4(), {0: -1}
    with pytest.raises(Unreachable, match="partition 0 of orders has no leader"):
        await leaders.offsets({0: EARLIEST})


def test_a_missing_partition_is_named() -> None:
    leaders = TopicLeaders(KafkaClient(KafkaAccess(())), "orders")
    leaders.topic_id, leaders.of = uuid.uuid4(), {0: 1, 1: 2}
    leaders.check([0, 1])
    with pytest.raises(UnknownTopic, match="orders has no partition 2: its partitions are 0 to 1"):
        leaders.check([0, 2])
