"""The tier has a prefix of every leader's log: followers and leaders that start from it."""

import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.tiering import DisablePolicy, TieringState
from tidemark_broker.control.status import StatusReporter
from tidemark_broker.log import flushing
from tidemark_broker.replication.partition import Role, log_start, remote_end
from tidemark_broker.replication.partition.prefix_rule import RemoteEnd

#: Broker 3 is elected though it was not in the ISR.
UNCLEAN: dict[str, Any] = {
    "leader": 3,
    "leader_epoch": 7,
    "replicas": (3,),
    "isr": (3,),
    "leader_recovery_state": int(LeaderRecoveryState.RECOVERING),
}


def is_contiguous(host: TieredHost) -> bool:
    return all(a[1] + 1 == b[0] for a, b in itertools.pairwise(host.live()))


async def alone(cluster: TieredCluster, records: int = 400) -> TieredHost:
    """Make broker 1 the only replica, whose local log has only the records outside the tier."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(records)
    await leader.copied()
    await leader.upkeep.apply_retention()
    assert leader.partition.log.local_log_start_offset > 0
    return leader


async def test_new_follower_starts_behind_the_tier(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    # Broker 3 is added by a reassignment; its disk is empty.
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    log, new = leader.partition.log, cluster.hosts[3].partition
    # It starts where the leader's local log starts (KIP-405), and takes over the epochs before
    # that.
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


async def test_new_follower_adopts_a_log_start_within_the_tier(cluster: TieredCluster) -> None:
    # A RecordDeletion within the second segment of the tier.
    leader = await alone(cluster)
    middle = leader.live()[1][0] + 2
    log_start.delete_records(leader.partition, middle)
    await leader.until(lambda: leader.head().log_start_offset == middle)
    await cluster.start(3)
    await cluster.apply(1, 3, replicas=(1, 3))
    await cluster.until_in_sync(1, 3)
    assert cluster.hosts[3].partition.log_start_offset == middle


async def without_store(host: TieredHost) -> tuple[Path, Path]:
    """Move the store away; return it, and the log file of a closed segment that is not copied."""
    await host.produce(100)
    await host.copied()
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.produce(300)
    log = host.partition.log
    flushing.flush(log)
    first, *_ = log.segment_infos(log.highest_remote_offset + 1)
    return away, flushing.segment_files(log, first.base_offset).log


async def all_is_copied(host: TieredHost) -> None:
    await host.until(lambda: host.partition.is_leader)
    await host.produce(200)
    await host.copied()
    await host.until(lambda: not host.summary.error_reason)
    assert is_contiguous(host)
    end = host.partition.log.highest_remote_offset + 1
    assert await host.read_tier(0, end) == list(range(4, end, 5))


@pytest.mark.parametrize("lost", ["replica", "disk"])
async def test_damaged_segment_is_copied_by_another_replica_and_the_disk_replaced(
    cluster: TieredCluster, lost: str
) -> None:
    damaged, sound_host = cluster.hosts[1], cluster.hosts[2]
    away, path = await without_store(damaged)
    await damaged.until(lambda: sound_host.partition.next_offset == 400)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    away.rename(damaged.tier_path)
    await damaged.until(lambda: damaged.summary.error_reason == "StorageError", 30)
    assert f"broker 1: {path} is damaged" in damaged.summary.error_message
    # What the message says: another leader, then a new disk.
    await cluster.apply(leader=2, leader_epoch=2)
    await sound_host.until(lambda: sound_host.partition.is_leader)
    await sound_host.copied()
    await cluster.stop(1)
    await cluster.apply(isr=(2,))
    shutil.rmtree(path.parent if lost == "replica" else path.parent.parent)
    await cluster.start(1)
    await cluster.push()
    await cluster.until_in_sync(1, 2)
    # The broker leads again with what it has fetched.
    await cluster.apply(leader=1, leader_epoch=3)
    await all_is_copied(cluster.hosts[1])
    assert not path.exists() or path.read_bytes() == sound


async def test_command_in_the_message_repairs_a_time_index(cluster: TieredCluster) -> None:
    host = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    away, log_path = await without_store(host)
    path = log_path.with_suffix(".timeindex")
    # The largest timestamp is that of the last entry, and is read at the start.
    sound = path.read_bytes()
    path.write_bytes(sound[:-10] + bytes([sound[-10] ^ 2]) + sound[-9:])
    await restart(cluster)
    away.rename(host.tier_path)
    host = cluster.hosts[1]
    await host.until(lambda: f"{path} is damaged" in host.summary.error_message, 30)
    (command,) = re.findall(r"\((truncate [^)]*)\)", host.summary.error_message)
    subprocess.run(shlex.split(command), check=True)
    await restart(cluster)
    await all_is_copied(cluster.hosts[1])


async def restart(cluster: TieredCluster) -> None:
    await cluster.stop(1)
    await cluster.start(1)
    await cluster.push()


async def test_unclean_leader_with_an_empty_log_takes_over_from_the_tier(
    cluster: TieredCluster,
) -> None:
    """Broker 3 is elected uncleanly on an empty disk; it is offline until it has taken over."""
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    await cluster.apply(3, **UNCLEAN)
    host = cluster.hosts[3]
    await host.until(lambda: host.partition.role is Role.LEADER)
    # It continues behind the tier, so that no offset of it is written restarted.
    assert host.partition.next_offset == end + 1
    assert host.partition.log.local_log_start_offset == end + 1
    assert host.partition.log_start_offset == 0
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert host.head().leader_epoch == 7


async def test_unclean_leader_with_an_outdated_tier_end_reads_the_current_one(
    cluster: TieredCluster,
) -> None:
    leader = await alone(cluster)
    end = leader.partition.log.highest_remote_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    # As a follower of broker 1, broker 3 received an end that is outdated by now.
    await cluster.apply(3, leader=1, replicas=(1, 3), isr=(1,))
    # The tier's end was 20 in leader epoch 2.
    remote_end.note(host.partition, leader_end_then := 20, 2)
    await cluster.apply(3, **UNCLEAN)
    assert host.partition.role is Role.TAKING_OVER
    await host.until(lambda: host.partition.role is Role.LEADER)
    # The tier itself is read: the remembered end is only a lower bound.
    assert host.partition.next_offset == end + 1 > leader_end_then
    assert host.partition.remote_end is not None
    assert host.partition.remote_end.offset == end


async def test_unclean_leader_whose_tier_end_expired_starts_at_the_log_start(
    cluster: TieredCluster,
) -> None:
    leader = await alone(cluster)
    # All records of the tier expire after broker 3 received its end.
    log_start.delete_records(leader.partition, -1)
    await leader.until(lambda: leader.head().live_end is None)
    start = leader.head().log_start_offset
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    await cluster.apply(3, leader=1, replicas=(1, 3), isr=(1,))
    # The remembered end of 20 no longer exists in the tier.
    remote_end.note(host.partition, 20, 2)
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.role is Role.LEADER)
    assert host.partition.log_start_offset == host.partition.next_offset == start


async def test_unclean_leader_stays_offline_without_the_store(cluster: TieredCluster) -> None:
    leader = await alone(cluster)
    await cluster.start(3)
    await cluster.stop(1)
    host = cluster.hosts[3]
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    assert host.partition.role is Role.TAKING_OVER
    # The broker has noticed that its store is missing.
    await host.until(lambda: "StoreDirectoryMissing" in host.remote.status().error)
    # The retry that a broker makes periodically, too.
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
    # An untiered leadership, so that its records do not reach the tier.
    own = {"leader": 3, "leader_epoch": 3, "replicas": (3,), "isr": (3,)}
    await cluster.apply(3, **own, manifest=False, tiering_state=int(TieringState.NONE))
    await cluster.until_verified()
    await host.produce(end + 1 + longer_by)
    await cluster.stop(1)
    tiered = {"manifest": True, "tiering_state": int(TieringState.ENABLED)}
    await cluster.apply(3, leader=1, leader_epoch=4, replicas=(1, 3), isr=(1,), **tiered)
    # The end that it remembers is covered by its own log, so it looks complete.
    remote_end.replace(host.partition, RemoteEnd(20, 3))
    assert host.partition.next_offset > end
    return host


async def test_unclean_leader_with_a_longer_log_adopts_the_tiers_history(
    cluster: TieredCluster,
) -> None:
    """Its log covers the tier's end that it knows, but the tier has advanced in another epoch."""
    host = await with_another_history(cluster, longer_by=100)
    end, before = host.head().highest_remote_offset, host.live()
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    # Truncated to the tier's end: its own records beyond it belong to another history.
    assert host.partition.next_offset == end + 1
    assert host.partition.remote_end == RemoteEnd(end, 2)
    # Recovery is recorded only after the takeover (KIP-704).
    await host.until(lambda: not host.partition.recovering)
    assert host.row.leader_recovery_state == LeaderRecoveryState.RECOVERED
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)
    assert host.live()[: len(before)] == before
    # The records of the tier are unchanged, with their own epochs.
    assert await host.read_tier(0, end + 1) == list(range(4, end + 1, 5))


async def test_unclean_leader_does_not_trust_its_remembered_tier_end(
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
    # Durable before the restart: broker 3 remembers the end of the first 200 records.
    await host.partition.write_changes()
    # Broker 3 misses the second half, which is copied without it.
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
    # Precondition: the remembered end is in its log, the true end is not.
    assert known.offset < host.partition.next_offset <= end
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    # It begins behind the true end.
    assert host.partition.next_offset == end + 1
    await host.produce(100)
    await host.copied()
    assert is_contiguous(host)


async def test_former_leader_is_fenced_before_a_takeover_reads_the_tier(
    cluster: TieredCluster,
) -> None:
    """The tier is read under a claim: a former leader that still believes to lead is fenced
    before the answer.
    """
    leader = await alone(cluster)
    await cluster.start(3)
    host = cluster.hosts[3]
    # Broker 1 does not receive the new state, so it still leads in its own view.
    host.context.propose_isr = host._grant  # broker 1 hears nothing of it
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.is_leader)
    end = host.partition.remote_end
    assert end is not None
    assert host.partition.next_offset == end.offset + 1
    # Two leaders at this time; only the claim in the store separates them.
    assert leader.partition.is_leader
    await leader.produce(200)
    await leader.until(lambda: leader.summary.error_reason == "Fenced")
    # It cannot extend the tier any more, and no record of it is mixed in.
    await host.produce(200)
    await host.copied()
    assert is_contiguous(host)


async def test_takeover_reports_a_missing_tier_and_completes_later(cluster: TieredCluster) -> None:
    host = await with_another_history(cluster, longer_by=100)
    own_end, end = host.partition.next_offset, host.head().highest_remote_offset
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    # The report that the operator would receive.
    (status,) = StatusReporter(host.broker.manager, str)._changed()
    assert (status.offline, status.error_reason) == (True, "TierUnavailable")
    assert "it was not in sync when it was elected" in status.error_message
    assert str(host.tier_path) in status.error_message
    # Nothing was truncated while the store was away.
    assert host.partition.next_offset == own_end
    assert host.row.leader_recovery_state == LeaderRecoveryState.RECOVERING
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    # The log ends at the tier's end, and the status has no error any more.
    assert host.partition.next_offset == end + 1
    (status,) = StatusReporter(host.broker.manager, str)._changed()
    assert (status.offline, status.error_reason) == (False, "")


async def test_cleanly_elected_leader_does_not_need_the_store(cluster: TieredCluster) -> None:
    leader = cluster.hosts[1]
    await cluster.start(3)
    await cluster.apply(leader=1, leader_epoch=2, replicas=(1, 3), isr=(1,))
    await leader.produce(300)
    await leader.copied()
    host = cluster.hosts[3]
    # Broker 3 is in the ISR and has everything, so its election is clean.
    await host.until(lambda: host.partition.isr == (1, 3))
    await host.until(lambda: host.partition.next_offset == leader.partition.next_offset)
    await cluster.stop(1)
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    host.partition.remote_end = None  # it may also never have received the tier's end
    await cluster.apply(3, leader=3, leader_epoch=3, isr=(3,))
    # It leads at once: clean election needs no proof from the tier.
    assert host.partition.is_leader
    await host.produce(10)
    moved.rename(host.tier_path)


async def test_stale_end_that_left_the_tier_keeps_no_replica_offline(
    cluster: TieredCluster,
) -> None:
    """Elected cleanly, the leader remembers a tier end that its log lacks. The tier has less, so it
    leads with the log that it has."""
    leader = cluster.hosts[1]
    await cluster.apply(1, leader_epoch=2, replicas=(1,), isr=(1,))
    await leader.produce(300)
    await leader.copied()
    end = leader.partition.next_offset
    # An end far behind the log, as of records that were deleted from the tier since.
    remote_end.replace(leader.partition, RemoteEnd(end + 1000, 2))
    await leader.partition.write_changes()
    await cluster.stop(1)
    row = leader.row
    await cluster.start(1)
    # The restarted broker reads that end from its disk.
    host = cluster.hosts[1]
    host.row = row
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(1, leader_epoch=3)
    # It cannot tell an outdated end from lost records without the store.
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    assert f"record at {end + 1000}" in host.partition.offline_message
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    # The tier ends below its log, so it leads with what it has.
    assert host.partition.next_offset == end
    assert host.partition.remote_end == RemoteEnd(host.head().highest_remote_offset, 2)
    await host.produce(100)
    await host.copied()
    assert is_contiguous(host)


async def test_delete_disablement_waits_for_the_takeover(cluster: TieredCluster) -> None:
    """Until the commit moves the log start, records of the tier are part of the log."""
    host = await with_another_history(cluster, longer_by=100)
    end = host.head().highest_remote_offset
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(3, **UNCLEAN)
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    # The topic is disabled while the leader waits for the tier.
    await cluster.apply(
        3,
        tiering_state=int(TieringState.DISABLING),
        tiered_epoch=1,
        disable_policy=int(DisablePolicy.DELETE),
    )
    # The disablement is no shortcut: an offset must not be assigned twice.
    assert host.partition.role is Role.TAKING_OVER
    moved.rename(host.tier_path)
    await host.until(lambda: host.partition.is_leader)
    assert host.partition.next_offset == end + 1
    await host.until(lambda: not host.partition.recovering)
    await host.acknowledged(1, DisablePolicy.DELETE)
    assert host.partition.log_start_offset == host.head().log_start_offset == end + 1


async def test_untiered_partition_recovers_at_once(cluster: TieredCluster) -> None:
    await cluster.apply(1, tiering_state=int(TieringState.NONE))
    host = cluster.hosts[1]
    recovering = int(LeaderRecoveryState.RECOVERING)
    # An unclean election (KIP-704) of a partition that has no tier.
    await cluster.apply(1, leader_epoch=9, leader_recovery_state=recovering)
    assert host.partition.is_leader
    # Nothing has to be read from the tier, so it recovers at once.
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
    # The row says that a manifest exists, so its absence is not an empty tier.
    (head,) = (host.tier_path / "heads").rglob("*.json")
    kept = head.rename(host.tier_path / "kept")
    restarted = make_host()
    restarted.row = row
    await restarted.apply(leader_epoch=2)
    await restarted.until(lambda: restarted.summary.error_reason == "ManifestNotFound")
    await restarted.produce(300)
    # Retention keeps the closed segments, because they are not known to be in the tier.
    await restarted.upkeep.apply_retention()
    await restarted.until(lambda: len(restarted.partition.log.segment_infos()) > 1)
    # No new head was written in its place.
    assert not head.exists()
    head.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(head)
    await restarted.until(lambda: not restarted.summary.error_reason)
    await restarted.copied()
    assert is_contiguous(restarted)
