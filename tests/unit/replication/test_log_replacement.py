"""A follower with missing records sets its log aside and copies the
complete log from its leader."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.replication.replica_nodes import TOPIC_ID, ReplicaNode, newer, row
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.wire import control
from tidemark_broker.log import LogConfig, StorageError, flushing
from tidemark_broker.replication.partition import Role

Nodes = Callable[[int], ReplicaNode]
SMALL_SEGMENTS = LogConfig(segment_bytes=200)
FOLLOWS = row(leader=1, leader_epoch=1, partition_epoch=1)


async def _two(node: Nodes) -> tuple[ReplicaNode, ReplicaNode]:
    """Create a leader and a follower in sync, both with several segments."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    for item in (one, two):
        item.partition.log.config = SMALL_SEGMENTS
    await one.append(12)
    await two.catch_up(one)
    assert len(two.partition.log.segment_infos()) > 2
    return one, two


def _stray_directories(node: ReplicaNode) -> list[Path]:
    return sorted(node.folder.glob("*-stray"))


async def _restart_without_first_segment(node: Nodes, two: ReplicaNode) -> ReplicaNode:
    """Restart broker 2 without its first segment."""
    await two.stop()
    min(two.log_folder.glob("*.log")).unlink()
    restarted = node(2)
    assert "missing at the start" in restarted.log_directory.error()
    return restarted


async def test_a_follower_that_lacks_records_copies_them_from_its_leader(node: Nodes) -> None:
    one, two = await _two(node)
    restarted = await _restart_without_first_segment(node, two)
    out_of_isr = newer(FOLLOWS, isr=(1,))
    assert await restarted.receive(out_of_isr, full=True) == []
    [stray] = _stray_directories(restarted)
    assert list(stray.glob("*.log"))  # the remaining segments are kept
    [report] = restarted.manager.set_aside()
    assert (report.topic_id, report.partition) == (TOPIC_ID, 0)
    assert stray.name in report.message
    assert "missing at the start" in report.message
    assert restarted.manager.failed_replicas() == ()
    await restarted.catch_up(one)
    await restarted.manager.retry()
    assert _stray_directories(restarted) == [stray]
    # Once it is in sync, it has every record, and the stray directory is deleted.
    await restarted.receive(newer(out_of_isr, isr=(1, 2)))
    await restarted.manager.retry()
    assert _stray_directories(restarted) == []
    assert restarted.manager.set_aside() == ()


@pytest.mark.parametrize(
    "counted_on",
    [
        {},
        {"isr": (1,), "elr": (2,), "has_eligible_leaders": True},
        {"leader": -1, "isr": (1,)},
        {"leader": 2, "isr": (2,)},
        {
            "isr": (1,),
            "leader_recovery_state": int(LeaderRecoveryState.RECOVERING),
        },
    ],
    ids=["in the ISR", "eligible leader", "no leader", "it leads", "unclean leader"],
)
async def test_a_replica_in_the_isr_or_elr_sets_nothing_aside(
    node: Nodes, counted_on: dict[str, object]
) -> None:
    """An election, or a leader without the records, could take an empty log
    for the complete one."""
    _, two = await _two(node)
    restarted = await _restart_without_first_segment(node, two)
    [error] = await restarted.receive(newer(FOLLOWS, **counted_on), full=True)
    assert "cannot be opened" in error.message
    assert "sets the directory aside" in error.message
    restarted.now_s += 40
    await restarted.manager.retry()
    assert _stray_directories(restarted) == []
    assert [failed_replica.topic_id for failed_replica in restarted.manager.failed_replicas()] == [
        TOPIC_ID
    ]


async def test_an_open_log_that_loses_a_segment_is_copied_from_the_leader(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await _two(node)
    await one.append(1)
    await two.catch_up(one)

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # A failed fsync closes the log, and its first segment disappears before the reopen.
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError):
            flushing.flush(two.partition.log)
    min(two.log_folder.glob("*.log")).unlink()
    await two.manager.retry()
    assert _stray_directories(two) == []  # it is still in the ISR
    await two.receive(newer(FOLLOWS, isr=(1,)))
    two.now_s += 40
    await two.manager.retry()
    assert len(_stray_directories(two)) == 1
    assert two.partition.role is Role.FOLLOWER
    await two.catch_up(one)


async def test_stray_directories_survive_a_restart_and_are_deleted_with_the_replica(
    node: Nodes,
) -> None:
    one, two = await _two(node)
    restarted = await _restart_without_first_segment(node, two)
    await restarted.receive(newer(FOLLOWS, isr=(1,)), full=True)
    await restarted.stop()
    second_restart = node(2)
    [report] = second_restart.manager.set_aside()
    assert _stray_directories(second_restart)[0].name in report.message
    assert one.partition.is_leader
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
    assert await second_restart.receive(removals=(removal,)) == []
    assert _stray_directories(second_restart) == []
    assert not second_restart.log_folder.exists()


async def test_only_the_newest_stray_directory_of_a_replica_is_kept(node: Nodes) -> None:
    one, two = await _two(node)
    known = newer(FOLLOWS, isr=(1,))
    # The loss happens twice. The second replacement deletes the first stray directory.
    for _ in range(2):
        two = await _restart_without_first_segment(node, two)
        await two.receive(known, full=True)
        two.partition.log.config = SMALL_SEGMENTS
        await two.catch_up(one)
        assert len(_stray_directories(two)) == 1


async def test_logs_open_at_the_next_probe_once_the_disk_has_space(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause between retries does not matter here, even if it has grown
    while the disk was full."""
    _, two = await _two(node)
    await two.stop()
    metadata = two.log_folder / "partition.metadata"
    hidden = metadata.rename(metadata.with_name("hidden"))
    restarted = node(2)
    await restarted.receive(FOLLOWS, full=True)
    full = True

    def put(path: Path, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tidemark_broker.log.files.put", put)
        # Two minutes of a full disk: the pauses have reached their maximum of 30 s.
        for _ in range(120):
            restarted.now_s += 1
            await restarted.manager.retry()
        full = False
        hidden.rename(metadata)
        # A probe finds space within 4 s and retries every log at once.
        for _ in range(6):
            restarted.now_s += 1
            await restarted.manager.retry()
    assert restarted.manager.failed_replicas() == ()
    assert restarted.partition.role is Role.FOLLOWER
