"""The tier contains a prefix of every leader's log: followers and leaders that start from it."""

import itertools
from typing import Any

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tiering import DisablePolicy, TieringState
from tidemark.wire import control
from tidemark_broker.control.status import StatusReporter
from tidemark_broker.replication.partition import Role, log_start, remote_end
from tidemark_broker.replication.partition.prefix_rule import RemoteEnd

#: Broker 3 is elected though it was not in the ISR.
UNCLEAN: dict[str, Any] = {
    "leader": 3,
    "leader_epoch": 7,
    "replicas": (3,),
    "isr": (3,),
    "leader_recovery_state": int(control.LeaderRecoveryState.RECOVERING),
}


def is_contiguous(host: TieredHost) -> bool:
    return all(a[1] + 1 == b[0] for a, b in itertools.pairwise(host.live()))


async def alone(cluster: TieredCluster, records: int = 400) -> TieredHost:
    """Broker 1 is the only replica, and holds locally only what is not in the tier."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(records)
    await leader.copied()
    await leader.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset > 0
    return leader


async def test_a_new_follower_starts_behind_the_tier(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    log, new = leader.partition.log, cluster.hosts[3].partition
    assert new.log.local_log_start_offset == log.local_log_start_offset
    assert new.log_start_offset == 0
    assert new.log.epochs.entries == log.epochs.entries
    assert new.remote_end == leader.partition.remote_end
    # As leader it serves all of the log, and continues to copy.
    await cluster.stop(1)
    await cluster.apply(3, leader=3, leader_epoch=3, replicas=(3,), isr=(3,))
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.is_leader)
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert (await host.read_tier(0, 400))[:80] == list(range(4, 400, 5))


async def test_a_new_follower_starts_behind_deleted_records(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    middle = leader.live()[1][0] + 2
    log_start.delete_records(leader.partition, middle)
    await leader.until(lambda: leader.head().log_start_offset == middle)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    assert cluster.hosts[3].partition.log_start_offset == middle


async def test_a_leader_without_the_tiers_part_takes_it_over_first(cluster: TieredCluster) -> None:
    """Elected uncleanly on an empty disk; in the meantime it is offline."""
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    await cluster.apply(3, **UNCLEAN)
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
    remote_end.note(host.partition, leader_end_then := 20, 2)
    await cluster.apply(3, **UNCLEAN)
    assert host.partition.role is Role.TAKING_OVER
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == end + 1 > leader_end_then
    assert host.partition.remote_end is not None
    assert host.partition.remote_end.offset == end


async def test_a_leader_whose_known_end_is_expired_starts_at_the_log_start(
    cluster: TieredCluster,
) -> None:
    leader = await alone(cluster)
    log_start.delete_records(leader.partition, -1)
    await leader.until(lambda: leader.head().live_end is None)
    start = leader.head().log_start_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    await cluster.apply(3, leader=1, replicas=(1, 3), isr=(1,))
    remote_end.note(host.partition, 20, 2)
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.log_start_offset == host.partition.next_offset == start


async def test_without_the_store_such_a_leader_stays_offline(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    assert host.partition.role is Role.TAKING_OVER
    await host.until(lambda: "StoreDirectoryMissing" in host.remote.status().error)
    await host.broker.manager.retry()
    assert host.partition.role is Role.TAKING_OVER
    assert host.partition.next_offset == 0
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.next_offset == host.head().highest_remote_offset + 1
    assert leader.closed


async def with_another_history(cluster: TieredCluster, *, longer_by: int) -> TieredHost:
    """Broker 1 (epoch 2) is dead, and broker 3 has records of epoch 3 from offset 0, beyond the
    tier's end; the last tier end that it received is offset 20.
    """
    await alone(cluster)
    end = cluster.hosts[1].partition.log.highest_remote_offset
    await cluster.start(3)
    host = cluster.hosts[3]
    own = {"leader": 3, "leader_epoch": 3, "replicas": (3,), "isr": (3,)}
    await cluster.apply(3, **own, manifest=False, tiering_state=int(TieringState.NONE))
    await host.produce(end + 1 + longer_by)
    await cluster.stop(1)
    tiered = {"manifest": True, "tiering_state": int(TieringState.ENABLED)}
    await cluster.apply(3, leader=1, leader_epoch=4, replicas=(1, 3), isr=(1,), **tiered)
    remote_end.replace(host.partition, RemoteEnd(20, 3))
    assert host.partition.next_offset > end
    return host


async def test_an_unclean_leader_with_a_longer_log_takes_the_tiers_history(
    cluster: TieredCluster,
) -> None:
    """Its log covers the tier's end that it knows, but the tier has advanced in another epoch."""
    host = await with_another_history(cluster, longer_by=100)
    end, before = host.head().highest_remote_offset, host.live()
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end + 1
    assert host.partition.remote_end == RemoteEnd(end, 2)
    await host.until(lambda: not host.partition.recovering)
    assert host.row.leader_recovery_state == control.LeaderRecoveryState.RECOVERED
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert host.live()[: len(before)] == before
    assert await host.read_tier(0, end + 1) == list(range(4, end + 1, 5))


async def test_an_unclean_leader_is_not_content_with_the_end_that_it_knows(
    cluster: TieredCluster,
) -> None:
    """Its log covers the end that it knows, shares the tier's history, and ends below the tier."""
    leader = cluster.hosts[1]
    await cluster.start(3)
    await cluster.apply(leader=1, leader_epoch=2, replicas=(1, 3), isr=(1,))
    await leader.produce(200)
    await cluster.until_in_sync(1, 3)
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.remote_end is not None)
    await host.until(lambda: host.partition.next_offset == leader.partition.next_offset)
    await host.partition.write_changes()
    await cluster.stop(3)
    await cluster.apply(1, isr=(1,))
    await leader.produce(200)
    await leader.copied()
    end = leader.head().highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    known = host.partition.remote_end
    assert known is not None
    assert known.offset < host.partition.next_offset <= end
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end + 1
    await host.produce(100)
    await host.copied()
    assert is_contiguous(host)


async def test_a_former_leader_adds_nothing_to_the_tier_behind_the_answer(
    cluster: TieredCluster,
) -> None:
    """The tier is read under a claim: a former leader that still believes to lead is fenced
    before the answer.
    """
    leader = await alone(cluster)
    await cluster.start(3)
    host = cluster.hosts[3]
    host.context.propose_isr = host._grant  # broker 1 hears nothing of it
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    end = host.partition.remote_end
    assert end is not None
    assert host.partition.next_offset == end.offset + 1
    assert leader.partition.is_leader
    await leader.produce(200)
    await leader.until(lambda: leader.summary.error_reason == "Fenced")
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)


async def test_it_waits_for_the_tier_with_a_reason_and_heals(cluster: TieredCluster) -> None:
    host = await with_another_history(cluster, longer_by=100)
    own_end, end = host.partition.next_offset, host.head().highest_remote_offset
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    (status,) = StatusReporter(host.broker.manager, str)._changed()
    assert (status.offline, status.error_reason) == (True, "TierUnavailable")
    assert "it was not in sync when it was elected" in status.error_message
    assert str(host.tier_path) in status.error_message
    assert host.partition.next_offset == own_end
    assert host.row.leader_recovery_state == control.LeaderRecoveryState.RECOVERING
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end + 1
    (status,) = StatusReporter(host.broker.manager, str)._changed()
    assert (status.offline, status.error_reason) == (False, "")


async def test_a_cleanly_elected_leader_does_not_need_the_store(cluster: TieredCluster) -> None:
    leader = cluster.hosts[1]
    await cluster.start(3)
    await cluster.apply(leader=1, leader_epoch=2, replicas=(1, 3), isr=(1,))
    await leader.produce(300)
    await leader.copied()
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.isr == (1, 3))
    await host.until(lambda: host.partition.next_offset == leader.partition.next_offset)
    await cluster.stop(1)
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    host.partition.remote_end = None  # it may also never have received the tier's end
    await cluster.apply(3, leader=3, leader_epoch=3, isr=(3,))
    assert host.partition.is_leader
    await host.produce(10)
    moved.rename(host.tier_path)


async def test_stale_end_that_left_the_tier_keeps_no_replica_offline(
    cluster: TieredCluster,
) -> None:
    """Elected cleanly, with an end in mind that its log lacks: as the tier has less, it leads with
    the log that it has."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(300)
    await leader.copied()
    end = leader.partition.next_offset
    remote_end.replace(leader.partition, RemoteEnd(end + 1000, 2))
    await leader.partition.write_changes()
    await cluster.stop(1)
    row = leader.row
    await cluster.start(1)
    host = cluster.hosts[1]
    host.row = row
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(1, leader_epoch=3)
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    assert f"record at {end + 1000}" in host.partition.offline_message
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end
    assert host.partition.remote_end == RemoteEnd(host.head().highest_remote_offset, 2)
    await host.produce(100)
    await host.copied()
    assert is_contiguous(host)


async def test_a_delete_waits_for_the_tier_like_anybody(cluster: TieredCluster) -> None:
    """Until its commit moves the log start, what is in the tier is part of the log."""
    host = await with_another_history(cluster, longer_by=100)
    end = host.head().highest_remote_offset
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    await cluster.apply(
        3,
        tiering_state=int(TieringState.DISABLING),
        tiered_epoch=1,
        disable_policy=int(DisablePolicy.DELETE),
    )
    assert host.partition.role is Role.TAKING_OVER
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end + 1
    await host.until(lambda: not host.partition.recovering)
    await host.acknowledged(1, DisablePolicy.DELETE)
    assert host.partition.log_start_offset == host.head().log_start_offset == end + 1


async def test_an_untiered_partition_recovers_at_once(cluster: TieredCluster) -> None:
    await cluster.apply(1, tiering_state=int(TieringState.NONE))
    host = cluster.hosts[1]
    recovering = int(control.LeaderRecoveryState.RECOVERING)
    await cluster.apply(1, leader_epoch=9, leader_recovery_state=recovering)
    assert host.partition.is_leader
    await host.until(lambda: not host.partition.recovering)


async def test_missing_manifest_is_unavailable_and_not_empty(
    make_host: MakeHost, host: TieredHost
) -> None:
    await host.apply()
    await host.produce(300)
    await host.copied()
    await host.partition.write_changes()
    row = host.row
    await host.close()
    (head,) = (host.tier_path / "heads").rglob("*.json")
    kept = head.rename(host.tier_path / "kept")
    again = make_host()
    again.row = row
    await again.apply(leader_epoch=2)
    await again.until(lambda: again.summary.error_reason == "ManifestNotFound")
    await again.produce(300)
    await again.upkeep.apply_retention()
    await again.until(lambda: len(again.partition.log.segments()) > 1)
    assert not head.exists()
    head.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(head)
    await again.until(lambda: not again.summary.error_reason)
    await again.copied()
    assert is_contiguous(again)
