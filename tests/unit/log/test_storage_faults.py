"""A refusing disk: no part of a failed append is visible, and the log continues when it can."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidemark_broker.log import LogConfig, StorageError

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


@contextmanager
def _files_at_most(size_bytes: int) -> Iterator[None]:
    """The kernel writes up to the limit and refuses the rest (EFBIG), as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("spare", [0, 1, 60, 61, 62, 98])
def test_an_append_that_does_not_fit_leaves_no_trace(bench: Bench, spare: int) -> None:
    bench.config = LogConfig(index_interval_bytes=100)
    log = bench.create()
    bench.fill(log, [1, 1, 1])
    path = bench.directory / f"{0:020d}.log"
    size, data = log.size_bytes, bench.batch()
    assert spare < len(data)
    with _files_at_most(size + spare), pytest.raises(StorageError, match="cannot be written"):
        log.append_as_leader(data, leader_epoch=0, now_ms=T0)
    assert path.stat().st_size == log.size_bytes == size
    assert log.next_offset == 3
    with pytest.raises(StorageError), _files_at_most(size + spare):
        log.append_as_leader(data, leader_epoch=0, now_ms=T0)
    bench.fill(log, [2, 1])
    log.advance_high_watermark(6)
    assert bench.check(log) == [0, 1, 2, 3, 5]
    log.close()
    again = bench.open(recovery_point=6, clean_shutdown=True, high_watermark=6)
    assert bench.check(again) == [0, 1, 2, 3, 5]


def test_a_followers_append_that_does_not_fit(bench: Bench, tmp_path: Path) -> None:
    leader = bench.create()
    bench.fill(leader, [1] * 6)
    data = bench.read_all(leader)
    copy = type(bench)(tmp_path / "copy-0")
    follower = copy.create()
    with _files_at_most(len(data) - 1), pytest.raises(StorageError):
        follower.append_as_follower(data)
    assert (follower.next_offset, follower.size_bytes) == (0, 0)
    follower.append_as_follower(data)
    assert copy.read_all(follower) == data


def test_a_roll_that_fails_is_tried_again(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 10)
    assert len(log.segments()) == 1
    blocker = bench.directory / f"{10:020d}.log"
    blocker.mkdir()
    for _ in range(2):
        with pytest.raises(StorageError):
            bench.fill(log, [1])
    assert (log.next_offset, len(log.segments())) == (10, 1)
    blocker.rmdir()
    bench.fill(log, [1])
    assert len(log.segments()) == 2
    log.advance_high_watermark(11)
    bench.check(log)


def test_a_tail_that_cannot_be_cut_off_is_cut_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1, 1])
    size = log.size_bytes

    def refuse(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with _files_at_most(size + 50), pytest.raises(StorageError):
            bench.fill(log, [1])
        path = bench.directory / f"{0:020d}.log"
        assert path.stat().st_size == size + 50
        with pytest.raises(StorageError, match="torn tail"):
            log.flush()
    assert log.flush() == 2
    assert path.stat().st_size == size
    bench.fill(log, [1])
    log.advance_high_watermark(3)
    bench.check(log)


def test_after_a_failed_fsync_the_log_takes_nothing_until_it_is_opened_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1, 1])

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError, match="cannot be synced"):
            log.flush()
    assert log.recovery_point == 0
    for attempt in (log.flush, log.close, lambda: bench.fill(log, [1])):
        with pytest.raises(StorageError, match="cannot be synced"):
            attempt()
    again = bench.open(high_watermark=2)
    bench.fill(again, [1])
    bench.check(again)


@pytest.mark.parametrize("size_bytes", [0, 10, 30])
def test_a_full_disk_does_not_keep_a_log_from_opening(bench: Bench, size_bytes: int) -> None:
    bench.config = LogConfig(segment_bytes=100_000, index_interval_bytes=100)
    log = bench.create()
    for epoch in (1, 2, 3):
        bench.fill(log, [1] * 10, epoch=epoch)
    before, epochs = bench.read_all(log), log.epochs
    bench.crash(log)
    assert not (bench.directory / "leader-epoch-checkpoint").exists()
    with _files_at_most(size_bytes):
        log = bench.open(high_watermark=30)
        assert bench.read_all(log) == before
        assert log.epochs == epochs
        for attempt in (log.flush, lambda: bench.fill(log, [1], epoch=3)):
            with pytest.raises(StorageError):
                attempt()
    bench.fill(log, [1], epoch=3)
    log.close()
    again = bench.open(recovery_point=31, clean_shutdown=True, high_watermark=31)
    assert not again.truncated_at_open
    assert (again.next_offset, again.epochs) == (31, epochs)
    bench.check(again)


def test_a_closed_log_refuses(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1])
    log.close()
    log.close()
    for attempt in (
        lambda: bench.fill(log, [1]),
        lambda: log.read(0, max_bytes=1, up_to_offset=1, min_one=True),
        lambda: log.roll(T0),
        lambda: log.truncate_to(0),
        log.flush,
    ):
        with pytest.raises(StorageError, match="is closed"):
            attempt()
