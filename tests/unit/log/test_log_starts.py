"""Log starts are recorded before a file is deleted: a missing first segment without a record is a
failure of the replica."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    PartitionLog,
    StorageError,
    TieredRetention,
    appending,
    flushing,
    log_checkpoints,
    opening,
    reading,
    retention,
    start_offsets,
    truncation,
)
from tidemark_broker.log.bounds import Starts
from tidemark_broker.log.log_checkpoints import JOURNAL, LOCAL_LOG_START_CHECKPOINT, LogStarts
from tidemark_broker.log.start_offsets import starts_of

T0 = 1_700_000_000_000
ID = uuid.UUID(int=7)
CONFIG = LogConfig(segment_bytes=500, retention_ms=-1)
A, B = ("a", 0), ("b", 1)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


# -- the journal --------------------------------------------------------------------------------


def _loaded(directory: Path) -> LogStarts:
    starts = LogStarts(directory)
    starts.load()
    return starts


@pytest.mark.parametrize("failing", [1, 2], ids=["its first write", "its second write"])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_failed_journal_restart_loses_no_later_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, call: str
) -> None:
    """A failed write may have reached the disk, or may reach it later."""
    starts = _loaded(tmp_path)
    starts.compact()
    starts.record({A: Starts(5, 5)})
    real, journal, count = getattr(os, call), tmp_path / JOURNAL, 0

    def fail(descriptor: int, *rest: Any) -> Any:
        nonlocal count
        # Count only calls on the journal: the checkpoints are written through the same functions.
        count += os.path.samestat(os.fstat(descriptor), journal.stat())
        if count == failing:
            count += 1
            raise OSError(errno.ENOSPC, "no space left")
        return real(descriptor, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError):
            starts.compact()
    # The checkpoints are written, the journal may be in either state: both give the recorded
    # start.
    assert _loaded(tmp_path).of(A) == Starts(5, 5)
    # Later records must be readable behind whatever the failed write left.
    starts.record({B: Starts(9, 9)})
    starts.record({A: Starts(7, 7)})
    assert _loaded(tmp_path).recorded == {A: Starts(7, 7), B: Starts(9, 9)}


def test_a_torn_write_does_not_expose_former_journal_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines are equally long here, so a write without its end mark ends where a former line
    begins."""
    starts = _loaded(tmp_path)
    starts.compact()
    for n in (3, 4, 5):
        starts.record({A: Starts(n, n)})
    real = os.pwrite

    def cut_off(length: int) -> Callable[..., int]:
        def write(descriptor: int, data: bytes, position: int) -> int:
            # The one-byte write erases the first former line. It succeeds, so that the failure
            # hits the write of the new line.
            if len(data) == 1:
                return real(descriptor, data, position)
            real(descriptor, bytes(data)[:length], position)
            raise OSError(errno.EIO, "power cut")

        return write

    monkeypatch.setattr(os, "pwrite", cut_off(0))
    with pytest.raises(StorageError):
        starts.compact()
    monkeypatch.setattr(os, "pwrite", real)
    restarted = _loaded(tmp_path)
    restarted.record({A: Starts(7, 7)})
    # The new line reaches the disk but not the mark behind it: a former line follows directly.
    line = len(f"a 0 7 7 {0:08x}\n")
    monkeypatch.setattr(os, "pwrite", cut_off(line))
    with pytest.raises(StorageError):
        restarted.record({B: Starts(9, 9)})
    monkeypatch.setattr(os, "pwrite", real)
    assert _loaded(tmp_path).of(A) == Starts(7, 7)


def test_recorded_starts_are_read_after_a_restart(tmp_path: Path) -> None:
    starts = _loaded(tmp_path)
    assert starts.of(A) is None
    starts.record({A: Starts(3, 5)})
    starts.record({B: Starts(0, 9), A: Starts(4, 5)})
    assert _loaded(tmp_path).recorded == {A: Starts(4, 5), B: Starts(0, 9)}
    starts.compact(without={B})
    reloaded = _loaded(tmp_path)
    assert reloaded.of(A) == Starts(4, 5)
    assert reloaded.of(B) == Starts(0, 0)  # a log without an entry starts at 0
    reloaded.record({A: Starts(1, 2)})  # a restart below the tier lowers it
    assert _loaded(tmp_path).of(A) == Starts(1, 2)


@pytest.mark.parametrize("cut", range(1, 18))
def test_a_torn_journal_line_is_ignored(tmp_path: Path, cut: int) -> None:
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    starts.record({B: Starts(0, 9)})
    journal = tmp_path / JOURNAL
    # Cut 1 to 17 bytes, that is any part of the second line. The rest of the file is zeros, as
    # reserved.
    data = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(data[:-cut] + bytes(4096))
    reloaded = _loaded(tmp_path)
    assert reloaded.recorded == {A: Starts(3, 5)}
    reloaded.record({B: Starts(1, 9)})
    assert _loaded(tmp_path).recorded == {A: Starts(3, 5), B: Starts(1, 9)}


def test_replaying_journal_lines_over_newer_checkpoints_changes_nothing(tmp_path: Path) -> None:
    """The process dies between the write of the checkpoints and the restart of the journal."""
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    starts.record({A: Starts(2, 2)})
    journal = (tmp_path / JOURNAL).read_bytes()
    starts.compact()
    assert _loaded(tmp_path).recorded == {A: Starts(2, 2)}
    (tmp_path / JOURNAL).write_bytes(journal)
    assert _loaded(tmp_path).recorded == {A: Starts(2, 2)}


@pytest.mark.parametrize("page", range(3))
@pytest.mark.parametrize("syncs", [0, 1])
def test_a_power_failure_during_a_journal_restart_restores_no_former_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: int, page: int
) -> None:
    """Only one page of the unsynced journal reaches the disk. The old content of the other pages
    must not be replayed over the newer checkpoints."""
    starts = _loaded(tmp_path)
    # 600 lines need more than two pages of 4 KiB, so that pages can be lost one by one.
    for number in range(600):
        starts.record({A: Starts(number, number)})
    journal, real = tmp_path / JOURNAL, os.fsync
    durable = journal.read_bytes()
    assert len(durable.rstrip(b"\0")) > 2 * 4096

    def until_the_power_cut(descriptor: int) -> None:
        nonlocal syncs, durable
        if Path(f"/proc/self/fd/{descriptor}").readlink() != journal:
            real(descriptor)
            return
        # Fail the first or the second fsync of the journal. Before it, one page was written back
        # and the others kept their last durable content.
        syncs -= 1
        if syncs < 0:
            page_bytes = slice(4096 * page, 4096 * (page + 1))
            torn = bytearray(durable)
            torn[page_bytes] = journal.read_bytes()[page_bytes]
            journal.write_bytes(torn)
            raise OSError(errno.EIO, "power cut")
        durable = journal.read_bytes()

    with monkeypatch.context() as patch, contextlib.suppress(StorageError):
        patch.setattr(os, "fsync", until_the_power_cut)
        starts.compact()
    assert _loaded(tmp_path).recorded == {A: Starts(599, 599)}


def test_a_full_journal_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # About 11 lines: 50 records restart the journal several times.
    monkeypatch.setattr(log_checkpoints, "JOURNAL_BYTES", 200)
    starts = _loaded(tmp_path)
    for number in range(50):
        starts.record({A: Starts(number, number), B: Starts(0, number)})
        assert (tmp_path / JOURNAL).stat().st_size <= 200
        assert _loaded(tmp_path).recorded == starts.recorded


def test_recording_a_start_costs_one_short_write_for_any_number_of_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, written, real = _loaded(tmp_path), [], os.pwrite

    def record_pwrite(descriptor: int, data: Any, position: int) -> int:
        written.append(len(data))
        return real(descriptor, data, position)

    starts.record({("t", number): Starts(0, 0) for number in range(1000)})
    starts.compact()
    monkeypatch.setattr(os, "pwrite", record_pwrite)
    monkeypatch.setattr(log_checkpoints.OffsetCheckpoint, "save", _refuse)
    starts.record({("t", 7): Starts(5, 5)})
    assert len(written) == 1
    assert written[0] < 50


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- a directory of logs -------------------------------------------------------------------------


def _filled(manager: LogManager, count: int = 30) -> PartitionLog:
    log = manager.create(topic="t", topic_id=ID, partition=0, config=CONFIG)
    _append(log, count)
    flushing.flush(log)
    return log


def _append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        batch = build_batch([Record(b"k", bytes(30), (), T0)])
        appending.append_as_leader(log, batch, leader_epoch=0, now_ms=T0)
    log.advance_high_watermark(log.next_offset)


def _remove_first(log: PartitionLog) -> None:
    (log.directory / f"{log.segment_infos()[0].base_offset:020d}.log").unlink()


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_first_segment_fails_the_replica(
    start: Callable[[], LogManager], clean: bool
) -> None:
    manager = start()
    log = _filled(manager)
    second = log.segment_infos()[1].base_offset
    manager.checkpoint()
    if clean:
        assert asyncio.run(manager.close(5))
    # Without the record, the log would open with a higher start and silently lose these offsets.
    _remove_first(log)
    manager = start()
    [failure] = manager.failures
    assert f"offsets 0 to {second - 1} are missing at the start of the log" in failure.reason
    assert "sets the directory aside and copies the records" in failure.reason
    assert manager.previous_broker_epoch is None
    assert list(log.directory.glob("*.log"))
    assert manager.retry_opening("t", 0) is None
    # Another start in between must not accept the loss.
    start()  # the recorded start remains
    assert len(start().failures) == 1


def test_a_removed_replica_directory_is_recreated_only_at_startup(
    start: Callable[[], LogManager],
) -> None:
    """The failure message says that the directory may only be removed while the broker is down."""
    manager = start()
    log = _filled(manager)
    manager.checkpoint()
    _remove_first(log)
    manager = start()
    assert "stop this broker" in manager.failures[0].reason
    # An operator removes the directory of a running broker all the same.
    shutil.rmtree(log.directory)
    assert manager.retry_opening("t", 0) is None
    assert "restart the broker" in manager.failures[0].reason
    # The shutdown is not clean, so the broker does not register as one that has all its records.
    assert not asyncio.run(manager.close(5))
    manager = start()
    assert not manager.failures
    assert manager.previous_broker_epoch is None
    assert manager.create(topic="t", topic_id=log.topic_id, partition=0, config=log.config)


def test_a_directory_without_recorded_local_starts_is_accepted(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    log = _filled(manager)
    manager.checkpoint()
    # A version before these files left the directory: nothing says where its logs should begin.
    for name in (LOCAL_LOG_START_CHECKPOINT, JOURNAL):
        (manager.directory / name).unlink()
    _remove_first(log)
    [reopened] = start().logs()
    assert reopened.log_start_offset == 0 < reopened.local_log_start_offset


@pytest.mark.parametrize("tiered", [None, TieredRetention(highest_remote_offset=29)])
@pytest.mark.parametrize("crash_at", ["before", "within", "after"])
def test_a_crash_during_retention_does_not_fail_the_replica(
    start: Callable[[], LogManager],
    monkeypatch: pytest.MonkeyPatch,
    tiered: TieredRetention | None,
    crash_at: str,
) -> None:
    manager = start()
    log = _filled(manager)
    manager.checkpoint()
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    if crash_at == "after":
        assert len(retention.apply_retention(log, T0, tiered=tiered)) > 1
    else:
        # The crash comes before the first segment is deleted, or after one of several.
        calls = 0 if crash_at == "before" else 1
        real = log.segments.take_oldest

        def crashing() -> list[Path]:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise StorageError("crash")
            return real()

        monkeypatch.setattr(log.segments, "take_oldest", crashing)
        with pytest.raises(StorageError, match="crash"):
            retention.apply_retention(log, T0, tiered=tiered)
    # Clients may have seen this start, so it must survive.
    visible = log.log_start_offset
    manager = start()
    assert manager.failures == []
    [reopened] = manager.logs()
    assert reopened.log_start_offset == visible
    assert reopened.log_start_offset <= reopened.local_log_start_offset


def test_a_concurrent_checkpoint_does_not_revert_the_starts_that_retention_recorded(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    real = LogStarts.record
    in_between: list[bool] = []

    def record_with_race(starts: LogStarts, changes: Any) -> None:
        real(starts, changes)
        if not in_between:
            in_between.append(True)
            thread = threading.Thread(target=lambda: manager.record_log_starts([log]))
            thread.start()  # it waits for the lock and records the starts of that moment
            others.append(thread)

    others: list[threading.Thread] = []
    monkeypatch.setattr(LogStarts, "record", record_with_race)
    # Retention stops between its record and the deletion.
    monkeypatch.setattr(log.segments, "take_oldest", _refuse)
    with pytest.raises(OSError, match="No space"):
        retention.apply_retention(log, T0, tiered=None)
    for thread in others:
        thread.join()
    # The second record must have the new start, although no file is deleted yet.
    assert in_between
    recorded = manager._checkpoints.starts.of(("t", 0))
    assert recorded == starts_of(log)
    assert recorded.log_start_offset > 0


def test_a_checkpoint_keeps_starts_that_were_recorded_while_it_ran(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread creates a log and records its start after the checkpoint listed the logs."""
    manager = start()
    _filled(manager)
    real = LogStarts.compact

    def compact_after_record(starts: LogStarts, *args: Any, **kwargs: Any) -> None:
        thread = threading.Thread(target=make_another)
        thread.start()
        thread.join()
        real(starts, *args, **kwargs)

    def make_another() -> None:
        log = manager.create(topic="u", topic_id=uuid.UUID(int=8), partition=0, config=CONFIG)
        appending.append_as_leader(
            log, build_batch([Record(b"k", b"v", (), T0)] * 9), leader_epoch=0, now_ms=T0
        )
        flushing.flush(log)
        log.advance_high_watermark(9)
        # DeleteRecords at offset 7: it is acknowledged once the start is recorded.
        start_offsets.announce_log_start(log, 7)
        manager.record_log_starts([log])
        assert start_offsets.adopt_checkpointed_log_start(log)

    with monkeypatch.context() as patch:
        patch.setattr(LogStarts, "compact", compact_after_record)
        manager.checkpoint()
    log_after_restart = start().get("u", 0)
    assert log_after_restart is not None
    assert log_after_restart.log_start_offset == 7


@pytest.mark.parametrize("by_retention", [False, True])
def test_a_deleted_log_records_no_start_for_its_successor(
    start: Callable[[], LogManager], by_retention: bool
) -> None:
    """A checkpoint or retention of the former log waits for the disk while its topic is deleted and
    created again."""
    manager = start()
    former = _filled(manager)
    start_offsets.raise_log_start(former, 20)
    assert manager.delete("t", 0)
    log = manager.create(topic="t", topic_id=uuid.UUID(int=8), partition=0, config=CONFIG)
    appending.append_as_leader(
        log, build_batch([Record(b"k", b"v", (), T0)]), leader_epoch=0, now_ms=T0
    )
    flushing.flush(log)
    # Retention records through the log that it works on, a checkpoint through the manager.
    if by_retention:
        assert former.record_starts is not None
        with pytest.raises(StorageError, match="is deleted"):
            former.record_starts(Starts(20, 20))
    else:
        manager.record_log_starts([former])
    [log_after_restart] = start().logs()
    assert (log_after_restart.log_start_offset, log_after_restart.next_offset) == (0, 1)


def test_a_late_record_does_not_lower_the_durable_start(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An announced log start waits for its record while retention records a later one. A request
    that waits for the later start must not wait for the next checkpoint."""
    manager = start()
    log = _filled(manager)
    start_offsets.announce_log_start(log, 3)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    real = manager._checkpoints._shared_record

    # Retention runs to its end between the decision to record 3 and the write.
    def record_after_retention() -> None:
        monkeypatch.setattr(manager._checkpoints, "_shared_record", real)
        assert retention.apply_retention(log, T0, tiered=None)
        real()

    monkeypatch.setattr(manager._checkpoints, "_shared_record", record_after_retention)
    manager.record_log_starts([log])
    start_offsets.adopt_checkpointed_log_start(log)
    assert log.durable_log_start_offset == log.log_start_offset > 3
    recorded = manager._checkpoints.starts.of(("t", 0))
    assert recorded is not None
    assert recorded.log_start_offset == log.log_start_offset


def test_a_start_is_durable_only_when_it_is_recorded(start: Callable[[], LogManager]) -> None:
    log = _filled(start())
    start_offsets.raise_log_start(log, 3)
    assert retention.apply_retention(log, T0, tiered=None) == []
    assert log.durable_log_start_offset == 0


def test_retention_deletes_nothing_if_the_start_cannot_be_recorded(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with pytest.raises(StorageError):
            retention.apply_retention(log, T0, tiered=None)
    assert (log.log_start_offset, log.segment_infos()[0].base_offset) == (0, 0)
    assert retention.apply_retention(log, T0, tiered=None)


def test_retention_works_on_a_full_disk(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.advance_high_watermark(30)
    start_offsets.raise_log_start(log, 1)
    manager.checkpoint()
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    # No file can be written as a whole. The journal's space is reserved, so its line still fits.
    monkeypatch.setattr("tidemark_broker.log.log_checkpoints.replace_file", _refuse)
    size = (manager.directory / JOURNAL).stat().st_size
    assert retention.apply_retention(log, T0, tiered=None)
    assert (manager.directory / JOURNAL).stat().st_size == size


@pytest.mark.parametrize("crash_at", ["replace_all", "snapshots.remove_all_but", None])
def test_a_crash_while_a_log_restarts_beyond_the_tier_does_not_fail_the_replica(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch, crash_at: str | None
) -> None:
    manager = start()
    log = _filled(manager)
    manager.checkpoint()

    def crash(*_: object) -> None:
        raise StorageError("crash")

    if crash_at is not None:
        # The crash comes before the old segments are replaced, or while old snapshots are
        # removed.
        owner = log.segments.snapshots if "." in crash_at else log.segments
        monkeypatch.setattr(owner, crash_at.rpartition(".")[2], crash)
        with pytest.raises(StorageError, match="crash"):
            truncation.truncate_fully_and_start_at(log, 100, log_start_offset=10, epochs=())
    else:
        truncation.truncate_fully_and_start_at(log, 100, log_start_offset=10, epochs=())
    manager = start()
    assert manager.failures == []
    [log_after_restart] = manager.logs()
    # After a crash in between the log still starts at 0, which the next attempt replaces.
    if crash_at is None:
        assert (log_after_restart.log_start_offset, log_after_restart.local_log_start_offset) == (
            10,
            100,
        )
    else:
        assert log_after_restart.log_start_offset == 0


def test_a_first_segment_deleted_while_the_broker_runs_is_noticed_by_a_reopen(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    monkeypatch.setattr(os, "fdatasync", _refuse)
    batch = build_batch([Record(b"k", bytes(30), (), T0)])
    appending.append_as_leader(log, batch, leader_epoch=0, now_ms=T0)
    with pytest.raises(StorageError):
        flushing.flush(log)
    # The failed fsync has closed the log. Its first segment disappears before the reopen.
    backup = log.directory.with_name("backup")
    shutil.copytree(log.directory, backup)
    _remove_first(log)
    with pytest.raises(StorageError, match="missing at the start"):
        opening.reopen(log)
    with pytest.raises(StorageError):
        reading.read(log, 20, max_bytes=1, up_to_offset=30, min_one=True)
    # An operator restores the file: the reopen finds every record.
    shutil.copytree(backup, log.directory, dirs_exist_ok=True)
    assert opening.reopen(log)
    assert log.log_start_offset == 0


def test_an_awaited_log_start_is_recorded_without_a_checkpoint(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    start_offsets.raise_log_start(log, 7)
    assert log.durable_log_start_offset == 0
    monkeypatch.setattr("tidemark_broker.log.log_checkpoints.replace_file", _refuse)
    manager.record_log_starts([log])
    assert log.durable_log_start_offset == 7
    [log_after_restart] = start().logs()
    assert log_after_restart.log_start_offset == 7


def test_a_log_start_is_recorded_only_when_the_records_below_are_durable(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure would leave a log that ends below its start and gives
    offsets out again."""
    synced: dict[Path, int] = {}
    real = flushing.sync_file

    def record_sync(path: Path) -> None:
        real(path)
        synced[path] = path.stat().st_size

    monkeypatch.setattr(flushing, "sync_file", record_sync)
    manager = start()
    log = _filled(manager, 10)
    # Offsets 10 to 29 are not flushed. The log start of 23 needs a sync of the records below it.
    _append(log, 20)
    start_offsets.announce_log_start(log, 23)
    manager.record_log_starts([log])
    assert log.start_record.checkpointed == 23
    for path in log.directory.glob("*.log"):  # power failure: unsynced data is lost
        os.truncate(path, synced.get(path, 0))
    [log_after_restart] = start().logs()
    assert (
        log_after_restart.log_start_offset,
        log_after_restart.segment_infos()[0].base_offset,
    ) == (
        23,
        0,
    )


@pytest.mark.parametrize("exists", [False, True])
def test_the_journal_directory_entry_is_synced_before_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """A journal that a former process created is synced too, because that process may not have done
    it."""
    if exists:
        (tmp_path / JOURNAL).write_bytes(bytes(64 * 1024))
    synced: list[set[str]] = []
    real = os.fsync

    def record_fsync(descriptor: int) -> None:
        real(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append({path.name for path in tmp_path.iterdir()})

    monkeypatch.setattr(os, "fsync", record_fsync)
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    assert synced == [{JOURNAL}]
    # Once per process is enough.
    starts.record({A: Starts(4, 5)})
    assert len(synced) == 1


def test_the_journal_reserves_its_blocks_at_startup(tmp_path: Path) -> None:
    """A disk that fills up before the first start is raised must not stop retention."""
    _loaded(tmp_path)
    status = (tmp_path / JOURNAL).stat()
    assert status.st_size == log_checkpoints.JOURNAL_BYTES <= 512 * status.st_blocks


def test_a_journal_line_whose_fsync_failed_is_overruled_by_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line may be on the disk although its fsync failed. The next record repeats the former
    start."""
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with pytest.raises(StorageError):
            starts.record({A: Starts(9, 9)})
    starts.record({A: Starts(3, 5)})
    assert _loaded(tmp_path).recorded == {A: Starts(3, 5)}
