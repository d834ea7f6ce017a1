"""A store whose calls do not return: unrelated work continues, and the broker can be stopped."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.integration.remote_log.blocking_storage import hung
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.test_prefix import UNCLEAN, alone
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tidemark.wire import control
from tidemark_broker.replication.following.fetch_responses import answer
from tidemark_broker.replication.following.follower import FetchOutcome, next_request
from tidemark_broker.replication.following.tier_bootstrap import start_from_tier
from tidemark_broker.replication.partition import Role, takeover


async def follower_of_two(cluster: TieredCluster) -> TieredHost:
    """Return broker 3, which must bootstrap partition 0 from the tier and partition 1 locally."""
    leader = await alone(cluster)
    leader.rows[1] = replace(leader.new_row(1), replicas=(1, 3))
    await cluster.start(3)
    await cluster.push()
    follower = cluster.hosts[3]
    # Broker 3 has verified the store; from here on its calls may hang.
    await follower.until(lambda: not follower.remote.status().error)
    return follower


async def begun(store: Any) -> None:
    async with asyncio.timeout(10):
        while not store.begun:  # noqa: ASYNC110  counted in a thread
            await asyncio.sleep(0.01)


async def test_bootstrap_that_hangs_delays_no_other_partition(
    cluster: TieredCluster,
) -> None:
    follower = await follower_of_two(cluster)
    leader = cluster.hosts[1]
    with hung(follower) as store:
        # Partition 0 is assigned to broker 3, whose bootstrap hangs in the store.
        await cluster.apply(1, 3, replicas=(1, 3))
        await begun(store)
        # Partition 1 is replicated meanwhile: it has a fetcher of its own.
        await leader.produce(50, number=1)
        await follower.until(lambda: follower.at(1).next_offset == 50)
        async with asyncio.timeout(5):  # no lock is held meanwhile
            await cluster.apply(1, 3, isr=(1,))
    # After the store returns, the bootstrap completes by itself.
    await cluster.until_in_sync(1, 3)
    assert follower.partition.log.local_log_start_offset > 0
    assert follower.partition.log.epochs.entries == leader.partition.log.epochs.entries


async def test_late_bootstrap_result_is_dropped_after_a_role_change(
    cluster: TieredCluster,
) -> None:
    follower = await follower_of_two(cluster)
    leader = cluster.hosts[1]
    with hung(follower) as store:
        await cluster.apply(1, 3, replicas=(1, 3))
        await begun(store)
        partition = follower.partition
        # What the leader answers a follower that fetches below its local log start.
        moved_to_tier = answer(leader.partition, ErrorCode.offset_moved_to_tiered_storage)
        late = asyncio.create_task(
            start_from_tier(partition, next_request(partition, 1), moved_to_tier)
        )
        # Two calls hang: the bootstrap of the fetcher and this one.
        while len(store.begun) < 2:  # noqa: ASYNC110  counted in a thread
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            # The partition loses its leader while both wait.
            await cluster.apply(1, 3, leader=-1, leader_epoch=3)
        assert not list(follower.broker.fetchers.context.from_tier.running)
        store.release.set()
        # The late result is dropped: nothing is truncated, the log is as before.
        assert await late is FetchOutcome.IDLE
        assert partition.next_offset == partition.log.local_log_start_offset == 0


async def leader_of_two(host: TieredHost) -> None:
    host.rows[1] = host.new_row(1)
    await host.apply()
    await host.produce(50)
    await host.until(lambda: host.row.manifest)


async def test_removal_that_waits_for_the_store_delays_no_other_state(make_host: MakeHost) -> None:
    host = make_host()
    await leader_of_two(host)
    with hung(host) as store:
        await host.apply(leader_epoch=2)  # a claim, which hangs
        # The claim blocks a thread and holds the partition's task.
        await begun(store)
        # Removal of partition 0 and a new epoch of partition 1 come in one command.
        gone = control.Removal(topic_id=TOPIC_ID, partition=0, partition_epoch=99)
        other = host.rows[1] = replace(host.rows[1], leader_epoch=7, partition_epoch=7)
        topic = replace(host.states().topics[0], partitions=(other,))
        async with asyncio.timeout(5):
            # The command is not fully applied yet, because the removal waits; the states are.
            assert not await host.broker.manager.apply(
                replace(host.states(), full=False, topics=(topic,), removals=(gone,))
            )
        assert host.broker.manager.get(TOPIC, 0) is None
        assert (host.at(1).is_leader, host.at(1).leader_epoch) == (True, 7)
    # Assigned again, it leads and copies; the commit that hung meanwhile does no harm.
    host.row = replace(host.row, partition_epoch=100)
    await host.apply(leader_epoch=8)
    await host.until(lambda: host.head().leader_epoch == 8)


async def test_replicas_stop_in_a_limited_time(make_host: MakeHost) -> None:
    host = make_host()
    await leader_of_two(host)
    # Claims of both partitions hang.
    with hung(host) as store:
        host.rows[1] = replace(host.rows[1], leader_epoch=2, partition_epoch=2)
        await host.apply(leader_epoch=2)
        await begun(store)
        async with asyncio.timeout(5):
            # Shutdown stops the replicas and gives the remote log manager 0.3 s.
            await host.broker.manager.close()
            assert not await host.remote.close(timeout_s=0.3)
        # No replica leads any more, although the claims still hang.
        assert not any(partition.is_leader for partition in host.broker.manager.partitions)
    # With the store back, everything ends.
    assert await host.remote.close(timeout_s=10)


async def test_leader_without_an_answer_reports_it_and_retries(
    cluster: TieredCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    host = cluster.hosts[3]
    await cluster.push(3)
    await host.until(lambda: not host.remote.status().error)
    await cluster.stop(1)
    # 0.2 s instead of the default, so that the test sees a time-out.
    monkeypatch.setattr(takeover, "_TIER_TIMEOUT_S", 0.2)
    with hung(host) as store:
        await cluster.apply(3, **UNCLEAN)
        await begun(store)
        await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
        assert "no answer within" in host.partition.offline_message
    # The takeover is retried until the store responds.
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == end + 1
