"""Log starts are recorded before a file is removed: an unexplained start is a failure."""

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
    flushing,
    log_starts,
)
from tidemark_broker.log.log_starts import JOURNAL, LOCAL_LOG_START_CHECKPOINT, LogStarts, Starts
from tidemark_broker.log.start_offsets import starts_of

T0 = 1_700_000_000_000
ID = uuid.UUID(int=7)
CONFIG = LogConfig(segment_bytes=500, retention_ms=-1)
A, B = ("a", 0), ("b", 1)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


# -- the record ----------------------------------------------------------------------------------


def _loaded(directory: Path) -> LogStarts:
    starts = LogStarts(directory)
    starts.load()
    return starts


@pytest.mark.parametrize("failing", [1, 2], ids=["its first write", "its second write"])
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_journal_that_could_not_be_restarted_loses_no_later_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, call: str
) -> None:
    """A write that failed may have reached the disk, or reach it yet."""
    starts = _loaded(tmp_path)
    starts.compact()
    starts.record({A: Starts(5, 5)})
    real, journal, count = getattr(os, call), tmp_path / JOURNAL, 0

    def fail(descriptor: int, *rest: Any) -> Any:
        nonlocal count
        count += os.path.samestat(os.fstat(descriptor), journal.stat())
        if count == failing:
            count += 1
            raise OSError(errno.ENOSPC, "no space left")
        return real(descriptor, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError):
            starts.compact()
    assert _loaded(tmp_path).of(A) == Starts(5, 5)
    starts.record({B: Starts(9, 9)})
    starts.record({A: Starts(7, 7)})
    assert _loaded(tmp_path).recorded == {A: Starts(7, 7), B: Starts(9, 9)}


def test_former_lines_never_come_back_behind_a_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines are equally long here, so a write without its end mark ends where one begins."""
    starts = _loaded(tmp_path)
    starts.compact()
    for n in (3, 4, 5):
        starts.record({A: Starts(n, n)})
    real = os.pwrite

    def cut_off(length: int) -> Callable[..., int]:
        def write(descriptor: int, data: bytes, position: int) -> int:
            if len(data) == 1:
                return real(descriptor, data, position)
            real(descriptor, bytes(data)[:length], position)
            raise OSError(errno.EIO, "power cut")

        return write

    monkeypatch.setattr(os, "pwrite", cut_off(0))
    with pytest.raises(StorageError):
        starts.compact()
    monkeypatch.setattr(os, "pwrite", real)
    again = _loaded(tmp_path)
    again.record({A: Starts(7, 7)})
    line = len(f"a 0 7 7 {0:08x}\n")
    monkeypatch.setattr(os, "pwrite", cut_off(line))
    with pytest.raises(StorageError):
        again.record({B: Starts(9, 9)})
    monkeypatch.setattr(os, "pwrite", real)
    assert _loaded(tmp_path).of(A) == Starts(7, 7)


def test_what_was_recorded_is_read_again(tmp_path: Path) -> None:
    starts = _loaded(tmp_path)
    assert starts.of(A) is None
    starts.record({A: Starts(3, 5)})
    starts.record({B: Starts(0, 9), A: Starts(4, 5)})
    assert _loaded(tmp_path).recorded == {A: Starts(4, 5), B: Starts(0, 9)}
    starts.compact(without={B})
    again = _loaded(tmp_path)
    assert again.of(A) == Starts(4, 5)
    assert again.of(B) == Starts(0, 0)  # a log of which nothing was recorded begins as it was made
    again.record({A: Starts(1, 2)})  # it may go back, too
    assert _loaded(tmp_path).of(A) == Starts(1, 2)


@pytest.mark.parametrize("cut", range(1, 18))
def test_a_torn_line_is_passed_over(tmp_path: Path, cut: int) -> None:
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    starts.record({B: Starts(0, 9)})
    journal = tmp_path / JOURNAL
    data = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(data[:-cut] + bytes(4096))
    again = _loaded(tmp_path)
    assert again.recorded == {A: Starts(3, 5)}
    again.record({B: Starts(1, 9)})
    assert _loaded(tmp_path).recorded == {A: Starts(3, 5), B: Starts(1, 9)}


def test_lines_that_are_read_once_more_change_nothing(tmp_path: Path) -> None:
    """A crash between the new checkpoints and the new journal."""
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
def test_a_power_cut_while_the_journal_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, syncs: int, page: int
) -> None:
    """Only one page of the unsynced journal is on the disk: the old content of the others must not
    be read over the newer checkpoints, although part of the journal is older than they are."""
    starts = _loaded(tmp_path)
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
        syncs -= 1
        if syncs < 0:
            here = slice(4096 * page, 4096 * (page + 1))
            torn = bytearray(durable)
            torn[here] = journal.read_bytes()[here]
            journal.write_bytes(torn)
            raise OSError(errno.EIO, "power cut")
        durable = journal.read_bytes()

    with monkeypatch.context() as patch, contextlib.suppress(StorageError):
        patch.setattr(os, "fsync", until_the_power_cut)
        starts.compact()
    assert _loaded(tmp_path).recorded == {A: Starts(599, 599)}


def test_a_full_journal_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_starts, "JOURNAL_BYTES", 200)
    starts = _loaded(tmp_path)
    for number in range(50):
        starts.record({A: Starts(number, number), B: Starts(0, number)})
        assert (tmp_path / JOURNAL).stat().st_size <= 200
        assert _loaded(tmp_path).recorded == starts.recorded


def test_a_raised_start_costs_the_same_however_many_logs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, written, real = _loaded(tmp_path), [], os.pwrite

    def watching(descriptor: int, data: Any, position: int) -> int:
        written.append(len(data))
        return real(descriptor, data, position)

    starts.record({("t", number): Starts(0, 0) for number in range(1000)})
    starts.compact()
    monkeypatch.setattr(os, "pwrite", watching)
    monkeypatch.setattr(log_starts.OffsetCheckpoint, "save", _refuse)
    starts.record({("t", 7): Starts(5, 5)})
    assert len(written) == 1
    assert written[0] < 50


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- a directory of logs -------------------------------------------------------------------------


def _filled(manager: LogManager, count: int = 30) -> PartitionLog:
    log = manager.create(topic="t", topic_id=ID, partition=0, config=CONFIG)
    _append(log, count)
    log.flush()
    return log


def _append(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        batch = build_batch([Record(b"k", bytes(30), (), T0)])
        log.append_as_leader(batch, leader_epoch=0, now_ms=T0)
    log.advance_high_watermark(log.next_offset)


def _remove_first(log: PartitionLog) -> None:
    (log.directory / f"{log.segments()[0].base_offset:020d}.log").unlink()


@pytest.mark.parametrize("clean", [True, False])
def test_a_first_segment_that_is_missing_is_a_failure_of_the_replica(
    start: Callable[[], LogManager], clean: bool
) -> None:
    manager = start()
    log = _filled(manager)
    second = log.segments()[1].base_offset
    manager.checkpoint()
    if clean:
        assert asyncio.run(manager.close(5))
    _remove_first(log)
    manager = start()
    [failure] = manager.failures
    assert f"offsets 0 to {second - 1} are missing at the start of the log" in failure.reason
    assert "sets the directory aside and copies the records" in failure.reason
    assert manager.previous_broker_epoch is None
    assert list(log.directory.glob("*.log"))
    assert manager.retry_opening("t", 0) is None
    start()  # the recorded start remains
    assert len(start().failures) == 1


def test_a_removed_directory_is_recreated_only_by_the_next_start(
    start: Callable[[], LogManager],
) -> None:
    """As the failure says: only while the broker is stopped."""
    manager = start()
    log = _filled(manager)
    manager.checkpoint()
    _remove_first(log)
    manager = start()
    assert "stop this broker" in manager.failures[0].reason
    shutil.rmtree(log.directory)
    assert manager.retry_opening("t", 0) is None
    assert "restart the broker" in manager.failures[0].reason
    assert not asyncio.run(manager.close(5))
    manager = start()
    assert not manager.failures
    assert manager.previous_broker_epoch is None
    assert manager.create(topic="t", topic_id=log.topic_id, partition=0, config=log.config)


def test_a_directory_of_former_times_is_not_judged(start: Callable[[], LogManager]) -> None:
    manager = start()
    log = _filled(manager)
    manager.checkpoint()
    for name in (LOCAL_LOG_START_CHECKPOINT, JOURNAL):
        (manager.directory / name).unlink()
    _remove_first(log)
    [again] = start().logs()
    assert again.log_start_offset == 0 < again.local_log_start_offset


@pytest.mark.parametrize("tiered", [None, TieredRetention(highest_remote_offset=29)])
@pytest.mark.parametrize("crash_at", ["before", "within", "after"])
def test_a_crash_around_retention_is_no_failure(
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
        assert len(log.apply_retention(T0, tiered=tiered)) > 1
    else:
        calls = 0 if crash_at == "before" else 1
        real = log.state.segments.take_oldest

        def crashing() -> list[Path]:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise StorageError("crash")
            return real()

        monkeypatch.setattr(log.state.segments, "take_oldest", crashing)
        with pytest.raises(StorageError, match="crash"):
            log.apply_retention(T0, tiered=tiered)
    visible = log.log_start_offset
    manager = start()
    assert manager.failures == []
    [again] = manager.logs()
    assert again.log_start_offset == visible
    assert again.log_start_offset <= again.local_log_start_offset


def test_a_checkpoint_beside_retention_does_not_take_its_record_back(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    real = LogStarts.record
    in_between: list[bool] = []

    def watching(starts: LogStarts, changes: Any) -> None:
        real(starts, changes)
        if not in_between:
            in_between.append(True)
            thread = threading.Thread(target=lambda: manager.record_log_starts([log]))
            thread.start()  # it waits for this write, and writes after it
            others.append(thread)

    others: list[threading.Thread] = []
    monkeypatch.setattr(LogStarts, "record", watching)
    monkeypatch.setattr(log.state.segments, "take_oldest", _refuse)
    with pytest.raises(OSError, match="No space"):
        log.apply_retention(T0, tiered=None)
    for thread in others:
        thread.join()
    assert in_between
    recorded = manager._checkpoints.starts.of(("t", 0))
    assert recorded == starts_of(log.state)
    assert recorded.log_start_offset > 0


def test_a_checkpoint_forgets_nothing_that_was_recorded_beside_it(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread makes a log and records its start after the checkpoint has listed the logs."""
    manager = start()
    _filled(manager)
    real = LogStarts.compact

    def beside(starts: LogStarts, *args: Any, **kwargs: Any) -> None:
        thread = threading.Thread(target=make_another)
        thread.start()
        thread.join()
        real(starts, *args, **kwargs)

    def make_another() -> None:
        log = manager.create(topic="u", topic_id=uuid.UUID(int=8), partition=0, config=CONFIG)
        log.append_as_leader(
            build_batch([Record(b"k", b"v", (), T0)] * 9), leader_epoch=0, now_ms=T0
        )
        log.flush()
        log.advance_high_watermark(9)
        log.announce_log_start(7)
        manager.record_log_starts([log])
        assert log.adopt_checkpointed_log_start()

    with monkeypatch.context() as patch:
        patch.setattr(LogStarts, "compact", beside)
        manager.checkpoint()
    again = start().get("u", 0)
    assert again is not None
    assert again.log_start_offset == 7


@pytest.mark.parametrize("ahead", [False, True])
def test_a_removed_log_records_nothing_for_the_next_one_of_its_name(
    start: Callable[[], LogManager], ahead: bool
) -> None:
    """Its checkpoint, or its retention, waited for the disk while it was removed and made again."""
    manager = start()
    former = _filled(manager)
    former.raise_log_start(20)
    assert manager.delete("t", 0)
    log = manager.create(topic="t", topic_id=uuid.UUID(int=8), partition=0, config=CONFIG)
    log.append_as_leader(build_batch([Record(b"k", b"v", (), T0)]), leader_epoch=0, now_ms=T0)
    log.flush()
    if ahead:
        assert former.state.record_starts is not None
        with pytest.raises(StorageError, match="is deleted"):
            former.state.record_starts(Starts(20, 20))
    else:
        manager.record_log_starts([former])
    [again] = start().logs()
    assert (again.log_start_offset, again.next_offset) == (0, 1)


def test_a_record_that_ends_late_takes_no_durable_start_back(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log start was announced and waits for its record, while retention in another thread records
    a later one first: a waiter for that one must not wait for the next checkpoint.
    """
    manager = start()
    log = _filled(manager)
    log.announce_log_start(3)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    real = manager._checkpoints._shared_record

    def overtaken() -> None:
        monkeypatch.setattr(manager._checkpoints, "_shared_record", real)
        assert log.apply_retention(T0, tiered=None)
        real()

    monkeypatch.setattr(manager._checkpoints, "_shared_record", overtaken)
    manager.record_log_starts([log])
    log.adopt_checkpointed_log_start()
    assert log.durable_log_start_offset == log.log_start_offset > 3
    recorded = manager._checkpoints.starts.of(("t", 0))
    assert recorded is not None
    assert recorded.log_start_offset == log.log_start_offset


def test_a_start_is_durable_only_when_it_is_recorded(start: Callable[[], LogManager]) -> None:
    log = _filled(start())
    log.raise_log_start(3)
    assert log.apply_retention(T0, tiered=None) == []
    assert log.durable_log_start_offset == 0


def test_nothing_is_deleted_while_it_cannot_be_recorded(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with pytest.raises(StorageError):
            log.apply_retention(T0, tiered=None)
    assert (log.log_start_offset, log.segments()[0].base_offset) == (0, 0)
    assert log.apply_retention(T0, tiered=None)


def test_retention_makes_room_on_a_full_disk(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.advance_high_watermark(30)
    log.raise_log_start(1)
    manager.checkpoint()
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=1100)
    monkeypatch.setattr("tidemark_broker.log.checkpoint_file.write_whole", _refuse)
    size = (manager.directory / JOURNAL).stat().st_size
    assert log.apply_retention(T0, tiered=None)
    assert (manager.directory / JOURNAL).stat().st_size == size


@pytest.mark.parametrize("crash_at", ["replace_all", "snapshots.remove_all_but", None])
def test_a_crash_while_a_log_starts_behind_the_tier_is_no_failure(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch, crash_at: str | None
) -> None:
    manager = start()
    log = _filled(manager)
    manager.checkpoint()

    def crash(*_: object) -> None:
        raise StorageError("crash")

    if crash_at is not None:
        owner = log.state.segments.snapshots if "." in crash_at else log.state.segments
        monkeypatch.setattr(owner, crash_at.rpartition(".")[2], crash)
        with pytest.raises(StorageError, match="crash"):
            log.truncate_fully_and_start_at(100, log_start_offset=10, epochs=())
    else:
        log.truncate_fully_and_start_at(100, log_start_offset=10, epochs=())
    manager = start()
    assert manager.failures == []
    [again] = manager.logs()
    if crash_at is None:
        assert (again.log_start_offset, again.local_log_start_offset) == (10, 100)
    else:
        assert again.log_start_offset == 0


def test_a_first_segment_that_goes_while_the_broker_runs_is_noticed_when_it_is_opened_again(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    monkeypatch.setattr(os, "fdatasync", _refuse)
    batch = build_batch([Record(b"k", bytes(30), (), T0)])
    log.append_as_leader(batch, leader_epoch=0, now_ms=T0)
    with pytest.raises(StorageError):
        log.flush()
    backup = log.directory.with_name("backup")
    shutil.copytree(log.directory, backup)
    _remove_first(log)
    with pytest.raises(StorageError, match="missing at the start"):
        log.reopen()
    with pytest.raises(StorageError):
        log.read(20, max_bytes=1, up_to_offset=30, min_one=True)
    shutil.copytree(backup, log.directory, dirs_exist_ok=True)
    assert log.reopen()
    assert log.log_start_offset == 0


def test_a_log_start_that_waits_is_recorded_alone(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = _filled(manager)
    log.raise_log_start(7)
    assert log.durable_log_start_offset == 0
    monkeypatch.setattr("tidemark_broker.log.checkpoint_file.write_whole", _refuse)
    manager.record_log_starts([log])
    assert log.durable_log_start_offset == 7
    [again] = start().logs()
    assert again.log_start_offset == 7


def test_a_log_start_is_recorded_only_when_the_records_below_are_durable(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave a log that ends below its start, and so gives offsets out again."""
    synced: dict[Path, int] = {}
    real = flushing.sync_file

    def noting(path: Path) -> None:
        real(path)
        synced[path] = path.stat().st_size

    monkeypatch.setattr(flushing, "sync_file", noting)
    manager = start()
    log = _filled(manager, 10)
    _append(log, 20)
    log.announce_log_start(23)
    manager.record_log_starts([log])
    assert log.state.start_record.checkpointed == 23
    for path in log.directory.glob("*.log"):  # the power goes
        os.truncate(path, synced.get(path, 0))
    [again] = start().logs()
    assert (again.log_start_offset, again.segments()[0].base_offset) == (23, 0)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_name_of_the_journal_is_durable_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Sync also a journal that a former process had made: that process may not have synced it."""
    if is_there:
        (tmp_path / JOURNAL).write_bytes(bytes(64 * 1024))
    synced: list[set[str]] = []
    real = os.fsync

    def noting(descriptor: int) -> None:
        real(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append({path.name for path in tmp_path.iterdir()})

    monkeypatch.setattr(os, "fsync", noting)
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    assert synced == [{JOURNAL}]
    starts.record({A: Starts(4, 5)})
    assert len(synced) == 1


def test_the_journal_has_its_room_from_the_start(tmp_path: Path) -> None:
    """A disk that gets full before the first start is raised must not stop retention."""
    _loaded(tmp_path)
    status = (tmp_path / JOURNAL).stat()
    assert status.st_size == log_starts.JOURNAL_BYTES <= 512 * status.st_blocks


def test_a_line_that_failed_to_be_written_is_not_believed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fsync failed, the line is there all the same; what is recorded next says as before."""
    starts = _loaded(tmp_path)
    starts.record({A: Starts(3, 5)})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with pytest.raises(StorageError):
            starts.record({A: Starts(9, 9)})
    starts.record({A: Starts(3, 5)})
    assert _loaded(tmp_path).recorded == {A: Starts(3, 5)}
