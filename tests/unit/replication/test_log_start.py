"""The log start that clients see never goes back (invariant 2)."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import Node, newer
from tidemark_broker.replication.partition import consumer_reads, isr_maintenance, log_start
from tidemark_broker.replication.partition.consumer_reads import EARLIEST

Nodes = Callable[[int], Node]


async def seen_by_clients(one: Node) -> int:
    """Fetch, ListOffsets and the replica agree on it."""
    partition = one.partition
    start = (await consumer_reads.list_offset(partition, EARLIEST)).offset
    first = consumer_reads.fetch(partition, start, max_bytes=1000, min_one=True)
    assert (first.error.name, first.log_start_offset) == ("none", start)
    assert partition.log_start_offset == start
    return start


async def test_a_raised_log_start_is_shown_once_a_crash_cannot_take_it_back(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    await one.append(10)
    await one.told_alone(2)
    one.fence(2)
    isr_maintenance.after_change(one.partition)
    assert log_start.delete_records(one.partition, 6).low_watermark == 0
    assert await seen_by_clients(one) == 0
    await one.upkeep.checkpoint()
    assert await seen_by_clients(one) == 6
    assert log_start.low_watermark(one.partition) == 6
    assert log_start.delete_records(one.partition, 4).low_watermark == 6


async def test_a_follower_reports_a_log_start_only_once_it_is_durable(node: Nodes) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    await two.fetch_once(one)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    for _ in range(3):
        await two.fetch_once(one)
    assert log_start.low_watermark(one.partition) == two.partition.log_start_offset == 0
    await two.upkeep.checkpoint()
    assert two.partition.log_start_offset == 6
    await two.fetch_once(one)
    assert log_start.low_watermark(one.partition) == 6


async def test_an_acknowledged_log_start_does_not_move_back_with_the_next_leader(
    node: Nodes,
) -> None:
    """Replica 2 was away when the deletion was acknowledged: it is not in the ISR before its own
    checkpoint has that log start."""
    one, two = node(1), node(2)
    proposals = []
    one.context.propose_isr = lambda _, change: proposals.append(change)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    await one.told_alone(2)
    one.fence(2)
    isr_maintenance.after_change(one.partition)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert log_start.low_watermark(one.partition) == 6
    one.fence(2, fenced=False)
    await two.follow(1, 1)
    for _ in range(3):
        await two.fetch_once(one)
    assert two.partition.next_offset == 10
    assert not proposals
    await two.upkeep.checkpoint()
    await two.fetch_once(one)
    assert proposals[-1].new_isr == (1, 2)


async def test_a_member_of_the_isr_counts_though_it_is_not_alive(node: Nodes) -> None:
    """The controller may elect it before removing it from the ISR."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    one.fence(2)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert log_start.low_watermark(one.partition) == 0


async def test_an_eligible_leader_counts_though_it_is_neither_alive_nor_in_the_isr(
    node: Nodes,
) -> None:
    """The controller may elect it without a return to the ISR (KIP-966).

    The leader does not know the eligible replicas, so all of them count.
    """
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    known = one.partition.row
    assert known is not None
    alone = newer(known, isr=(1,), has_eligible_leaders=True)
    await one.told(alone)
    one.fence(2)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 6
    assert log_start.low_watermark(one.partition) == 0
    await one.told(newer(alone, has_eligible_leaders=False))
    one.fence(2)
    assert log_start.low_watermark(one.partition) == 6
