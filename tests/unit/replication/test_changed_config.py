"""Effects of a changed configuration on a replica that leads."""

from collections.abc import Callable
from dataclasses import replace

from tests.unit.replication.replica_nodes import Node, row, states
from tidemark.wire import control

Nodes = Callable[[int], Node]


async def min_isr(node: Node, value: int) -> None:
    """A delta about the topic itself, without a row."""
    whole = states(row())
    entry = control.ConfigEntry(name="min.insync.replicas", value=str(value))
    topic = replace(whole.topics[0], partitions=(), config=(entry,))
    await node.manager.apply(replace(whole, topics=(topic,)))


async def test_records_that_a_lower_min_isr_commits_are_read_at_once(node: Nodes) -> None:
    """Without followers and producers nothing else would commit them."""
    one = node(1)
    await one.told(row(leader=1, leader_epoch=1, partition_epoch=1, isr=(1,)))
    await min_isr(one, 2)
    await one.append(5)
    assert one.partition.log.high_watermark == 0
    await min_isr(one, 1)
    assert one.partition.log.high_watermark == 5
