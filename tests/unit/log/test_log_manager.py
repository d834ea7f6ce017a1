"""Directory of logs: its identity, what survives a restart or a crash, and failures that are
reported instead of ignored."""

import asyncio
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemark.logfiles.checkpoints import read_offsets
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import (
    LogConfig,
    LogManager,
    PartitionLog,
    StorageError,
    TieredRetention,
    appending,
    flushing,
    read_state,
    retention,
    start_offsets,
    truncation,
    write_state,
)
from tidemark_broker.log.log_manager import rename_log

T0 = 1_700_000_000_000
ID = uuid.UUID(int=7)
CONFIG = LogConfig(segment_bytes=500, retention_ms=-1)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class LogDirectory:
    """Open managers of one directory. A crash closes all files without a write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.managers: list[LogManager] = []

    def open(self, *, node_id: int = 1, cluster_id: str = "c") -> LogManager:
        manager = LogManager.open(self.path, node_id=node_id, cluster_id=cluster_id)
        self.managers.append(manager)
        return manager

    def started(self) -> LogManager:
        manager = self.open()
        manager.open_all(lambda _: CONFIG)
        return manager

    def crash(self, manager: LogManager) -> None:
        for log in manager.logs():
            log.close_files()
        if manager._lock_descriptor is not None:
            os.close(manager._lock_descriptor)
            manager._lock_descriptor = None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    found = LogDirectory(tmp_path / "logs")
    yield found
    for manager in found.managers:
        found.crash(manager)


def _make(
    manager: LogManager, topic: str = "t", partition: int = 0, *, count: int = 0
) -> PartitionLog:
    log = manager.create(topic=topic, topic_id=ID, partition=partition, config=CONFIG)
    for _ in range(count):
        batch = build_batch([Record(b"k", bytes(30), (), T0)])
        appending.append_as_leader(log, batch, leader_epoch=0, now_ms=T0)
    return log


def _refuse(*_: Any) -> None:
    raise StorageError("no room")


def test_the_directory_identity_is_generated_once_and_verified(directory: LogDirectory) -> None:
    manager = directory.open()
    assert manager.clean_shutdown is False
    assert manager.previous_broker_epoch is None
    first_id = manager.directory_id
    # The first manager still has the lock.
    with pytest.raises(StorageError, match="in use by another broker"):
        directory.open()
    asyncio.run(manager.close())
    assert directory.started().directory_id == first_id
    directory.crash(directory.managers[-1])
    # A volume that was attached to the wrong broker, or to another cluster, is refused.
    with pytest.raises(StorageError, match=r"node\.id=1, this broker has node\.id=2"):
        directory.open(node_id=2)
    with pytest.raises(StorageError, match=r"cluster\.id=c"):
        directory.open(cluster_id="other")
    (directory.path / "tidemark.properties").write_text("version=1\n")
    with pytest.raises(StorageError, match="cannot be read"):
        directory.open()


def test_the_clean_shutdown_marker_is_valid_for_one_start(directory: LogDirectory) -> None:
    # The marker is deleted as soon as it is read. A crash of this run must not find it.
    manager = directory.started()
    log = _make(manager, count=20)
    log.advance_high_watermark(15)
    start_offsets.raise_log_start(log, 3)
    assert asyncio.run(manager.close(broker_epoch=42))
    marker = directory.path / ".kafka_cleanshutdown"
    # KIP-966: the broker epoch in the marker proves to the controller that no record was lost.
    assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": 42}
    manager = directory.started()
    assert not marker.exists()
    assert (manager.clean_shutdown, manager.previous_broker_epoch) == (True, 42)
    log_after_restart = manager.get("t", 0)
    assert log_after_restart is not None
    assert (
        log_after_restart.log_start_offset,
        log_after_restart.high_watermark,
        log_after_restart.next_offset,
    ) == (3, 15, 20)
    assert log_after_restart.recovery_point == 20
    directory.crash(manager)
    manager = directory.started()
    assert (manager.clean_shutdown, manager.previous_broker_epoch) == (False, None)
    assert asyncio.run(manager.close())
    assert directory.started().previous_broker_epoch is None


def test_a_clean_shutdown_marker_is_void_if_bytes_are_missing(directory: LogDirectory) -> None:
    manager = directory.started()
    _make(manager, count=3)
    asyncio.run(manager.close(broker_epoch=42))
    path = directory.path / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    manager = directory.started()
    # The marker is there, but the broker must not register with its former epoch.
    assert manager.clean_shutdown
    assert manager.previous_broker_epoch is None
    assert manager.logs()[0].next_offset == 2


def test_a_clean_shutdown_marker_is_void_if_a_log_is_missing(directory: LogDirectory) -> None:
    """Otherwise a broker that is alone in the ISR would lead with an empty log."""
    manager = directory.started()
    _make(manager, count=3).advance_high_watermark(3)
    asyncio.run(manager.close(broker_epoch=42))
    shutil.rmtree(directory.path / "t-0")
    assert directory.started().previous_broker_epoch is None


def test_a_deleted_log_does_not_void_the_clean_shutdown_marker(directory: LogDirectory) -> None:
    manager = directory.started()
    _make(manager, count=3).advance_high_watermark(3)
    manager.delete("t", 0)
    asyncio.run(manager.close(broker_epoch=42))
    assert directory.started().previous_broker_epoch == 42


def test_a_crash_keeps_what_was_checkpointed(directory: LogDirectory) -> None:
    manager = directory.started()
    log = _make(manager, count=20)
    log.advance_high_watermark(12)
    flushing.flush(log)
    start_offsets.raise_log_start(log, 5)
    assert log.durable_log_start_offset == 0
    manager.checkpoint()
    assert log.durable_log_start_offset == 5
    # A second raise after the checkpoint: a crash may undo it, so it is not durable.
    start_offsets.raise_log_start(log, 6)
    assert log.durable_log_start_offset == 5
    for name, value in (
        ("recovery-point-offset-checkpoint", 20),
        ("replication-offset-checkpoint", 12),
        ("log-start-offset-checkpoint", 5),
    ):
        assert read_offsets((directory.path / name).read_text()) == {("t", 0): value}
    directory.crash(manager)
    log_after_crash = directory.started().get("t", 0)
    assert log_after_crash is not None
    assert (
        log_after_crash.log_start_offset,
        log_after_crash.high_watermark,
        log_after_crash.next_offset,
    ) == (5, 12, 20)


def test_the_log_start_of_a_tiered_log_survives_local_deletion_and_a_crash(
    directory: LogDirectory,
) -> None:
    manager = directory.started()
    log = _make(manager, count=30)
    log.config = LogConfig(segment_bytes=500, retention_ms=-1, local_retention_bytes=600)
    log.advance_high_watermark(30)
    assert retention.apply_retention(log, T0, tiered=TieredRetention(highest_remote_offset=29))
    local = log.local_log_start_offset
    assert local > 0
    directory.crash(manager)
    log_after_crash = directory.started().get("t", 0)
    # Records below the local start are in the tier: the log start must not follow the local
    # files.
    assert log_after_crash is not None
    assert (log_after_crash.log_start_offset, log_after_crash.local_log_start_offset) == (0, local)


def test_a_recovery_point_is_lowered_on_disk_before_a_truncation(directory: LogDirectory) -> None:
    manager = directory.started()
    log = _make(manager, count=20)
    flushing.flush(log)
    manager.checkpoint()
    truncation.truncate_to(log, 7)
    # A recovery point above the truncation would make recovery skip records that are appended
    # later.
    text = (directory.path / "recovery-point-offset-checkpoint").read_text()
    assert read_offsets(text) == {("t", 0): 7}


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "local-log-start-offset-checkpoint",
    ],
)
def test_only_a_missing_checkpoint_is_rewritten_for_idle_logs(
    directory: LogDirectory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    manager = directory.started()
    log = _make(manager, count=20)
    flushing.flush(log)
    manager.checkpoint()
    manager.checkpoint()  # the second one finds nothing changed
    path = directory.path / name
    recorded = read_offsets(path.read_text())
    # With thousands of idle partitions a checkpoint must not visit every log.
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "recovery_point", property(lambda _: pytest.fail("queried")))
        manager.checkpoint()
    path.unlink()
    manager.checkpoint()
    assert read_offsets(path.read_text()) == recorded


def test_a_failed_checkpoint_is_repeated_by_the_next_one(
    directory: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has returned to the offsets of the last complete checkpoint by then."""
    manager = directory.started()
    log = _make(manager, count=20)
    flushing.flush(log)
    manager.checkpoint()
    manager.checkpoint()
    path = directory.path / "recovery-point-offset-checkpoint"
    bounds = log.bounds
    with monkeypatch.context() as patch:
        patch.setattr(manager._checkpoints.high_watermarks, "save", _refuse)
        # Of the three files the first was written with 17 and the second fails.
        log.bounds = bounds.committed(15)
        log.bounds = log.bounds._replace(recovery_point=17)
        with pytest.raises(StorageError):
            manager.checkpoint()
    assert read_offsets(path.read_text()) == {("t", 0): 17}
    # The bounds equal the last complete checkpoint again, but the file has 17.
    log.bounds = bounds
    manager.checkpoint()
    assert read_offsets(path.read_text()) == {("t", 0): 20}


def test_a_log_that_cannot_be_opened_is_reported_and_kept(directory: LogDirectory) -> None:
    manager = directory.started()
    for partition in range(2):
        log = _make(manager, partition=partition, count=5)
        log.advance_high_watermark(4)
        start_offsets.raise_log_start(log, 2)
    asyncio.run(manager.close(broker_epoch=5))
    broken = directory.path / "t-1"
    (broken / "partition.metadata").write_text("?")
    (directory.path / "not-a-partition").mkdir()
    manager = directory.open()
    failures = manager.open_all()
    assert [(failure.topic, failure.partition) for failure in failures] == [("t", 1)]
    assert "partition.metadata" in failures[0].reason
    # A start with a failed log does not count as a clean one.
    assert manager.previous_broker_epoch is None
    assert manager.get("t", 1) is None
    with pytest.raises(StorageError, match="cannot be opened"):
        _make(manager, partition=1)
    assert not manager.delete("t", 1)
    manager.checkpoint()
    # Checkpoints keep the entries of the failed log, for the time when it opens again.
    starts = read_offsets((directory.path / "log-start-offset-checkpoint").read_text())
    assert starts == {("t", 0): 2, ("t", 1): 2}
    # Nor is the shutdown clean. No file of the failed log or of a foreign directory is deleted.
    assert not asyncio.run(manager.close(broker_epoch=6))
    assert not directory.started().clean_shutdown
    assert (broken / f"{0:020d}.log").exists()
    assert (directory.path / "not-a-partition").exists()


def test_a_torn_checkpoint_fails_the_start(directory: LogDirectory) -> None:
    manager = directory.started()
    _make(manager)
    asyncio.run(manager.close())
    (directory.path / "recovery-point-offset-checkpoint").write_text("0\n2\nt 0 1\n")
    with pytest.raises(StorageError, match="recovery-point"):
        directory.started()


def test_logs_are_created_once_and_deleted_with_their_checkpoints(directory: LogDirectory) -> None:
    manager = directory.started()
    log = _make(manager, "a-b", 3, count=5)
    assert _make(manager, "a-b", 3) is log
    # A recreated topic has another id: its log must not continue the old one.
    with pytest.raises(StorageError, match="belongs to topic id"):
        manager.create(topic="a-b", topic_id=uuid.UUID(int=8), partition=3, config=CONFIG)
    manager.checkpoint()
    assert manager.delete("a-b", 3)
    assert not manager.delete("a-b", 3)
    assert manager.get("a-b", 3) is None
    assert not [path for path in directory.path.iterdir() if path.is_dir()]
    text = (directory.path / "recovery-point-offset-checkpoint").read_text()
    assert read_offsets(text) == {}
    # Once the old log is deleted the name is free.
    again = manager.create(topic="a-b", topic_id=uuid.UUID(int=8), partition=3, config=CONFIG)
    assert again.next_offset == 0


def test_an_interrupted_deletion_is_completed_at_startup(directory: LogDirectory) -> None:
    manager = directory.started()
    renamed = rename_log(_make(manager, count=5), None)
    assert renamed.name.endswith("-delete")
    assert renamed.exists()
    directory.crash(manager)
    manager = directory.started()
    assert not renamed.exists()
    assert manager.logs() == ()


def test_logs_without_checkpoints_are_loaded(directory: LogDirectory) -> None:
    manager = directory.started()
    _make(manager, count=20)
    directory.crash(manager)
    for path in directory.path.glob("*-checkpoint"):
        path.unlink()
    manager = directory.started()
    log = manager.get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark, log.next_offset) == (0, 0, 20)
    shutil.rmtree(directory.path / "t-0")


def test_the_partition_state_file_is_replaced_atomically_and_validated(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, {"leader": 1, "isr": [1, 2]})
    write_state(tmp_path, {"leader": 2, "isr": [2]})
    assert read_state(tmp_path) == {"leader": 2, "isr": [2]}
    assert [path.name for path in tmp_path.iterdir()] == ["partition.state"]
    for text in ("{", "[]"):
        (tmp_path / "partition.state").write_text(text)
        with pytest.raises(StorageError):
            read_state(tmp_path)
    with pytest.raises(StorageError, match="above"):
        write_state(tmp_path, {"x": "y" * 2**20})
