"""Heads replaced by an older version of themselves, as by a bucket restore. The leader detects it,
repairs what it can prove, and deletes nothing before that."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import CLUSTER, TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import watched_leader
from tidemark.tier.maintenance.sweep_lease import SweepLease
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.metadata.layout import head_key
from tidemark_broker.replication.partition import log_start

MakeHost = Callable[..., TieredHost]


def head_file(host: TieredHost) -> Path:
    return host.tier_path / head_key(TOPIC_ID, 0)


def sweep(host: TieredHost) -> SweepReport:
    """Run ``tidemark sweep --delete`` on all unnamed objects, however young."""
    tier = host.tier()
    # A clock far in the future (2**50 ms): every unnamed object is old enough for the sweep.
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
async def rolled_back_host(make_host: MakeHost) -> TieredHost:
    """Return a host whose present head is newer than the copy in ``old-head``."""
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
    restarted_host = make_host(**config)
    # The controller's state is newer than the restored head, which is how a rollback is noticed.
    restarted_host.topic, restarted_host.row = host.topic, replace(host.row, leader_epoch=2)
    restarted_host.store_id = host.remote.status().store_id
    return restarted_host


async def test_leader_repairs_the_head_from_memory(rolled_back_host: TieredHost) -> None:
    # The head goes back, while the leader remembers its version.
    before, version = rolled_back_host.live(), rolled_back_host.head().version
    put_back(rolled_back_host)
    await tiered(rolled_back_host, 100)
    # Segments that the old head does not name are still named after the repair.
    assert rolled_back_host.live()[: len(before)] == before
    # The version only grows: otherwise other brokers could not tell old from new.
    assert rolled_back_host.head().version > version
    await all_is_read(rolled_back_host)
    await rolled_back_host.until(lambda: not rolled_back_host.summary.error_reason)


async def test_idle_leader_detects_and_repairs_an_old_head(make_host: MakeHost) -> None:
    # No write happens, so only the periodic check can notice the rollback.
    host = make_host(tidemark_remote_head_check_interval_ms=100)
    await host.apply()
    await tiered(host, 100)
    kept = head_file(host).read_bytes()
    await tiered(host, 200)
    before, version = host.live(), host.head().version
    head_file(host).write_bytes(kept)
    await host.until(lambda: host.head().version > version)
    assert host.live() == before


async def test_restarted_leader_repairs_the_head_from_its_objects(
    rolled_back_host: TieredHost, make_host: MakeHost
) -> None:
    # The memory of the head is lost with the process; its disk and the objects remain.
    before, version = rolled_back_host.live(), rolled_back_host.head().version
    restarted_host = await restarted(rolled_back_host, make_host)
    put_back(restarted_host)
    await restarted_host.apply()
    await restarted_host.until(lambda: restarted_host.head().version > version)
    assert restarted_host.live() == before
    await tiered(restarted_host, 100)
    await all_is_read(restarted_host)
    assert not restarted_host.summary.error_reason


async def test_unproven_head_stops_copies_deletions_and_sweeps(
    rolled_back_host: TieredHost, make_host: MakeHost
) -> None:
    """The bucket went back as a whole: the newest objects are not there either."""
    newest = head_file(rolled_back_host).read_bytes()
    restarted_host = await restarted(rolled_back_host, make_host)
    # The newest segment is missing, so the newer head cannot be proven from its objects.
    entries = [key for key in restarted_host.objects() if key.endswith(".log")]
    lost = sorted(entries)[-1]
    aside = restarted_host.tier_path.with_name("lost.log")
    shutil.move(restarted_host.tier_path / lost, aside)
    put_back(restarted_host)
    await restarted_host.apply()
    await restarted_host.until(lambda: restarted_host.summary.error_reason == "TierIntegrity")
    # The message names the head and explains the evidence and the remedies.
    for expected in (
        head_key(TOPIC_ID, 0),
        "was seen before",
        "RecordDeletion",
        "no complete copy",
    ):
        assert expected in restarted_host.summary.error_message
    # From here nothing may be deleted: neither objects, nor local records, nor by a sweep.
    objects, local = restarted_host.objects(), restarted_host.partition.log.local_log_start_offset
    await restarted_host.produce(200)
    await restarted_host.upkeep.apply_retention()
    report = sweep(restarted_host)
    assert restarted_host.objects() == objects
    assert restarted_host.partition.log.local_log_start_offset == local
    assert report.removed.count == 0
    assert any("older" in trouble for trouble in report.troubles)
    # An administrator restores the newest head and the missing object.
    # A person brings the newest head and the object back.
    shutil.move(aside, restarted_host.tier_path / lost)
    head_file(restarted_host).write_bytes(newest)
    await restarted_host.until(lambda: not restarted_host.summary.error_reason)
    await restarted_host.copied()
    await all_is_read(restarted_host)


async def test_deleting_the_missing_records_accepts_the_old_head(
    rolled_back_host: TieredHost, make_host: MakeHost
) -> None:
    restarted_host = await restarted(rolled_back_host, make_host)
    # The newest segment is lost for good.
    lost = sorted(key for key in restarted_host.objects() if key.endswith(".log"))[-1]
    (restarted_host.tier_path / lost).unlink()
    put_back(restarted_host)
    await restarted_host.apply()
    await restarted_host.until(lambda: restarted_host.summary.error_reason == "TierIntegrity")
    end = restarted_host.partition.log.local_log_start_offset
    # A RecordDeletion up to the local log gives all tiered records up: nothing is left to prove.
    log_start.delete_records(restarted_host.partition, end)
    await restarted_host.until(lambda: not restarted_host.summary.error_reason)
    await tiered(restarted_host, 200)
    assert restarted_host.live()[0][0] == end
    end = restarted_host.partition.log.local_log_start_offset
    assert (await restarted_host.read_tier(restarted_host.live()[0][0], end))[-1] == end - 1
    sweep(restarted_host)


async def test_sweep_keeps_objects_that_a_newer_head_names(rolled_back_host: TieredHost) -> None:
    """The sweeper has never seen the newer head: only the objects show that the head is old."""
    objects = rolled_back_host.objects()
    await rolled_back_host.close()
    newest = head_file(rolled_back_host).read_bytes()
    put_back(rolled_back_host)
    report = sweep(rolled_back_host)
    assert (rolled_back_host.objects(), report.removed.count) == (objects, 0)
    assert any("older" in trouble for trouble in report.troubles)
    # The partition is reported as passed over instead of being swept.
    assert report.left.passed_over
    head_file(rolled_back_host).write_bytes(newest)


async def test_new_leader_detects_an_old_head_by_replicated_position(
    cluster: TieredCluster,
) -> None:
    first, second = cluster.hosts[1], cluster.hosts[2]
    await tiered(first, 100)
    kept = head_file(first).read_bytes()
    await tiered(first, 200)
    before, position = first.live(), first.partition.durable_tier_position
    assert position is not None
    # The follower receives version and end of the head with its fetches, durably.
    await first.until(lambda: second.partition.durable_tier_position == position)
    head_file(first).write_bytes(kept)
    # A new leader on another disk, which never wrote this head.
    await cluster.apply(leader=2, leader_epoch=2)
    await second.until(lambda: second.head().leader_epoch == 2)
    assert second.live() == before
    assert second.head().version > position.version
    assert second.head().cluster_id == CLUSTER


async def test_missing_page_is_rebuilt_from_its_segments(host: TieredHost) -> None:
    # Two entries per page, so the head refers to several pages.
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(400)
    await host.copied()
    before = host.live()
    pages = {path: path.read_bytes() for path in (host.tier_path / "pages").rglob("*.json")}
    assert len(pages) > 3
    for path in pages:
        path.unlink()
    # A new claim reads all pages and finds that they are missing.
    await host.apply(leader_epoch=3)
    await host.until(lambda: host.head().leader_epoch == 3 and all(map(Path.exists, pages)))
    # Rebuilt pages are byte-identical, because heads name them by their content.
    assert {path: path.read_bytes() for path in pages} == pages
    assert host.live() == before


async def test_deleted_head_is_rewritten_if_its_segments_exist(
    rolled_back_host: TieredHost,
) -> None:
    before, version = rolled_back_host.live(), rolled_back_host.head().version
    head_file(rolled_back_host).unlink()
    await tiered(rolled_back_host, 100)
    assert rolled_back_host.live()[: len(before)] == before
    assert rolled_back_host.head().version > version
    await all_is_read(rolled_back_host)


async def test_no_head_is_written_without_its_segments(rolled_back_host: TieredHost) -> None:
    """Another file system mounted in place of the tier's has neither heads nor segments."""
    kept = [
        (path, path.read_bytes())
        for path in rolled_back_host.tier_path.rglob("*")
        if path.is_file()
    ]
    for path, _ in kept:
        path.unlink()
    await rolled_back_host.produce(100)
    await rolled_back_host.until(lambda: bool(rolled_back_host.summary.error_reason))
    assert not head_file(rolled_back_host).exists()
    # Which of the second is reported depends on whether the copier or the store check is first.
    assert rolled_back_host.summary.error_reason in ("ManifestNotFound", "WrongStore")
    for path, data in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    await rolled_back_host.until(lambda: not rolled_back_host.summary.error_reason)
    await rolled_back_host.copied()
    await all_is_read(rolled_back_host)
