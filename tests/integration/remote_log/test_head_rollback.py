"""Heads that are replaced by an older version of themselves, as in a restored bucket: they are
detected and repaired if a repair can be proven, and nothing is deleted before that."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import CLUSTER, TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import watched_leader
from tidemark.tier.layout import head_key
from tidemark.tier.sweep_lease import SweepLease
from tidemark.tier.sweeper import Sweeper, SweepReport
from tidemark_broker.replication.partition import log_start

MakeHost = Callable[..., TieredHost]


def head_file(host: TieredHost) -> Path:
    return host.tier_path / head_key(TOPIC_ID, 0)


def sweep(host: TieredHost) -> SweepReport:
    """Run ``tidemark sweep --delete`` on all unnamed objects, however young."""
    tier = host.tier()
    lease = SweepLease(tier.store, "test", lambda: 2**50).take()
    return Sweeper(tier, now_ms=lambda: 2**50, delay_ms=0, lease=lease).run()


async def tiered(host: TieredHost, records: int) -> None:
    """Write ``records`` more records; copy all closed segments and delete them locally."""
    await host.produce(records)
    await host.copied()
    await host.partition.context.states.written()
    await host.upkeep.apply_retention()


async def all_is_read(host: TieredHost) -> None:
    end = host.partition.log.local_log_start_offset
    assert (await host.read_tier(0, end))[-1] == end - 1


@pytest.fixture
async def began(make_host: MakeHost) -> TieredHost:
    """Keep a copy of the head when a third of the log is in the tier."""
    host = make_host()
    await host.apply()
    await tiered(host, 100)
    shutil.copy(head_file(host), host.tier_path.with_name("old-head"))
    await tiered(host, 200)
    return host


def put_back(host: TieredHost) -> None:
    shutil.copy(host.tier_path.with_name("old-head"), head_file(host))


async def restarted(host: TieredHost, make_host: MakeHost, **config: object) -> TieredHost:
    """Restart the broker in another process, with the controller's present state."""
    await host.close()
    again = make_host(**config)
    again.topic, again.row = host.topic, replace(host.row, leader_epoch=2)
    again.store_id = host.remote.status().store_id
    return again


async def test_a_leader_repairs_the_head_from_memory(began: TieredHost) -> None:
    before, version = began.live(), began.head().version
    put_back(began)
    await tiered(began, 100)
    assert began.live()[: len(before)] == before
    assert began.head().version > version
    await all_is_read(began)
    await began.until(lambda: not began.summary.error_reason)


async def test_an_idle_leader_notices_and_repairs(make_host: MakeHost) -> None:
    host = make_host(tidemark_remote_head_check_interval_ms=100)
    await host.apply()
    await tiered(host, 100)
    kept = head_file(host).read_bytes()
    await tiered(host, 200)
    before, version = host.live(), host.head().version
    head_file(host).write_bytes(kept)
    await host.until(lambda: host.head().version > version)
    assert host.live() == before


async def test_a_restarted_leader_repairs_the_head_from_its_objects(
    began: TieredHost, make_host: MakeHost
) -> None:
    before, version = began.live(), began.head().version
    again = await restarted(began, make_host)
    put_back(again)
    await again.apply()
    await again.until(lambda: again.head().version > version)
    assert again.live() == before
    await tiered(again, 100)
    await all_is_read(again)
    assert not again.summary.error_reason


async def test_an_unproven_head_stops_copies_deletions_and_sweeps(
    began: TieredHost, make_host: MakeHost
) -> None:
    """The bucket went back as a whole: the newest objects are not there either."""
    newest = head_file(began).read_bytes()
    again = await restarted(began, make_host)
    entries = [key for key in again.objects() if key.endswith(".log")]
    lost = sorted(entries)[-1]
    aside = again.tier_path.with_name("lost.log")
    shutil.move(again.tier_path / lost, aside)
    put_back(again)
    await again.apply()
    await again.until(lambda: again.summary.error_reason == "TierIntegrity")
    for words in (head_key(TOPIC_ID, 0), "was seen before", "RecordDeletion", "no complete copy"):
        assert words in again.summary.error_message
    objects, local = again.objects(), again.partition.log.local_log_start_offset
    await again.produce(200)
    await again.upkeep.apply_retention()
    report = sweep(again)
    assert again.objects() == objects
    assert again.partition.log.local_log_start_offset == local
    assert report.removed.count == 0
    assert any("older" in trouble for trouble in report.troubles)
    # A person brings the newest head and the object back.
    shutil.move(aside, again.tier_path / lost)
    head_file(again).write_bytes(newest)
    await again.until(lambda: not again.summary.error_reason)
    await again.copied()
    await all_is_read(again)


async def test_records_that_are_given_up_prove_the_head(
    began: TieredHost, make_host: MakeHost
) -> None:
    again = await restarted(began, make_host)
    lost = sorted(key for key in again.objects() if key.endswith(".log"))[-1]
    (again.tier_path / lost).unlink()
    put_back(again)
    await again.apply()
    await again.until(lambda: again.summary.error_reason == "TierIntegrity")
    end = again.partition.log.local_log_start_offset
    log_start.delete_records(again.partition, end)
    await again.until(lambda: not again.summary.error_reason)
    await tiered(again, 200)
    assert again.live()[0][0] == end
    end = again.partition.log.local_log_start_offset
    assert (await again.read_tier(again.live()[0][0], end))[-1] == end - 1
    sweep(again)


async def test_a_sweep_removes_nothing_that_a_newer_head_names(began: TieredHost) -> None:
    """Neither this process nor its disk has ever seen the head: the objects say that it is old."""
    objects = began.objects()
    await began.close()
    newest = head_file(began).read_bytes()
    put_back(began)
    report = sweep(began)
    assert (began.objects(), report.removed.count) == (objects, 0)
    assert any("older" in trouble for trouble in report.troubles)
    assert report.left.passed_over
    head_file(began).write_bytes(newest)


async def test_a_new_leader_knows_the_head_from_the_former_one(cluster: TieredCluster) -> None:
    one, two = cluster.hosts[1], cluster.hosts[2]
    await tiered(one, 100)
    kept = head_file(one).read_bytes()
    await tiered(one, 200)
    before, position = one.live(), one.partition.durable_tier_position
    assert position is not None
    await one.until(lambda: two.partition.durable_tier_position == position)
    head_file(one).write_bytes(kept)
    await cluster.apply(leader=2, leader_epoch=2)
    await two.until(lambda: two.head().leader_epoch == 2)
    assert two.live() == before
    assert two.head().version > position.version
    assert two.head().cluster_id == CLUSTER


async def test_a_missing_page_is_rebuilt_from_its_segments(host: TieredHost) -> None:
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(400)
    await host.copied()
    before = host.live()
    pages = {path: path.read_bytes() for path in (host.tier_path / "pages").rglob("*.json")}
    assert len(pages) > 3
    for path in pages:
        path.unlink()
    await host.apply(leader_epoch=3)
    await host.until(lambda: host.head().leader_epoch == 3 and all(map(Path.exists, pages)))
    assert {path: path.read_bytes() for path in pages} == pages
    assert host.live() == before


async def test_a_deleted_head_is_rewritten_if_its_segments_exist(
    began: TieredHost,
) -> None:
    before, version = began.live(), began.head().version
    head_file(began).unlink()
    await tiered(began, 100)
    assert began.live()[: len(before)] == before
    assert began.head().version > version
    await all_is_read(began)


async def test_no_head_is_written_without_its_segments(began: TieredHost) -> None:
    """As in another file system that is mounted in the place of the tier's."""
    kept = [(path, path.read_bytes()) for path in began.tier_path.rglob("*") if path.is_file()]
    for path, _ in kept:
        path.unlink()
    await began.produce(100)
    await began.until(lambda: bool(began.summary.error_reason))
    assert not head_file(began).exists()
    assert began.summary.error_reason in ("ManifestNotFound", "WrongStore")
    for path, data in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    await began.until(lambda: not began.summary.error_reason)
    await began.copied()
    await all_is_read(began)
