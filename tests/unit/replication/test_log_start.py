"""The log start that clients see never moves back (invariant 2)."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import ReplicaNode, newer, row
from tidemark.tiering import TieringState
from tidemark_broker.replication.partition import consumer_reads, isr_and_high_watermark, log_start
from tidemark_broker.replication.partition.consumer_reads import EARLIEST
from tidemark_broker.replication.partition.leader import LEADER_CONTACT_S

Nodes = Callable[[int], ReplicaNode]


async def visible_log_start(one: ReplicaNode) -> int:
    """Return the log start. Fetch, ListOffsets and the replica must agree on it."""
    partition = one.partition
    start = (await consumer_reads.list_offset(partition, EARLIEST)).offset
    first = consumer_reads.fetch(partition, start, max_bytes=1000, min_one=True)
    assert (first.error.name, first.log_start_offset) == ("none", start)
    assert partition.log_start_offset == start
    return start


async def test_a_raised_log_start_is_visible_once_it_is_durable(node: Nodes) -> None:
    one = node(1)
    await one.lead(1)
    await one.append(10)
    # No other replica counts, so only the leader's own checkpoint is needed.
    await one.lead_alone(2)
    one.fence(2)
    isr_and_high_watermark.after_change(one.partition)
    assert log_start.delete_records(one.partition, 6).low_watermark == 0
    assert await visible_log_start(one) == 0
    await one.upkeep.checkpoint()
    assert await visible_log_start(one) == 6
    assert log_start.low_watermark(one.partition) == 6
    # A lower request does not move it back.
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
    # The follower knows the new start from its fetches, but a crash could still undo it there.
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
    """Replica 2 was fenced when the deletion was acknowledged. It may join the ISR only when its
    own checkpoint has this log start."""
    one, two = node(1), node(2)
    proposals = []
    one.context.propose_isr = lambda _, change: proposals.append(change)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    await one.lead_alone(2)
    one.fence(2)
    isr_and_high_watermark.after_change(one.partition)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert log_start.low_watermark(one.partition) == 6
    # Broker 2 returns and catches up with the records first.
    one.fence(2, fenced=False)
    await two.follow(1, 1)
    for _ in range(3):
        await two.fetch_once(one)
    assert two.partition.next_offset == 10
    assert not proposals
    await two.upkeep.checkpoint()
    await two.fetch_once(one)
    assert proposals[-1].new_isr == (1, 2)


async def test_the_low_watermark_waits_for_a_fenced_isr_member(node: Nodes) -> None:
    """The controller may elect the replica before it removes it from the ISR."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    one.fence(2)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert log_start.low_watermark(one.partition) == 0


async def test_the_low_watermark_waits_for_eligible_leaders(
    node: Nodes,
) -> None:
    """The controller may elect one of them without a return to the ISR (KIP-966). The leader does
    not know which replicas are eligible, so all of them count."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    known = one.partition.row
    assert known is not None
    alone = newer(known, isr=(1,), has_eligible_leaders=True)
    await one.receive(alone)
    one.fence(2)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 6
    assert log_start.low_watermark(one.partition) == 0
    # No replica is eligible any more, so the leader's own durable log start suffices.
    await one.receive(newer(alone, has_eligible_leaders=False))
    one.fence(2)
    assert log_start.low_watermark(one.partition) == 6


async def test_a_deletion_waits_for_a_fenced_follower_that_may_serve_the_tier(node: Nodes) -> None:
    one, two = node(1), node(2)
    tiered = {"tiering_state": int(TieringState.ENABLED), "tiered_epoch": 0}
    for replica in (one, two):
        await replica.receive(row(leader_epoch=1, partition_epoch=1), **tiered)
    await one.append(10)
    await two.catch_up(one)
    # The epoch began long ago, so only the follower's fetches count.
    one.now_s += LEADER_CONTACT_S
    await two.fetch_once(one)
    # The controller has fenced the follower, which still fetches and serves consumers.
    await one.receive(row(leader_epoch=1, partition_epoch=2, isr=(1,)), **tiered)
    one.fence(2)
    isr_and_high_watermark.after_change(one.partition)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 6
    assert log_start.low_watermark(one.partition) == 0
    # A follower that has not fetched since refuses reads of the tier by itself.
    one.now_s += LEADER_CONTACT_S
    assert log_start.low_watermark(one.partition) == 6
