"""State files are written in the background: few writes, none lost, none blocked by a full disk."""

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.unit.replication.replica_nodes import TOPIC_ID, ReplicaNode, newer, row
from tidemark.wire import control
from tidemark_broker.log import StorageError
from tidemark_broker.replication.partition import remote_end
from tidemark_broker.replication.partition.state_file import StateWriter, StoredState
from tidemark_broker.replication.remote import RemoteEnd

Nodes = Callable[[int], ReplicaNode]


class GatedDisk:
    """Persistence that waits for ``ready`` and fails ``fails`` times first."""

    def __init__(self, node: ReplicaNode, fails: int = 0) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.fails = fails
        self.written: list[StoredState] = []
        self._persist, node.context.persist = node.context.persist, self.persist

    async def persist(self, directory: Path, state: StoredState) -> None:
        await self.ready.wait()
        if self.fails:
            self.fails -= 1
            raise StorageError("the disk is full")
        await self._persist(directory, state)
        self.written.append(state)


async def test_many_changes_are_coalesced_into_few_writes(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    disk = GatedDisk(one)
    disk.ready.clear()
    for offset in range(100):
        remote_end.note_head(one.partition, 0, offset, 1)
        await asyncio.sleep(0)
    assert one.partition.durable_remote_end is None
    disk.ready.set()
    await one.context.states.written()
    # One write was in progress when the later changes came. They share the next one.
    assert len(disk.written) <= 2
    assert one.partition.durable_remote_end == RemoteEnd(99, 1)


async def test_a_failure_is_retried(node: Nodes) -> None:
    one = node(1)
    one.context.states = StateWriter(retry_s=0.0)
    await one.lead(1)
    disk = GatedDisk(one, fails=2)
    remote_end.note_head(one.partition, 0, 7, 1)
    async with asyncio.timeout(5):
        while not disk.written:  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0)
    await one.context.states.written()
    assert one.partition.durable_remote_end == RemoteEnd(7, 1)
    assert one.context.failures.total == 2


async def test_closing_writes_pending_states_and_no_later_ones(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    disk = GatedDisk(one)
    remote_end.note_head(one.partition, 0, 7, 1)
    await one.context.states.close()
    assert one.partition.durable_remote_end == RemoteEnd(7, 1)
    remote_end.note_head(one.partition, 0, 8, 1)
    await one.context.states.written()
    assert len(disk.written) == 1


async def test_a_removal_waits_for_a_write_in_progress(node: Nodes) -> None:
    """Directories are found by name. A later write would end in the directory of the next topic of
    that name, or fail and be reported as a storage failure."""
    one, other_id = node(1), uuid.UUID(int=0x88)
    one.context.states = StateWriter(retry_s=0.0)
    await one.lead(1)
    disk = GatedDisk(one)
    disk.ready.clear()
    remote_end.note_head(one.partition, 0, 7, 1)
    await asyncio.sleep(0)  # its write has begun
    asyncio.get_running_loop().call_later(0.1, disk.ready.set)
    # One request removes the topic and creates another one of its name, while the write still
    # waits.
    removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=0)
    assert await one.receive(row(), topic_id=other_id, removals=(removal,)) == []
    await one.context.states.written()
    assert one.partition.topic_id == other_id
    assert json.loads((one.log_folder / "partition.state").read_bytes())["topicId"] == str(other_id)
    assert one.context.failures.count == 0


async def test_new_leaders_are_written_before_other_replicas(node: Nodes) -> None:
    """Clients wait for leaders. A broker that died may leave hundreds of replicas to others."""
    one = node(1)
    followed = [row(partition=number, leader=2) for number in range(20)]
    await one.receive(*followed, row(partition=20, leader=2))
    disk = GatedDisk(one)
    disk.ready.clear()
    leads = newer(row(partition=20), leader_epoch=1)
    applied = asyncio.create_task(
        one.receive(*(newer(item, leader=3, leader_epoch=1) for item in followed), leads)
    )
    await asyncio.sleep(0.05)
    # All others have taken effect, although no file is written yet.
    assert {item.leader_id for item in one.manager.partitions} == {2, 3}
    disk.ready.set()
    assert await applied == []
    assert disk.written[0].row == leads
    await one.context.states.written()
    assert len(disk.written) == 21
