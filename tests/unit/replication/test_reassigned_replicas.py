"""A replica that a reassignment has taken from a broker while that was away: the newest row has no
place for it, and that is what deletes it. Absence never does."""

from collections.abc import Callable

import pytest

from tests.unit.replication.replica_nodes import TOPIC, TOPIC_ID, Node, row, states
from tidemark.leader_epochs import GENERATION
from tidemark.wire import control
from tidemark_broker.replication.partition import isr_maintenance

Nodes = Callable[[int], Node]

#: Brokers 2 and 3 by now.
ELSEWHERE = {"leader": 2, "replicas": (2, 3), "isr": (2, 3)}


async def _with_a_replica(node: Nodes, epoch: int) -> Node:
    one = node(1)
    await one.lead(epoch)
    await one.append(3)
    return one


async def test_it_goes_with_the_snapshot_that_says_so(node: Nodes) -> None:
    one = await _with_a_replica(node, epoch=4)
    assert await one.told(row(partition_epoch=5, leader_epoch=5, **ELSEWHERE), full=True) == []
    assert one.manager.get(TOPIC, 0) is None
    assert not one.log_folder.exists()


@pytest.mark.parametrize("epoch", [3, 4])
async def test_an_older_row_takes_nothing(node: Nodes, epoch: int) -> None:
    """A controller that has lost what it knew, or was given an old backup."""
    one = await _with_a_replica(node, epoch=4)
    await one.told(row(partition_epoch=epoch, leader_epoch=epoch, **ELSEWHERE), full=True)
    assert one.log_folder.exists()


async def test_a_snapshot_without_the_topic_takes_nothing(node: Nodes) -> None:
    one = await _with_a_replica(node, epoch=4)
    await one.told(full=True)
    assert one.log_folder.exists()


@pytest.mark.parametrize("is_told_first", [False, True])
async def test_a_move_that_ends_with_an_answer_has_ended(node: Nodes, is_told_first: bool) -> None:
    """The answer to the proposal that takes in the last replica names the ISR alone; what the
    controller tells, of the same epochs, names the replicas. It may come before, and still be
    written to the disk when the answer comes."""
    one = node(1)
    moving = {"replicas": (1, 3, 2), "adding": (3,), "removing": (2,)}
    await one.told(row(partition_epoch=4, **moving))
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
    if is_told_first:
        one.context.metadata.apply(states(ended))
    isr_maintenance.answered(one.partition, change, result)
    if is_told_first:
        assert one.context.metadata.topics[TOPIC].partitions[0] == ended
    await one.told(ended)
    assert one.partition.row == ended
    assert one.context.metadata.topics[TOPIC].partitions[0] == ended


async def test_across_a_rebuilding_absence_takes_nothing(node: Nodes) -> None:
    """The rebuilding controller may not know this replica; a later decision of one that does
    removes it.
    """
    one = await _with_a_replica(node, epoch=4)
    rebuilt = 5 + GENERATION
    await one.told(row(partition_epoch=rebuilt, leader_epoch=rebuilt, **ELSEWHERE), full=True)
    assert one.log_folder.exists()
    removal = control.Removal(topic_id=TOPIC_ID, partition=0, partition_epoch=rebuilt)
    await one.told(removals=(removal,))
    assert not one.log_folder.exists()
