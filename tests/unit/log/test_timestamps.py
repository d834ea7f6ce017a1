"""Timestamps of retention and look-ups equal those that Kafka computes, whatever a header says."""

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fuzz.batches import batch, sealed
from tidemark.records.batch import CRC_COVERS_FROM, check_crc, compute_crc, parse_header
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import compress
from tidemark_broker.log import (
    BatchContents,
    InvalidRecords,
    InvalidTimestamp,
    LogConfig,
    RecordsInDoubt,
    RecordTooLarge,
    TimestampOffset,
    batch_contents,
    batch_inspection,
    timestamp_lookup,
)

T0 = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
Bench = Any  # the LogBench of conftest.py


def _headed(data: bytes, *, largest: int, first: int | None = None, count: int = 0) -> bytes:
    """``data`` with other timestamps in its header (and a count), and the CRC that goes with it."""
    whole = bytearray(data)
    struct.pack_into(">q", whole, 35, largest)
    if first is not None:
        struct.pack_into(">q", whole, 27, first)
    if count:
        struct.pack_into(">i", whole, 23, count - 1)
        struct.pack_into(">i", whole, 57, count)
    struct.pack_into(">I", whole, 17, compute_crc(whole, CRC_COVERS_FROM, len(whole)))
    return bytes(whole)


def _batch(*times: int, codec: int = 0) -> bytes:
    return build_batch([Record(b"k", b"v", (), time) for time in times], codec=codec)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("largest", [-1, 0, T0 - 1, -(2**60), T0 + 2**50])
def test_a_largest_timestamp_that_cannot_be_right_is_computed_from_the_records(
    bench: Bench, codec: int, largest: int
) -> None:
    """Old Sarama leaves it at -1."""
    log = bench.create()
    sent = _headed(_batch(T0, T0 + 9, T0 + 5, codec=codec), largest=largest)
    with pytest.raises(RecordsInDoubt):
        log.append_as_leader(sent, leader_epoch=0, now_ms=T0)
    assert (log.next_offset, log.size_bytes) == (0, 0)
    assert bench.append(log, sent).max_timestamp_ms == T0 + 9
    stored = bench.read_all(log)
    header = parse_header(stored)
    check_crc(stored, 0, header)
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 9)
    assert stored[61:] == sent[61:]
    assert log.offset_by_timestamp(T0 + 6) == TimestampOffset(1, T0 + 9, 0)


def test_a_header_that_can_be_right_is_believed(bench: Bench) -> None:
    log = bench.create()
    log.append_as_leader(_batch(T0, T0 + 9), leader_epoch=0, now_ms=T0)
    log.append_as_leader(_batch(T0 - 6 * DAY_MS), leader_epoch=0, now_ms=T0)


def test_a_batch_that_retention_would_let_go_at_once_is_looked_into(bench: Bench) -> None:
    bench.config = LogConfig(retention_ms=7 * DAY_MS)
    log = bench.create()
    sent = _headed(_batch(1, T0), largest=1)
    assert bench.append(log, sent).max_timestamp_ms == T0
    log.advance_high_watermark(2)
    assert log.apply_retention(T0 + DAY_MS, tiered=None) == []
    log.config = LogConfig(retention_ms=-1)
    log.append_as_leader(_batch(1), leader_epoch=0, now_ms=T0)  # kept for ever: believed


@pytest.mark.parametrize("restarted", [True, False])
def test_records_without_timestamps_are_kept_from_when_they_came(
    bench: Bench, restarted: bool
) -> None:
    bench.config = LogConfig(retention_ms=DAY_MS)
    log = bench.create()
    created = log.segments()[0].modified_ms
    came = created + 2 * DAY_MS
    for _ in range(10):
        bench.append(log, _batch(-1, -1), now_ms=came)
    log.advance_high_watermark(20)
    if restarted:
        log.close()
        log = bench.open(recovery_point=20, clean_shutdown=True, high_watermark=20)
        came = log.segments()[0].modified_ms
    assert log.segments()[0].largest_timestamp_ms == -1
    assert log.apply_retention(came + DAY_MS, tiered=None) == []
    assert len(log.apply_retention(came + DAY_MS + 1, tiered=None)) == 1


def test_records_of_which_some_have_a_timestamp() -> None:
    assert batch_contents(_batch(-1, -1)) == BatchContents()
    assert batch_contents(_batch(-1, T0, -1)) == BatchContents(
        smallest_ms=T0, largest_ms=T0, smallest_at=1, largest_at=1
    )
    assert batch_contents(_batch(T0, 5, T0 + 3)) == BatchContents(
        smallest_ms=5, largest_ms=T0 + 3, smallest_at=1, largest_at=2
    )


def test_timestamps_that_are_not_allowed(bench: Bench) -> None:
    bench.config = LogConfig(message_timestamp_before_max_ms=1000)
    log = bench.create()
    for times in ((T0 - 1001, T0), (T0, T0 + 3_600_001), (T0, -5)):
        with pytest.raises(InvalidTimestamp):
            bench.append(log, _headed(_batch(*times), largest=-1))
    bench.append(log, _headed(_batch(T0 - 1000, -1, T0 + 3_600_000), largest=-1))


def test_times_before_1970_are_taken_as_kafka_takes_them(bench: Bench) -> None:
    """Only ``message.timestamp.before.max.ms`` forbids them; they count as no time at all."""
    log = bench.create()
    assert bench.append(log, _batch(-5)).max_timestamp_ms == -1
    assert bench.append(log, _batch(-5, 7)).max_timestamp_ms == 7


def test_log_append_time_needs_no_look(bench: Bench) -> None:
    bench.config = LogConfig.of({"message.timestamp.type": "LogAppendTime"})
    log = bench.create()
    sent = _headed(_batch(T0), largest=-1)
    assert log.append_as_leader(sent, leader_epoch=0, now_ms=T0 + 3).max_timestamp_ms == T0 + 3


@pytest.mark.parametrize("cut", [1, 30])
def test_records_that_cannot_be_read_are_refused(cut: int) -> None:
    whole = _batch(T0, T0)
    broken = bytearray(whole[:-cut])
    struct.pack_into(">i", broken, 8, len(broken) - 12)
    with pytest.raises(InvalidRecords):
        batch_contents(bytes(broken))


def _bomb(codec: int, value_bytes: int, *, largest: int = T0) -> bytes:
    """A small batch that unpacks to more than a broker looks into."""
    record = build_batch([Record(None, bytes(value_bytes), (), T0)])[61:]
    count = (
        min(batch_inspection.UNPACKED_BYTES_MAX // len(record), batch_inspection.RECORDS_MAX) + 1
    )
    payload = compress(codec, record * count)
    front = bytearray(_batch(T0, codec=codec)[:61])
    struct.pack_into(">i", front, 8, 61 - 12 + len(payload))
    return _headed(bytes(front) + payload, largest=largest, count=count)


@pytest.mark.parametrize("value_bytes", [0, 1000], ids=["records", "bytes"])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_unpacks_to_too_much_is_not_unpacked(
    bench: Bench, codec: int, value_bytes: int
) -> None:
    bench.config = LogConfig(retention_ms=-1)
    log = bench.create()
    bomb = _bomb(codec, value_bytes)
    assert len(bomb) < 1_000_000
    bench.fill(log, [1])
    log.append_as_leader(bomb, leader_epoch=0, now_ms=T0)
    assert log.offset_by_timestamp(T0 - 1) == TimestampOffset(0, T0, 0)
    assert log.offset_by_timestamp(T0) == TimestampOffset(0, T0, 0)
    log.raise_log_start(log.high_watermark)
    log.advance_high_watermark(log.next_offset)
    log.raise_log_start(3)
    assert log.offset_by_timestamp(T0) == TimestampOffset(3, T0, 0)
    with pytest.raises(RecordTooLarge, match="unpacks to more than"):
        bench.append(log, _bomb(codec, value_bytes, largest=-1))


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offset of each record that a look-up looks at from now on."""
    seen: list[int] = []
    real = timestamp_lookup.decode_timestamps

    def counting(*args: Any, **kwargs: Any) -> Iterator[tuple[int, int]]:
        for offset, time_ms in real(*args, **kwargs):
            seen.append(offset)
            yield offset, time_ms

    monkeypatch.setattr(timestamp_lookup, "decode_timestamps", counting)
    return seen


@pytest.mark.parametrize("value_bytes", [0, 4000], ids=["records", "bytes"])
def test_a_look_up_unpacks_no_more_of_many_batches_than_of_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, value_bytes: int
) -> None:
    """Their headers say, within what is allowed, that something newer is in them. Nothing is."""
    bench.config = LogConfig(retention_ms=-1, segment_bytes=100_000)
    log = bench.create()
    record = build_batch([Record(None, bytes(value_bytes), (), T0)])[61:]
    count = 1000 if value_bytes else batch_inspection.RECORDS_MAX // 4 - 1
    payload = compress(4, record * count)
    front = bytearray(_batch(T0, codec=4)[:61])
    struct.pack_into(">i", front, 8, 61 - 12 + len(payload))
    liar = _headed(bytes(front) + payload, largest=T0 + 1000, count=count)
    for _ in range(10):
        log.append_as_leader(liar, leader_epoch=0, now_ms=T0)
    seen = _counted(monkeypatch)
    found = log.offset_by_timestamp(T0 + 1)
    assert len(seen) == 4 * count
    assert found == TimestampOffset(4 * count, T0 + 1000, 0)


def test_a_look_up_walks_no_longer_for_a_header_that_is_wrong(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look-up starts early in that case, never late."""
    monkeypatch.setattr(batch_inspection, "RECORDS_MAX", 50)
    bench.config = LogConfig(segment_bytes=100_000)
    log = bench.create()
    log.append_as_leader(_headed(_batch(T0), largest=T0 + 1000), leader_epoch=0, now_ms=T0)
    bench.fill(log, [1] * 100)
    assert log.offset_by_timestamp(T0 + 1001) is None
    assert log.offset_by_timestamp(T0 + 995) == TimestampOffset(49, T0 + 490, 0)


UNREADABLE = {
    "no record": b"\x00" * 50,
    "a record that does not end": b"\x80" * 50,
    "another offset": b"\x0e\x00\x00\xfe\xff\xff\xff\x0f\x01\x01\x00" + bytes(40),
}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("codec", [0, 4])
def test_unreadable_records_do_not_prevent_look_ups(
    bench: Bench, payload: bytes, codec: int
) -> None:
    """A header that can be right was believed when they were appended."""
    log = bench.create()
    log.append_as_leader(_batch(T0 - 50), leader_epoch=0, now_ms=T0)
    log.append_as_leader(batch(payload, 3, codec=codec), leader_epoch=0, now_ms=T0)
    log.append_as_leader(_batch(T0 + 50), leader_epoch=0, now_ms=T0)
    assert log.offset_by_timestamp(T0) == TimestampOffset(1, T0, 0)
    assert log.offset_by_timestamp(T0 + 1) == TimestampOffset(4, T0 + 50, 0)
    with pytest.raises(InvalidRecords):
        bench.append(log, _headed(batch(payload, 3, codec=codec), largest=-1))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_block_that_cannot_be_unpacked_does_not_prevent_look_ups(
    bench: Bench, codec: int
) -> None:
    log = bench.create()
    made = bytearray(batch(b"x" * 500, 1, codec=codec))
    made[61:] = made[61:][:-9] + b"nonsense!"
    log.append_as_leader(sealed(made), leader_epoch=0, now_ms=T0)
    assert log.offset_by_timestamp(T0) == TimestampOffset(0, T0, 0)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_count_that_an_older_leader_let_pass_costs_nothing(bench: Bench, codec: int) -> None:
    """2^31 - 1 records of 7 bytes, of which three are there."""
    log = bench.create()
    three = build_batch([Record(None, b"", (), T0)] * 3)[61:]
    log.append_as_follower(batch(three, 2**31 - 1, codec=codec))
    tracemalloc.start()
    assert log.offset_by_timestamp(T0) == TimestampOffset(0, T0, -1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("mebibytes", [17, 64])
def test_what_a_bomb_costs_does_not_grow_with_it(codec: int, mebibytes: int) -> None:
    """Beyond the limit: twice that, for the buffers it is unpacked into, at most."""
    bomb = batch(bytes(mebibytes << 20), 1000, codec=codec)
    tracemalloc.start()
    assert batch_contents(bomb).unread
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * batch_inspection.UNPACKED_BYTES_MAX + 2 * len(bomb) + 1_000_000
