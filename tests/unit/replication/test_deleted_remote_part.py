"""A follower that begins behind what a disablement with Delete has left (KIP-950), and the ISR."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.replication.replica_nodes import Node, row
from tidemark.tiering import DisablePolicy, TieringState
from tidemark.wire.control import IsrChange
from tidemark_broker.replication.following.follower import FetchOutcome
from tidemark_broker.replication.partition import log_start, remote_end

Nodes = Callable[[int], Node]
DELETING = {
    "tiering_state": int(TieringState.DISABLING),
    "tiered_epoch": 1,
    "disable_policy": int(DisablePolicy.DELETE),
}
START, LOCAL_START, END = 6, 8, 10


async def pair(node: Nodes, **changes: Any) -> tuple[Node, Node, list[IsrChange]]:
    """Leader 1 begins at START, where Delete has put the log start; follower 2 has all that is
    committed, and begins behind that. ``changes`` of the row; and what the leader proposes."""
    one, two = node(1), node(2)
    proposals: list[IsrChange] = []
    one.context.propose_isr = lambda _, change: proposals.append(change)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(END)
    await two.catch_up(one)
    await two.fetch_once(one)
    two.partition.log.raise_local_log_start(LOCAL_START)
    state = row(leader=1, leader_epoch=1, partition_epoch=2, **changes)
    for item in (one, two):
        await item.told(state, **DELETING)
    log_start.raise_to(one.partition, START)
    remote_end.note_head(one.partition, 1, -1, -1)
    await one.upkeep.checkpoint()
    await one.partition.write_changes()
    assert one.partition.log_start_offset == START
    return one, two, proposals


async def test_it_fetches_again_before_it_is_let_into_the_isr(node: Nodes) -> None:
    one, two, proposals = await pair(node, isr=(1,))
    assert await two.fetch_once(one) is FetchOutcome.PROGRESS
    assert not proposals
    log = two.partition.log
    assert (log.log_start_offset, log.local_log_start_offset, log.next_offset) == (START,) * 3
    await two.fetch_once(one)
    await two.upkeep.checkpoint()
    await two.fetch_once(one)
    assert log.next_offset == END
    assert proposals[-1].new_isr == (1, 2)


@pytest.mark.parametrize("changes", [{"isr": (1, 2)}, {"isr": (1,), "has_eligible_leaders": True}])
async def test_an_electable_replica_deletes_nothing(node: Nodes, changes: Any) -> None:
    """The replica may be the only one with the committed records by the time its leader dies."""
    one, two, _ = await pair(node, **changes)
    for _ in range(3):
        await two.fetch_once(one)
    assert two.partition.next_offset == END
    assert two.partition.log.local_log_start_offset == LOCAL_START


async def test_a_replica_about_to_join_the_isr_deletes_nothing(node: Nodes) -> None:
    """The controller may have taken it in already."""
    one, two, proposals = await pair(node, isr=(1,))
    leader = one.partition.leader
    assert leader is not None
    leader.pending = (1, 2)
    for _ in range(3):
        await two.fetch_once(one)
    assert not proposals
    assert two.partition.next_offset == END
