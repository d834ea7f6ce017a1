"""Effects of a changed configuration on a leader."""

from collections.abc import Callable
from dataclasses import replace

from tests.unit.replication.replica_nodes import ReplicaNode, row, states
from tidemark.wire import control

Nodes = Callable[[int], ReplicaNode]


async def set_min_isr(node: ReplicaNode, value: int) -> None:
    """Push a change of the topic's configuration, without a row."""
    request = states(row())
    entry = control.ConfigEntry(name="min.insync.replicas", value=str(value))
    topic = replace(request.topics[0], partitions=(), config=(entry,))
    await node.manager.apply(replace(request, topics=(topic,)))


async def test_a_lower_min_isr_commits_records_at_once(node: Nodes) -> None:
    """Without followers and producers nothing else would advance the high watermark."""
    one = node(1)
    await one.receive(row(leader=1, leader_epoch=1, partition_epoch=1, isr=(1,)))
    # The ISR has one member, so with 2 nothing is committed.
    await set_min_isr(one, 2)
    await one.append(5)
    assert one.partition.log.high_watermark == 0
    await set_min_isr(one, 1)
    assert one.partition.log.high_watermark == 5
