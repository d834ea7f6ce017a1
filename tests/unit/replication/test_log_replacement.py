"""A follower whose log lacks records sets it aside and copies the whole log from its leader."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.replication.replica_nodes import TOPIC_ID, Node, newer, row
from tidemark.wire import control
from tidemark_broker.log import LogConfig, StorageError
from tidemark_broker.replication.partition import Role

Nodes = Callable[[int], Node]
SMALL_SEGMENTS = LogConfig(segment_bytes=200)
FOLLOWS = row(leader=1, leader_epoch=1, partition_epoch=1)


async def _two(node: Nodes) -> tuple[Node, Node]:
    """Create a leader and a follower in sync, both with several segments."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    for item in (one, two):
        item.partition.log.config = SMALL_SEGMENTS
    await one.append(12)
    await two.catch_up(one)
    assert len(two.partition.log.segments()) > 2
    return one, two


def _strays(node: Node) -> list[Path]:
    return sorted(node.folder.glob("*-stray"))


async def _without_its_first_segment(node: Nodes, two: Node) -> Node:
    """Restart broker 2 without its first segment."""
    await two.stop()
    min(two.log_folder.glob("*.log")).unlink()
    again = node(2)
    assert "missing at the start" in again.log_directory.error()
    return again


async def test_a_follower_that_lacks_records_copies_them_from_its_leader(node: Nodes) -> None:
    one, two = await _two(node)
    again = await _without_its_first_segment(node, two)
    left = newer(FOLLOWS, isr=(1,))
    assert await again.told(left, full=True) == []
    [stray] = _strays(again)
    assert list(stray.glob("*.log"))  # what is left is kept
    [told] = again.manager.set_aside()
    assert (told.topic_id, told.partition) == (TOPIC_ID, 0)
    assert stray.name in told.message
    assert "missing at the start" in told.message
    assert again.manager.failed_replicas() == ()
    await again.catch_up(one)
    await again.manager.retry()
    assert _strays(again) == [stray]
    # Once it is in sync, all of it is here again.
    await again.told(newer(left, isr=(1, 2)))
    await again.manager.retry()
    assert _strays(again) == []
    assert again.manager.set_aside() == ()


@pytest.mark.parametrize(
    "counted_on",
    [
        {},
        {"isr": (1,), "elr": (2,), "has_eligible_leaders": True},
        {"leader": -1, "isr": (1,)},
        {"leader": 2, "isr": (2,)},
        {
            "isr": (1,),
            "leader_recovery_state": int(control.LeaderRecoveryState.RECOVERING),
        },
    ],
    ids=["in the ISR", "eligible leader", "no leader", "it leads", "unclean leader"],
)
async def test_a_replica_in_the_isr_or_elr_sets_nothing_aside(
    node: Nodes, counted_on: dict[str, object]
) -> None:
    """An election, or a leader that lacks records, could take an empty log for the whole one."""
    _, two = await _two(node)
    again = await _without_its_first_segment(node, two)
    [error] = await again.told(newer(FOLLOWS, **counted_on), full=True)
    assert "cannot be opened" in error.message
    assert "sets the directory aside" in error.message
    again.now_s += 40
    await again.manager.retry()
    assert _strays(again) == []
    assert [failed_replica.topic_id for failed_replica in again.manager.failed_replicas()] == [
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

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(StorageError):
            two.partition.log.flush()
    min(two.log_folder.glob("*.log")).unlink()
    await two.manager.retry()
    assert _strays(two) == []  # it is in the ISR still
    await two.told(newer(FOLLOWS, isr=(1,)))
    two.now_s += 40
    await two.manager.retry()
    assert len(_strays(two)) == 1
    assert two.partition.role is Role.FOLLOWER
    await two.catch_up(one)


async def test_stray_directories_survive_a_restart_and_are_deleted_with_the_replica(
    node: Nodes,
) -> None:
    one, two = await _two(node)
    again = await _without_its_first_segment(node, two)
    await again.told(newer(FOLLOWS, isr=(1,)), full=True)
    await again.stop()
    last = node(2)
    [told] = last.manager.set_aside()
    assert _strays(last)[0].name in told.message
    assert one.partition.is_leader
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
    assert await last.told(removals=(removal,)) == []
    assert _strays(last) == []
    assert not last.log_folder.exists()


async def test_only_the_newest_stray_directory_of_a_replica_is_kept(node: Nodes) -> None:
    one, two = await _two(node)
    known = newer(FOLLOWS, isr=(1,))
    for _ in range(2):
        two = await _without_its_first_segment(node, two)
        await two.told(known, full=True)
        two.partition.log.config = SMALL_SEGMENTS
        await two.catch_up(one)
        assert len(_strays(two)) == 1


async def test_logs_open_at_the_next_probe_once_the_disk_has_space(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the pauses between tries have become while the disk was full."""
    _, two = await _two(node)
    await two.stop()
    metadata = two.log_folder / "partition.metadata"
    hidden = metadata.rename(metadata.with_name("hidden"))
    again = node(2)
    await again.told(FOLLOWS, full=True)
    full = True

    def put(path: Path, data: bytes) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tidemark_broker.log.files.put", put)
        for _ in range(120):
            again.now_s += 1
            await again.manager.retry()
        full = False
        hidden.rename(metadata)
        for _ in range(6):
            again.now_s += 1
            await again.manager.retry()
    assert again.manager.failed_replicas() == ()
    assert again.partition.role is Role.FOLLOWER
