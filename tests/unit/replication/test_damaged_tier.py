"""Replicas whose tier has lost its latest head: what the tier contains is uncertain."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import ReplicaNode, row
from tidemark.tiering import TieringState
from tidemark_broker.replication.partition import Partition, remote_end

Nodes = Callable[[int], ReplicaNode]
TIERED = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 0}


def _is_suspended(partition: Partition) -> bool:
    mode = partition.local_retention()
    assert mode is not None
    return mode.suspended


async def test_local_retention_stays_blocked_after_a_restart(node: Nodes) -> None:
    """Local retention stays blocked until the head is repaired, also across restarts."""
    one, two = node(1), node(2)
    state = row(leader=1, leader_epoch=1, partition_epoch=1)
    for item in (one, two):
        await item.receive(state, **TIERED)
    await one.append(5)
    remote_end.note_head(one.partition, 0, 3, 1)
    await one.partition.write_changes()
    await two.catch_up(one)
    assert [_is_suspended(item.partition) for item in (one, two)] == [False, False]
    # The copier finds the damage. Its follower receives it with the next fetch.
    remote_end.note_damage(one.partition, is_damaged=True)
    await one.append()
    await two.catch_up(one)
    for item in (one, two):
        await item.partition.write_changes()
        await item.stop()
    # Both persisted the damage, so they block retention before any contact with the tier.
    one, two = node(1), node(2)
    assert [_is_suspended(item.partition) for item in (one, two)] == [True, True]
    for item in (one, two):
        await item.receive(state, full=True, **TIERED)
    # The repaired head reaches the follower in the same way.
    remote_end.note_damage(one.partition, is_damaged=False)
    await one.append()
    await two.catch_up(one)
    assert [_is_suspended(item.partition) for item in (one, two)] == [False, False]
