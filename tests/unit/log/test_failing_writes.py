"""Removals of records are recorded before files are deleted, whichever write fails. Each operation
that removes records runs on a disk that refuses its first, second, ... write, once or
permanently. In each case the log serves its records, the directory opens after a crash without
loss of a record that should stay, and the operation can be repeated."""

import errno
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidemark.logfiles.leader_epochs import EpochEntry
from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogError,
    LogManager,
    PartitionLog,
    TieredRetention,
    appending,
    flushing,
    opening,
    reading,
    retention,
    start_offsets,
    truncation,
)

T0 = 1_700_000_000_000
ID = uuid.UUID(int=7)
CONFIG = LogConfig(segment_bytes=500, retention_ms=-1, local_retention_bytes=1100)
#: Records of the log that each operation finds; those below LOCAL_START are in the tier only.
END = 40


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: a kill loses no written data."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine has such a folder: each test writes hundreds of directories."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


class FailingDisk:
    """Disk that refuses the write number ``at`` (from 0), and with ``for_good`` all later ones."""

    def __init__(self, code: int, *, at: int, for_good: bool) -> None:
        self.code = code
        self.at = at
        self.for_good = for_good
        self.writes = 0

    def refuses(self) -> bool:
        number, self.writes = self.writes, self.writes + 1
        return number == self.at or (self.for_good and number > self.at)

    def error(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "fdatasync", "ftruncate", "rename", "replace"):
                patch.setattr(os, name, self._refusing(getattr(os, name)))
            # A full disk can still delete files; a broken one cannot.
            if self.code == errno.EIO:
                patch.setattr(os, "unlink", self._refusing(os.unlink))
            # write(2) on a full disk writes a part of the data before it fails.
            for name in ("write", "pwrite"):
                patch.setattr(os, name, self._short(getattr(os, name)))
            patch.setattr(os, "open", self._creating(os.open))
            patch.setattr(Path, "write_bytes", self._refusing(Path.write_bytes))
            yield

    def _refusing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.refuses():
                raise self.error()
            return real(*args, **kwargs)

        return call

    def _short(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Write the part that fits on the disk, here half."""

        def call(descriptor: int, data: Any, *position: int) -> Any:
            if self.refuses():
                half = memoryview(data)[: len(data) // 2]
                if half:
                    real(descriptor, half, *position)
                raise self.error()
            return real(descriptor, data, *position)

        return call

    def _creating(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            # Only the creation of a file needs space. An open of an existing one succeeds.
            if flags & os.O_CREAT and not Path(path).exists() and self.refuses():
                raise self.error()
            return real(path, flags, *args, **kwargs)

        return call


def _append(log: PartitionLog, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        batch = build_batch([Record(b"k", b"%030d" % log.next_offset, (), T0)] * 2)
        appending.append_as_leader(log, batch, leader_epoch=epoch, now_ms=T0)
    log.advance_high_watermark(log.next_offset)


def _retain_tiered(log: PartitionLog, _: LogManager) -> None:
    retention.apply_retention(log, T0, tiered=TieredRetention(highest_remote_offset=END - 1))


def _retain_all(log: PartitionLog, _: LogManager) -> None:
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, retention_bytes=0)
    retention.apply_retention(log, T0, tiered=None)


def _cut(log: PartitionLog, _: LogManager) -> None:
    truncation.truncate_to(log, log.local_log_start_offset + 9)


def _cut_below_all(log: PartitionLog, _: LogManager) -> None:
    truncation.truncate_to(log, 3)


def _start_from_the_tier(log: PartitionLog, _: LogManager) -> None:
    truncation.truncate_fully_and_start_at(
        log, 100, log_start_offset=2, epochs=(EpochEntry(0, 0), EpochEntry(4, 70))
    )


def _restart_below(log: PartitionLog, _: LogManager) -> None:
    """Start the log below its start, as after a Delete of records that only the tier had."""
    truncation.truncate_fully_and_start_at(log, 1, log_start_offset=1, epochs=())


def _delete_records(log: PartitionLog, manager: LogManager) -> None:
    start_offsets.announce_log_start(log, END - 4)
    manager.record_log_starts([log])
    start_offsets.adopt_checkpointed_log_start(log)
    manager.checkpoint()


Operation = Callable[[PartitionLog, LogManager], None]
OPERATIONS = (
    _retain_tiered,
    _retain_all,
    _cut,
    _cut_below_all,
    _start_from_the_tier,
    _restart_below,
    _delete_records,
)


def _filled(manager: LogManager) -> PartitionLog:
    """Write records 0 to END - 1, two per batch. The first ones are in the tier only, and the last
    are not flushed."""
    log = manager.create(topic="t", topic_id=ID, partition=0, config=CONFIG)
    _append(log, END // 2 - 4)
    flushing.flush(log)
    retention.apply_retention(log, T0, tiered=TieredRetention(highest_remote_offset=9))
    assert log.log_start_offset == 0 < log.local_log_start_offset
    manager.checkpoint()
    _append(log, 4, epoch=1)
    return log


def _offsets_of(log: PartitionLog) -> list[int]:
    """Return the base offsets of the log's batches, from its local start to its end."""
    offset, found = log.local_log_start_offset, []
    while offset < log.next_offset:
        read = reading.read(log, offset, max_bytes=700, up_to_offset=log.next_offset, min_one=True)
        assert read.next_offset > offset
        found += [header.base_offset for _, header in iter_headers(read.data)]
        offset = read.next_offset
    return found


class Extent(NamedTuple):
    """Extent of a log at one moment; ``local_start`` to ``end`` are local."""

    log_start: int
    local_start: int
    end: int

    @classmethod
    def of(cls, log: PartitionLog) -> "Extent":
        return cls(log.log_start_offset, log.local_log_start_offset, log.next_offset)


def _check(log: PartitionLog, before: Extent, after: Extent) -> None:
    """Check that the log serves its whole extent, every record that should stay, and no others."""
    assert log.failure is None
    now, bases = Extent.of(log), _offsets_of(log)
    assert log.segment_infos()[0].base_offset <= now.local_start
    # A log may start inside a batch of two records, so its first batch may begin one offset
    # lower.
    if bases:
        assert bases[0] in (now.local_start, now.local_start - 1)
        assert bases == list(range(bases[0], now.end, 2))
    # Records that are local both before and after the operation must be local at every moment.
    stays = range(max(before.local_start, after.local_start), min(before.end, after.end))
    if stays:
        assert now.local_start <= stays.start
        assert stays.stop <= now.end
    # The bounds never lie outside of what the operation moves between.
    assert now.log_start <= max(before.log_start, after.log_start)
    assert now.end <= max(before.end, after.end)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("code", "for_good"),
    [(errno.ENOSPC, True), (errno.EIO, False)],
    ids=["full", "failing-once"],
)
def test_removals_are_recorded_before_deletion_whichever_write_fails(
    start: Callable[[], LogManager],
    tmp_path: Path,
    operation: Operation,
    code: int,
    for_good: bool,
) -> None:
    logs, clean, crashed = tmp_path / "logs", tmp_path / "clean", tmp_path / "crashed"
    before = Extent.of(_filled(start()))
    shutil.copytree(logs, clean)

    def started() -> tuple[LogManager, PartitionLog]:
        """Start a broker on the directory, as if the former one had been killed."""
        manager = start()
        assert manager.failures == []
        [log] = manager.logs()
        return manager, log

    def run(disk: FailingDisk) -> tuple[LogManager, PartitionLog]:
        shutil.rmtree(logs)
        shutil.copytree(clean, logs)
        manager, log = started()
        log.advance_high_watermark(log.next_offset)
        with disk.in_force():
            with suppress(LogError):
                operation(log, manager)
            with suppress(LogError):  # as upkeep does it meanwhile
                manager.checkpoint()
            with suppress(LogError):
                manager.record_log_starts([log])
        return manager, log

    # A disk that refuses nothing counts the writes of the operation and shows its result.
    disk = FailingDisk(code, at=-1, for_good=False)
    after = Extent.of(run(disk)[1])
    assert after != before
    # Refuse each write in turn, always from the same initial files.
    for at in range(disk.writes):
        manager, log = run(FailingDisk(code, at=at, for_good=for_good))
        shutil.copytree(logs, crashed)
        # The broker continues once the disk accepts writes again.
        manager.checkpoint()
        if log.failure is not None:
            opening.reopen(log)
        _check(log, before, after)
        manager.checkpoint()
        log.advance_high_watermark(log.next_offset)
        # A log that lost its tail has nothing left to operate on. All others repeat the operation
        # with the same result.
        if log.next_offset >= min(before.end, after.end):
            operation(log, manager)
            assert Extent.of(log) == after
            _check(log, before, after)
        manager.checkpoint()
        _check(started()[1], before, after)
        # Or it was killed while the disk refused.
        shutil.rmtree(logs)
        crashed.rename(logs)
        _check(started()[1], before, after)
