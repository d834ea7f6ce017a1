"""A replica that a reassignment removed from a broker while the broker was away. The newest row
without the broker deletes the replica. A missing row never does."""

from collections.abc import Callable

import pytest

from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, ReplicaNode, row, states
from tidemark.leader_epochs import GENERATION
from tidemark.wire import control
from tidemark_broker.replication.partition import isr_and_high_watermark

Nodes = Callable[[int], ReplicaNode]

#: Row fields after the move to brokers 2 and 3.
MOVED_AWAY = {"leader": 2, "replicas": (2, 3), "isr": (2, 3)}


async def _with_a_replica(node: Nodes, epoch: int) -> ReplicaNode:
    one = node(1)
    await one.lead(epoch)
    await one.append(3)
    return one


async def test_a_newer_row_without_the_broker_deletes_its_replica(node: Nodes) -> None:
    one = await _with_a_replica(node, epoch=4)
    assert await one.receive(row(partition_epoch=5, leader_epoch=5, **MOVED_AWAY), full=True) == []
    assert one.manager.get(TOPIC, 0) is None
    assert not one.log_folder.exists()


@pytest.mark.parametrize("epoch", [3, 4])
async def test_an_older_row_deletes_no_replica(node: Nodes, epoch: int) -> None:
    """The controller was restored from an old backup or lost its state."""
    one = await _with_a_replica(node, epoch=4)
    await one.receive(row(partition_epoch=epoch, leader_epoch=epoch, **MOVED_AWAY), full=True)
    assert one.log_folder.exists()


async def test_a_snapshot_without_the_topic_deletes_no_replica(node: Nodes) -> None:
    one = await _with_a_replica(node, epoch=4)
    await one.receive(full=True)
    assert one.log_folder.exists()


@pytest.mark.parametrize("is_pushed_first", [False, True])
async def test_an_alter_partition_answer_completes_a_move(
    node: Nodes, is_pushed_first: bool
) -> None:
    """The answer to the proposal that adds the last replica has only the ISR. The pushed row of the
    same epochs has the replicas. It may arrive first, and may still be on its way to the disk."""
    one = node(1)
    moving = {"replicas": (1, 3, 2), "adding": (3,), "removing": (2,)}
    await one.receive(row(partition_epoch=4, **moving))
    change = control.IsrChange(
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=0,
        partition_epoch=4,
        new_isr=(1, 2, 3),
        remote_manifest=False,
    )
    result = control.IsrResult(
        topic_id=TOPIC_ID,
        partition=0,
        error_code=0,
        leader=1,
        leader_epoch=0,
        partition_epoch=5,
        isr=(1, 3),
    )
    ended = row(partition_epoch=5, replicas=(1, 3), isr=(1, 3))
    # The row is in the metadata, but the replica has not applied it when the answer arrives.
    if is_pushed_first:
        one.context.metadata.apply(states(ended))
    isr_and_high_watermark.answered(one.partition, change, result)
    if is_pushed_first:
        assert one.context.metadata.topics[TOPIC].partitions[0] == ended
    await one.receive(ended)
    assert one.partition.row == ended
    assert one.context.metadata.topics[TOPIC].partitions[0] == ended


async def test_a_row_of_a_rebuilt_controller_deletes_no_replica(node: Nodes) -> None:
    """The rebuilt controller may not know this replica. An explicit removal deletes it later."""
    one = await _with_a_replica(node, epoch=4)
    # A rebuilt controller continues in a new generation of epochs, far above the old one.
    rebuilt = 5 + GENERATION
    await one.receive(row(partition_epoch=rebuilt, leader_epoch=rebuilt, **MOVED_AWAY), full=True)
    assert one.log_folder.exists()
    removal = control.Removal(topic_id=TOPIC_ID, partition=0, partition_epoch=rebuilt)
    await one.receive(removals=(removal,))
    assert not one.log_folder.exists()
