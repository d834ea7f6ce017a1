"""What is in the tier is a prefix of every leader's log: followers and leaders that start from it."""

import itertools

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost
from tidemark_broker.replication.partition import Role


def is_contiguous(host: TieredHost) -> bool:
    return all(a[1] + 1 == b[0] for a, b in itertools.pairwise(host.live()))


async def alone(cluster: TieredCluster, records: int = 400) -> TieredHost:
    """Broker 1 is the only replica, and holds locally only what is not in the tier."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(records)
    await leader.copied()
    await leader.storage.apply_retention()
    assert leader.partition.log.local_log_start_offset > 0
    return leader


async def test_a_new_follower_starts_behind_the_tier(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.in_sync(1, 3)
    log, new = leader.partition.log, cluster.hosts[3].partition
    assert new.log.local_log_start_offset == log.local_log_start_offset
    assert new.log_start_offset == 0
    assert new.log.epochs.entries == log.epochs.entries
    assert new.remote_end == leader.partition.remote_end
    # As leader it serves all of the log, and goes on copying.
    await cluster.stop(1)
    await cluster.apply(3, leader=3, leader_epoch=3, replicas=(3,), isr=(3,))
    host = cluster.hosts[3]
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert (await host.read_tier(0, 400))[:80] == list(range(4, 400, 5))


async def test_a_new_follower_starts_behind_deleted_records(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    middle = leader.live()[1][0] + 2
    leader.partition.delete_records(middle)
    await leader.until(lambda: leader.head().log_start_offset == middle)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.in_sync(1, 3)
    assert cluster.hosts[3].partition.log_start_offset == middle


async def test_a_leader_without_the_tiers_part_takes_it_over_first(cluster: TieredCluster) -> None:
    """Elected uncleanly on an empty disk; in the meantime it is offline."""
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    await cluster.apply(3, leader=3, leader_epoch=7, replicas=(3,), isr=(3,))
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == end + 1
    assert host.partition.log.local_log_start_offset == end + 1
    assert host.partition.log_start_offset == 0
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert host.head().leader_epoch == 7


async def test_a_leader_with_an_older_end_in_mind_takes_over_all_of_it(
    cluster: TieredCluster,
) -> None:
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    await cluster.apply(3, leader=1, replicas=(1, 3), isr=(1,))
    host.partition.note_remote_end(leader_end_then := 20, 2)
    await cluster.apply(3, leader=3, leader_epoch=7, replicas=(3,), isr=(3,))
    assert host.partition.role is Role.TAKING_OVER
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == end + 1 > leader_end_then
    assert host.partition.remote_end is not None
    assert host.partition.remote_end.offset == end


async def test_a_leader_whose_known_end_is_expired_starts_at_the_log_start(
    cluster: TieredCluster,
) -> None:
    leader = await alone(cluster)
    leader.partition.delete_records(-1)
    await leader.until(lambda: leader.head().live_end is None)
    start = leader.head().log_start_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    await cluster.apply(3, leader=1, replicas=(1, 3), isr=(1,))
    host.partition.note_remote_end(20, 2)
    await cluster.apply(3, leader=3, leader_epoch=7, replicas=(3,), isr=(3,))
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.log_start_offset == host.partition.next_offset == start


async def test_without_the_store_such_a_leader_stays_offline(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, leader=3, leader_epoch=7, replicas=(3,), isr=(3,))
    assert host.partition.role is Role.TAKING_OVER
    await host.until(lambda: "StoreDirectoryMissing" in host.remote.status().error)
    await host.broker.manager.retry()
    assert host.partition.role is Role.TAKING_OVER
    assert host.partition.next_offset == 0
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == host.head().highest_remote_offset + 1
    assert leader.closed


async def test_a_manifest_that_is_gone_is_unavailable_and_not_empty(
    make_host: MakeHost, host: TieredHost
) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    await host.partition.persist_remote_end()
    row = host.row
    await host.close()
    (head,) = (host.tier_path / "heads").rglob("*.json")
    kept = head.rename(host.tier_path / "kept")
    again = make_host()
    again.row = row
    await again.apply(leader_epoch=2)
    await again.until(lambda: again.summary.error_reason == "ManifestNotFound")
    await again.produce(300)
    await again.storage.apply_retention()
    await again.until(lambda: len(again.partition.log.segments()) > 1)
    assert not head.exists()
    head.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(head)
    await again.until(lambda: not again.summary.error_reason)
    await again.copied()
    assert is_contiguous(again)
