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
from tidemark_broker.log import LogConfig, LogManager, PartitionLog, StorageError, read_state

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
        log.append_as_leader(batch, leader_epoch=0, now_ms=T0)
    return log


def folders(manager: LogManager) -> list[str]:
    return sorted(path.name for path in manager.directory.iterdir() if path.is_dir())


def open_files_below(directory: Path) -> list[str]:
    """The files of the directory that this process has open, removed ones included: what other
    tests or the interpreter hold is none of our business."""
    held = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            held.append(link.readlink())
    return sorted(str(path) for path in held if path.is_relative_to(directory))


class FailingOnce:
    """A system call that fails the n-th time it is made, and works again from then on."""

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
        *(("write", n) for n in range(1, 3)),
        ("mkdir", 1),
        ("rename", 1),
    ],
)
def test_a_creation_that_fails_leaves_nothing_and_is_tried_again(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch, call: str, n: int
) -> None:
    manager = start()
    before = open_files_below(manager.directory)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, FailingOnce(getattr(os, call), n))
        with pytest.raises(StorageError):
            make(manager)
    assert folders(manager) == []
    assert open_files_below(manager.directory) == before
    log = make(manager, count=1)
    assert folders(manager) == ["t-0"]
    assert read_state(log.directory) == STATE
    assert asyncio.run(manager.close())


def test_the_name_appears_with_everything_in_it(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, seen = start(), list[set[str]]()
    real = os.rename

    def watching(source: Any, target: Any) -> None:
        seen.append({path.name for path in Path(source).iterdir()})
        assert not Path(target).exists()
        real(source, target)

    monkeypatch.setattr(os, "rename", watching)
    make(manager)
    assert seen == [
        {
            "partition.metadata",
            "partition.state",
            f"{0:020d}.log",
        }
    ]


def test_what_a_crash_left_of_a_creation_goes_at_the_next_start(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    half = manager.directory / f"{uuid.uuid4().hex}.tmp"
    half.mkdir()
    (half / "partition.metadata").write_text("version: 0\n")
    assert folders(start()) == []


def test_many_threads_make_many_logs_with_few_syncs_of_the_directory(
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

    def one(number: int) -> PartitionLog:
        return manager.create(
            topic="t", topic_id=ID, partition=number // 2, config=CONFIG, state=STATE
        )

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(64)))
    assert len({id(log) for log in made}) == len(manager.logs()) == 32  # each twice, made once
    assert 1 <= syncs <= 32
    assert len(start().logs()) == 32


def test_a_recreated_log_ignores_the_checkpoints_of_the_former_one(
    start: Callable[[], LogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = make(manager, count=20)
    log.advance_high_watermark(20)
    log.raise_log_start(15)
    log.flush()
    manager.checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr("tidemark_broker.log.checkpoint_file.write_whole", _refuse)
        with pytest.raises(StorageError, match="full"):
            manager.delete("t", 0)
    assert folders(manager) == []  # the files went all the same: that makes room
    assert not manager.delete("t", 0)
    make(manager, topic_id=OTHER_ID, count=2)
    [log] = start().logs()
    assert (log.log_start_offset, log.next_offset, log.recovery_point) == (0, 2, 0)


def _refuse(*_: object, **__: object) -> None:
    raise StorageError("full")


@pytest.mark.parametrize(("call", "n"), [("rename", 1), ("fsync", 1)])
def test_a_removal_that_fails_is_tried_again(
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


def test_a_log_that_did_not_open_is_opened_when_it_can_be(
    start: Callable[[], LogManager],
) -> None:
    manager = start()
    log = make(manager, count=9)
    log.advance_high_watermark(9)
    log.raise_log_start(4)
    manager.checkpoint()
    hidden = _hide(manager)
    manager = start()
    assert [(failure.topic, failure.topic_id) for failure in manager.failures] == [("t", None)]
    assert manager.retry_opening("t", 0) is None
    with pytest.raises(StorageError, match="cannot be opened"):
        make(manager)
    manager.checkpoint()  # keeps what it had of the failed one
    hidden.rename(hidden.with_name("partition.metadata"))
    opened = manager.retry_opening("t", 0)
    assert opened is not None
    assert (opened.log_start_offset, opened.high_watermark, opened.next_offset) == (4, 9, 9)
    assert manager.retry_opening("t", 0) is opened
    assert manager.failures == []
    assert make(manager) is opened


def test_a_log_that_does_not_open_may_be_discarded(start: Callable[[], LogManager]) -> None:
    manager = start()
    make(manager, count=9)
    manager.checkpoint()
    path = manager.directory / "t-0" / f"{0:020d}.log"
    path.unlink()
    path.mkdir()
    manager = start()
    [failure] = manager.failures
    assert failure.topic_id == ID
    manager.discard(failure)
    assert (manager.failures, folders(manager)) == ([], [])
    make(manager, topic_id=OTHER_ID)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_without_records_needs_no_indexes_and_no_epochs(
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
    log.append_as_leader(batch, leader_epoch=4, now_ms=T0)
    if clean:
        assert asyncio.run(manager.close())
        suffixes = {path.suffix for path in log.directory.glob("0*")}
        assert suffixes == {".log", ".index", ".timeindex", ".snapshot"}
    manager = start()
    assert caplog.records == []
    [log] = manager.logs()
    assert (log.next_offset, [entry.epoch for entry in log.epochs.entries]) == (1, [4])
