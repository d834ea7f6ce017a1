"""The logs of a broker are closed several at a time, and the clean
shutdown marker is written last."""

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidemark.logfiles.names import CLEAN_SHUTDOWN_MARKER
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    PartitionLog,
    StorageError,
    appending,
    flushing,
)
from tidemark_broker.log.log_manager import CLOSED_AT_ONCE_MAX, InThread

T0 = 1_700_000_000_000
COUNT = 3 * CLOSED_AT_ONCE_MAX


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    """Open a directory with dirty logs."""
    manager = LogManager.open(tmp_path / "logs", node_id=1, cluster_id="c")
    for partition in range(COUNT):
        log = manager.create(
            topic="t", topic_id=uuid.UUID(int=7), partition=partition, config=LogConfig()
        )
        batch = build_batch([Record(b"k", b"v", (), T0)])
        appending.append_as_leader(log, batch, leader_epoch=0, now_ms=T0)
    return manager


@pytest.fixture
def in_thread() -> Iterator[InThread]:
    """Run calls in twice as many threads as logs may be closed at once."""
    with ThreadPoolExecutor(2 * CLOSED_AT_ONCE_MAX) as threads:

        def run(call: Callable[..., Any], *args: Any) -> Any:
            return asyncio.get_running_loop().run_in_executor(threads, partial(call, *args))

        yield run


class ConcurrentCloses:
    """Counter of concurrent closes. The first ones wait for each other."""

    def __init__(self) -> None:
        self.real = flushing.close
        self.all_at_once = threading.Barrier(CLOSED_AT_ONCE_MAX)
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.closed: Counter[int] = Counter()

    def close(self, log: PartitionLog) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            is_first = sum(self.closed.values()) == 0
        if is_first:
            self.all_at_once.wait(60)
        try:
            self.real(log)
        finally:
            with self.lock:
                self.running -= 1
                self.closed[log.partition] += 1


async def test_logs_are_closed_concurrently_up_to_the_limit(
    manager: LogManager, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    closes, marker = ConcurrentCloses(), manager.directory / CLEAN_SHUTDOWN_MARKER
    monkeypatch.setattr(flushing, "close", closes.close)
    checkpointed: list[tuple[int, bool]] = []
    real = manager.checkpoint

    def record_checkpoint() -> None:
        checkpointed.append((closes.closed.total(), marker.exists()))
        real()

    monkeypatch.setattr(manager, "checkpoint", record_checkpoint)
    assert await manager.close(3, in_thread)
    assert closes.most == CLOSED_AT_ONCE_MAX
    assert closes.closed == Counter(range(COUNT))
    # One checkpoint after the last close, and the marker only after that.
    assert checkpointed == [(COUNT, False)]
    assert marker.exists()


async def test_a_log_that_fails_to_close_does_not_stop_the_others(
    manager: LogManager, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    real = flushing.close

    def close_with_failure(log: PartitionLog) -> None:
        real(log)
        if log.partition == 1:
            raise StorageError("no")
        closed.append(log.partition)

    monkeypatch.setattr(flushing, "close", close_with_failure)
    assert not await manager.close(3, in_thread)
    assert sorted(closed) == [0, *range(2, COUNT)]
    # The shutdown is not clean, so there is no marker, and the next run recovers all logs.
    assert not (manager.directory / CLEAN_SHUTDOWN_MARKER).exists()
    monkeypatch.undo()
    next_run = LogManager.open(manager.directory, node_id=1, cluster_id="c")
    assert not next_run.open_all()
    assert next_run.previous_broker_epoch is None
    assert await next_run.close(4, in_thread)


async def test_an_unexpected_error_is_raised_once_no_thread_uses_a_log(
    manager: LogManager, in_thread: InThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the directory is released too, so that the next process can recover it."""
    running, real = set(), flushing.close

    def close_with_failure(log: PartitionLog) -> None:
        running.add(log.partition)
        try:
            real(log)
            if log.partition == 0:
                raise MemoryError
        finally:
            running.discard(log.partition)

    monkeypatch.setattr(flushing, "close", close_with_failure)
    with pytest.raises(MemoryError):
        await manager.close(3, in_thread)
    # close() has waited for all threads before it raised.
    assert running == set()
    monkeypatch.undo()
    next_run = LogManager.open(manager.directory, node_id=1, cluster_id="c")
    assert not next_run.clean_shutdown
    next_run.open_all()
    assert await next_run.close(4, in_thread)
