"""Replicas whose disk failed: reopened with growing pauses, and reported to the controller."""

import asyncio
import errno
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, Node, batch, newer, row, states
from tidemark.wire import control
from tidemark_broker.log import StorageError
from tidemark_broker.replication.partition import Role, consumer_reads, produce

Nodes = Callable[[int], Node]
ALONE = row(replicas=(1,), isr=(1,))
STORAGE_ERROR = int(ErrorCode.kafka_storage_error.value)


def _fail_fsync(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError):
            node.partition.log.flush()


def _last_segment(node: Node) -> Path:
    return sorted(node.log_folder.glob("*.log"))[-1]


async def _refused(node: Node) -> None:
    result = await produce.append(node.partition, batch(), acks=1, timeout_ms=0)
    assert result.error is ErrorCode.kafka_storage_error


async def test_a_failed_log_is_reopened_despite_concurrent_requests(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    _fail_fsync(one, monkeypatch)
    hidden = (one.log_folder / "partition.metadata").rename(one.log_folder / "hidden")
    for _ in range(6):
        one.now_s += 40
        await _refused(one)
        await one.manager.retry()
        assert one.partition.log.failure is not None
    assert "t-0" in one.log_directory.error()
    hidden.rename(one.log_folder / "partition.metadata")
    one.now_s += 40
    await _refused(one)  # this begins a pause for clients, and none for the repair
    await one.manager.retry()
    assert one.partition.log.failure is None
    assert one.log_directory.error() == ""
    assert (one.partition.is_leader, one.losses) == (True, 0)
    await one.append(1)
    assert one.partition.high_watermark == 6


async def test_pauses_between_tries_grow(node: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(1)
    _fail_fsync(one, monkeypatch)
    (one.log_folder / "partition.metadata").rename(one.log_folder / "hidden")
    tried_s = []
    real = one.partition.log.reopen

    def counting() -> bool:
        tried_s.append(one.now_s - 1000)
        return real()

    monkeypatch.setattr(one.partition.log, "reopen", counting)
    for _ in range(100):
        await one.manager.retry()
        one.now_s += 1
    assert tried_s == [0, 1, 3, 7, 15, 31, 61, 91]


async def test_a_disk_that_keeps_failing_is_not_retried_each_second(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.told(ALONE)
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
    for _ in range(2):
        one.now_s += 100
        await one.manager.retry()
    await one.append(1)
    _fail_fsync(one, monkeypatch)
    await one.manager.retry()
    assert one.partition.log.failure is None  # at once: it had worked for long


async def test_a_leader_whose_disk_lost_records_leads_no_more_until_that_is_known(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    _fail_fsync(one, monkeypatch)
    os.truncate(_last_segment(one), _last_segment(one).stat().st_size - 1)
    await one.manager.retry()
    assert (one.partition.role, one.losses) == (Role.IDLE, 1)
    assert one.partition.next_offset == 4
    await one.told(newer(ALONE, leader_epoch=1))  # elected before its registration was heard
    assert one.partition.role is Role.IDLE
    one.manager.on_reregistration()
    await one.told(newer(ALONE, leader_epoch=1))
    assert one.partition.role is Role.IDLE
    await one.told(newer(newer(ALONE), leader_epoch=2))
    assert one.partition.is_leader
    await one.append(1)


async def test_a_follower_whose_disk_lost_records_fetches_them_again(
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


async def _does_not_open(node: Nodes) -> tuple[Node, Path]:
    """A broker with five records in a log that does not open at its start."""
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    await one.stop()
    hidden = (one.log_folder / f"{0:020d}.log").rename(one.folder / "hidden")
    (one.log_folder / f"{0:020d}.log").mkdir()
    return node(1), hidden


async def test_a_log_that_does_not_open_is_placed_when_it_does(node: Nodes) -> None:
    one, hidden = await _does_not_open(node)
    assert one.manager.get(TOPIC, 0) is None
    assert "cannot be opened" in one.log_directory.error()
    [error] = await one.told(newer(ALONE, leader_epoch=1), full=True)
    assert error.error_code == STORAGE_ERROR
    assert one.manager.error_of(TOPIC, 0) is ErrorCode.kafka_storage_error
    await one.manager.retry()
    assert one.manager.get(TOPIC, 0) is None
    (one.log_folder / f"{0:020d}.log").rmdir()
    hidden.rename(one.log_folder / f"{0:020d}.log")
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
    assert again.partition.row == newer(ALONE, leader_epoch=1)  # it was written, not assumed


async def test_a_replica_keeps_its_state_when_the_controller_knows_less(node: Nodes) -> None:
    one, hidden = await _does_not_open(node)
    (one.log_folder / f"{0:020d}.log").rmdir()
    hidden.rename(one.log_folder / f"{0:020d}.log")
    await one.manager.retry()
    assert one.partition.role is Role.IDLE  # no controller has assigned it yet
    assert one.partition.row == ALONE
    await one.told(ALONE, full=True)
    assert one.partition.is_leader


@pytest.mark.parametrize(
    ("partition", "epoch", "topic_id", "goes"),
    [
        (-1, -1, TOPIC_ID, True),
        (-1, -1, uuid.UUID(int=1), False),
        (0, 1, TOPIC_ID, True),
        (0, 0, TOPIC_ID, False),  # it is a replica in that epoch
        (1, 9, TOPIC_ID, False),
    ],
)
async def test_a_tombstone_takes_a_log_that_does_not_open(
    node: Nodes, partition: int, epoch: int, topic_id: uuid.UUID, goes: bool
) -> None:
    one, _ = await _does_not_open(node)
    removal = control.Removal(topic_id=topic_id, partition=partition, partition_epoch=epoch)
    assert await one.manager.apply(states(removals=(removal,))) == []
    assert one.log_folder.exists() is not goes
    assert (one.log_directory.error() == "") is goes


async def test_a_replica_requested_twice_at_once_is_created_once(
    node: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemark_broker.replication.hosting.placement")
    one = node(1)
    await asyncio.gather(one.told(ALONE), one.told(ALONE), one.manager.retry())
    assert len([message for message in caplog.messages if message.startswith("t-0: created")]) == 1
    assert one.partition.is_leader
    await one.append(2)


async def test_a_removal_that_failed_is_repeated_by_the_controller(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.told(ALONE)
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
    await one.told(row(replicas=(1,), isr=(1,), leader_epoch=7), topic_id=uuid.UUID(int=5))
    assert one.partition.is_leader


async def test_a_failure_to_create_a_replica_is_forgotten_with_its_topic(node: Nodes) -> None:
    """The next start is too late: the failure concerns no topic any more."""
    one = node(1)
    one.log_folder.write_text("something else has the name")
    [error] = await one.told(ALONE)
    assert error.error_code == STORAGE_ERROR
    assert "t-0" in one.log_directory.error()
    assert one.log_directory.directory_error() == "", "all other replicas are served"
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
    await one.manager.apply(states(removals=(removal,)))
    assert one.log_directory.error() == ""
    assert one.manager.failed_replicas() == ()
