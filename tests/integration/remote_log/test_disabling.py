"""Disablement with Retain and Delete on a leader and a follower, and what comes after it."""

import asyncio
import itertools

import pytest

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.objects import StoreUnavailable
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
    """Return leader and follower after everything copied was deleted from both local logs."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(records)
    await follower.until(lambda: follower.partition.next_offset == leader.partition.next_offset)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    # The follower receives the tier's end from fetch answers; its own retention is bounded by it.
    await follower.until(lambda: follower.partition.log.highest_remote_offset == end)
    await leader.upkeep.apply_retention()
    await follower.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset == end + 1
    return leader, follower


async def switch(cluster: TieredCluster, epoch: int, policy: DisablePolicy) -> None:
    """Disable in the controller's order: DISABLING on all brokers, acknowledgements, DISABLED."""
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=epoch, disable_policy=int(policy))
    await cluster.disable(epoch, policy)
    await cluster.apply(tiering_state=DISABLED)


async def test_follower_runs_no_remote_log_tasks(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    assert follower.partition.role is Role.FOLLOWER
    # Copy and expiration tasks exist on leaders only, as RLMLeaderTask in Kafka.
    assert not follower.remote._tasks
    assert not follower.remote._shared.pools.expiration._executor._threads
    assert follower.summary.segments == 0
    # What a follower has is the tier's end, which it needs as a later leader.
    assert follower.partition.remote_end == leader.partition.remote_end
    assert follower.partition.log.local_log_start_offset == (
        leader.partition.log.local_log_start_offset
    )


async def test_retain_keeps_what_is_in_the_tier(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    before, end = leader.live(), leader.partition.log.local_log_start_offset
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(RETAIN))
    # Every replica acknowledges; only the leader changes the head.
    results = await cluster.disable(1, RETAIN)
    assert {node: result.is_leader for node, result in results.items()} == {1: True, 2: False}
    assert leader.head().tiering.state is TieringState.DISABLING
    await cluster.apply(tiering_state=DISABLED)
    await leader.until(lambda: leader.head().tiering.state is TieringState.DISABLED)
    await leader.produce(300)
    # With Retain the tier stays as it is: readable, and nothing is added.
    assert leader.live() == before
    assert await leader.read_tier(0, end) == list(range(4, end, 5))
    assert leader.partition.log_start_offset == follower.partition.log_start_offset == 0
    # Without copies local retention must not pass the tier's end either: later records are only
    # local.
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
    # The records that were written while tiering was disabled are copied too.
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    await leader.upkeep.apply_retention()
    end = leader.partition.log.local_log_start_offset
    # 400 records before and 300 after, so the new tier end is well inside the second part.
    assert end > 600
    assert await leader.read_tier(0, end) == list(range(4, end, 5))


async def test_delete_leaves_no_object_and_no_offset_on_one_broker_only(
    cluster: TieredCluster,
) -> None:
    leader, follower = await tiered(cluster)
    await leader.produce(100)
    # A consumer is about to read from the tier when the deletion begins.
    waiting = consumer_reads.fetch(leader.partition, 0, max_bytes=1000, min_one=True)
    assert waiting.remote is not None
    # The log starts locally where the tier ended; the two brokers may differ, the new log start is
    # the larger one.
    starts = [h.partition.log.local_log_start_offset for h in (leader, follower)]
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    results = await cluster.disable(1, DELETE)
    assert {node: result.is_leader for node, result in results.items()} == {1: True, 2: False}
    for host in (leader, follower):
        assert host.partition.log_start_offset == max(starts)
        # The log start is durable before the acknowledgement: a restart must not bring it back.
        assert host.partition.durable_log_start_offset == max(starts)
        assert host.partition.log.local_log_start_offset <= max(starts)
    # The reference that the consumer received before is refused now.
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
    # The deleted range is not in the tier; offsets continue at the log start.
    assert ranges[0][0] == start
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    await leader.upkeep.apply_retention()
    end = leader.partition.log.local_log_start_offset
    assert await leader.read_tier(start, end) == list(range(start + 4, end, 5))
    # The follower's tier end was reset by the deletion and advances again.
    remote_end = leader.partition.remote_end
    await follower.until(lambda: follower.partition.remote_end == remote_end)


async def test_new_leader_completes_a_delete_disablement(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    # The leader has committed the new log start, then dies before any object is deleted.
    assert not (await leader.disable(1, DELETE)).error_code
    start = leader.head().log_start_offset
    await cluster.stop(1)
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    # The same request, repeated to the new leader, is idempotent and completes the deletion.
    assert not (await follower.disable(1, DELETE)).error_code
    assert follower.partition.log_start_offset == start
    assert follower.head().leader_epoch == 2
    await follower.until(lambda: not follower.objects())


async def test_late_disablement_requests_are_refused(cluster: TieredCluster) -> None:
    leader, follower = await tiered(cluster)
    await switch(cluster, 1, RETAIN)
    await cluster.apply(tiering_state=ENABLED)
    await leader.until(lambda: leader.head().tiering.state is TieringState.ENABLED)
    before = leader.head().log_start_offset
    for host in (leader, follower):
        # Late duplicates of the former disablement, another policy, an older and an unknown epoch.
        for epoch, policy in ((1, DELETE), (1, RETAIN), (0, DELETE), (2, DELETE)):
            with pytest.raises(RemoteUnavailable):
                await host.remote.disable(
                    host.partition, Tiering(TieringState.DISABLING, epoch, policy)
                )
    assert leader.head().log_start_offset == before
    assert follower.partition.log_start_offset == before


async def test_disablement_is_acknowledged_once_the_whole_isr_knows_it(
    cluster: TieredCluster,
) -> None:
    leader, follower = await tiered(cluster)
    changes = {"tiering_state": DISABLING, "tiered_epoch": 1, "disable_policy": int(DELETE)}
    # Only broker 1 knows of the disablement, so the ISR is not complete.
    await cluster.apply(1, **changes)
    # Error 7 is REQUEST_TIMED_OUT, upon which the controller repeats its request.
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    assert leader.head().log_start_offset == 0
    assert (await follower.disable(1, DELETE, timeout_ms=100)).error_code == 7
    # Now the follower receives the states, and the same disablement completes.
    await cluster.push()
    await cluster.disable(1, DELETE)
    assert leader.head().log_start_offset == leader.partition.log_start_offset > 0


async def test_log_start_does_not_move_while_eligible_leaders_exist(cluster: TieredCluster) -> None:
    """Like members they may be elected, and their log start is not known (KIP-966)."""
    leader, _ = await tiered(cluster)
    # The partition has eligible leader replicas (KIP-966), which are not in the ISR.
    await cluster.apply(has_eligible_leaders=True)
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    assert leader.head().floor_epoch == 0
    # They are elected or removed before the log start may move.
    await cluster.apply(has_eligible_leaders=False)
    await cluster.disable(1, DELETE)
    assert leader.head().floor_epoch == 1


async def test_leader_that_starts_above_the_log_start_raises_it(cluster: TieredCluster) -> None:
    """Nothing else has what lies between the log start that a former leader has committed and the
    first offset that this one has."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(400)
    await follower.until(lambda: follower.partition.next_offset == 400)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    await follower.until(lambda: follower.partition.log.highest_remote_offset == end)
    # Broker 2's local log now starts behind the tier, while broker 1 still has everything.
    await follower.upkeep.apply_retention()
    await cluster.stop(2)
    await cluster.apply(isr=(1,))
    await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    # Broker 1 alone decides: its log starts at 0, so the new log start is 0.
    assert not (await leader.disable(1, DELETE)).error_code
    assert leader.head().log_start_offset == 0
    await cluster.start(2)
    await cluster.stop(1)
    # Broker 2 becomes leader without what is between 0 and its own start.
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    follower = cluster.hosts[2]
    await follower.acknowledged(1, DELETE)
    # It raises the log start to what it has, instead of promising offsets that no broker can serve.
    log = follower.partition.log
    assert log.log_start_offset == log.local_log_start_offset == end + 1
    assert follower.head().log_start_offset == end + 1


async def test_waiting_leader_is_notified_of_the_end_of_its_term(make_host) -> None:  # type: ignore[no-untyped-def]
    host = make_host()
    await host.apply(replicas=(1, 2), isr=(1, 2))
    await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
    deleting = Tiering(TieringState.DISABLING, 1, DELETE)
    disablement = asyncio.create_task(host.remote.disable(host.partition, deleting))
    # Let the disablement begin to wait for the ISR before the role changes.
    await asyncio.sleep(0)
    host.remote.on_follower(host.partition)  # before the new tasks took their first step
    with pytest.raises(RemoteUnavailable):
        await asyncio.wait_for(disablement, 5)


async def agrees(leader: TieredHost, start: int) -> None:
    """Verify that Fetch, ListOffsets and the log start agree on where the log begins."""
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

    # The commit of a Delete needs a write to the head, which the store refuses.
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "replace", refuse)
        await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
        await leader.until(lambda: leader.summary.error_reason == "AccessDenied")
        assert (await leader.disable(1, DELETE, timeout_ms=100)).error_code == 7
        # Nothing was committed, so the whole log is readable, also by timestamp.
        await agrees(leader, 0)
        found = await consumer_reads.list_offset(leader.partition, NOW_MS + 7)
        assert found.offset == 7
    # The store takes writes again; the repeated request commits.
    await cluster.disable(1, DELETE)
    await agrees(leader, start)
    assert follower.partition.log_start_offset == start
    await cluster.apply(tiering_state=DISABLED)
    await agrees(leader, start)


async def test_reads_continue_while_a_delete_waits_for_the_isr(cluster: TieredCluster) -> None:
    leader, _ = await tiered(cluster)
    changes = {"tiering_state": DISABLING, "tiered_epoch": 1, "disable_policy": int(DELETE)}
    await cluster.apply(1, **changes)
    # Broker 2 has not acknowledged: the log start stays.
    assert (await leader.disable(1, DELETE, timeout_ms=300)).error_code == 7
    await agrees(leader, 0)


async def test_waiting_tier_read_fails_once_a_delete_is_committed(cluster: TieredCluster) -> None:
    leader, _ = await tiered(cluster)
    with blocking(leader, "reads"):
        reading = asyncio.create_task(
            leader.remote.read(leader.partition, 0, 1000, leader.context.monotonic() + 20)
        )
        # The read waits in purgatory for the blocked tier when the commit deletes its offset.
        await leader.until(lambda: leader.context.purgatory.waiting(fetch_key(leader.partition)))
        await cluster.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=int(DELETE))
        await cluster.disable(1, DELETE)
        # It fails at once instead of waiting for a store that has nothing to return.
        with pytest.raises(RemoteOffsetOutOfRange):
            await asyncio.wait_for(reading, 5)
