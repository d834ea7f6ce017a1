"""Appends and reads on the event loop continue while threads read, flush and remove."""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark_broker.log import (
    LogConfig,
    NotCached,
    OffsetOutOfRange,
    StorageError,
    TieredRetention,
    appending,
    files,
    flushing,
    reading,
    retention,
    truncation,
)
from tidemark_broker.log.segment import MAPPED_BYTES_MIN
from tidemark_broker.log.segment_list import OpenSegments

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


def _in_another_thread(work: Callable[[], object]) -> None:
    """Run ``work`` in another thread, as the event loop would. Fail if it waits for this thread."""
    errors = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - carried to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # The caller holds the lock under test. Five seconds without an end mean that the work waits
    # for it.
    thread.join(5)
    assert not thread.is_alive(), "the event loop would wait"
    assert errors == []


def _once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, work: Callable[[], None]) -> None:
    """Run ``work`` before the first call of the function ``name`` of ``place``."""
    real, called = getattr(place, name), []

    def first(*args: Any, **kwargs: Any) -> Any:
        if not called:
            called.append(True)
            work()
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, first)


def test_an_append_does_not_wait_for_a_lookup_by_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [3, 3])
    # The append runs while the lookup decodes records.
    _once(
        monkeypatch,
        reading,
        "decode_timestamps",
        lambda: _in_another_thread(lambda: bench.fill(log, [1])),
    )
    found = reading.offset_by_timestamp(log, T0 + 31)
    assert found is not None
    assert (found.offset, log.next_offset) == (4, 7)


def test_an_append_does_not_wait_for_a_flush(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.create()
    bench.fill(log, [1] * 15)
    # Each append happens inside one system call of the flush.
    for call in ("pwrite", "ftruncate", "fdatasync"):
        _once(monkeypatch, os, call, lambda: _in_another_thread(lambda: bench.fill(log, [1])))
    assert flushing.flush(log) == 17  # what was appended before the sync began
    assert flushing.flush(log) == 18
    bench.check(log)


def test_a_lookup_survives_retention_and_truncation_of_the_segment_it_reads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 30)
    log.advance_high_watermark(30)
    log.config = LogConfig(segment_bytes=1000, retention_bytes=900)
    # First, retention deletes the segment while the lookup decodes it.
    _once(
        monkeypatch,
        reading,
        "decode_timestamps",
        lambda: _in_another_thread(lambda: retention.apply_retention(log, T0, tiered=None)),
    )
    found = reading.offset_by_timestamp(log, T0 + 31)
    assert found is not None
    # The lookup answered from a segment that is deleted now.
    assert log.local_log_start_offset > 4
    # Then, the leader's log is truncated below the batch that the lookup found: the answer is
    # that there is none.
    with monkeypatch.context() as patch:
        end = log.next_offset - 2
        _once(
            patch,
            reading,
            "_first_in_batch",
            lambda: _in_another_thread(lambda: truncation.truncate_to(log, end)),
        )
        found = reading.offset_by_timestamp(log, T0 + 10 * (end + 1))
    assert (found, log.next_offset) == (None, end)


def test_a_roll_creates_only_the_log_file_and_the_flush_writes_the_indexes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 10)
    opened, real = [], os.open

    def record_open(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", record_open)
        assert appending.roll(log, T0)
    # A roll happens on the event loop within an append, so it makes one system call that creates
    # a file.
    assert opened == [f"{10:020d}.log"]
    assert flushing.needs_flush(log)
    flushing.flush(log)
    assert not flushing.needs_flush(log)
    # The flush wrote the closed segment's indexes and the producer snapshot of the roll.
    names = {path.name for path in bench.directory.glob("0*")}
    assert names == {
        *(f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")),
        *(f"{10:020d}{suffix}" for suffix in (".log", ".snapshot")),
    }


def test_lost_index_entries_are_rebuilt_after_a_crash(bench: Bench) -> None:
    """Retention rolls a flushed segment. The crash comes before the flush that would complete its
    indexes."""
    bench.config = LogConfig(index_interval_bytes=10_000)
    log = bench.create()
    bench.fill(log, [1, 1])
    flushing.flush(log)
    bench.fill(log, [1])
    flushing.flush(log)
    appending.roll(log, T0)
    bench.crash(log)
    again = bench.open(recovery_point=3, high_watermark=3)
    assert again.segment_infos()[0].largest_timestamp_ms == T0 + 20


# -- removal -------------------------------------------------------------------------------------


def test_a_removal_that_fails_leaves_no_hole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.create()
    bench.fill(log, [1] * 50)
    log.advance_high_watermark(50)
    flushing.flush(log)
    # Retention deletes from the oldest on. The second segment cannot be renamed, so the deletion
    # must stop there.
    second = log.segment_infos()[1].base_offset
    real = Path.rename

    def stuck(path: Path, target: Any) -> Path:
        if path.name == f"{second:020d}.log":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, target)

    log.config = LogConfig(segment_bytes=1000, retention_bytes=2500)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stuck)
        with pytest.raises(StorageError, match="cannot be removed"):
            retention.apply_retention(log, T0, tiered=None)
        assert log.segment_infos()[0].base_offset == second
        # A lower limit would also delete the third segment. It must wait for the second.
        log.config = LogConfig(segment_bytes=1000, retention_bytes=1200)
        with pytest.raises(StorageError, match="cannot be removed"):
            retention.apply_retention(log, T0, tiered=None)
    # After a crash the log is contiguous, and the next retention deletes what is below the log
    # start.
    start = log.log_start_offset
    bench.crash(log)
    reopened = bench.open(recovery_point=50, log_start_offset=start, high_watermark=50)
    bench.check(reopened)
    retention.apply_retention(reopened, T0, tiered=None)
    assert reopened.segment_infos()[0].base_offset == reopened.log_start_offset == start


def test_a_segment_created_under_the_name_of_a_removed_one_stays(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The leader's second batch covers 10 to 17. The follower, emptied by retention at 14, appends
    # it and so creates a segment named 10, while the old file of that name is being deleted.
    leader = type(bench)(tmp_path / "leader-0").create()
    bench.fill(leader, [1] * 10 + [8])
    batch = reading.read(leader, 10, max_bytes=1, up_to_offset=18, min_one=True).data
    log = bench.create()
    bench.fill(log, [1] * 14)
    log.advance_high_watermark(14)
    assert [segment.base_offset for segment in log.segment_infos()] == [0, 10]
    log.config = LogConfig(retention_ms=1)
    real, appended = Path.unlink, []

    def unlink_after_append(path: Path, missing_ok: bool = False) -> None:
        if log.size_bytes == 0 and not appended:
            appended.append(True)
            appending.append_as_follower(log, batch)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_after_append)
    retention.apply_retention(log, 2 * T0, tiered=None)
    assert (log.next_offset, log.segment_infos()[0].base_offset) == (18, 10)
    assert bench.bytes_on_disk() == batch
    leader.close_files()


# -- reads for a socket ----------------------------------------------------------------------------


def test_large_read_for_a_socket_is_a_mapping_that_outlives_the_segment(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=3 * MAPPED_BYTES_MIN)
    log = bench.create()
    for _ in range(4):
        bench.append(log, bench.batch(size=MAPPED_BYTES_MIN - 1000))

    def read(offset: int, max_bytes: int) -> bytes | memoryview:
        return reading.read_cached(
            log, offset, max_bytes=max_bytes, up_to_offset=4, min_one=True, for_socket=True
        ).data

    expected = reading.read(log, 1, max_bytes=1 << 20, up_to_offset=3, min_one=True).data
    small, large = read(1, 1), read(1, len(expected))
    # A mapping starts at a page, and this batch does not.
    assert isinstance(large, memoryview)
    assert large == expected
    assert isinstance(small, bytes)
    assert expected.startswith(small)
    log.advance_high_watermark(log.next_offset)
    log.config = LogConfig(segment_bytes=3 * MAPPED_BYTES_MIN, retention_bytes=1)
    assert retention.apply_retention(log, T0, tiered=None)
    assert large == expected


def test_read_for_a_socket_copies_where_files_cannot_be_mapped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.config = LogConfig(segment_bytes=3 * MAPPED_BYTES_MIN)
    log = bench.create()
    data = bench.batch(size=MAPPED_BYTES_MIN)
    bench.append(log, data)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    found = reading.read_cached(
        log, 0, max_bytes=1, up_to_offset=1, min_one=True, for_socket=True
    ).data
    assert isinstance(found, bytes)
    assert len(found) == len(data)


# -- pages that are not cached ---------------------------------------------------------------------


def _nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", refuse)


def test_the_event_loop_reads_only_cached_pages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 40)
    flushing.flush(log)
    bench.fill(log, [1] * 5)

    def cached(offset: int) -> bytes:
        data: bytes = reading.read_cached(
            log, offset, max_bytes=300, up_to_offset=45, min_one=True
        ).data
        return data

    def from_disk(offset: int) -> bytes:
        data: bytes = reading.read(log, offset, max_bytes=300, up_to_offset=45, min_one=True).data
        return data

    # After a restart the index of the closed segment is not loaded: the first read goes to a
    # thread.
    bench.crash(log)
    log = bench.open(recovery_point=40, high_watermark=45)
    with pytest.raises(NotCached):  # its index is not loaded
        cached(3)
    expected = from_disk(3)
    assert cached(3) == expected
    with monkeypatch.context() as patch:
        # preadv with RWF_NOWAIT fails with EAGAIN if a page is not cached.
        _nothing_is_cached(patch)
        with pytest.raises(NotCached):
            cached(3)
        assert from_disk(3) == expected
        assert cached(44) == from_disk(44)  # the tail is known to be cached
    assert cached(3) == expected
    with pytest.raises(OffsetOutOfRange):
        cached(46)


def test_a_file_that_was_just_read_is_cached(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        files.check_cached(descriptor, 0, 1 << 20)
    finally:
        os.close(descriptor)


def test_closed_segments_of_all_logs_share_one_limit(bench: Bench, tmp_path: Path) -> None:
    # Room for five segments: a descriptor weighs 32 KiB, and the index of such a small segment
    # less than 1 KiB.
    shared = OpenSegments(limit_bytes=5 * 33 * 1024)
    logs = []
    for number in range(3):
        log_bench = type(bench)(tmp_path / f"x-{number}", config=bench.config)
        log_bench.open_segments = shared
        log = log_bench.create()
        log_bench.fill(log, [1] * 60)
        flushing.flush(log)
        logs.append(log)
        bench.opened.append(log)
    # Three logs with more than five closed segments each.
    for log in logs:
        assert len(bench.read_all(log)) == log.size_bytes
    assert 0 < shared.size_bytes <= 5 * 33 * 1024
    open_files = [
        link.readlink()
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and tmp_path in link.readlink().parents
    ]
    assert len(open_files) <= 5 + len(logs)  # and the active ones
    # Segments of the cache may be deleted: later reads do not find closed descriptors.
    retention.apply_retention(logs[0], 2 * T0, tiered=TieredRetention(highest_remote_offset=40))
    assert len(bench.read_all(logs[0])) == logs[0].size_bytes
