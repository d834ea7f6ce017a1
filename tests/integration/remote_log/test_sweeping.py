"""Brokers sweep their tier: what crashes and fenced copiers leave goes, all else stays."""

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
from tidemark.tier.objects import StoreUnavailable
from tidemark.tier.sweep_lease import Left, SweepLease, SweptElsewhere

SWEEP = "tidemark.remote.sweep.enable"
SOON = {"tidemark_remote_sweep_interval_ms": 100, "tidemark_remote_sweep_delay_ms": 0}


def leave_orphan(host: TieredHost) -> list[str]:
    """A copier that was fenced: its upload has arrived after its entry was given up and gone."""
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


async def test_a_broker_sweeps_what_a_fenced_copier_left(make_host: MakeHost) -> None:
    host = make_host(**SOON)
    kept = await tiered(host)
    left = leave_orphan(host)
    await host.until(lambda: not set(left) & set(host.objects()))
    assert host.objects() == kept
    await host.until(lambda: host.remote._shared.metrics.values()[tier_table.SWEPT_OBJECTS] == 2)
    end = host.partition.log.highest_remote_offset + 1
    assert (await host.read_tier(0, end))[-1] == end - 1


async def test_what_is_young_is_shown_and_stays(make_host: MakeHost) -> None:
    host = make_host(tidemark_remote_sweep_interval_ms=100)
    await tiered(host)
    left = leave_orphan(host)
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 2)
    assert host.gauge(tier_table.ORPHAN_BYTES) == 8
    told = SweepLease(host.tier().store, "test", lambda: 0).left
    await host.until(lambda: told() == Left(orphans=2, size_bytes=8))
    assert set(left) <= set(host.objects())
    host.cluster_config["tidemark.remote.sweep.delay.ms"] = "0"
    await host.apply()
    await host.until(lambda: not set(left) & set(host.objects()))
    await host.until(lambda: told() == Left())


async def test_what_another_broker_has_swept_since_is_shown_by_that_one_alone(
    make_host: MakeHost,
) -> None:
    """Or its alert would stay until this one happens to sweep again."""
    host = make_host(tidemark_remote_sweep_interval_ms=100)
    await tiered(host)
    left = leave_orphan(host)
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 2)
    soon_ms = time.time_ns() // 1_000_000 + 500_000  # this one has nothing to do until then
    other = SweepLease(host.tier().store, "another", lambda: soon_ms)

    def taken() -> bool:
        with contextlib.suppress(SweptElsewhere):  # this one was just taking it
            return other.take().is_held
        return False

    await host.until(taken)
    host.tier().store.delete_many(left)
    other.end(done=True, left=Left())
    await host.until(lambda: host.gauge(tier_table.ORPHANS) == 0)


async def test_a_lease_that_could_not_be_given_back_is_its_brokers_own(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no broker would sweep for two minutes."""
    ends: list[bool] = []

    def end(lease: SweepLease, *, done: bool, left: Left | None = None) -> None:
        ends.append(done)
        raise StoreUnavailable("it does not answer", reason="StoreTimeout", retriable=True)

    monkeypatch.setattr(SweepLease, "end", end)
    host = make_host(**SOON)
    await tiered(host)
    await host.until(lambda: len(ends) > 0)
    left = leave_orphan(host)
    await host.until(lambda: not set(left) & set(host.objects()))


async def test_a_paused_sweep_removes_nothing(make_host: MakeHost) -> None:
    """The Cluster's annotation becomes this pause."""
    host = make_host(**SOON)
    host.cluster_config[SWEEP] = "false"
    await tiered(host)
    left = leave_orphan(host)
    swept = host.tier().store
    before = SweepLease(swept, "test", lambda: 0).swept_ms()
    await host.produce(100)
    await host.copied()
    assert set(left) <= set(host.objects())
    assert SweepLease(swept, "test", lambda: 0).swept_ms() == before == 0
    host.cluster_config.clear()
    await host.apply()
    await host.until(lambda: not set(left) & set(host.objects()))


async def test_a_crash_within_an_upload_to_a_directory(host: TieredHost, tier_path: Path) -> None:
    """Its temporary file is found; it has a day before it goes."""
    await tiered(host)
    temporary = tier_path / ".tidemark-store" / "tmp" / uuid.uuid4().hex
    temporary.write_bytes(b"half")
    report = look(host.tier(), remove=True)
    assert (report.uploads.count, report.waiting.count, report.uploads_removed) == (1, 1, 0)
    assert temporary.exists()
    temporary.unlink()


async def test_nothing_of_a_live_topic_counts_as_an_orphan(host: TieredHost) -> None:
    await tiered(host)
    swept_clean(host)
    assert look(host.tier()).orphans.count == 0
    assert len(host.objects()) == 2 * len(host.live())
