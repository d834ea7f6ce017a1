"""A follower whose local log starts above the log start that a Disable with policy Delete left
(KIP-950), and its way into the ISR."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.replication.replica_nodes import ReplicaNode, row
from tidemark.tiering import DisablePolicy, TieringState
from tidemark.wire.control import IsrChange
from tidemark_broker.replication.following.follower import FetchOutcome
from tidemark_broker.replication.partition import log_start, remote_end

Nodes = Callable[[int], ReplicaNode]
DELETING = {
    "tiering_state": int(TieringState.DISABLING),
    "tiered_epoch": 1,
    "disable_policy": int(DisablePolicy.DELETE),
}
START, LOCAL_START, END = 6, 8, 10


async def pair(node: Nodes, **changes: Any) -> tuple[ReplicaNode, ReplicaNode, list[IsrChange]]:
    """Return a leader whose log starts at START after a Delete, a follower whose local log starts
    above it, and the list of the leader's proposals. ``changes`` apply to the row."""
    one, two = node(1), node(2)
    proposals: list[IsrChange] = []
    one.context.propose_isr = lambda _, change: proposals.append(change)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(END)
    await two.catch_up(one)
    await two.fetch_once(one)
    # Local retention of the follower relied on the tier for the records below.
    two.partition.log.bounds = two.partition.log.bounds.with_local_start(LOCAL_START)
    # The Delete makes the leader's local part the whole log: offsets 6 and 7 are missing on the
    # follower.
    state = row(leader=1, leader_epoch=1, partition_epoch=2, **changes)
    for item in (one, two):
        await item.receive(state, **DELETING)
    log_start.raise_to(one.partition, START)
    remote_end.note_head(one.partition, 1, -1, -1)
    await one.upkeep.checkpoint()
    await one.partition.write_changes()
    assert one.partition.log_start_offset == START
    return one, two, proposals


async def test_a_follower_refetches_range_below_its_log_before_it_joins_the_isr(
    node: Nodes,
) -> None:
    one, two, proposals = await pair(node, isr=(1,))
    assert await two.fetch_once(one) is FetchOutcome.PROGRESS
    # The follower discards its log and restarts at the leader's log start.
    assert not proposals
    log = two.partition.log
    assert (log.log_start_offset, log.local_log_start_offset, log.next_offset) == (START,) * 3
    await two.fetch_once(one)
    # Only a durable log start counts for the ISR.
    await two.upkeep.checkpoint()
    await two.fetch_once(one)
    assert log.next_offset == END
    assert proposals[-1].new_isr == (1, 2)


@pytest.mark.parametrize("changes", [{"isr": (1, 2)}, {"isr": (1,), "has_eligible_leaders": True}])
async def test_an_electable_replica_discards_nothing(node: Nodes, changes: Any) -> None:
    """The replica may be the only one with the committed records when its leader dies."""
    one, two, _ = await pair(node, **changes)
    for _ in range(3):
        await two.fetch_once(one)
    assert two.partition.next_offset == END
    assert two.partition.log.local_log_start_offset == LOCAL_START


async def test_a_replica_with_a_pending_isr_proposal_discards_nothing(node: Nodes) -> None:
    """The controller may have added it to the ISR already."""
    one, two, proposals = await pair(node, isr=(1,))
    leader = one.partition.leader
    assert leader is not None
    # The proposal is sent and its answer outstanding.
    leader.pending = (1, 2)
    for _ in range(3):
        await two.fetch_once(one)
    assert not proposals
    assert two.partition.next_offset == END
