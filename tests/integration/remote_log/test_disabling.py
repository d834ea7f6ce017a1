"""Disablement with Retain and Delete on a leader and a follower, and what comes after it."""

import asyncio
import itertools

import pytest

from tests.integration.remote_log.held_storage import held
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tidemark.tier.directory import DirectoryStore
from tidemark.tier.objects import StoreUnavailable
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_broker.remote_log.disablement import fetch_key
from tidemark_broker.replication.partition import Role, consumer_reads
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable

ENABLED, DISABLING, DISABLED = (
    int(TieringState.ENABLED),
    int(TieringState.DISABLING),
    int(TieringState.DISABLED),
)
RETAIN, DELETE = DisablePolicy.RETAIN, DisablePolicy.DELETE


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def tiered(cluster: TieredCluster, records: int = 400) -> tuple[TieredHost, TieredHost]:
    """Leader and follower that have copied, and let go of what was copied."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(records)
    await follower.until(lambda: follower.partition.next_offset == leader.partition.next_offset)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    await follower.until(lambda: follower.partition.log.highest_remote_offset == end)
    await leader.upkeep.apply_retention()
    await follower.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset == end + 1
    return leader, follower


async def switch(cluster: TieredCluster, epoch: int, policy: DisablePolicy) -> None:
    """From Enabled to Disabled, as the controller goes about it."""
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=epoch, disable_policy=int(policy))
    await cluster.disable(epoch, policy)
    await cluster.apply(tiering_state=DISABLED)


async def test_a_follower_runs_nothing(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    assert follower.partition.role is Role.FOLLOWER
    assert not follower.remote._tasks
    assert not follower.remote._shared.pools.expiration._executor._threads
    assert follower.summary.segments == 0
    assert follower.partition.remote_end == leader.partition.remote_end
    assert follower.partition.log.local_log_start_offset == (
        leader.partition.log.local_log_start_offset
    )


async def test_retain_keeps_what_is_in_the_tier(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    before, end = leader.live(), leader.partition.log.local_log_start_offset
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(RETAIN))
    results = await cluster.disable(1, RETAIN)
    assert {node: result.is_leader for node, result in results.items()} == {1: True, 2: False}
    assert leader.head().tiering.state is TieringState.DISABLING
    await cluster.apply(tiering_state=DISABLED)
    await leader.until(lambda: leader.head().tiering.state is TieringState.DISABLED)
    await leader.produce(300)
    assert leader.live() == before
    assert await leader.read_tier(0, end) == list(range(4, end, 5))
    assert leader.partition.log_start_offset == follower.partition.log_start_offset == 0
    await leader.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset == end


async def test_enabled_again_after_retain_without_gap_or_overlap(cluster: TieredCluster) -> None:
    leader, _ = await tiered(cluster)
    await switch(cluster, 1, RETAIN)
    await leader.produce(300)
    await cluster.apply(tiering_state=ENABLED)
    await leader.copied()
    ranges = leader.live()
    assert ranges[0][0] == 0
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    await leader.upkeep.apply_retention()
    end = leader.partition.log.local_log_start_offset
    assert end > 600
    assert await leader.read_tier(0, end) == list(range(4, end, 5))


async def test_delete_leaves_no_object_and_no_offset_on_one_broker_only(
    cluster: TieredCluster,
) -> None:
    leader, follower = await tiered(cluster)
    await leader.produce(100)
    waiting = consumer_reads.fetch(leader.partition, 0, max_bytes=1000, min_one=True)
    assert waiting.remote is not None
    starts = [h.partition.log.local_log_start_offset for h in (leader, follower)]
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    results = await cluster.disable(1, DELETE)
    assert {node: result.is_leader for node, result in results.items()} == {1: True, 2: False}
    for host in (leader, follower):
        assert host.partition.log_start_offset == max(starts)
        assert host.partition.durable_log_start_offset == max(starts)
        assert host.partition.log.local_log_start_offset <= max(starts)
    with pytest.raises(RemoteOffsetOutOfRange):
        await leader.remote.read(leader.partition, 0, 1000, now_s() + 5)
    assert (
        consumer_reads.fetch(leader.partition, 0, max_bytes=10, min_one=True).error.name
        == "offset_out_of_range"
    )
    await cluster.apply(tiering_state=DISABLED)
    await leader.until(lambda: not leader.objects() and leader.head().is_empty)
    await leader.until(lambda: leader.summary.remaining_segments == 0)


async def test_enabled_again_after_delete_begins_at_the_log_start(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    await switch(cluster, 1, DELETE)
    start = leader.partition.log_start_offset
    await cluster.apply(tiering_state=ENABLED)
    await leader.produce(300)
    await leader.copied()
    ranges = leader.live()
    assert ranges[0][0] == start
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    await leader.upkeep.apply_retention()
    end = leader.partition.log.local_log_start_offset
    assert await leader.read_tier(start, end) == list(range(start + 4, end, 5))
    remote_end = leader.partition.remote_end
    await follower.until(lambda: follower.partition.remote_end == remote_end)


async def test_a_new_leader_finishes_what_the_old_one_began(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    assert not (await leader.disable(1, DELETE)).error_code
    start = leader.head().log_start_offset
    await cluster.stop(1)
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    assert not (await follower.disable(1, DELETE)).error_code
    assert follower.partition.log_start_offset == start
    assert follower.head().leader_epoch == 2
    await follower.until(lambda: not follower.objects())


async def test_a_late_request_changes_nothing(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    await switch(cluster, 1, RETAIN)
    await cluster.apply(tiering_state=ENABLED)
    await leader.until(lambda: leader.head().tiering.state is TieringState.ENABLED)
    before = leader.head().log_start_offset
    for host in (leader, follower):
        for epoch, policy in ((1, DELETE), (1, RETAIN), (0, DELETE), (2, DELETE)):
            with pytest.raises(RemoteUnavailable):
                await host.remote.disable(
                    host.partition, Tiering(TieringState.DISABLING, epoch, policy)
                )
    assert leader.head().log_start_offset == before
    assert follower.partition.log_start_offset == before


async def test_an_acknowledgement_waits_for_every_member_of_the_isr(
    cluster: TieredCluster,
) -> None:
    leader, follower = await tiered(cluster)
    changes = {"tiering_state": DISABLING, "tiered_epoch": 1, "disable_policy": int(DELETE)}
    await cluster.apply(1, **changes)
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    assert leader.head().log_start_offset == 0
    assert (await follower.disable(1, DELETE, timeout_ms=100)).error_code == 7
    await cluster.push()
    await cluster.disable(1, DELETE)
    assert leader.head().log_start_offset == leader.partition.log_start_offset > 0


async def test_the_log_start_waits_for_eligible_leaders(cluster: TieredCluster) -> None:
    """Like members they may be elected, and their log start is not known (KIP-966)."""
    leader, _ = await tiered(cluster)
    await cluster.apply(has_eligible_leaders=True)
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    assert leader.head().floor_epoch == 0
    await cluster.apply(has_eligible_leaders=False)
    await cluster.disable(1, DELETE)
    assert leader.head().floor_epoch == 1


async def test_a_leader_that_begins_behind_the_log_start_raises_it(cluster: TieredCluster) -> None:
    """Nothing else has what lies between the log start that a former leader has committed and the
    first offset that this one has."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(400)
    await follower.until(lambda: follower.partition.next_offset == 400)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    await follower.until(lambda: follower.partition.log.highest_remote_offset == end)
    await follower.upkeep.apply_retention()
    await cluster.stop(2)
    await cluster.apply(isr=(1,))
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    assert not (await leader.disable(1, DELETE)).error_code
    assert leader.head().log_start_offset == 0
    await cluster.start(2)
    await cluster.stop(1)
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    follower = cluster.hosts[2]
    await follower.acknowledged(1, DELETE)
    log = follower.partition.log
    assert log.log_start_offset == log.local_log_start_offset == end + 1
    assert follower.head().log_start_offset == end + 1


async def test_waiting_leader_is_notified_of_the_end_of_its_term(make_host) -> None:  # type: ignore[no-untyped-def]
    host = make_host()
    await host.apply(replicas=(1, 2), isr=(1, 2))
    await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    deleting = Tiering(TieringState.DISABLING, 1, DELETE)
    asked = asyncio.create_task(host.remote.disable(host.partition, deleting))
    await asyncio.sleep(0)
    host.remote.on_follower(host.partition)  # before the new tasks took their first step
    with pytest.raises(RemoteUnavailable):
        await asyncio.wait_for(asked, 5)


async def agrees(leader: TieredHost, start: int) -> None:
    """Fetch, ListOffsets and the log start say the same of where the log begins."""
    partition = leader.partition
    assert partition.log_start_offset == start
    assert (await consumer_reads.list_offset(partition, -2)).offset == start
    first = consumer_reads.fetch(partition, start, max_bytes=1000, min_one=True)
    assert (first.error.name, first.log_start_offset) == ("none", start)
    if first.remote is not None:
        assert (await leader.read_tier(start, start + 5))[0] >= start
    if start > 0:
        below = consumer_reads.fetch(partition, start - 1, max_bytes=1000, min_one=True)
        assert below.error.name == "offset_out_of_range"


async def test_reads_continue_until_the_commit_of_a_delete(
    cluster: TieredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store takes no writes the earliest offset stays what it was, and readable."""
    leader, follower = await tiered(cluster)
    start = leader.partition.log.local_log_start_offset

    def refuse(store: DirectoryStore, key: str, data: bytes, expected: str) -> str:
        raise StoreUnavailable("it takes no writes", reason="AccessDenied", retriable=True)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "replace", refuse)
        await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
        await leader.until(lambda: leader.summary.error_reason == "AccessDenied")
        assert (await leader.disable(1, DELETE, timeout_ms=100)).error_code == 7
        await agrees(leader, 0)
        found = await consumer_reads.list_offset(leader.partition, NOW_MS + 7)
        assert found.offset == 7
    await cluster.disable(1, DELETE)
    await agrees(leader, start)
    assert follower.partition.log_start_offset == start
    await cluster.apply(tiering_state=DISABLED)
    await agrees(leader, start)


async def test_reads_continue_while_a_delete_waits_for_the_isr(cluster: TieredCluster) -> None:
    leader, _ = await tiered(cluster)
    changes = {"tiering_state": DISABLING, "tiered_epoch": 1, "disable_policy": int(DELETE)}
    await cluster.apply(1, **changes)
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    await agrees(leader, 0)


async def test_a_read_that_waits_is_ended_by_the_commit(cluster: TieredCluster) -> None:
    leader, _ = await tiered(cluster)
    with held(leader, "reads"):
        reading = asyncio.create_task(
            leader.remote.read(leader.partition, 0, 1000, leader.context.monotonic() + 20)
        )
        await leader.until(lambda: leader.context.purgatory.waiting(fetch_key(leader.partition)))
        await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
        await cluster.disable(1, DELETE)
        with pytest.raises(RemoteOffsetOutOfRange):
            await asyncio.wait_for(reading, 5)
