"""Brokers sweep their tier: leftovers of crashes and fenced copiers are deleted, all else stays."""

import contextlib
import time
import uuid
from pathlib import Path

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import swept_clean
from tests.integration.remote_log.test_fencing import new_entry, ready
from tests.integration.remote_log.tiered_host import TieredHost
from tests.orphans import look
from tidemark.metrics import tier_table
from tidemark.tier.maintenance.sweep_lease import SweepLease, SweepLeaseTaken, SweepRemainder
from tidemark.tier.stores.objects import StoreUnavailable

SWEEP = "tidemark.remote.sweep.enable"
SOON = {"tidemark_remote_sweep_interval_ms": 100, "tidemark_remote_sweep_delay_ms": 0}


def leave_orphan(host: TieredHost) -> list[str]:
    """Put two objects without an entry, as a fenced copier whose upload ended late."""
    entry, store = new_entry(host.head(), 10_000, 10_009), host.tier().store
    keys = [entry.log_key, entry.aux_key]
    for key in keys:
        store.put(key, b"late")
    return keys


async def tiered(host: TieredHost) -> list[str]:
    await ready(host)
    await host.produce(300)
    await host.copied()
    return host.objects()


async def test_sweep_removes_objects_of_a_fenced_copier(make_host: MakeHost) -> None:
    host = make_host(**SOON)
    kept = await tiered(host)
    left = leave_orphan(host)
    await host.until(lambda: not set(left) & set(host.objects()))
    # The sweep removes exactly the two orphans.
    assert host.objects() == kept
    await host.until(lambda: host.remote._shared.metrics.values()[tier_table.SWEPT_OBJECTS] == 2)
    end = host.partition.log.highest_remote_offset + 1
    assert (await host.read_tier(0, end))[-1] == end - 1


async def test_orphans_younger_than_the_delay_are_counted_and_kept(make_host: MakeHost) -> None:
    host = make_host(tidemark_remote_sweep_interval_ms=100)
    await tiered(host)
    left = leave_orphan(host)
    # The default delay is much longer than the test: two orphans, four bytes each.
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 2)
    assert host.gauge(tier_table.ORPHAN_BYTES) == 8
    # Other brokers and the CLI read the same figures from the lease object.
    recorded_orphans = SweepLease(host.tier().store, "test", lambda: 0).left
    await host.until(lambda: recorded_orphans() == SweepRemainder(orphans=2, size_bytes=8))
    assert set(left) <= set(host.objects())
    # A new delay takes effect without a restart.
    host.cluster_config["tidemark.remote.sweep.delay.ms"] = "0"
    await host.apply()
    await host.until(lambda: not set(left) & set(host.objects()))
    await host.until(lambda: recorded_orphans() == SweepRemainder())


async def test_metrics_follow_the_sweep_of_another_broker(
    make_host: MakeHost,
) -> None:
    """Otherwise the alert would stay until this broker sweeps again."""
    host = make_host(tidemark_remote_sweep_interval_ms=100)
    await tiered(host)
    left = leave_orphan(host)
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 2)
    soon_ms = time.time_ns() // 1_000_000 + 500_000  # this one has nothing to do until then
    other = SweepLease(host.tier().store, "another", lambda: soon_ms)

    def is_taken() -> bool:
        with contextlib.suppress(SweepLeaseTaken):  # this one was just taking it
            # The broker may hold the lease at this moment; try again.
            other.take()
            return True
        return False

    await host.until(is_taken)
    # Another broker removes the orphans and records it in the lease.
    host.tier().store.delete_many(left)
    other.end(done=True, left=SweepRemainder())
    # This broker shows the recorded result instead of its own.
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 0)


async def test_broker_reuses_a_lease_that_it_could_not_release(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that was not released would otherwise stop all sweeps for two minutes."""
    ends: list[bool] = []

    def end(lease: SweepLease, *, done: bool, left: SweepRemainder | None = None) -> None:
        ends.append(done)
        raise StoreUnavailable("it does not answer", reason="StoreTimeout", retriable=True)

    monkeypatch.setattr(SweepLease, "end", end)
    host = make_host(**SOON)
    # The broker sweeps repeatedly although it never releases its lease.
    await tiered(host)
    await host.until(lambda: len(ends) > 0)
    left = leave_orphan(host)
    await host.until(lambda: not set(left) & set(host.objects()))


async def test_paused_sweep_removes_nothing(make_host: MakeHost) -> None:
    """The annotation of the Cluster sets this configuration."""
    host = make_host(**SOON)
    host.cluster_config[SWEEP] = "false"
    await tiered(host)
    left = leave_orphan(host)
    swept = host.tier().store
    before = SweepLease(swept, "test", lambda: 0).swept_ms()
    # Copies take several intervals, in which an active sweep would have run.
    await host.produce(100)
    await host.copied()
    assert set(left) <= set(host.objects())
    # 0: no sweep was recorded.
    assert SweepLease(swept, "test", lambda: 0).swept_ms() == before == 0
    host.cluster_config.clear()
    await host.apply()
    await host.until(lambda: not set(left) & set(host.objects()))


async def test_temporary_file_of_a_crashed_upload_is_kept_for_a_day(
    host: TieredHost, tier_path: Path
) -> None:
    """The temporary file of an upload is found, and kept for a day."""
    await tiered(host)
    temporary = tier_path / ".tidemark-store" / "tmp" / uuid.uuid4().hex
    temporary.write_bytes(b"half")
    report = look(host.tier(), remove=True)
    assert (report.uploads.count, report.waiting.count, report.uploads_removed) == (1, 1, 0)
    assert temporary.exists()
    temporary.unlink()


async def test_objects_of_a_live_topic_are_not_orphans(host: TieredHost) -> None:
    await tiered(host)
    swept_clean(host)
    assert look(host.tier()).orphans.count == 0
    assert len(host.objects()) == 2 * len(host.live())
