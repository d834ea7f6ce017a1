"""A log whose disk failed rejects everything until its files were reopened and checked."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tidemark_broker.log import StorageError, flushing, opening, reading, start_offsets, truncation

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str) -> Iterator[None]:
    """Let this system call fail with an I/O error."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        yield


def _after_a_failed_fsync(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a log with offsets 0 to 19 in several segments, epochs 1 and 2, the high watermark at
    15, and a failed fsync."""
    log = bench.create()
    bench.fill(log, [1] * 12, epoch=1)
    flushing.flush(log)
    bench.fill(log, [1] * 8, epoch=2)
    log.advance_high_watermark(15)
    start_offsets.raise_log_start(log, 3)
    with failing(monkeypatch, "fdatasync"), pytest.raises(StorageError, match="cannot be synced"):
        flushing.flush(log)
    return log


def test_a_log_continues_if_no_record_was_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _after_a_failed_fsync(bench, monkeypatch)
    epochs, before = log.epochs, bench.bytes_on_disk()
    with pytest.raises(StorageError, match="opened again"):
        reading.read(log, 3, max_bytes=100, up_to_offset=15, min_one=True)
    # A failed log must not be flushed again: after a failed fsync the kernel drops dirty pages.
    assert not flushing.needs_flush(log)
    assert opening.reopen(log)
    assert log.failure is None
    assert (log.log_start_offset, log.high_watermark, log.next_offset) == (3, 15, 20)
    assert (log.epochs, bench.bytes_on_disk()) == (epochs, before)
    bench.fill(log, [2], epoch=2)
    assert flushing.flush(log) == 22
    bench.check(log)


def test_records_that_the_disk_lost_are_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _after_a_failed_fsync(bench, monkeypatch)
    path = sorted(bench.directory.glob("*.log"))[-1]
    # One byte of the last batch was not written back.
    os.truncate(path, path.stat().st_size - 1)
    assert not opening.reopen(log)
    assert log.next_offset == 19
    assert (log.log_start_offset, log.high_watermark) == (3, 15)
    bench.fill(log, [1], epoch=3)
    bench.check(log)


def test_bounds_above_the_remaining_records_are_lowered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 6)
    log.advance_high_watermark(6)
    start_offsets.raise_log_start(log, 4)
    with failing(monkeypatch, "fdatasync"), pytest.raises(StorageError):
        flushing.flush(log)
    # The disk lost every record. The log start stays, because clients have seen it.
    os.truncate(bench.directory / f"{0:020d}.log", 0)
    assert not opening.reopen(log)
    assert (log.log_start_offset, log.high_watermark, log.next_offset) == (4, 4, 4)
    bench.fill(log, [1])
    bench.check(log)


def test_a_log_rejects_requests_until_a_reopen_succeeds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _after_a_failed_fsync(bench, monkeypatch)
    metadata = bench.directory / "partition.metadata"
    hidden = metadata.rename(metadata.with_name("hidden"))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"partition\.metadata cannot be read"):
            opening.reopen(log)
        with pytest.raises(StorageError, match="opened again"):
            bench.fill(log, [1], epoch=2)
    hidden.rename(metadata)
    assert opening.reopen(log)
    bench.fill(log, [1], epoch=2)
    bench.check(log)


@pytest.mark.parametrize(
    ("shorten", "call"),
    [
        (lambda log: truncation.truncate_to(log, 7), "ftruncate"),
        (
            lambda log: truncation.truncate_fully_and_start_at(
                log, 9, log_start_offset=9, epochs=()
            ),
            "rename",
        ),
    ],
)
def test_a_failed_truncation_can_be_repeated_after_a_reopen(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    shorten: Callable[[Any], object],
    call: str,
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 20)
    with failing(monkeypatch, call), pytest.raises(StorageError):
        shorten(log)
    with pytest.raises(StorageError, match="opened again"):
        bench.fill(log, [1])
    assert opening.reopen(log)  # only records above the truncation are lost
    shorten(log)
    bench.fill(log, [1])
    bench.check(log)


def test_a_failed_log_is_never_closed_cleanly(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _after_a_failed_fsync(bench, monkeypatch)
    (bench.directory / "partition.metadata").rename(bench.directory / "hidden")
    with pytest.raises(StorageError):
        opening.reopen(log)
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot be synced"):
            flushing.close(log)


def test_a_reopen_that_fails_late_is_retried(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers are read last. A log that is closed without a failure would stay closed."""
    log = _after_a_failed_fsync(bench, monkeypatch)
    real = log.reload_producers

    def refuse(_: int | None = None) -> None:
        raise StorageError("the disk is full")

    log.reload_producers = refuse
    with pytest.raises(StorageError, match="full"):
        opening.reopen(log)
    assert log.failure is not None
    log.reload_producers = real
    assert opening.reopen(log)
    bench.fill(log, [1], epoch=2)
    bench.check(log)


def test_a_log_reopens_on_a_full_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reopen makes producer snapshots. On a full disk they stay in memory."""
    log = _after_a_failed_fsync(bench, monkeypatch)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes", full)
        assert opening.reopen(log)
    bench.fill(log, [1], epoch=2)
    assert flushing.flush(log) == 21
    bench.check(log)
