"""Appends and reads on the loop continue, undisturbed, while threads read, flush and remove."""

import errno
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
    page_cache,
    timestamp_lookup,
)
from tidemark_broker.log.open_segments import OpenSegments

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


def _meanwhile(work: Callable[[], object]) -> None:
    """Do it in another thread, as the loop would; an error if it has to wait for this one."""
    errors = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - carried to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "the loop would wait"
    assert errors == []


def _once(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, work: Callable[[], None]) -> None:
    """Do ``work`` when that function is called for the first time, before it is."""
    real, called = getattr(place, name), []

    def first(*args: Any, **kwargs: Any) -> Any:
        if not called:
            called.append(True)
            work()
        return real(*args, **kwargs)

    monkeypatch.setattr(place, name, first)


def test_an_append_does_not_wait_for_a_look_up_by_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [3, 3])
    _once(
        monkeypatch,
        timestamp_lookup,
        "decode_timestamps",
        lambda: _meanwhile(lambda: bench.fill(log, [1])),
    )
    found = log.offset_by_timestamp(T0 + 31)
    assert found is not None
    assert (found.offset, log.next_offset) == (4, 7)


def test_an_append_does_not_wait_for_a_flush(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.create()
    bench.fill(log, [1] * 15)
    for call in ("pwrite", "ftruncate", "fdatasync"):
        _once(monkeypatch, os, call, lambda: _meanwhile(lambda: bench.fill(log, [1])))
    assert log.flush() == 17  # what was appended before the sync began
    assert log.flush() == 18
    bench.check(log)


def test_a_look_up_survives_the_removal_and_the_truncation_of_what_it_reads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 30)
    log.advance_high_watermark(30)
    log.config = LogConfig(segment_bytes=1000, retention_bytes=900)
    _once(
        monkeypatch,
        timestamp_lookup,
        "decode_timestamps",
        lambda: _meanwhile(lambda: log.apply_retention(T0, tiered=None)),
    )
    found = log.offset_by_timestamp(T0 + 31)
    assert found is not None
    assert log.local_log_start_offset > 4
    with monkeypatch.context() as patch:
        end = log.next_offset - 2
        _once(
            patch,
            timestamp_lookup,
            "_first_in_batch",
            lambda: _meanwhile(lambda: log.truncate_to(end)),
        )
        found = log.offset_by_timestamp(T0 + 10 * (end + 1))
    assert (found, log.next_offset) == (None, end)


def test_a_roll_makes_one_file_and_leaves_the_rest_to_the_flush(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 10)
    opened, real = [], os.open

    def watching(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", watching)
        assert log.roll(T0)
    assert opened == [f"{10:020d}.log"]
    assert log.needs_flush
    log.flush()
    assert not log.needs_flush
    names = {path.name for path in bench.directory.glob("0*")}
    assert names == {
        *(f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")),
        *(f"{10:020d}{suffix}" for suffix in (".log", ".snapshot")),
    }


def test_lost_index_entries_are_rebuilt_after_a_crash(bench: Bench) -> None:
    """A flushed segment that retention rolled: the next flush would finish its indexes."""
    bench.config = LogConfig(index_interval_bytes=10_000)
    log = bench.create()
    bench.fill(log, [1, 1])
    log.flush()
    bench.fill(log, [1])
    log.flush()
    log.roll(T0)
    bench.crash(log)
    again = bench.open(recovery_point=3, high_watermark=3)
    assert again.segments()[0].largest_timestamp_ms == T0 + 20


# -- removal -------------------------------------------------------------------------------------


def test_a_removal_that_fails_leaves_no_hole(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bench.create()
    bench.fill(log, [1] * 50)
    log.advance_high_watermark(50)
    log.flush()
    second = log.segments()[1].base_offset
    real = Path.rename

    def stuck(path: Path, target: Any) -> Path:
        if path.name == f"{second:020d}.log":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, target)

    log.config = LogConfig(segment_bytes=1000, retention_bytes=2500)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stuck)
        with pytest.raises(StorageError, match="cannot be removed"):
            log.apply_retention(T0, tiered=None)
        assert log.segments()[0].base_offset == second
        log.config = LogConfig(segment_bytes=1000, retention_bytes=1200)
        with pytest.raises(StorageError, match="cannot be removed"):
            log.apply_retention(T0, tiered=None)
    start = log.log_start_offset
    bench.crash(log)
    again = bench.open(recovery_point=50, log_start_offset=start, high_watermark=50)
    bench.check(again)
    again.apply_retention(T0, tiered=None)
    assert again.segments()[0].base_offset == again.log_start_offset == start


def test_a_segment_made_under_a_name_that_is_being_removed_stays(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = type(bench)(tmp_path / "leader-0").create()
    bench.fill(leader, [1] * 10 + [8])
    batch = leader.read(10, max_bytes=1, up_to_offset=18, min_one=True).data
    log = bench.create()
    bench.fill(log, [1] * 14)
    log.advance_high_watermark(14)
    assert [segment.base_offset for segment in log.segments()] == [0, 10]
    log.config = LogConfig(retention_ms=1)
    real, appended = Path.unlink, []

    def overtaken(path: Path, missing_ok: bool = False) -> None:
        if log.size_bytes == 0 and not appended:
            appended.append(True)
            log.append_as_follower(batch)
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", overtaken)
    log.apply_retention(2 * T0, tiered=None)
    assert (log.next_offset, log.segments()[0].base_offset) == (18, 10)
    assert bench.bytes_on_disk() == batch
    leader.state.close_files()


# -- what is not in memory -----------------------------------------------------------------------


def _nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", refuse)


def test_the_loop_reads_only_what_is_in_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 40)
    log.flush()
    bench.fill(log, [1] * 5)

    def cached(offset: int) -> bytes:
        data: bytes = log.read_cached(offset, max_bytes=300, up_to_offset=45, min_one=True).data
        return data

    def from_disk(offset: int) -> bytes:
        data: bytes = log.read(offset, max_bytes=300, up_to_offset=45, min_one=True).data
        return data

    bench.crash(log)
    log = bench.open(recovery_point=40, high_watermark=45)
    with pytest.raises(NotCached):  # its index is not loaded
        cached(3)
    expected = from_disk(3)
    assert cached(3) == expected
    with monkeypatch.context() as patch:
        _nothing_is_cached(patch)
        with pytest.raises(NotCached):
            cached(3)
        assert from_disk(3) == expected
        assert cached(44) == from_disk(44)  # the tail, without asking
    assert cached(3) == expected
    with pytest.raises(OffsetOutOfRange):
        cached(46)


def test_what_was_just_read_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        page_cache.check_cached(descriptor, 0, 1 << 20)
    finally:
        os.close(descriptor)


def test_closed_segments_of_all_logs_share_one_limit(bench: Bench, tmp_path: Path) -> None:
    shared = OpenSegments(limit_bytes=5 * 33 * 1024)
    logs = []
    for number in range(3):
        one = type(bench)(tmp_path / f"x-{number}", config=bench.config)
        one.open_segments = shared
        log = one.create()
        one.fill(log, [1] * 60)
        log.flush()
        logs.append(log)
        bench.opened.append(log)
    for log in logs:
        assert len(bench.read_all(log)) == log.size_bytes
    assert 0 < shared.size_bytes <= 5 * 33 * 1024
    held = [
        link.readlink()
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and tmp_path in link.readlink().parents
    ]
    assert len(held) <= 5 + len(logs)  # and the active ones
    logs[0].apply_retention(2 * T0, tiered=TieredRetention(highest_remote_offset=40))
    assert len(bench.read_all(logs[0])) == logs[0].size_bytes
