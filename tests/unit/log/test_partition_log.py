"""Append, read, roll, lookup by time and truncation of one log, on real files."""

import os
import struct
from dataclasses import replace
from typing import Any

import pytest

from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    TimestampType,
    check_crc,
    compute_crc,
    iter_headers,
    parse_header,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records
from tidemark_broker.log import (
    BatchTooLarge,
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    LogConfig,
    LogError,
    NoBatch,
    OffsetOutOfRange,
    RecordTooLarge,
    TimestampOffset,
    UnsupportedCompression,
    appending,
    flushing,
    reading,
    start_offsets,
    truncation,
)

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


def test_a_leader_changes_only_offset_and_epoch_of_a_batch(bench: Bench) -> None:
    log = bench.create()
    sent = [bench.batch(count, codec=codec) for count, codec in ((3, 0), (1, 4), (5, 1))]
    infos = [appending.append_as_leader(log, data, leader_epoch=4, now_ms=T0) for data in sent]
    assert [(info.base_offset, info.last_offset) for info in infos] == [(0, 2), (3, 3), (4, 8)]
    read = reading.read(log, 0, max_bytes=1 << 20, up_to_offset=9, min_one=True)
    assert read.next_offset == log.next_offset == 9
    for (position, header), original in zip(iter_headers(read.data), sent, strict=True):
        check_crc(read.data, position, header)
        assert header.partition_leader_epoch == 4
        stored = read.data[position : position + header.size_bytes]
        # Bytes 0 to 7 are the base offset and 12 to 15 the leader epoch. Neither is covered by
        # the CRC.
        assert stored[8:12] + stored[16:] == original[8:12] + original[16:]
    assert log.epochs == LeaderEpochs((EpochEntry(4, 0),))
    bench.check(log)


def test_log_append_time_replaces_the_timestamps(bench: Bench) -> None:
    bench.config = LogConfig.of({"message.timestamp.type": "LogAppendTime"})
    log = bench.create()
    info = appending.append_as_leader(log, bench.batch(2), leader_epoch=0, now_ms=T0 + 77)
    assert (info.log_append_time_ms, info.max_timestamp_ms) == (T0 + 77, T0 + 77)
    data = bench.read_all(log)
    check_crc(data, 0, parse_header(data))
    assert [record.timestamp_ms for record in decode_records(data)] == [T0 + 77] * 2
    assert reading.offset_by_timestamp(log, T0 + 77) == TimestampOffset(0, T0 + 77, 0)


def _broken(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


GOOD = build_batch([Record(b"k", b"v", (), T0), Record(b"k", b"v", (), T0)])


def _claiming(count: int, *, codec: int = 0, data: bytes = GOOD) -> bytes:
    """Return a batch whose header has this record count and codec, and a valid CRC."""
    made = bytearray(data)
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">i", made, 23, count - 1)
    struct.pack_into(">i", made, 57, count)
    struct.pack_into(">I", made, 17, compute_crc(made, CRC_COVERS_FROM, len(made)))
    return bytes(made)


EMPTY = bytearray(GOOD[:HEADER_BYTES])
struct.pack_into(">i", EMPTY, 8, HEADER_BYTES - LENGTH_OVERHEAD)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (_broken(GOOD, len(GOOD) - 1), CorruptRecords),
        (_broken(GOOD, 17), CorruptRecords),
        # Not exactly one complete batch, or not of format version 2.
        (b"", NoBatch),
        (GOOD[:11], NoBatch),
        (GOOD[:16], NoBatch),
        (GOOD[:-1], NoBatch),
        (GOOD + GOOD, NoBatch),
        (GOOD[:16] + b"\x01" + GOOD[17:], NoBatch),
        (GOOD[:16] + b"\x03" + GOOD[17:], CorruptRecords),
        # Lengths that no batch can have.
        (bytes(70), CorruptRecords),
        (GOOD + bytes(12), CorruptRecords),
        (GOOD[:11] + b"\x0e" + GOOD[12:26], CorruptRecords),
        # Control and transactional batches are not for clients without a producer id.
        (build_batch([Record(b"k", b"v", (), T0)], is_control=True), InvalidRecords),
        (build_batch([Record(b"k", b"v", (), T0)], is_transactional=True), InvalidRecords),
        # Record counts that the payload cannot contain. They are checked before any memory is
        # reserved.
        (_claiming(0), InvalidRecords),
        (_claiming(-5), InvalidRecords),
        (_broken(_claiming(0), 70), CorruptRecords),
        (_claiming(3), InvalidRecords),
        (_claiming(2**31 - 1), InvalidRecords),
        (_claiming(2**31 - 1, codec=4), InvalidRecords),
        *((_claiming(3_000_000, codec=codec), InvalidRecords) for codec in (1, 2, 3, 4)),
        *((_claiming(2, codec=codec), UnsupportedCompression) for codec in (5, 6, 7)),
        # LogValidator: a client's batch begins at offset 0.
        (build_batch([Record(b"k", b"v", (), T0)], base_offset=1), InvalidRecords),
        (build_batch([Record(b"k", b"v", (), T0)], producer_id=7), InvalidRecords),
        (_claiming(1, data=bytes(EMPTY)), InvalidRecords),
        (_claiming(1, codec=4, data=bytes(EMPTY)), InvalidRecords),
        (
            build_batch([Record(b"k", b"v", (), T0)], timestamp_type=TimestampType.LOG_APPEND_TIME),
            InvalidTimestamp,
        ),
        # One millisecond beyond message.timestamp.after.max.ms, and a batch that exceeds
        # segment.bytes.
        (build_batch([Record(b"k", b"v", (), T0 + 3_600_001)]), InvalidTimestamp),
        (build_batch([Record(b"k", bytes(2000), (), T0)]), BatchTooLarge),
    ],
)
def test_a_leader_rejects_invalid_batches(bench: Bench, data: bytes, error: type[LogError]) -> None:
    log = bench.create()
    with pytest.raises(error):
        bench.append(log, data)
    assert (log.next_offset, log.size_bytes) == (0, 0)
    # The log is still usable.
    bench.fill(log, [1])


@pytest.mark.parametrize("behind", [b"x", bytes(11), GOOD[:-1]])
def test_trailing_bytes_after_a_batch_are_dropped(bench: Bench, behind: bytes) -> None:
    """Kafka's UnifiedLog.trimInvalidBytes does the same."""
    log = bench.create()
    bench.append(log, GOOD + behind)
    assert log.size_bytes == len(GOOD)


def test_limits_of_size_and_time_are_configurable(bench: Bench) -> None:
    bench.config = LogConfig(max_message_bytes=200, message_timestamp_before_max_ms=1000)
    log = bench.create()
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes=200"):
        appending.append_as_leader(log, bench.batch(size=200), leader_epoch=0, now_ms=T0)
    with pytest.raises(InvalidTimestamp, match="older"):
        bench.append(log, bench.batch(), now_ms=T0 + 1001)


@pytest.mark.parametrize("max_bytes", [1, 150, 400, 1000, 10_000])
def test_reads_of_any_size_return_complete_batches_in_order(bench: Bench, max_bytes: int) -> None:
    log = bench.create()
    bench.fill(log, [1, 3, 2, 1, 1, 5, 1, 1, 1, 1, 4, 1, 2, 1, 1, 1, 1, 1] * 3)
    assert len(log.segment_infos()) > 4
    all_bytes = b"".join(
        (bench.directory / f"{s.base_offset:020d}.log").read_bytes() for s in log.segment_infos()
    )
    assert bench.read_all(log, max_bytes=max_bytes) == all_bytes
    # A read begins with the batch that contains the offset, and exceeds its limit only for a
    # single batch (minOneMessage, KIP-74).
    for offset in range(log.next_offset):
        found = reading.read(
            log, offset, max_bytes=max_bytes, up_to_offset=log.next_offset, min_one=True
        )
        headers = [header for _, header in iter_headers(found.data)]
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        assert headers[-1].next_offset == found.next_offset
        assert sum(header.size_bytes for header in headers) == len(found.data)
        assert len(found.data) <= max(max_bytes, headers[0].size_bytes)


def test_a_read_ends_below_its_bound(bench: Bench) -> None:
    bench.config = LogConfig(index_interval_bytes=100)
    log = bench.create()
    bench.fill(log, [3] * 30)
    # A batch of three is returned only if its last offset is below the bound.
    for bound in range(91):
        read = reading.read(log, 0, max_bytes=1 << 20, up_to_offset=bound, min_one=True)
        assert read.next_offset == bound // 3 * 3
        assert sum(1 for _ in iter_headers(read.data)) == bound // 3
    small = reading.read(log, 4, max_bytes=5, up_to_offset=90, min_one=False)
    assert small.data == b""
    at_end = reading.read(log, 90, max_bytes=5, up_to_offset=90, min_one=True)
    assert (at_end.data, at_end.next_offset) == (b"", 90)
    with pytest.raises(OffsetOutOfRange):
        reading.read(log, 91, max_bytes=5, up_to_offset=90, min_one=True)


def test_a_reader_at_the_tail_continues_through_a_roll(bench: Bench) -> None:
    log = bench.create()
    offset, rolls = 0, 0
    for _ in range(40):
        bench.fill(log, [2])
        # The second reader hits the cached position of the tail that the first one left.
        for _ in range(2):  # two readers at the same offset
            read = reading.read(
                log, offset, max_bytes=5000, up_to_offset=log.next_offset, min_one=True
            )
            assert [h.base_offset for _, h in iter_headers(read.data)] == [offset]
        offset = read.next_offset
        rolls = len(log.segment_infos())
    assert rolls > 4


def test_a_segment_rolls_by_size_age_or_full_index(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 30)
    assert all(segment.size_bytes <= 1000 for segment in log.segment_infos())
    count = len(log.segment_infos())
    # The age counts between the timestamps of the first and the new batch (Kafka's
    # timeWaitedForRoll).
    log.config = replace(log.config, segment_ms=1000)
    late = bench.batch(timestamp_ms=T0 + 100_000)
    assert appending.append_as_leader(log, late, leader_epoch=0, now_ms=T0 + 100_000).rolled
    assert len(log.segment_infos()) == count + 1
    # 30 bytes are three index entries of 8 bytes.
    log.config = LogConfig(segment_index_bytes=30, index_interval_bytes=100)
    before = len(log.segment_infos())
    bench.fill(log, [1] * 20)
    assert len(log.segment_infos()) > before + 1
    # An empty active segment is not rolled again.
    assert appending.roll(log, T0)
    assert not appending.roll(log, T0)
    log.advance_high_watermark(log.next_offset)
    bench.check(log)


def test_segments_from_an_offset_include_the_active_one(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 40)
    every = log.segment_infos()
    for offset in range(42):
        expected = tuple(s for s in every if s.next_base_offset > offset) or every[-1:]
        assert log.segment_infos(offset) == expected
        assert log.segment_infos(offset, 2) == expected[:2]
    assert log.segment_infos(-1) == every


def test_a_closed_segment_is_complete_for_its_copy(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 30)
    first = log.segment_infos()[0]
    files = flushing.segment_files(log, first.base_offset)
    assert files.log.stat().st_size == files.size_bytes == first.size_bytes
    assert decode_snapshot(files.producer_snapshot) == ()
    # The active segment is not complete, and 1 is not a base offset.
    for offset in (log.segment_infos()[-1].base_offset, 1):
        with pytest.raises(OffsetOutOfRange):
            flushing.segment_files(log, offset)


def test_a_time_index_that_was_cut_to_one_byte_is_rebuilt(bench: Bench) -> None:
    """A copy to the tier refuses a wrong one with this remedy."""
    log = bench.create()
    bench.fill(log, [1] * 30)
    flushing.close(log)
    first, end = log.segment_infos()[0], log.next_offset
    path = bench.directory / f"{first.base_offset:020d}.timeindex"
    data = bytearray(path.read_bytes())
    # The largest timestamp, which the last entry has, is a power of two later.
    data[-10] ^= 2
    path.write_bytes(data)

    def largest_ms() -> int:
        reopened = bench.open(recovery_point=end, clean_shutdown=True, high_watermark=end)
        flushing.close(reopened)
        found: int = reopened.segment_infos()[0].largest_timestamp_ms
        return found

    assert largest_ms() != first.largest_timestamp_ms
    os.truncate(path, 1)
    assert largest_ms() == first.largest_timestamp_ms
    # The file itself is right again, too.
    assert largest_ms() == first.largest_timestamp_ms


def test_lookup_by_time_agrees_with_a_scan(bench: Bench) -> None:
    log = bench.create()
    # Timestamps that rise and fall, within a batch and between batches and epochs, in all codecs.
    times = [50, 10, 10, 90, 40, 95, 95, 20, 200, 150, 300, 300, 250, 400] * 3
    records = [(T0 + t + 300 * (n // 14), n) for n, t in enumerate(times)]
    for number in range(0, len(records), 2):
        pair = records[number : number + 2]
        appending.append_as_leader(
            log,
            build_batch([Record(b"k", bytes(20), (), t) for t, _ in pair], codec=number % 5),
            leader_epoch=number // 10,
            now_ms=T0 + 2000,
        )
    log.advance_high_watermark(log.next_offset)
    # Offset 7 is inside a batch: records below the log start do not count.
    for start in (0, 7):
        start_offsets.raise_log_start(log, start)
        for target_ms in sorted({t + d for t, _ in records for d in (-1, 0, 1)}):
            matches = [(n, t) for t, n in records if t >= target_ms and n >= start]
            expected = None
            if matches:
                offset, timestamp = min(matches)
                expected = TimestampOffset(offset, timestamp, log.epochs.epoch_for_offset(offset))
            assert reading.offset_by_timestamp(log, target_ms) == expected


def _copy(source: Any, target: Any, *, max_bytes: int) -> None:
    while target.next_offset < source.next_offset:
        read = reading.read(
            source,
            target.next_offset,
            max_bytes=max_bytes,
            up_to_offset=source.next_offset,
            min_one=True,
        )
        appending.append_as_follower(target, read.data)


@pytest.mark.parametrize("max_bytes", [1, 700, 1 << 20])
def test_a_follower_has_the_leaders_bytes_and_epochs(
    bench: Bench, tmp_path: Any, max_bytes: int
) -> None:
    leader = bench.create()
    for epoch in (0, 1, 4):
        bench.fill(leader, [1, 4, 2, 1, 1, 1, 3], epoch=epoch)
    # The follower rolls at 600 bytes, so its segment boundaries differ from the leader's.
    follower_bench = type(bench)(tmp_path / "copy-0", config=LogConfig(segment_bytes=600))
    follower = follower_bench.create()
    _copy(leader, follower, max_bytes=max_bytes)
    assert follower_bench.read_all(follower) == bench.read_all(leader)
    assert follower.epochs == leader.epochs
    assert len(follower.segment_infos()) > 3
    assert all(segment.size_bytes <= 600 for segment in follower.segment_infos())
    follower.advance_high_watermark(100)
    follower_bench.check(follower)
    follower_bench.crash(follower)
    follower_bench.check(follower_bench.open(high_watermark=follower.next_offset))


def test_a_follower_appends_only_batches_that_continue_its_log(bench: Bench, tmp_path: Any) -> None:
    leader = bench.create()
    bench.fill(leader, [2, 2, 2], epoch=3)
    data = bench.read_all(leader)
    size = len(data) // 3
    copy = type(bench)(tmp_path / "copy-0")
    follower = copy.create()
    appending.append_as_follower(follower, data[:size])
    # A repetition, a gap, nothing, a torn header, a bad CRC, a wrong order, and an older epoch.
    for wrong in (
        data[:size],
        data[2 * size :],
        b"",
        data[size : size + 20],
        _broken(data[size:], 70),
        data[size : 2 * size] + data[:size],
        data[size : size + 12] + b"\0\0\0\1" + data[size + 16 : 2 * size],
    ):
        with pytest.raises(CorruptRecords):
            appending.append_as_follower(follower, wrong)
        assert (follower.next_offset, follower.size_bytes) == (2, size)
    appending.append_as_follower(
        follower, data[size : 3 * size - 1]
    )  # a partial last batch is dropped
    assert follower.next_offset == 4


def test_an_empty_follower_may_start_inside_the_leaders_first_batch(
    bench: Bench, tmp_path: Any
) -> None:
    leader = bench.create()
    bench.fill(leader, [5, 5])
    copy = type(bench)(tmp_path / "copy-0")
    follower = copy.create()
    # The leader's log start is 3, inside its first batch (0 to 4). A fetch at 3 returns the
    # complete batch.
    truncation.truncate_fully_and_start_at(follower, 3, log_start_offset=3, epochs=())
    _copy(leader, follower, max_bytes=1)
    assert (follower.log_start_offset, follower.local_log_start_offset) == (3, 3)
    assert [s.base_offset for s in follower.segment_infos()] == [0]
    assert reading.read(follower, 3, max_bytes=1, up_to_offset=10, min_one=True).next_offset == 5


def test_tiered_records_do_not_become_local_where_a_log_starts_inside_a_batch(
    bench: Bench, tmp_path: Any
) -> None:
    """Otherwise the follower would serve reads of offsets that it does not have."""
    leader = bench.create()
    bench.fill(leader, [5, 5])
    follower = type(bench)(tmp_path / "copy-0").create()
    truncation.truncate_fully_and_start_at(follower, 7, log_start_offset=2, epochs=())
    data = bench.read_all(leader)
    appending.append_as_follower(follower, data[len(data) // 2 :])
    assert (follower.log_start_offset, follower.local_log_start_offset) == (2, 5)
    with pytest.raises(OffsetOutOfRange):
        reading.read(follower, 3, max_bytes=1, up_to_offset=10, min_one=True)


def test_high_watermark_and_log_start_only_rise(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 10)
    assert log.advance_high_watermark(5)
    assert not log.advance_high_watermark(4)
    assert log.advance_high_watermark(1000)
    assert log.high_watermark == log.last_stable_offset == 10
    # Above the high watermark, a log start would delete uncommitted records.
    with pytest.raises(OffsetOutOfRange):
        start_offsets.raise_log_start(log, 11)
    assert start_offsets.raise_log_start(log, 6)
    assert not start_offsets.raise_log_start(log, 6)
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 6)
    assert log.epochs.entries[0].start_offset == 6
    # Records 6 and 7 are in the tier only from here on.
    log.bounds = log.bounds.with_local_start(8)
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 8)
    with pytest.raises(OffsetOutOfRange):
        reading.read(log, 7, max_bytes=1, up_to_offset=10, min_one=True)
    # Without its remote part the log starts where the local records start.
    assert start_offsets.drop_remote_part(log)
    assert (log.log_start_offset, log.local_log_start_offset) == (8, 8)
    assert not start_offsets.drop_remote_part(log)


@pytest.mark.parametrize("flushed", [True, False])
def test_truncation_to_every_offset(bench: Bench, tmp_path: Any, flushed: bool) -> None:
    counts = [1, 3, 1, 1, 2, 4, 1, 1, 1, 1, 2, 3, 1, 1]
    ends = [sum(counts[:n]) for n in range(len(counts) + 1)]
    for offset in range(ends[-1] + 2):
        # Batches of different sizes, three per epoch, in segments of 500 bytes: some truncations
        # hit a boundary and some the middle of a batch, which is removed entirely.
        log_bench = type(bench)(
            tmp_path / f"x-{offset}", config=replace(bench.config, segment_bytes=500)
        )
        log = log_bench.create()
        for number, count in enumerate(counts):
            log_bench.fill(log, [count], epoch=number // 3)
        log.advance_high_watermark(ends[-1])
        if flushed:
            flushing.flush(log)
        kept = max(end for end in ends if end <= offset)
        assert truncation.truncate_to(log, offset) == (offset < ends[-1])
        assert log.next_offset == log.high_watermark == kept
        # What was flushed stays durable up to the truncation.
        assert log.recovery_point == (kept if flushed else 0)
        assert log_bench.check(log) == [end for end in ends[:-1] if end < kept]
        assert log.epochs.latest_epoch == (ends.index(kept) - 1) // 3
        # Records that replace the truncated ones survive a crash together with their epoch.
        log_bench.fill(log, [2, 2], epoch=20)
        log_bench.crash(log)
        reopened = log_bench.open(high_watermark=kept + 4)
        assert (reopened.next_offset, reopened.epochs) == (kept + 4, log.epochs)
        log_bench.check(reopened)


def test_a_log_restarts_beyond_the_tier(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 30)
    epochs = (EpochEntry(0, 0), EpochEntry(2, 40))
    truncation.truncate_fully_and_start_at(log, 100, log_start_offset=10, epochs=epochs)
    assert (log.log_start_offset, log.local_log_start_offset) == (10, 100)
    assert (log.high_watermark, log.next_offset, log.recovery_point) == (100, 100, 100)
    # Offsets 10 to 99 are in the tier only, with the epochs that its leader reported.
    assert log.epochs.entries == epochs
    assert [p.name for p in bench.directory.glob("0*")] == [f"{100:020d}.log"]
    bench.fill(log, [3], epoch=2)
    bench.crash(log)
    reopened = bench.open(log_start_offset=10, recovery_point=100)
    assert (reopened.log_start_offset, reopened.local_log_start_offset) == (10, 100)
    assert (reopened.next_offset, reopened.epochs.entries) == (
        103,
        (EpochEntry(0, 10), *epochs[1:]),
    )


def test_a_leader_epoch_without_records_is_persisted(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [2], epoch=1)
    assert log.assign_leader_epoch(5)
    assert not log.assign_leader_epoch(5)
    assert not log.assign_leader_epoch(4)
    assert log.epochs.entries == (EpochEntry(1, 0), EpochEntry(5, 2))
    text = (bench.directory / "leader-epoch-checkpoint").read_text()
    assert text == "0\n2\n1 0\n5 2\n"
    with pytest.raises(ValueError, match="leader epoch 4"):
        appending.append_as_leader(log, bench.batch(), leader_epoch=4, now_ms=T0)


def test_a_truncation_is_synced_together_with_the_next_segment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truncated segment is synced too if the next append begins a new one."""
    bench.config = replace(bench.config, segment_bytes=400)
    log = bench.create()
    bench.fill(log, [1] * 6)
    flushing.flush(log)
    cut, path = log.next_offset - 1, f"{log.segment_infos()[-1].base_offset:020d}.log"
    truncation.truncate_to(log, cut)
    # The batch does not fit into the truncated segment, so a new segment begins at the cut.
    bench.fill(log, [8], epoch=5)
    assert log.segment_infos()[-1].base_offset == cut
    synced: list[str] = []
    monkeypatch.setattr(flushing, "sync_file", lambda file: synced.append(file.name))
    assert flushing.flush(log) == log.next_offset
    assert path in synced
