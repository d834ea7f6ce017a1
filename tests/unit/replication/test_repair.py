"""Replicas whose disk failed: their logs are reopened with growing pauses and reported to the
controller."""

import asyncio
import errno
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import (
    TOPIC,
    TOPIC_ID,
    ReplicaNode,
    batch,
    newer,
    row,
    states,
)
from tidemark.wire import control
from tidemark_broker.log import PartitionLog, StorageError, flushing, opening
from tidemark_broker.replication.partition import Role, consumer_reads, produce

Nodes = Callable[[int], ReplicaNode]
ALONE = row(replicas=(1,), isr=(1,))
STORAGE_ERROR = int(ErrorCode.kafka_storage_error.value)


def _fail_fsync(node: ReplicaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError):
            flushing.flush(node.partition.log)


def _last_segment(node: ReplicaNode) -> Path:
    return sorted(node.log_folder.glob("*.log"))[-1]


async def _refused(node: ReplicaNode) -> None:
    result = await produce.append(node.partition, batch(), acks=1, timeout_ms=0)
    assert result.error is ErrorCode.kafka_storage_error


async def test_a_failed_log_is_reopened_despite_concurrent_requests(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    _fail_fsync(one, monkeypatch)
    hidden = (one.log_folder / "partition.metadata").rename(one.log_folder / "hidden")
    # Clients keep sending requests, and the file that the reopen needs is missing.
    for _ in range(6):
        one.now_s += 40
        await _refused(one)
        await one.manager.retry()
        assert one.partition.log.failure is not None
    assert "t-0" in one.log_directory.error()
    hidden.rename(one.log_folder / "partition.metadata")
    one.now_s += 40
    await _refused(one)  # starts a pause for clients, not for the repair
    await one.manager.retry()
    assert one.partition.log.failure is None
    assert one.log_directory.error() == ""
    assert (one.partition.is_leader, one.losses) == (True, 0)
    await one.append(1)
    assert one.partition.high_watermark == 6


async def test_pauses_between_reopens_grow_up_to_30_seconds(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(1)
    _fail_fsync(one, monkeypatch)
    # Without this file every reopen fails.
    (one.log_folder / "partition.metadata").rename(one.log_folder / "hidden")
    tried_s = []
    real = opening.reopen

    def count_reopens(log: PartitionLog) -> bool:
        tried_s.append(one.now_s - 1000)
        return real(log)

    monkeypatch.setattr(opening, "reopen", count_reopens)
    for _ in range(100):
        await one.manager.retry()
        one.now_s += 1
    assert tried_s == [0, 1, 3, 7, 15, 31, 61, 91]


async def test_a_disk_that_fails_after_each_reopen_is_retried_with_growing_pauses(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    opened_s = []
    for _ in range(100):
        if one.partition.log.failure is None:
            await one.append(1)
            _fail_fsync(one, monkeypatch)
        await one.manager.retry()
        if one.partition.log.failure is None:
            opened_s.append(one.now_s - 1000)
        one.now_s += 1
    assert opened_s == [0, 1, 3, 7, 15, 31, 61, 91]
    # 200 s without a failure reset the pauses.
    for _ in range(2):
        one.now_s += 100
        await one.manager.retry()
    await one.append(1)
    _fail_fsync(one, monkeypatch)
    await one.manager.retry()
    assert one.partition.log.failure is None  # at once, because the disk had worked


async def test_a_leader_that_lost_records_resigns_until_it_registered_again(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    _fail_fsync(one, monkeypatch)
    os.truncate(_last_segment(one), _last_segment(one).stat().st_size - 1)
    await one.manager.retry()
    assert (one.partition.role, one.losses) == (Role.IDLE, 1)
    assert one.partition.next_offset == 4
    await one.receive(newer(ALONE, leader_epoch=1))  # elected before its new registration
    assert one.partition.role is Role.IDLE
    # After the registration the controller knows of the loss. An election in an older epoch still
    # does not count.
    one.manager.on_reregistration()
    await one.receive(newer(ALONE, leader_epoch=1))
    assert one.partition.role is Role.IDLE
    await one.receive(newer(newer(ALONE), leader_epoch=2))
    assert one.partition.is_leader
    await one.append(1)


async def test_a_follower_that_lost_records_refetches_them(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(5)
    await two.catch_up(one)
    _fail_fsync(two, monkeypatch)
    os.truncate(_last_segment(two), 0)
    await two.manager.retry()
    assert (two.partition.next_offset, two.losses) == (0, 1)
    assert two.partition.role is Role.FOLLOWER
    await two.catch_up(one)
    assert two.partition.next_offset == 5


async def _with_unreadable_log(node: Nodes) -> tuple[ReplicaNode, Path]:
    """Return a broker whose log of five records does not open at startup, and the path of its
    hidden segment."""
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    await one.stop()
    hidden = (one.log_folder / f"{0:020d}.log").rename(one.folder / "hidden")
    (one.log_folder / f"{0:020d}.log").mkdir()
    return node(1), hidden


async def test_a_failed_log_takes_its_role_once_it_opens(node: Nodes) -> None:
    one, hidden = await _with_unreadable_log(node)
    assert one.manager.get(TOPIC, 0) is None
    assert "cannot be opened" in one.log_directory.error()
    # The controller's state arrives while the log is closed. It must be applied later.
    [error] = await one.receive(newer(ALONE, leader_epoch=1), full=True)
    assert error.error_code == STORAGE_ERROR
    assert one.manager.error_of(TOPIC, 0) is ErrorCode.kafka_storage_error
    await one.manager.retry()
    assert one.manager.get(TOPIC, 0) is None
    (one.log_folder / f"{0:020d}.log").rmdir()
    hidden.rename(one.log_folder / f"{0:020d}.log")
    # The file is back, and the pause after the failed retry is over.
    one.now_s += 40
    await one.manager.retry()
    assert one.partition.is_leader
    assert one.partition.stored is not None
    assert one.partition.stored.row == newer(ALONE, leader_epoch=1)
    assert (one.log_directory.error(), one.manager.offline_count) == ("", 0)
    assert (
        consumer_reads.fetch(one.partition, 0, max_bytes=1 << 20, min_one=True).data == one.bytes()
    )
    await one.append(1)
    await one.stop()
    again = node(1)
    assert again.partition.row == newer(ALONE, leader_epoch=1)  # the row was persisted


async def test_a_reopened_replica_waits_for_the_controller(node: Nodes) -> None:
    one, hidden = await _with_unreadable_log(node)
    (one.log_folder / f"{0:020d}.log").rmdir()
    hidden.rename(one.log_folder / f"{0:020d}.log")
    await one.manager.retry()
    assert one.partition.role is Role.IDLE  # no controller has assigned it yet
    assert one.partition.row == ALONE
    await one.receive(ALONE, full=True)
    assert one.partition.is_leader


@pytest.mark.parametrize(
    ("partition", "epoch", "topic_id", "is_deleted"),
    [
        (-1, -1, TOPIC_ID, True),
        (-1, -1, uuid.UUID(int=1), False),
        (0, 1, TOPIC_ID, True),
        (0, 0, TOPIC_ID, False),  # it was a replica in this epoch
        (1, 9, TOPIC_ID, False),
    ],
)
async def test_a_removal_deletes_a_log_that_does_not_open(
    node: Nodes, partition: int, epoch: int, topic_id: uuid.UUID, is_deleted: bool
) -> None:
    one, _ = await _with_unreadable_log(node)
    removal = control.Removal(topic_id=topic_id, partition=partition, partition_epoch=epoch)
    assert await one.manager.apply(states(removals=(removal,))) == []
    assert one.log_folder.exists() is not is_deleted
    assert (one.log_directory.error() == "") is is_deleted


async def test_a_replica_requested_twice_at_once_is_created_once(
    node: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark_broker.replication.hosting.placement")
    one = node(1)
    await asyncio.gather(one.receive(ALONE), one.receive(ALONE), one.manager.retry())
    assert len([message for message in caplog.messages if message.startswith("t-0: created")]) == 1
    assert one.partition.is_leader
    await one.append(2)


async def test_a_failed_removal_is_repeated_by_the_controller(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    tombstone = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        [error] = await one.manager.apply(states(removals=(tombstone,)))
    assert error.error_code == STORAGE_ERROR
    assert one.log_folder.exists()
    assert await one.manager.apply(states(removals=(tombstone,))) == []
    assert not one.log_folder.exists()
    # A new topic of the same name gets the free directory.
    await one.receive(row(replicas=(1,), isr=(1,), leader_epoch=7), topic_id=uuid.UUID(int=5))
    assert one.partition.is_leader


async def test_a_failure_to_create_a_replica_is_forgotten_with_its_topic(node: Nodes) -> None:
    """The failure must not stay until the next start, because it concerns a deleted topic."""
    one = node(1)
    one.log_folder.write_text("something else has the name")
    [error] = await one.receive(ALONE)
    assert error.error_code == STORAGE_ERROR
    assert "t-0" in one.log_directory.error()
    assert one.log_directory.directory_error() == "", "all other replicas are served"
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
    await one.manager.apply(states(removals=(removal,)))
    assert one.log_directory.error() == ""
    assert one.manager.failed_replicas() == ()
