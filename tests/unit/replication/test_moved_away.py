"""A replica that a reassignment has taken from a broker while that was away: the newest row has no
place for it, and that is what deletes it. Absence never does."""

from collections.abc import Callable

import pytest

from tests.unit.replication.replica_nodes import TOPIC, Node, row

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
