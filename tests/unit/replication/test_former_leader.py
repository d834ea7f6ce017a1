"""Divergence of a follower that led before in an epoch of its own (KIP-320, KIP-595). Its log has
an epoch that begins at its end and has no records. The leader may not know this epoch, or may
have appended other records since."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.replication.replica_nodes import ReplicaNode, batch, row
from tidemark_broker.log import reading
from tidemark_broker.replication.following.follower import FetchOutcome, next_request
from tidemark_broker.replication.partition import log_start, produce

Nodes = Callable[[int], ReplicaNode]


async def _replicate(one: ReplicaNode, two: ReplicaNode, count: int) -> None:
    await one.lead(3)
    await two.follow(1, 3)
    await one.append(count)
    await two.catch_up(one)


async def test_an_empty_epoch_unknown_to_the_leader_is_dropped(node: Nodes) -> None:
    one, two = node(1), node(2)
    await _replicate(one, two, 10)
    # Broker 1 leads in epoch 5 and is deposed before it appends anything.
    await one.lead(5)
    assert one.partition.log.epochs.latest_epoch == 5
    await two.lead(6)
    await one.follow(2, 6)
    # Its fetch names epoch 5, which the leader answers with a divergence. Only the epoch is
    # removed, no record.
    assert next_request(one.partition, 1000).last_fetched_epoch == 5
    assert await one.fetch_once(two) is FetchOutcome.PROGRESS
    assert [entry.epoch for entry in one.partition.log.epochs.entries] == [3]
    assert one.partition.next_offset == 10
    await two.append(4)
    await one.catch_up(two)
    assert [entry.epoch for entry in one.partition.log.epochs.entries] == [3, 6]


async def test_an_empty_epoch_on_a_shorter_log_is_dropped(node: Nodes) -> None:
    one, two = node(1), node(2)
    await _replicate(one, two, 10)
    await two.lead(4)
    await two.append(5)
    await one.lead(5)
    await two.lead(6)
    await one.follow(2, 6)
    await one.catch_up(two)
    assert [entry.epoch for entry in one.partition.log.epochs.entries][:2] == [3, 4]


async def test_an_empty_epoch_on_uncommitted_records_is_truncated_with_them(node: Nodes) -> None:
    one, two = node(1), node(2)
    await _replicate(one, two, 10)
    await one.append(5)  # in epoch 3, on broker 1 only
    await one.lead(5)
    await two.lead(6)
    await two.append(1)
    await one.follow(2, 6)
    await one.catch_up(two)
    assert one.partition.next_offset == 11


async def test_an_empty_epoch_on_an_empty_log_is_dropped(node: Nodes) -> None:
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await two.lead(2)
    await one.follow(2, 2)
    await one.catch_up(two)
    await two.append(3)
    await one.catch_up(two)
    assert [entry.epoch for entry in one.partition.log.epochs.entries] == [2]


@settings(max_examples=examples(15))
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([1, 2]), st.integers(0, 3), st.booleans()), max_size=6
    ),
    last=st.sampled_from([1, 2]),
)
async def test_a_follower_ends_with_the_leaders_log_after_any_leaderships(
    steps: list[tuple[int, int, bool]], last: int
) -> None:
    """Each step: the leader of the next epoch, its number of appends, and whether the other broker
    fetches."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = {number: ReplicaNode(number, Path(folder)) for number in (1, 2)}
        try:
            # The last step always replicates, so that both logs must be equal at its end.
            for epoch, (leader, count, fetches) in enumerate([*steps, (last, 1, True)], 1):
                other = nodes[3 - leader]
                await nodes[leader].lead(epoch)
                await other.follow(leader, epoch)
                await nodes[leader].append(count)
                if fetches:
                    await other.catch_up(nodes[leader])
        finally:
            for node in nodes.values():
                await node.stop()


async def test_a_log_that_ends_within_its_first_remaining_batch_restarts(node: Nodes) -> None:
    """Every record of the former leader was deleted, and the leader no longer knows its epoch. The
    log ends at the leader's log start, where no batch of the leader begins."""
    one, two = node(1), node(2)
    await two.lead(1)
    await two.append(4)
    await one.receive(row(leader=1, leader_epoch=2, partition_epoch=3, isr=(1,)))
    # The leader's batches cover 0 to 2 and 3 to 5. The log start of 4 is inside the second one.
    for _ in range(2):
        assert (
            await produce.append(one.partition, batch(3), acks=1, timeout_ms=0)
        ).error.name == "none"
    log_start.delete_records(one.partition, 4)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 4
    await two.receive(row(leader=1, leader_epoch=2, partition_epoch=3, isr=(1,)))
    for _ in range(3):
        assert await two.fetch_once(one) is not FetchOutcome.BACK_OFF
    assert two.partition.next_offset == 6
    assert two.partition.log_start_offset == 4
    # The follower restarted at 3 with the complete batch. Both serve the same bytes.
    read = reading.read(two.partition.log, 4, max_bytes=1000, up_to_offset=6, min_one=True)
    assert (
        read.data
        == reading.read(one.partition.log, 4, max_bytes=1000, up_to_offset=6, min_one=True).data
    )
