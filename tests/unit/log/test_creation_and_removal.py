"""Creation and removal of logs on a failing disk: complete or not at all, and retried."""

import asyncio
import contextlib
import errno
import logging
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    PartitionLog,
    StorageError,
    appending,
    flushing,
    read_state,
    start_offsets,
)

T0 = 1_700_000_000_000
ID, OTHER_ID = uuid.UUID(int=7), uuid.UUID(int=8)
CONFIG = LogConfig()
STATE = {"version": 1, "row": None}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def make(manager: LogManager, *, topic_id: uuid.UUID = ID, count: int = 0) -> PartitionLog:
    log = manager.create(topic="t", topic_id=topic_id, partition=0, config=CONFIG, state=STATE)
    for _ in range(count):
        batch = build_batch([Record(b"k", bytes(30), (), T0)])
        appending.append_as_leader(log, batch, leader_epoch=0, now_ms=T0)
    return log


def folders(manager: LogManager) -> list[str]:
    return sorted(path.name for path in manager.directory.iterdir() if path.is_dir())


def open_files_below(directory: Path) -> list[str]:
    """Return the open files of this process below the directory, deleted ones included."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(link.readlink())
    return sorted(str(path) for path in links if path.is_relative_to(directory))


class FailingOnce:
    """System call that fails at its n-th call only."""

    def __init__(self, real: Callable[..., Any], n: int) -> None:
        self._real, self._left = real, n

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(*args, **kwargs)


@pytest.mark.parametrize(
    ("call", "n"),
    [
        *(("open", n) for n in range(1, 6)),
        *(("fsync", n) for n in range(1, 5)),
        *(("pwrite", n) for n in range(1, 3)),
        ("mkdir", 1),
        ("rename", 1),
    ],
)
def test_a_failed_creation_leaves_no_files_and_can_be_retried(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch, call: str, n: int
) -> None:
    manager = start()
    before = open_files_below(manager.directory)
    # Fail the n-th call of each kind that a creation makes: 5 opens, 4 fsyncs, 2 pwrites, and one
    # each of mkdir and rename.
    with monkeypatch.context() as patch:
        patch.setattr(os, call, FailingOnce(getattr(os, call), n))
        with pytest.raises(StorageError):
            make(manager)
    # Neither a directory nor a descriptor is left behind.
    assert folders(manager) == []
    assert open_files_below(manager.directory) == before
    log = make(manager, count=1)
    assert folders(manager) == ["t-0"]
    assert read_state(log.directory) == STATE
    assert asyncio.run(manager.close())


def test_the_directory_is_renamed_into_place_only_when_complete(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, seen = start(), list[set[str]]()
    real = os.rename

    # At the moment of the rename the temporary directory must have every file.
    def record_rename(source: Any, target: Any) -> None:
        seen.append({path.name for path in Path(source).iterdir()})
        assert not Path(target).exists()
        real(source, target)

    monkeypatch.setattr(os, "rename", record_rename)
    make(manager)
    assert seen == [
        {
            "partition.metadata",
            "partition.state",
            f"{0:020d}.log",
        }
    ]


def test_an_incomplete_creation_is_deleted_at_startup(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    half = manager.directory / f"{uuid.uuid4().hex}.tmp"
    half.mkdir()
    (half / "partition.metadata").write_text("version: 0\n")
    assert folders(start()) == []


def test_concurrent_creations_share_the_fsyncs_of_the_directory(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, syncs = start(), 0
    real = os.fsync

    def counting(descriptor: int) -> None:
        nonlocal syncs
        if Path(f"/proc/self/fd/{descriptor}").readlink() == manager.directory:
            syncs += 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", counting)

    # 64 calls for 32 partitions: two threads race for each log.
    def one(number: int) -> PartitionLog:
        return manager.create(
            topic="t", topic_id=ID, partition=number // 2, config=CONFIG, state=STATE
        )

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(64)))
    assert len({id(log) for log in made}) == len(manager.logs()) == 32  # each twice, made once
    # At most one fsync of the directory per log. Threads that wait share one.
    assert 1 <= syncs <= 32
    assert len(start().logs()) == 32


def test_a_recreated_log_ignores_the_checkpoints_of_the_former_one(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = make(manager, count=20)
    log.advance_high_watermark(20)
    start_offsets.raise_log_start(log, 15)
    flushing.flush(log)
    manager.checkpoint()
    # The deletion cannot rewrite the checkpoints, so they still have the offsets of the deleted
    # log.
    with monkeypatch.context() as patch:
        patch.setattr("tidemark_broker.log.log_checkpoints.replace_file", _refuse)
        with pytest.raises(StorageError, match="full"):
            manager.delete("t", 0)
    assert folders(manager) == []  # the files went all the same: that makes room
    assert not manager.delete("t", 0)
    # A topic of the same name starts at 0. The former log start of 15 must not apply to it.
    make(manager, topic_id=OTHER_ID, count=2)
    [log] = start().logs()
    assert (log.log_start_offset, log.next_offset, log.recovery_point) == (0, 2, 0)


def _refuse(*_: object, **__: object) -> None:
    raise StorageError("full")


@pytest.mark.parametrize(("call", "n"), [("rename", 1), ("fsync", 1)])
def test_a_failed_removal_is_retried(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch, call: str, n: int
) -> None:
    manager = start()
    make(manager, count=3)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, FailingOnce(getattr(os, call), n))
        with pytest.raises(StorageError):
            manager.delete("t", 0)
    assert len(folders(manager)) == 1
    assert manager.delete("t", 0)
    assert folders(manager) == []
    make(manager, topic_id=OTHER_ID)


def _hide(manager: LogManager) -> Path:
    return (manager.directory / "t-0" / "partition.metadata").rename(
        manager.directory / "t-0" / "hidden"
    )


def test_a_failed_log_is_opened_once_its_files_are_readable(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    log = make(manager, count=9)
    log.advance_high_watermark(9)
    start_offsets.raise_log_start(log, 4)
    manager.checkpoint()
    # Without partition.metadata the log cannot be opened at the next start.
    hidden = _hide(manager)
    manager = start()
    assert [(failure.topic, failure.topic_id) for failure in manager.failures] == [("t", None)]
    assert manager.retry_opening("t", 0) is None
    # A creation must not replace a directory that may contain records.
    with pytest.raises(StorageError, match="cannot be opened"):
        make(manager)
    manager.checkpoint()  # keeps what it had of the failed one
    # The file is back: the retry finds the log with the checkpointed bounds.
    hidden.rename(hidden.with_name("partition.metadata"))
    opened = manager.retry_opening("t", 0)
    assert opened is not None
    assert (opened.log_start_offset, opened.high_watermark, opened.next_offset) == (4, 9, 9)
    assert manager.retry_opening("t", 0) is opened
    assert manager.failures == []
    assert make(manager) is opened


def test_a_failed_log_can_be_discarded(start: Callable[[], LogManager]) -> None:
    manager = start()
    make(manager, count=9)
    manager.checkpoint()
    path = manager.directory / "t-0" / f"{0:020d}.log"
    path.unlink()
    # A directory in place of the segment makes every opening fail.
    path.mkdir()
    manager = start()
    [failure] = manager.failures
    assert failure.topic_id == ID
    manager.discard(failure)
    assert (manager.failures, folders(manager)) == ([], [])
    make(manager, topic_id=OTHER_ID)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_without_records_opens_without_indexes_and_epochs(
    start: Callable[[], LogManager], clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start()
    make(manager).assign_leader_epoch(3)
    if clean:
        assert asyncio.run(manager.close())
    caplog.set_level(logging.WARNING)
    manager = start()
    assert caplog.records == []
    [log] = manager.logs()
    # An epoch without any append may be forgotten, and is only without a flush.
    assert (log.next_offset, log.epochs.entries) == (0, ())
    log.assign_leader_epoch(4)
    batch = build_batch([Record(b"k", bytes(30), (), T0)])
    appending.append_as_leader(log, batch, leader_epoch=4, now_ms=T0)
    if clean:
        assert asyncio.run(manager.close())
        # With a record the clean shutdown writes indexes and a producer snapshot.
        suffixes = {path.suffix for path in log.directory.glob("0*")}
        assert suffixes == {".log", ".index", ".timeindex", ".snapshot"}
    manager = start()
    assert caplog.records == []
    [log] = manager.logs()
    assert (log.next_offset, [entry.epoch for entry in log.epochs.entries]) == (1, [4])
