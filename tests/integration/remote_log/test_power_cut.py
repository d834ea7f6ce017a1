"""A power cut takes unsynced bytes of the next leader: no offset of the tier is assigned twice.

The disk's state is a copy of its folder from the running broker, so it lacks the mark of a clean
shutdown; the tier has advanced since.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tidemark.records.batch import iter_headers
from tidemark_broker.replication.partition import Role

LATER_MS = NOW_MS + 1_000_000


def folder(host: TieredHost) -> Path:
    return host.broker.config.log_dir


async def halfway(cluster: TieredCluster) -> tuple[Path, int]:
    """Brokers 1 and 2 have all records, broker 1 has copied them, and everything stops.

    Return the folder that broker 2 has after a power cut, and the tier's end.
    """
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(200)
    await follower.until(lambda: follower.partition.next_offset == 200)
    kept = folder(follower).with_name("kept")
    await follower.context.states.written()
    shutil.copytree(folder(follower), kept, ignore=shutil.ignore_patterns("*.tmp"))
    await leader.produce(200)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    await follower.until(lambda: follower.partition.next_offset == leader.partition.next_offset)
    assert 200 < end < leader.partition.next_offset
    return kept, end


async def power_cut(cluster: TieredCluster, kept: Path, *, state: bool) -> TieredHost:
    """Remove broker 1 for good; broker 2 restarts with its disk.

    ``state``: with the last written state file.
    """
    row, place = cluster.hosts[2].row, folder(cluster.hosts[2])
    await cluster.stop(1)
    await cluster.stop(2)
    if state:
        shutil.copy(place / "flights-0" / "partition.state", kept / "flights-0")
    shutil.rmtree(place)
    kept.rename(place)
    await cluster.start(2)
    host = cluster.hosts[2]
    host.row = row
    assert host.partition.next_offset == 200
    return host


async def check_nothing_is_given_out_twice(host: TieredHost, end: int) -> None:
    await host.until(lambda: host.partition.is_leader)
    first = host.partition.next_offset
    await host.produce(200, timestamp_ms=LATER_MS)
    await host.upkeep.apply_retention()
    await host.copied()
    await host.upkeep.apply_retention()
    assert first > end
    data = (await host.remote.read(host.partition, first, 3000, host.context.monotonic() + 10)).data
    (header, *_) = (header for _, header in iter_headers(data) if header.next_offset > first)
    assert header.max_timestamp >= LATER_MS
    assert await host.read_tier(0, end + 1) == list(range(4, end + 1, 5))


@pytest.mark.parametrize("state", [True, False])
async def test_a_leader_that_lost_its_tail_takes_over_from_the_tier(
    cluster: TieredCluster, state: bool
) -> None:
    kept, end = await halfway(cluster)
    host = await power_cut(cluster, kept, state=state)
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    await check_nothing_is_given_out_twice(host, end)


async def test_such_a_leader_waits_for_the_store(cluster: TieredCluster) -> None:
    kept, end = await halfway(cluster)
    host = await power_cut(cluster, kept, state=False)
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    assert host.partition.role is Role.TAKING_OVER
    assert "after an unclean shutdown" in host.partition.offline_message
    moved.rename(host.tier_path)
    await check_nothing_is_given_out_twice(host, end)


async def test_a_leader_that_is_found_to_lack_the_tiers_end_leads_no_longer(
    cluster: TieredCluster,
) -> None:
    """Whatever proof it had: the claim shows an end that the log does not hold. From then on it
    takes nothing, copies nothing and expires nothing until it has taken over."""
    kept, end = await halfway(cluster)
    before = cluster.hosts[1].live()
    host = await power_cut(cluster, kept, state=False)
    host.partition.doubt = None
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    assert host.partition.is_leader
    await host.until(lambda: not host.partition.is_leader)
    assert host.partition.check_leader().name == "not_leader_or_follower"
    assert host.partition.doubt is not None
    assert f"record at {end}" in host.partition.doubt.reason
    await host.until(lambda: host.partition.next_offset > end)
    assert host.live() == before
    await check_nothing_is_given_out_twice(host, end)


async def test_the_tiers_end_is_durable_on_every_replica_as_it_advances(
    cluster: TieredCluster,
) -> None:
    """No request triggers a state write, but the state is soon on disk."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(200)
    await leader.copied()
    for host in (leader, follower):
        end = leader.partition.log.highest_remote_offset

        def stored(host: TieredHost = host) -> object:
            path = folder(host) / "flights-0" / "partition.state"
            return json.loads(path.read_bytes())["remoteEnd"]

        await host.until(lambda stored=stored, end=end: stored() == {"offset": end, "epoch": 1})  # type: ignore[misc]


async def test_who_was_taken_in_again_since_needs_no_store(
    cluster: TieredCluster,
) -> None:
    kept, _ = await halfway(cluster)
    row, place = cluster.hosts[2].row, folder(cluster.hosts[2])
    await cluster.stop(2)
    shutil.rmtree(place)
    kept.rename(place)
    await cluster.start(2)
    host = cluster.hosts[2]
    host.row = row
    await cluster.apply(isr=(1,))  # it has no proof, so it leaves the ISR
    await cluster.until_in_sync(1, 2)
    await host.until(lambda: host.partition.isr == (1, 2))
    await cluster.stop(1)
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    assert host.partition.is_leader
    moved.rename(host.tier_path)
