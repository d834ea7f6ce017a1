"""The leader-epoch checkpoint after a power cut: empty, short, older than the log, or newer."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.logfiles.leader_epochs import EpochEntry
from tidemark_broker.log import (
    StorageError,
    TieredRetention,
    epoch_file,
    flushing,
    retention,
    truncation,
)
from tidemark_broker.log.batch_walk import BatchAt

Bench = Any  # the LogBench of conftest.py


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def _file(bench: Bench) -> Path:
    path: Path = bench.directory / "leader-epoch-checkpoint"
    return path


def _closed(bench: Bench) -> int:
    """Return the end of a log of several segments that was flushed and closed. Epochs 0, 2 and 5
    all begin inside a segment."""
    log = bench.create()
    for epoch, count in ((0, 25), (2, 14), (5, 7)):
        bench.fill(log, [1] * count, epoch=epoch)
    bases = {segment.base_offset for segment in log.segment_infos()}
    assert len(bases) > 4
    assert not bases & {25, 39}
    log.advance_high_watermark(log.next_offset)
    flushing.close(log)
    return int(log.next_offset)


COMPLETE = "0\n3\n0 0\n2 25\n5 39\n"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        # No file, an empty one, zeros after a power failure, and a torn write.
        None,
        "",
        "\0" * len(COMPLETE),
        COMPLETE[:9],
        # Older than the log: entries are missing at the end.
        "0\n0\n",
        "0\n1\n0 0\n",
        "0\n2\n0 0\n2 25\n",
        # Newer than the log, or wrong: epochs that no batch has.
        "0\n2\n0 0\n7 3\n",
        "0\n4\n0 0\n2 25\n5 39\n9 44\n",
        "0\n4\n0 0\n2 25\n5 39\n9 46\n",
        "0\n1\n9 0\n",
    ],
)
def test_entries_missing_in_the_file_are_read_from_the_batches(
    bench: Bench, text: str | None, clean: bool
) -> None:
    end = _closed(bench)
    assert _file(bench).read_text() == COMPLETE
    _file(bench).unlink() if text is None else _file(bench).write_text(text)
    log = bench.open(recovery_point=end, clean_shutdown=clean, high_watermark=end)
    assert log.epochs.entries == (EpochEntry(0, 0), EpochEntry(2, 25), EpochEntry(5, 39))
    assert _file(bench).read_text() == COMPLETE


def test_epochs_below_the_local_log_are_read_from_the_file(bench: Bench) -> None:
    log = bench.create()
    # Offsets 10 to 99 are in the tier only. Epoch 0 cannot be read from any local batch.
    tier = (EpochEntry(0, 0), EpochEntry(2, 40))
    truncation.truncate_fully_and_start_at(log, 100, log_start_offset=10, epochs=tier)
    bench.fill(log, [1] * 20, epoch=2)
    bench.fill(log, [1] * 20, epoch=3)
    flushing.close(log)
    _file(bench).write_text("0\n2\n0 0\n2 40\n")
    # Epoch 0 is trimmed to the log start, and epoch 3, which the file lacks, comes from the
    # batches.
    reopened = bench.open(recovery_point=140, clean_shutdown=True, log_start_offset=10)
    assert reopened.epochs.entries == (EpochEntry(0, 10), EpochEntry(2, 40), EpochEntry(3, 120))


def test_only_segments_in_which_the_epoch_changes_are_walked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = _closed(bench)
    _file(bench).write_text("")
    walked = []
    real = epoch_file.walk_batches

    def record_walk(descriptor: int, position: int, end: int) -> Iterator[BatchAt]:
        walked.append(next(real(descriptor, position, end)).base_offset)
        return real(descriptor, position, end)

    monkeypatch.setattr(epoch_file, "walk_batches", record_walk)
    log = bench.open(recovery_point=end, clean_shutdown=True)
    assert log.epochs.latest_epoch == 5
    # A segment whose first batch has the epoch of the next segment's first batch cannot contain a
    # change.
    changing = [
        segment.base_offset
        for segment in log.segment_infos()
        if any(segment.base_offset < begins < segment.next_base_offset for begins in (25, 39))
    ]
    assert walked == changing


def test_an_append_leaves_the_durable_file_alone_until_the_next_flush(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1, 1], epoch=1)
    flushing.flush(log)
    bench.fill(log, [1, 1], epoch=4)
    assert _file(bench).read_text() == "0\n1\n1 0\n"
    assert log.epochs.latest_epoch == 4
    flushing.flush(log)
    assert _file(bench).read_text() == "0\n2\n1 0\n4 2\n"


def test_an_epoch_outlives_its_batches(bench: Bench) -> None:
    """Retention deletes the segment in which the epoch began before any flush. After a power
    failure the last offset in the tier must still belong to this epoch."""
    log = bench.create()
    bench.fill(log, [1] * 20, epoch=1)
    flushing.flush(log)
    bench.fill(log, [1] * 40, epoch=4)
    log.advance_high_watermark(60)
    remote = TieredRetention(highest_remote_offset=59)
    log.config = replace(log.config, local_retention_bytes=1)
    retention.apply_retention(log, log.segment_infos()[0].largest_timestamp_ms, tiered=remote)
    local_start = log.local_log_start_offset
    # The batch at offset 20, where epoch 4 begins, is no longer local.
    assert local_start > 21
    bench.crash(log)
    reopened = bench.open(recovery_point=20, log_start_offset=0, high_watermark=60)
    assert reopened.epochs.entries == (EpochEntry(1, 0), EpochEntry(4, 20))
    assert reopened.epochs.epoch_for_offset(local_start - 1) == 4


def test_retention_writes_no_epochs_of_deleted_records(bench: Bench) -> None:
    """The epochs need not be recorded, so retention works on a full disk."""
    log = bench.create()
    bench.fill(log, [1] * 20, epoch=1)
    flushing.flush(log)
    bench.fill(log, [1] * 40, epoch=4)
    log.advance_high_watermark(60)
    before = _file(bench).read_text()
    log.config = replace(log.config, retention_ms=1)
    retention.apply_retention(log, log.segment_infos()[-2].largest_timestamp_ms + 2, tiered=None)
    assert log.log_start_offset > 21
    assert _file(bench).read_text() == before


def test_an_emptied_log_keeps_its_last_epoch(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 20, epoch=1)
    flushing.flush(log)
    bench.fill(log, [1] * 40, epoch=4)
    log.advance_high_watermark(60)
    log.config = replace(log.config, retention_ms=1)
    retention.apply_retention(log, log.segment_infos()[-1].largest_timestamp_ms + 2, tiered=None)
    # Retention has deleted every record. The epoch that the next fetch must name is only in the
    # file.
    assert log.log_start_offset == log.next_offset == 60
    bench.crash(log)
    reopened = bench.open(recovery_point=20, log_start_offset=60, high_watermark=60)
    assert reopened.next_offset == 60
    assert reopened.epochs.latest_epoch == 4


def _refusing(call: Callable[..., object]) -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    return refuse


def test_an_epoch_is_durable_before_it_is_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1, 1], epoch=1)
    flushing.flush(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refusing(os.fsync))
        # The failure repeats: the first attempt must not have left the epoch in memory.
        for _ in range(2):
            with pytest.raises(StorageError):
                log.assign_leader_epoch(3)
            assert log.epochs.latest_epoch == 1
    assert log.assign_leader_epoch(3)
    assert _file(bench).read_text() == "0\n2\n1 0\n3 2\n"


def test_a_log_that_ends_below_its_start_restarts_in_the_epoch_of_the_deleted_records(
    bench: Bench,
) -> None:
    end = _closed(bench)
    # DeleteRecords raised the log start to 60, and a power failure took the records up to it.
    log = bench.open(recovery_point=end, log_start_offset=60, high_watermark=end)
    assert (log.log_start_offset, log.next_offset) == (60, 60)
    assert log.epochs.entries == (EpochEntry(5, 60),)
    bench.crash(log)
    log = bench.open(recovery_point=60, log_start_offset=60, high_watermark=60)
    assert log.epochs.entries == (EpochEntry(5, 60),)
