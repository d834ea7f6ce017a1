"""Threads that flush, delete and look up, concurrent with appends and reads on the event loop."""

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    OffsetOutOfRange,
    TieredRetention,
    appending,
    flushing,
    reading,
    retention,
    truncation,
)
from tidemark_broker.log.segment import Segment

T0 = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=500)
Bench = Any  # the LogBench of conftest.py


def test_appends_and_reads_continue_beside_flush_retention_and_lookups(bench: Bench) -> None:
    # Small segments and limits, so that 1,500 appends cause many rolls and deletions.
    bench.config = LogConfig(
        segment_bytes=2000, index_interval_bytes=100, retention_ms=-1, local_retention_bytes=9000
    )
    log = bench.create()
    done, errors = threading.Event(), []

    def repeat(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not done.is_set():
                    work()
                    time.sleep(0.0001)  # a spinning thread would hold the GIL
            except Exception as error:  # noqa: BLE001 - carried to the test's own thread
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def retain() -> None:
        highest = log.recovery_point - 1
        retention.apply_retention(log, T0, tiered=TieredRetention(highest_remote_offset=highest))

    threads = [
        repeat(lambda: flushing.flush(log)),
        repeat(retain),
        repeat(lambda: reading.offset_by_timestamp(log, T0 + 10 * (log.next_offset - 5))),
    ]
    try:
        offset = 0
        for number in range(1500):
            bench.fill(log, [1], epoch=number // 100)
            log.advance_high_watermark(log.next_offset - 1)
            try:
                read = reading.read(
                    log, offset, max_bytes=700, up_to_offset=log.next_offset, min_one=True
                )
            # Retention has deleted the segment, so the reader continues at the local start.
            except OffsetOutOfRange:
                offset = log.local_log_start_offset
                continue
            assert next(iter_headers(read.data))[1].base_offset == offset
            offset = read.next_offset
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    # After the race the log is consistent, on the disk as well.
    assert flushing.flush(log) == 1500
    retain()
    assert log.log_start_offset == 0 < log.local_log_start_offset
    bench.check(log)
    epochs = log.epochs
    bench.crash(log)
    reopened = bench.open(recovery_point=1500, log_start_offset=0, high_watermark=1500)
    assert (reopened.next_offset, reopened.epochs) == (1500, epochs)


def test_truncations_of_several_logs_and_checkpoints_never_wait_for_each_other(
    start: Callable[[], LogManager],
) -> None:
    """A truncation waits for a checkpoint, which visits every log. It must not hold the lock that
    the checkpoint needs."""
    manager = start()
    errors: list[BaseException] = []
    done = threading.Event()

    def repeat(work: Callable[[], object], rounds: int) -> threading.Thread:
        def run() -> None:
            try:
                for _ in range(rounds):
                    if done.is_set():
                        return
                    work()
            except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # Odd partitions truncate, even ones restart beyond the tier. Both lower a recovery point,
    # which writes a checkpoint.
    def cut(number: int) -> Callable[[], object]:
        log = manager.create(
            topic="t", topic_id=uuid.UUID(int=number + 1), partition=number, config=CONFIG
        )

        def work() -> None:
            for _ in range(3):
                appending.append_as_leader(
                    log, build_batch([Record(b"k", b"v", (), T0)]), leader_epoch=0, now_ms=T0
                )
            flushing.flush(log)
            if number % 2:
                truncation.truncate_to(log, log.next_offset - 2)
            else:
                truncation.truncate_fully_and_start_at(
                    log, log.next_offset - 1, log_start_offset=0, epochs=()
                )

        return work

    threads = [repeat(cut(number), 60) for number in range(3)]
    # Checkpoints run all the time, until the test sets ``done``.
    checkpoints = repeat(manager.checkpoint, 1_000_000)
    try:
        for thread in threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "deadlock"
    finally:
        done.set()
    checkpoints.join(timeout=30)
    assert not checkpoints.is_alive(), "deadlock"
    assert errors == []


def test_a_restarting_log_can_be_inspected_without_its_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance checks each log for a pending flush, also while a follower restarts from the
    tier."""
    log = bench.create()
    bench.fill(log, [1] * 30)
    log.advance_high_watermark(30)
    checked: list[bool] = []
    real = Segment.create

    # At this moment the log has no segment: the old ones are removed and the new one is not
    # created yet.
    def create_with_check(directory: Path, base_offset: int, *, created_ms: int) -> Segment:
        checked.append(
            flushing.needs_flush(log) or log.size_bytes > 0 or log.active_base_offset >= 0
        )
        return real(directory, base_offset, created_ms=created_ms)

    monkeypatch.setattr(Segment, "create", create_with_check)
    truncation.truncate_fully_and_start_at(log, 100, log_start_offset=0, epochs=())
    assert checked == [True]
    assert (log.size_bytes, log.active_base_offset) == (0, 100)
    bench.fill(log, [1])
