"""A power cut loses unsynced bytes of the next leader: no offset of the tier is assigned twice.

The disk's state is a copy of its folder from the running broker, so it lacks the marker of a clean
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

pytestmark = pytest.mark.full

LATER_MS = NOW_MS + 1_000_000


def folder(host: TieredHost) -> Path:
    return host.broker.config.log_dir


async def halfway(cluster: TieredCluster) -> tuple[Path, int]:
    """Replicate and copy 400 records; copy broker 2's folder after the first 200.

    Return the folder that broker 2 has after a power cut, and the tier's end.
    """
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(200)
    await follower.until(lambda: follower.partition.next_offset == 200)
    # The folder at this time is what broker 2's disk has after the power cut.
    kept = folder(follower).with_name("kept")
    await follower.context.states.written()
    shutil.copytree(folder(follower), kept, ignore=shutil.ignore_patterns("*.tmp"))
    # Later records are replicated and copied, but not on that disk.
    await leader.produce(200)
    await leader.copied()
    end = leader.partition.log.highest_remote_offset
    await follower.until(lambda: follower.partition.next_offset == leader.partition.next_offset)
    # The tier ends beyond what the disk has: the offsets in between must not be reused.
    assert 200 < end < leader.partition.next_offset
    return kept, end


async def power_cut(cluster: TieredCluster, kept: Path, *, state: bool) -> TieredHost:
    """Remove broker 1 for good; broker 2 restarts with its disk.

    ``state``: with the last written state file.
    """
    # The row is the controller's, so it is newer than the disk.
    row, place = cluster.hosts[2].row, folder(cluster.hosts[2])
    await cluster.stop(1)
    await cluster.stop(2)
    if state:
        shutil.copy(place / "flights-0" / "partition.state", kept / "flights-0")
    # The disk as it was replaces the folder, without a mark of a clean shutdown.
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
    # Records with a recognizable timestamp, appended after the takeover.
    await host.produce(200, timestamp_ms=LATER_MS)
    await host.upkeep.apply_retention()
    await host.copied()
    await host.upkeep.apply_retention()
    # A new leader begins behind the tier's end, not behind its own log.
    assert first > end
    data = (await host.remote.read(host.partition, first, 3000, host.context.monotonic() + 10)).data
    (header, *_) = (header for _, header in iter_headers(bytes(data)) if header.next_offset > first)
    # The first record at the new offsets is one of the new leader.
    assert header.max_timestamp >= LATER_MS
    # Every record of the tier is still the one that was copied.
    assert await host.read_tier(0, end + 1) == list(range(4, end + 1, 5))


# With the last state file the leader knows of the tier's end; without it the missing marker of a
# clean shutdown is its only hint.
@pytest.mark.parametrize("state", [True, False])
async def test_leader_that_lost_its_tail_takes_over_from_the_tier(
    cluster: TieredCluster, state: bool
) -> None:
    kept, end = await halfway(cluster)
    host = await power_cut(cluster, kept, state=state)
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    await check_nothing_is_given_out_twice(host, end)


async def test_leader_that_lost_its_tail_waits_for_the_store(cluster: TieredCluster) -> None:
    kept, end = await halfway(cluster)
    host = await power_cut(cluster, kept, state=False)
    # Without the store the leader cannot tell which offsets are taken.
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    await host.until(lambda: host.partition.offline_reason == "TierUnavailable")
    assert host.partition.role is Role.TAKING_OVER
    assert "after an unclean shutdown" in host.partition.offline_message
    moved.rename(host.tier_path)
    await check_nothing_is_given_out_twice(host, end)


async def test_leader_steps_down_when_its_log_ends_below_the_tier(
    cluster: TieredCluster,
) -> None:
    """The claim shows a tier end that the log lacks, whatever the log itself suggests. The leader
    then accepts, copies and expires nothing until it has taken over from the tier."""
    kept, end = await halfway(cluster)
    before = cluster.hosts[1].live()
    host = await power_cut(cluster, kept, state=False)
    # Remove the evidence of the unclean shutdown, as if the disk had lied about a sync.
    host.partition.doubt = None
    await cluster.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
    # So it leads at first; its claim of the head then shows the tier's end.
    assert host.partition.is_leader
    await host.until(lambda: not host.partition.is_leader)
    assert host.partition.check_leader().name == "not_leader_or_follower"
    assert host.partition.doubt is not None
    # The reason names the record that the log lacks.
    assert f"record at {end}" in host.partition.doubt.reason
    await host.until(lambda: host.partition.next_offset > end)
    # It copied nothing while it was wrong: the segments are those of before.
    assert host.live() == before
    await check_nothing_is_given_out_twice(host, end)


async def test_tier_end_becomes_durable_on_every_replica(
    cluster: TieredCluster,
) -> None:
    """No request writes the state, but it is soon on disk."""
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(200)
    await leader.copied()
    for host in (leader, follower):
        end = leader.partition.log.highest_remote_offset

        # What a power cut at this moment would leave.
        def stored(host: TieredHost = host) -> object:
            path = folder(host) / "flights-0" / "partition.state"
            return json.loads(path.read_bytes())["remoteEnd"]

        await host.until(lambda stored=stored, end=end: stored() == {"offset": end, "epoch": 1})  # type: ignore[misc]


async def test_replica_that_rejoined_the_isr_leads_without_the_store(
    cluster: TieredCluster,
) -> None:
    kept, _ = await halfway(cluster)
    row, place = cluster.hosts[2].row, folder(cluster.hosts[2])
    await cluster.stop(2)
    shutil.rmtree(place)
    kept.rename(place)
    # Broker 2 restarts as a follower with the truncated log, while broker 1 leads.
    await cluster.start(2)
    host = cluster.hosts[2]
    host.row = row
    await cluster.apply(isr=(1,))  # it has no proof, so it leaves the ISR
    # It fetches the missing range and joins the ISR again, which clears its doubt.
    await cluster.until_in_sync(1, 2)
    await host.until(lambda: host.partition.isr == (1, 2))
    await cluster.stop(1)
    # A takeover would need the store, which is away.
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await cluster.apply(leader=2, leader_epoch=2, isr=(2,))
    assert host.partition.is_leader
    moved.rename(host.tier_path)
