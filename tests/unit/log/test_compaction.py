"""Compaction of one log while other threads read, truncate, remove or replicate it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.log.conftest import T0, TOPIC_ID, LogBench
from tidemark.logfiles.checkpoints import read_offsets
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    compute_crc,
    iter_headers,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import DecodedRecord, decode_records
from tidemark_broker.log import (
    CorruptRecords,
    LogConfig,
    LogManager,
    NotCached,
    PartitionLog,
    StorageError,
    appending,
    flushing,
    opening,
    reading,
    retention,
    truncation,
)
from tidemark_broker.log.compaction import (
    CleanerSettings,
    CleaningAborted,
    CleaningStats,
    candidate_selection,
    cleaning_pace,
    dirtiness_of,
)
from tidemark_broker.log.compaction import clean as clean_log
from tidemark_broker.log.log_manager import rename_log
from tidemark_broker.log.segment import Segment

CONFIG = LogConfig(
    segment_bytes=700, index_interval_bytes=100, cleanup_policy=frozenset({"compact"})
)
SETTINGS = CleanerSettings(memory_bytes=1 << 20, load_factor=0.9, buffer_bytes=1000)


def compactable_log(
    bench: LogBench, *, rounds: int = 6, keys: int = 10, epoch: int = 0
) -> PartitionLog:
    """Return a log in which each of ``keys`` keys was written ``rounds`` times, one record per
    batch."""
    bench.config = CONFIG
    log = bench.create()
    write(log, rounds, keys, epoch)
    return log


def write(log: PartitionLog, rounds: int, keys: int = 10, epoch: int = 0) -> None:
    for _ in range(rounds):
        for number in range(keys):
            record = Record(b"key-%d" % number, b"at %d" % log.next_offset, (), T0)
            LogBench.append(log, build_batch([record]), epoch=epoch)
    log.advance_high_watermark(log.next_offset)


def clean(
    log: PartitionLog, *, now_ms: int = T0, stopping: Callable[[], bool] = lambda: False
) -> CleaningStats:
    return clean_log(
        log,
        dirtiness_of(log, now_ms),
        SETTINGS,
        now_ms=now_ms,
        stopping=stopping,
        moved=lambda _: 0.0,
    )


def _records_of(data: bytes) -> list[DecodedRecord]:
    return [
        decode_record
        for position, _ in iter_headers(data)
        for decode_record in decode_records(memoryview(data)[position:])
    ]


def records(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """Return (offset, key) of every record. Each value names the offset at which it was written."""
    found, offset = [], log.log_start_offset
    while offset < log.next_offset:
        part = reading.read(log, offset, max_bytes=300, up_to_offset=log.next_offset, min_one=True)
        for item in _records_of(part.data):
            assert item.value == b"at %d" % item.offset
            found.append((item.offset, item.key))
        offset = part.next_offset
    return found


def test_the_last_record_of_each_key_and_the_active_segment_remain(bench: LogBench) -> None:
    log = compactable_log(bench)
    active, size = log.active_base_offset, log.size_bytes
    stats = clean(log)
    assert stats.next_dirty == active == log.first_dirty
    # Of the closed segments only the last round of 10 keys remains, followed by the whole active
    # segment.
    assert [offset for offset, _ in records(log)] == list(range(active - 10, 60))
    assert log.size_bytes < size
    assert stats.written_bytes < size
    bench.check(log)
    # Compaction removes records, never offsets: all bounds are as before.
    assert (log.log_start_offset, log.next_offset, log.high_watermark) == (0, 60, 60)
    # There is nothing left to clean, so the cleaner does not choose this log again.
    again = dirtiness_of(log, T0)
    assert (again.cleanable_bytes, again.is_due) == (0, False)


def poison(record: Record, at: int, with_byte: bytes) -> bytes:
    """Return a batch of one record with other bytes in it and a valid CRC. A log may contain such
    batches from a time when its topic was not compacted: not every batch is inspected then."""
    batch = bytearray(build_batch([record]))
    batch[HEADER_BYTES + at : HEADER_BYTES + at + 1] = with_byte
    # Adjust batch length, record length and CRC, so that only the decoder can find the damage.
    batch[8:12] = (len(batch) - LENGTH_OVERHEAD).to_bytes(4)
    batch[HEADER_BYTES] = 2 * (len(batch) - HEADER_BYTES - 1)
    batch[17:21] = compute_crc(batch, CRC_COVERS_FROM, len(batch)).to_bytes(4)
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "number"),
    [
        pytest.param(
            poison(Record(b"key-0", b"at 0", (), T0), 3, b"\x7e"),
            0,
            id="an offset behind the log's end",
        ),
        pytest.param(
            poison(Record(b"gone", None, (), T0), 2, b"\x80" * 11 + b"\0"),
            50,
            id="a timestamp without end",
        ),
    ],
)
def test_an_invalid_record_removes_no_others(bench: LogBench, batch: bytes, number: int) -> None:
    """The invalid batch precedes the batch with this number. It stays as it is."""
    bench.config = CONFIG
    log = bench.create()
    write(log, 1, number)
    LogBench.append(log, batch)
    write(log, 6)
    active = log.active_base_offset
    stats = clean(log)
    assert stats.unreadable_batches == 1
    assert stats.next_dirty == active == log.first_dirty
    # Behind the poison batch only the last round of the keys remains: 10 records.
    kept, offset = list[int](), number + 51
    while offset < log.next_offset:
        part = reading.read(log, offset, max_bytes=300, up_to_offset=log.next_offset, min_one=True)
        kept += [item.offset for item in _records_of(part.data)]
        offset = part.next_offset
    assert kept == list(range(number + 51, number + 61))
    # The payload of the invalid batch is byte for byte as it was appended.
    stored = reading.read(log, number, max_bytes=1, up_to_offset=log.next_offset, min_one=True).data
    assert stored[HEADER_BYTES : len(batch)] == batch[HEADER_BYTES:]


def test_a_read_at_a_removed_offset_returns_the_next_record(bench: LogBench) -> None:
    log = compactable_log(bench)
    clean(log)
    first = records(log)[0][0]
    for offset in range(first):
        part = reading.read(log, offset, max_bytes=1, up_to_offset=60, min_one=True)
        assert [item.offset for item in _records_of(part.data)] == [first]
        assert part.next_offset == first + 1
    # All records have the same timestamp: a lookup finds the first that remains.
    found = reading.offset_by_timestamp(log, T0)
    assert found is not None
    assert found.offset == first


def test_a_read_does_not_return_a_single_empty_batch(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients would take such a response for the end of the log."""
    # Without merging, each segment whose records are all removed becomes one empty batch that
    # covers its offsets.
    monkeypatch.setattr(candidate_selection, "GROUP_SEGMENTS_MAX", 1)
    log = compactable_log(bench)
    clean(log)
    empty = [item for item in log.segment_infos() if item.size_bytes == HEADER_BYTES]
    assert len(empty) > 2
    # A read of at most one byte skips the empty batches until it finds a record. Their segments
    # need the disk, so the read on the event loop gives up.
    for segment in empty:
        part = reading.read(log, segment.base_offset, max_bytes=1, up_to_offset=60, min_one=True)
        assert len(_records_of(part.data)) == 1
        with pytest.raises(NotCached):
            reading.read_cached(
                log, segment.base_offset, max_bytes=1, up_to_offset=60, min_one=True
            )
    # Bounded above by empty batches, a read has nothing to skip to.
    end = empty[-1].next_base_offset
    part = reading.read(log, 0, max_bytes=1, up_to_offset=end, min_one=True)
    assert (_records_of(part.data), part.next_offset) == ([], end)


def test_records_above_the_high_watermark_are_not_compacted(bench: LogBench) -> None:
    bench.config = CONFIG
    log = bench.create()
    write(log, 3)
    committed = log.high_watermark
    for number in range(30):
        record = Record(b"key-%d" % (number % 10), b"at %d" % log.next_offset, (), T0)
        LogBench.append(log, build_batch([record]))
    stats = clean(log)
    assert stats.next_dirty <= committed
    assert [offset for offset, _ in records(log)][-30:] == list(range(30, 60))


def test_a_compacted_log_is_not_rewritten(bench: LogBench) -> None:
    log = compactable_log(bench)
    clean(log)
    # Forget the compaction offset, so that the cleaner reads the whole log again.
    log.first_dirty = None
    before = {path.name: path.stat().st_ino for path in bench.directory.glob("*.log")}
    clean(log)
    once = {path.name: path.stat().st_ino for path in bench.directory.glob("*.log")}
    log.first_dirty = None
    clean(log)
    # The same inodes: no segment file was replaced by the second pass.
    assert {path.name: path.stat().st_ino for path in bench.directory.glob("*.log")} == once
    assert once.keys() <= before.keys()


def test_small_segments_are_merged(bench: LogBench) -> None:
    log = compactable_log(bench, rounds=20)
    before = len(log.segment_infos())
    clean(log)
    # Only 10 records of the closed segments remain, so nearly all segments are merged away.
    assert len(log.segment_infos()) <= 4 < before
    assert len(list(bench.directory.glob("*.log"))) == len(log.segment_infos())
    assert len(list(bench.directory.glob("*.snapshot"))) <= len(log.segment_infos())
    reopened = _reopened(bench, log)
    assert records(reopened)[-1][0] == 199


def _reopened(bench: LogBench, log: PartitionLog) -> PartitionLog:
    """Crash the log, recover it from its files and check it."""
    end, recovery_point = log.next_offset, log.recovery_point
    bench.crash(log)
    found = bench.open(recovery_point=recovery_point, high_watermark=end)
    assert found.next_offset == end
    bench.check(found)
    return found


# ------------------------------------------------------------------ concurrent operations


def test_a_concurrent_read_continues_through_a_cleaning(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner replaces the files between the reader's lookup of a segment and its open."""
    log = compactable_log(bench)
    flushing.flush(log)
    # Unloaded segments force the next read to open the files by name.
    for segment in log.segments.items[:-1]:
        segment.unload()
    real, cleaned = Segment.load, []

    def load(segment: Segment) -> None:
        if not cleaned:
            cleaned.append(clean(log))
        real(segment)

    monkeypatch.setattr(Segment, "load", load)
    part = reading.read(log, 0, max_bytes=1000, up_to_offset=60, min_one=True)
    assert cleaned
    assert all(item.value == b"at %d" % item.offset for item in _records_of(part.data))
    # The read returned records of the compacted log only, and its next offset lies behind them.
    remaining = [offset for offset, _ in records(log)]
    assert {item.offset for item in _records_of(part.data)} <= set(remaining)
    assert part.next_offset > max(item.offset for item in _records_of(part.data))


def test_a_reader_with_the_old_file_open_reads_it_to_the_end(bench: LogBench) -> None:
    log = compactable_log(bench)
    reading.read(log, 0, max_bytes=1, up_to_offset=60, min_one=True)
    # A pinned segment keeps its descriptor: the replaced file stays readable until it is closed.
    pinned = log.segments.items[0].pinned()
    data = pinned.bytes_of(0, pinned.size_bytes)
    clean(log)
    assert pinned.bytes_of(0, pinned.size_bytes) == data
    pinned.unload()


def _truncate(log: PartitionLog) -> None:
    truncation.truncate_to(log, 25)


def _close(log: PartitionLog) -> None:
    flushing.close(log)


def _remove(log: PartitionLog) -> None:
    shutil.rmtree(rename_log(log, None))


@pytest.mark.parametrize("at_poll", [1, 60, 180, 240])
@pytest.mark.parametrize("change", [_truncate, _close, _remove], ids=["cut", "close", "remove"])
def test_a_concurrent_change_of_the_log_aborts_the_cleaning_without_waiting(
    bench: LogBench,
    change: Callable[[PartitionLog], None],
    at_poll: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The cleaner polls ``stopping`` after each turn. Turns of no length give more than 240 polls,
    # so the log changes early and late
    # in the cleaning.
    monkeypatch.setattr(cleaning_pace, "_TURN_S", 0.0)
    log, polls = compactable_log(bench, rounds=8), 0

    def stopping() -> bool:
        nonlocal polls
        polls += 1
        if polls == at_poll:
            change(log)
        return False

    with pytest.raises(CleaningAborted):
        clean(log, stopping=stopping)
    # No cleaned offset is recorded and no temporary file remains.
    assert log.first_dirty is None
    assert not list(bench.directory.glob("*.cleaned"))
    # The truncated log is still open: it can be compacted from the beginning.
    if change is _truncate:
        assert log.next_offset <= 25
        bench.check(log)
        clean(log)
        bench.check(log)


def test_a_cleaning_stops_on_request(bench: LogBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_pace, "_TURN_S", 0.0)
    log = compactable_log(bench)
    before = bench.bytes_on_disk()
    with pytest.raises(CleaningAborted):
        clean(log, stopping=lambda: True)
    assert bench.bytes_on_disk() == before
    clean(log)


def test_segments_that_retention_deletes_during_a_cleaning_stay_deleted(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning_pace, "_TURN_S", 0.0)
    log, polls = compactable_log(bench, rounds=8), 0
    log.config = replace(
        CONFIG, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=2000
    )

    def stopping() -> bool:
        nonlocal polls
        polls += 1
        # By now the cleaner has read segments that retention deletes.
        if polls == 200:
            assert retention.apply_retention(log, T0, tiered=None)
        return False

    with pytest.raises(CleaningAborted):
        clean(log, stopping=stopping)
    assert log.log_start_offset > 0
    bench.check(log)
    # The next cleaning runs on the shorter log. Recovery finds no segment below its start.
    clean(log)
    bench.check(_reopened(bench, log))


def test_retention_deletes_compacted_segments_under_compact_delete(bench: LogBench) -> None:
    log = compactable_log(bench, rounds=20)
    clean(log)
    write(log, 10)
    log.config = replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=5)
    assert retention.apply_retention(log, T0 + 6, tiered=None)
    assert log.log_start_offset == log.next_offset
    assert dirtiness_of(log, T0).first_dirty == log.next_offset


# ------------------------------------------------------------------ failures


def test_a_segment_with_a_bad_crc_is_not_rewritten(bench: LogBench) -> None:
    log = compactable_log(bench)
    flushing.flush(log)
    path = min(bench.directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    # One flipped bit in the last batch of the oldest segment fails its CRC.
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecords, match="is not compacted"):
        clean(log)
    assert path.read_bytes() == data
    assert {item.suffix for item in bench.directory.iterdir()}.isdisjoint({".cleaned", ".swap"})


@pytest.mark.parametrize("suffix", [".log.swap", ".index.swap", ".log.cleaned"])
def test_a_failed_swap_is_completed_or_undone(
    bench: LogBench, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = compactable_log(bench)
    real, failed = Path.replace, []

    def replace_once(path: Path, target: Path) -> Path:
        if path.name.endswith(suffix) and not failed:
            failed.append(path)
            raise OSError(5, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace_once)
    with pytest.raises(StorageError):
        clean(log)
    # The rename of .log.cleaned to .log.swap commits. Before it the
    # cleaning is undone. After it the log fails until a reopen completes the swap.
    in_doubt = suffix != ".log.cleaned"
    assert (log.failure is not None) == in_doubt
    if in_doubt:
        with pytest.raises(StorageError, match="opened again"):
            bench.append(log, bench.batch())
        assert opening.reopen(log)
    bench.check(log)
    assert log.next_offset == 60
    # The log is usable again: a full cleaning succeeds and survives a crash.
    clean(log)
    assert [offset for offset, _ in records(log)][-10:] == list(range(50, 60))
    bench.check(_reopened(bench, log))


def test_a_full_disk_aborts_the_cleaning_and_leaves_the_log_unchanged(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = compactable_log(bench)
    before = records(log)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tidemark_broker.log.compaction.cleaned_segment.os.write", full)
    with pytest.raises(StorageError, match="No space left"):
        clean(log)
    # ENOSPC concerns the temporary file only, so the replica stays online.
    assert log.failure is None
    assert records(log) == before
    assert not list(bench.directory.glob("*.cleaned"))


# ------------------------------------------------------------------ followers


def _copy(leader: PartitionLog, follower: PartitionLog) -> None:
    while follower.next_offset < leader.next_offset:
        part = reading.read(
            leader,
            follower.next_offset,
            max_bytes=400,
            up_to_offset=leader.next_offset,
            min_one=True,
        )
        appending.append_as_follower(follower, part.data, now_ms=T0)
    follower.advance_high_watermark(leader.high_watermark)


@pytest.mark.parametrize("behind", range(0, 62, 3))
def test_a_follower_continues_at_any_offset_after_its_leader_compacted(
    bench: LogBench, tmp_path: Path, behind: int
) -> None:
    leader = compactable_log(bench)
    write(leader, 1, epoch=1)
    follower_bench = LogBench(tmp_path / "copy-0", config=CONFIG)
    follower = follower_bench.create()
    # The follower has replicated up to ``behind`` when the leader compacts.
    while follower.next_offset < behind:
        part = reading.read(
            leader, follower.next_offset, max_bytes=1, up_to_offset=70, min_one=True
        )
        appending.append_as_follower(follower, part.data, now_ms=T0)
    clean(leader)
    _copy(leader, follower)
    follower_bench.check(follower)
    assert set(records(leader)) <= set(records(follower))
    assert follower.epochs == leader.epochs
    # A second generation of records and cleanings on both sides.
    clean(follower)
    write(leader, 6, epoch=1)
    # The leader compacts again before the follower fetches what is new.
    clean(leader)
    _copy(leader, follower)
    clean(follower)
    follower_bench.check(follower)
    # Both have the last of each key; behind what each has compacted both have everything.
    assert set(records(leader)[-10:]) <= set(records(follower))
    assert {k: at for at, k in records(leader)} == {k: at for at, k in records(follower)}
    follower.close_files()


def test_an_overlapping_batch_of_full_count_is_rejected(bench: LogBench, tmp_path: Path) -> None:
    leader = bench.create()
    bench.fill(leader, [2, 5])
    data = bench.read_all(leader)
    follower_bench = LogBench(tmp_path / "copy-0")
    follower = follower_bench.create()
    appending.append_as_follower(follower, data, now_ms=T0)
    # The follower has offset 2 from elsewhere. The leader's batch covers 2 to 6 with 5 records,
    # so it overlaps without having been compacted.
    truncation.truncate_to(follower, 2)
    appending.append_as_follower(
        follower, build_batch([Record(b"k", b"v")], base_offset=2, leader_epoch=0)
    )
    with pytest.raises(CorruptRecords, match="does not continue the log"):
        appending.append_as_follower(follower, data[len(data) - 12 - _size_of_last(data) :])
    follower.close_files()


def _size_of_last(data: bytes) -> int:
    return [header.length for _, header in iter_headers(data)][-1]


# ------------------------------------------------------------------ recorded compaction offsets


def test_the_compaction_offset_is_recorded_and_moves_back_with_a_truncation(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    log = manager.create(topic="t", topic_id=TOPIC_ID, partition=0, config=CONFIG)
    write(log, 6)
    clean(log)
    compacted = log.first_dirty
    assert compacted
    # Kafka's file name and format: a broker that restarts does not compact the clean part again.
    path = manager.directory / "cleaner-offset-checkpoint"
    assert read_offsets(path.read_text()) == {("t", 0): compacted}
    reopened = start().get("t", 0)
    assert reopened is not None
    assert reopened.first_dirty == compacted
    # Offsets above the truncation are given out again, so they count as dirty.
    truncation.truncate_to(reopened, 20)
    assert reopened.first_dirty is not None
    assert reopened.first_dirty <= 20
    assert read_offsets(path.read_text())["t", 0] <= 20
    # A deleted log leaves no entry for the next topic of its name.
    removed = start()
    removed.delete("t", 0)
    assert read_offsets(path.read_text()) == {}
