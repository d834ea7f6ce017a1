"""Timestamps for retention and lookups equal those that Kafka computes, independent of batch
headers."""

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
    appending,
    batch_contents,
    flushing,
    reading,
    retention,
    start_offsets,
    validation,
)

T0 = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
Bench = Any  # the LogBench of conftest.py


def _with_header(data: bytes, *, largest: int, first: int | None = None, count: int = 0) -> bytes:
    """Return ``data`` with other timestamps (and a count) in its header, and a valid CRC."""
    changed = bytearray(data)
    struct.pack_into(">q", changed, 35, largest)
    if first is not None:
        struct.pack_into(">q", changed, 27, first)
    if count:
        struct.pack_into(">i", changed, 23, count - 1)
        struct.pack_into(">i", changed, 57, count)
    struct.pack_into(">I", changed, 17, compute_crc(changed, CRC_COVERS_FROM, len(changed)))
    return bytes(changed)


def _batch(*times: int, codec: int = 0) -> bytes:
    return build_batch([Record(b"k", b"v", (), time) for time in times], codec=codec)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("largest", [-1, 0, T0 - 1, -(2**60), T0 + 2**50])
def test_an_implausible_largest_timestamp_is_computed_from_the_records(
    bench: Bench, codec: int, largest: int
) -> None:
    """Old versions of Sarama leave it at -1."""
    log = bench.create()
    sent = _with_header(_batch(T0, T0 + 9, T0 + 5, codec=codec), largest=largest)
    with pytest.raises(RecordsInDoubt):
        appending.append_as_leader(log, sent, leader_epoch=0, now_ms=T0)
    assert (log.next_offset, log.size_bytes) == (0, 0)
    assert bench.append(log, sent).max_timestamp_ms == T0 + 9
    stored = bench.read_all(log)
    header = parse_header(stored)
    check_crc(stored, 0, header)
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 9)
    # Only the header changes. The records are byte for byte the client's.
    assert stored[61:] == sent[61:]
    assert reading.offset_by_timestamp(log, T0 + 6) == TimestampOffset(1, T0 + 9, 0)


def test_a_plausible_header_is_trusted(bench: Bench) -> None:
    log = bench.create()
    appending.append_as_leader(log, _batch(T0, T0 + 9), leader_epoch=0, now_ms=T0)
    appending.append_as_leader(log, _batch(T0 - 6 * DAY_MS), leader_epoch=0, now_ms=T0)


def test_a_batch_that_would_expire_at_once_is_inspected(bench: Bench) -> None:
    bench.config = LogConfig(retention_ms=7 * DAY_MS)
    log = bench.create()
    sent = _with_header(_batch(1, T0), largest=1)
    assert bench.append(log, sent).max_timestamp_ms == T0
    log.advance_high_watermark(2)
    assert retention.apply_retention(log, T0 + DAY_MS, tiered=None) == []
    log.config = LogConfig(retention_ms=-1)
    appending.append_as_leader(
        log, _batch(1), leader_epoch=0, now_ms=T0
    )  # without retention the header is trusted


@pytest.mark.parametrize("restarted", [True, False])
def test_records_without_timestamps_age_from_their_append(bench: Bench, restarted: bool) -> None:
    bench.config = LogConfig(retention_ms=DAY_MS)
    log = bench.create()
    created = log.segment_infos()[0].modified_ms
    # Appended two days after the segment was created: the age counts from the append.
    appended_ms = created + 2 * DAY_MS
    for _ in range(10):
        bench.append(log, _batch(-1, -1), now_ms=appended_ms)
    log.advance_high_watermark(20)
    if restarted:
        flushing.close(log)
        log = bench.open(recovery_point=20, clean_shutdown=True, high_watermark=20)
        appended_ms = log.segment_infos()[0].modified_ms
    assert log.segment_infos()[0].largest_timestamp_ms == -1
    assert retention.apply_retention(log, appended_ms + DAY_MS, tiered=None) == []
    assert len(retention.apply_retention(log, appended_ms + DAY_MS + 1, tiered=None)) == 1


def test_records_without_timestamps_do_not_count_for_the_range() -> None:
    assert batch_contents(_batch(-1, -1)) == BatchContents()
    assert batch_contents(_batch(-1, T0, -1)) == BatchContents(
        smallest_ms=T0, largest_ms=T0, smallest_at=1, largest_at=1
    )
    assert batch_contents(_batch(T0, 5, T0 + 3)) == BatchContents(
        smallest_ms=5, largest_ms=T0 + 3, smallest_at=1, largest_at=2
    )


def test_timestamps_out_of_bounds_are_rejected(bench: Bench) -> None:
    bench.config = LogConfig(message_timestamp_before_max_ms=1000)
    log = bench.create()
    for times in ((T0 - 1001, T0), (T0, T0 + 3_600_001), (T0, -5)):
        with pytest.raises(InvalidTimestamp):
            bench.append(log, _with_header(_batch(*times), largest=-1))
    # The exact limits are allowed, and so is a record without a timestamp.
    bench.append(log, _with_header(_batch(T0 - 1000, -1, T0 + 3_600_000), largest=-1))


def test_timestamps_before_1970_are_accepted_as_in_kafka(bench: Bench) -> None:
    """Only ``message.timestamp.before.max.ms`` forbids them. They count as no timestamp."""
    log = bench.create()
    assert bench.append(log, _batch(-5)).max_timestamp_ms == -1
    assert bench.append(log, _batch(-5, 7)).max_timestamp_ms == 7


def test_log_append_time_needs_no_inspection(bench: Bench) -> None:
    bench.config = LogConfig.of({"message.timestamp.type": "LogAppendTime"})
    log = bench.create()
    sent = _with_header(_batch(T0), largest=-1)
    assert (
        appending.append_as_leader(log, sent, leader_epoch=0, now_ms=T0 + 3).max_timestamp_ms
        == T0 + 3
    )


@pytest.mark.parametrize("cut", [1, 30])
def test_truncated_records_are_rejected(cut: int) -> None:
    complete = _batch(T0, T0)
    broken = bytearray(complete[:-cut])
    struct.pack_into(">i", broken, 8, len(broken) - 12)
    with pytest.raises(InvalidRecords):
        batch_contents(bytes(broken))


def _bomb(codec: int, value_bytes: int, *, largest: int = T0) -> bytes:
    """Return a small batch that decompresses to more than a broker inspects."""
    record = build_batch([Record(None, bytes(value_bytes), (), T0)])[61:]
    count = min(validation.UNPACKED_BYTES_MAX // len(record), validation.RECORDS_MAX) + 1
    payload = compress(codec, record * count)
    front = bytearray(_batch(T0, codec=codec)[:61])
    struct.pack_into(">i", front, 8, 61 - 12 + len(payload))
    return _with_header(bytes(front) + payload, largest=largest, count=count)


@pytest.mark.parametrize("value_bytes", [0, 1000], ids=["records", "bytes"])
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_above_the_decompression_limit_is_not_decompressed(
    bench: Bench, codec: int, value_bytes: int
) -> None:
    bench.config = LogConfig(retention_ms=-1)
    log = bench.create()
    bomb = _bomb(codec, value_bytes)
    assert len(bomb) < 1_000_000
    bench.fill(log, [1])
    # Its header is plausible, so it is appended without inspection.
    appending.append_as_leader(log, bomb, leader_epoch=0, now_ms=T0)
    assert reading.offset_by_timestamp(log, T0 - 1) == TimestampOffset(0, T0, 0)
    assert reading.offset_by_timestamp(log, T0) == TimestampOffset(0, T0, 0)
    start_offsets.raise_log_start(log, log.high_watermark)
    log.advance_high_watermark(log.next_offset)
    start_offsets.raise_log_start(log, 3)
    # The log start is inside the batch. Without a look at its records the lookup answers with the
    # log start.
    assert reading.offset_by_timestamp(log, T0) == TimestampOffset(3, T0, 0)
    with pytest.raises(RecordTooLarge, match="unpacks to more than"):
        bench.append(log, _bomb(codec, value_bytes, largest=-1))


def _record_decoded_offsets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the offset of each record that lookups decode from now on."""
    decoded: list[int] = []
    real = reading.decode_timestamps

    def counting(*args: Any, **kwargs: Any) -> Iterator[tuple[int, int]]:
        for offset, time_ms in real(*args, **kwargs):
            decoded.append(offset)
            yield offset, time_ms

    monkeypatch.setattr(reading, "decode_timestamps", counting)
    return decoded


@pytest.mark.parametrize("value_bytes", [0, 4000], ids=["records", "bytes"])
def test_a_lookup_decodes_a_limited_number_of_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, value_bytes: int
) -> None:
    """Plausible headers claim that the batches contain newer records. They do not."""
    bench.config = LogConfig(retention_ms=-1, segment_bytes=100_000)
    log = bench.create()
    record = build_batch([Record(None, bytes(value_bytes), (), T0)])[61:]
    # Four batches are just within the limit of bytes or records.
    count = 1000 if value_bytes else validation.RECORDS_MAX // 4 - 1
    payload = compress(4, record * count)
    front = bytearray(_batch(T0, codec=4)[:61])
    struct.pack_into(">i", front, 8, 61 - 12 + len(payload))
    misleading = _with_header(bytes(front) + payload, largest=T0 + 1000, count=count)
    for _ in range(10):
        appending.append_as_leader(log, misleading, leader_epoch=0, now_ms=T0)
    seen = _record_decoded_offsets(monkeypatch)
    found = reading.offset_by_timestamp(log, T0 + 1)
    assert len(seen) == 4 * count
    assert found == TimestampOffset(4 * count, T0 + 1000, 0)


def test_a_lookup_with_a_wrong_header_walks_a_limited_number_of_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup may return an offset that is too early, but never one that is too late."""
    monkeypatch.setattr(validation, "RECORDS_MAX", 50)
    bench.config = LogConfig(segment_bytes=100_000)
    log = bench.create()
    appending.append_as_leader(
        log, _with_header(_batch(T0), largest=T0 + 1000), leader_epoch=0, now_ms=T0
    )
    bench.fill(log, [1] * 100)
    assert reading.offset_by_timestamp(log, T0 + 1001) is None
    assert reading.offset_by_timestamp(log, T0 + 995) == TimestampOffset(49, T0 + 490, 0)


UNREADABLE = {
    "no record": b"\x00" * 50,
    "a record that does not end": b"\x80" * 50,
    "another offset": b"\x0e\x00\x00\xfe\xff\xff\xff\x0f\x01\x01\x00" + bytes(40),
}


@pytest.mark.parametrize("payload", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("codec", [0, 4])
def test_unreadable_records_do_not_prevent_lookups(
    bench: Bench, payload: bytes, codec: int
) -> None:
    """A plausible header was trusted when these batches were appended."""
    log = bench.create()
    appending.append_as_leader(log, _batch(T0 - 50), leader_epoch=0, now_ms=T0)
    appending.append_as_leader(log, batch(payload, 3, codec=codec), leader_epoch=0, now_ms=T0)
    appending.append_as_leader(log, _batch(T0 + 50), leader_epoch=0, now_ms=T0)
    assert reading.offset_by_timestamp(log, T0) == TimestampOffset(1, T0, 0)
    assert reading.offset_by_timestamp(log, T0 + 1) == TimestampOffset(4, T0 + 50, 0)
    with pytest.raises(InvalidRecords):
        bench.append(log, _with_header(batch(payload, 3, codec=codec), largest=-1))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_corrupt_compressed_block_does_not_prevent_lookups(bench: Bench, codec: int) -> None:
    log = bench.create()
    made = bytearray(batch(b"x" * 500, 1, codec=codec))
    made[61:] = made[61:][:-9] + b"nonsense!"
    appending.append_as_leader(log, sealed(made), leader_epoch=0, now_ms=T0)
    assert reading.offset_by_timestamp(log, T0) == TimestampOffset(0, T0, 0)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_huge_record_count_from_an_older_leader_costs_no_memory(bench: Bench, codec: int) -> None:
    """The header says 2^31 - 1 records of 7 bytes. The batch contains three."""
    log = bench.create()
    three = build_batch([Record(None, b"", (), T0)] * 3)[61:]
    appending.append_as_follower(log, batch(three, 2**31 - 1, codec=codec))
    tracemalloc.start()
    assert reading.offset_by_timestamp(log, T0) == TimestampOffset(0, T0, -1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("mebibytes", [17, 64])
def test_the_cost_of_a_decompression_bomb_does_not_grow_with_it(codec: int, mebibytes: int) -> None:
    """Beyond the limit, at most twice the limit is allocated for the decompression buffers."""
    bomb = batch(bytes(mebibytes << 20), 1000, codec=codec)
    tracemalloc.start()
    assert batch_contents(bomb).unread
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * validation.UNPACKED_BYTES_MAX + 2 * len(bomb) + 1_000_000
