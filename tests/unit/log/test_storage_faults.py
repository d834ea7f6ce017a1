"""A failing disk: no part of a failed append is visible, and the log
continues as soon as it can."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidemark_broker.log import LogConfig, StorageError, appending, flushing, reading, truncation

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


@contextmanager
def _files_at_most(size_bytes: int) -> Iterator[None]:
    """Limit the size of files. The kernel writes up to the limit and refuses the rest (EFBIG), as a
    full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Cut within the header (61 bytes), at its end, and one byte before the end of the batch.
@pytest.mark.parametrize("spare", [0, 1, 60, 61, 62, 98])
def test_an_append_that_does_not_fit_leaves_no_trace(bench: Bench, spare: int) -> None:
    bench.config = LogConfig(index_interval_bytes=100)
    log = bench.create()
    bench.fill(log, [1, 1, 1])
    path = bench.directory / f"{0:020d}.log"
    size, data = log.size_bytes, bench.batch()
    assert spare < len(data)
    with _files_at_most(size + spare), pytest.raises(StorageError, match="cannot be written"):
        appending.append_as_leader(log, data, leader_epoch=0, now_ms=T0)
    assert path.stat().st_size == log.size_bytes == size
    assert log.next_offset == 3
    # The torn tail was cut off, so a second failure leaves no trace either.
    with pytest.raises(StorageError), _files_at_most(size + spare):
        appending.append_as_leader(log, data, leader_epoch=0, now_ms=T0)
    bench.fill(log, [2, 1])
    log.advance_high_watermark(6)
    assert bench.check(log) == [0, 1, 2, 3, 5]
    flushing.close(log)
    reopened = bench.open(recovery_point=6, clean_shutdown=True, high_watermark=6)
    assert bench.check(reopened) == [0, 1, 2, 3, 5]


def test_a_failed_append_of_a_follower_leaves_no_trace(bench: Bench, tmp_path: Path) -> None:
    leader = bench.create()
    bench.fill(leader, [1] * 6)
    data = bench.read_all(leader)
    follower_bench = type(bench)(tmp_path / "copy-0")
    follower = follower_bench.create()
    with _files_at_most(len(data) - 1), pytest.raises(StorageError):
        appending.append_as_follower(follower, data)
    assert (follower.next_offset, follower.size_bytes) == (0, 0)
    appending.append_as_follower(follower, data)
    assert follower_bench.read_all(follower) == data


def test_a_failed_roll_is_retried_by_the_next_append(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 10)
    assert len(log.segment_infos()) == 1
    # A directory with the name of the next segment makes every roll fail.
    blocker = bench.directory / f"{10:020d}.log"
    blocker.mkdir()
    for _ in range(2):
        with pytest.raises(StorageError):
            bench.fill(log, [1])
    assert (log.next_offset, len(log.segment_infos())) == (10, 1)
    blocker.rmdir()
    bench.fill(log, [1])
    assert len(log.segment_infos()) == 2
    log.advance_high_watermark(11)
    bench.check(log)


def test_a_torn_tail_that_cannot_be_truncated_is_truncated_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1, 1])
    size = log.size_bytes

    def refuse(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        # 50 bytes of the batch reach the file, and the truncation that should remove them fails.
        with _files_at_most(size + 50), pytest.raises(StorageError):
            bench.fill(log, [1])
        path = bench.directory / f"{0:020d}.log"
        assert path.stat().st_size == size + 50
        with pytest.raises(StorageError, match="torn tail"):
            flushing.flush(log)
    # ftruncate works again: the flush removes the tail first.
    assert flushing.flush(log) == 2
    assert path.stat().st_size == size
    bench.fill(log, [1])
    log.advance_high_watermark(3)
    bench.check(log)


def test_after_a_failed_fsync_a_log_rejects_appends_until_it_is_reopened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1, 1])

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError, match="cannot be synced"):
            flushing.flush(log)
    assert log.recovery_point == 0
    # A later fsync could succeed although pages were dropped (the fsyncgate problem), so nothing
    # is retried on these descriptors.
    for attempt in (
        lambda: flushing.flush(log),
        lambda: flushing.close(log),
        lambda: bench.fill(log, [1]),
    ):
        with pytest.raises(StorageError, match="cannot be synced"):
            attempt()
    reopened = bench.open(high_watermark=2)
    bench.fill(reopened, [1])
    bench.check(reopened)


@pytest.mark.parametrize("size_bytes", [0, 10, 30])
def test_a_log_opens_on_a_full_disk(bench: Bench, size_bytes: int) -> None:
    bench.config = LogConfig(segment_bytes=100_000, index_interval_bytes=100)
    log = bench.create()
    for epoch in (1, 2, 3):
        bench.fill(log, [1] * 10, epoch=epoch)
    before, epochs = bench.read_all(log), log.epochs
    bench.crash(log)
    # Nothing was flushed, so the opening would have to write epochs and indexes. It keeps them in
    # memory.
    assert not (bench.directory / "leader-epoch-checkpoint").exists()
    with _files_at_most(size_bytes):
        log = bench.open(high_watermark=30)
        assert bench.read_all(log) == before
        assert log.epochs == epochs
        for attempt in (lambda: flushing.flush(log), lambda: bench.fill(log, [1], epoch=3)):
            with pytest.raises(StorageError):
                attempt()
    # With space again the log continues and is closed cleanly.
    bench.fill(log, [1], epoch=3)
    flushing.close(log)
    reopened = bench.open(recovery_point=31, clean_shutdown=True, high_watermark=31)
    assert not reopened.truncated_at_open
    assert (reopened.next_offset, reopened.epochs) == (31, epochs)
    bench.check(reopened)


def test_a_closed_log_rejects_every_operation(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1])
    flushing.close(log)
    flushing.close(log)
    for attempt in (
        lambda: bench.fill(log, [1]),
        lambda: reading.read(log, 0, max_bytes=1, up_to_offset=1, min_one=True),
        lambda: appending.roll(log, T0),
        lambda: truncation.truncate_to(log, 0),
        lambda: flushing.flush(log),
    ):
        with pytest.raises(StorageError, match="is closed"):
            attempt()
