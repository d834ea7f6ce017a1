"""A topic's maximum lag: committed records are in the tier in time, although no segment is full."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import swept_clean
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TieredHost
from tests.integration.remote_log.watched_store import BlockedCall, watched_leader
from tidemark.configuration.topic_keys import COPY_PAUSED, MAX_LAG_BYTES, MAX_LAG_MS
from tidemark.metrics import tier_table
from tidemark.tier.metadata.codec import encode_head
from tidemark.tiering import DisablePolicy, TieringState
from tidemark_broker.remote_log import copier
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.remote import WaitingRecords

#: A segment of this size never fills in these tests, and never becomes old enough either.
ROOMY = {"segment.bytes": "104857600", "remote.storage.enable": "true"}
LAG_MS = 1000
RETAIN = DisablePolicy.RETAIN


@pytest.fixture
async def lagging_host(make_host: MakeHost) -> TieredHost:
    """Return a host whose tasks look once an hour, so that only wake-ups can be in time."""
    host = make_host(remote_log_manager_task_interval_ms=3_600_000)
    host.config |= {**ROOMY, MAX_LAG_MS: str(LAG_MS)}
    return host


def segments(host: TieredHost) -> list[tuple[int, int]]:
    """Return the bounds of the local segments, the active one last."""
    return [(s.base_offset, s.next_base_offset) for s in host.partition.log.segment_infos()]


def tier_end(host: TieredHost) -> int:
    return host.partition.log.highest_remote_offset + 1


async def nothing_copied(host: TieredHost) -> None:
    """Check that the copier, which has opened the tier, copies nothing for a while."""
    await host.until((host.tier_path / "heads").is_dir)
    await asyncio.sleep(0.3)
    assert host.live() == []


async def within_lag(host: TieredHost, offset: int) -> None:
    """Wait until the records below ``offset`` are in the tier, at most the maximum lag."""
    await host.until(lambda: tier_end(host) >= offset, timeout_s=LAG_MS / 1000)


async def test_records_of_an_idle_topic_are_copied_in_time(lagging_host: TieredHost) -> None:
    host = lagging_host
    await host.apply()
    await host.produce(20)
    await within_lag(host, 20)
    assert host.live() == [(0, 19)]
    # The empty active segment is not closed again, however long nothing is written.
    await asyncio.sleep(1.5 * LAG_MS / 1000)
    assert segments(host) == [(0, 20), (20, 20)]
    # A later record starts the time again.
    await host.produce(1)
    await within_lag(host, 21)
    assert host.live() == [(0, 19), (20, 20)]
    assert host.summary.lagging_since_ms == -1


async def test_records_are_copied_in_time_under_load(lagging_host: TieredHost) -> None:
    host = lagging_host
    await host.apply()
    loop = asyncio.get_running_loop()
    committed: list[tuple[float, int]] = []
    lags: list[float] = []

    def observe() -> None:
        while committed and committed[0][1] <= tier_end(host):
            lags.append(loop.time() - committed.pop(0)[0])

    end_s = loop.time() + 4
    while loop.time() < end_s:
        await host.produce(20)
        committed.append((loop.time(), host.partition.high_watermark))
        await asyncio.sleep(0.01)
        observe()
    await within_lag(host, host.partition.high_watermark)
    observe()
    assert not committed
    assert max(lags) < LAG_MS / 1000
    # Half of the maximum lag is spent on filling a segment: eight of them, and one at each end.
    assert 6 <= len(host.live()) <= 10


async def test_record_of_an_open_segment_is_copied_once_the_topic_gets_a_maximum_lag(
    lagging_host: TieredHost,
) -> None:
    host = lagging_host
    del host.config[MAX_LAG_MS]
    await host.apply()
    await host.produce(20)
    await asyncio.sleep(1.2 * LAG_MS / 1000)
    assert tier_end(host) == 0
    assert host.gauge(tier_table.COPY_LAG_SECONDS) >= LAG_MS / 1000
    assert host.gauge(tier_table.WAITING_BYTES) == host.partition.log.size_bytes
    host.config[MAX_LAG_MS] = str(LAG_MS)
    await host.apply()
    await within_lag(host, 20)
    assert host.gauge(tier_table.COPY_LAG_SECONDS) == 0
    assert host.gauge(tier_table.WAITING_BYTES) == 0


async def test_slow_store_does_not_cause_more_segments(lagging_host: TieredHost) -> None:
    host = lagging_host
    upload = BlockedCall("put_stream", "data/")
    await watched_leader(host, upload)
    await host.produce(20)
    await host.until(upload.begun.is_set)
    # While one segment waits for the store, the others are not closed early.
    for _ in range(4):
        await host.produce(20)
        await asyncio.sleep(0.75 * LAG_MS / 1000)
    assert segments(host) == [(0, 20), (20, 100)]
    # The oldest record was appended before the maximum lag: it is reported with its time.
    assert 0 < host.summary.lagging_since_ms <= host.context.wall_ms() - LAG_MS
    await upload.release()
    await within_lag(host, 100)
    assert host.live() == [(0, 19), (20, 99)]
    assert host.summary.lagging_since_ms == -1


async def test_log_with_many_segments_closes_none_early(
    lagging_host: TieredHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = lagging_host
    monkeypatch.setattr(copier, "_LOCAL_SEGMENTS_MAX", 2)
    await host.apply()
    await host.produce(20)
    await within_lag(host, 20)
    # The log has two segments now.
    await host.produce(20)
    await host.until(lambda: host.summary.lagging_since_ms > 0)
    assert segments(host) == [(0, 20), (20, 40)]
    # Local retention deletes the copied one, and the next look closes the other.
    await host.upkeep.apply_retention()
    host.config["flush.ms"] = "1000"
    await host.apply()
    await within_lag(host, 40)


async def test_bytes_close_a_segment_at_half_of_the_maximum(host: TieredHost) -> None:
    host.config |= {**ROOMY, MAX_LAG_BYTES: "8192"}
    await host.apply()
    await host.produce(300)
    await host.copied()
    sizes = [s.size_bytes for s in host.partition.log.segment_infos()]
    assert len(sizes) > 5
    assert max(sizes) <= 4096
    assert host.summary.lagging_since_ms == -1


async def test_nothing_is_closed_early_after_a_disablement(lagging_host: TieredHost) -> None:
    host = lagging_host
    await host.apply()
    await host.produce(20)
    await within_lag(host, 20)
    await host.apply(
        tiering_state=int(TieringState.DISABLING), tiered_epoch=1, disable_policy=int(RETAIN)
    )
    await host.acknowledged(1, RETAIN)
    await host.produce(20)
    await asyncio.sleep(1.2 * LAG_MS / 1000)
    assert segments(host) == [(0, 20), (20, 40)]
    assert tier_end(host) == 20
    assert host.summary.lagging_since_ms == -1


async def test_deleted_records_are_not_copied(lagging_host: TieredHost) -> None:
    host = lagging_host
    await host.apply()
    await host.produce(20)
    log_start.raise_to(host.partition, 20)
    await asyncio.sleep(1.2 * LAG_MS / 1000)
    assert segments(host)[-1] == (0, 20)
    assert host.live() == []


async def test_pause_stops_copying_until_it_is_removed(lagging_host: TieredHost) -> None:
    host = lagging_host
    await host.apply()
    await host.produce(20)
    await within_lag(host, 20)
    host.config[COPY_PAUSED] = "true"
    await host.apply()
    began_ms = host.context.wall_ms()
    await host.produce(20)
    await asyncio.sleep(1.2 * LAG_MS / 1000)
    # The gap is reported from its first record on. What is in the tier stays readable.
    assert tier_end(host) == 20
    assert host.summary.lagging_since_ms >= began_ms
    assert await host.read_tier(0, 20) == [4, 9, 14, 19]
    del host.config[COPY_PAUSED]
    await host.apply()
    await within_lag(host, 40)
    assert host.summary.lagging_since_ms == -1


async def test_restart_copies_records_of_unknown_age_at_once(
    make_host: MakeHost, lagging_host: TieredHost
) -> None:
    host = lagging_host
    await host.apply()
    await host.produce(20)
    row = host.row
    await host.close()
    restarted = make_host(remote_log_manager_task_interval_ms=3_600_000)
    restarted.config |= {**ROOMY, MAX_LAG_MS: "3600000"}
    restarted.row = row
    await restarted.apply(leader_epoch=2)
    await within_lag(restarted, 20)


async def test_empty_log_above_the_end_of_an_older_head_does_not_occupy_the_broker(
    lagging_host: TieredHost,
) -> None:
    """The head was brought back by hand. The records between are in no local segment, and the
    active one is empty, so there is nothing to close."""
    host = lagging_host
    host.config |= {"local.retention.ms": "1"}
    await host.apply()
    await host.produce(20)
    await within_lag(host, 20)
    (path,) = (host.tier_path / "heads").rglob("*.json")
    older = host.head()
    await host.produce(20)
    await within_lag(host, 40)
    await host.upkeep.apply_retention()
    assert segments(host) == [(40, 40)]
    path.write_bytes(encode_head(replace(older, version=host.head().version + 9, commit_id="x")))
    await host.apply(leader_epoch=2)
    # The loop still runs other tasks, and the copier waits.
    await asyncio.sleep(0.5)
    looks = 0
    waiting = copier.waiting_records

    def counted(*args: Any) -> WaitingRecords | None:
        nonlocal looks
        looks += 1
        return waiting(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copier, "waiting_records", counted)
        await asyncio.sleep(0.5)
    assert looks <= 1
    swept_clean(host)  # what the lost head had named


async def test_copy_of_a_closed_segment_is_delayed(host: TieredHost) -> None:
    """KIP-1241. Local retention deletes nothing that is not in the tier."""
    # The records' timestamps are years old, so only a limit without an age delays them.
    host.config |= {"remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": "-1"}
    host.config |= {"local.retention.bytes": "8192", "local.retention.ms": "-1"}
    await host.apply()
    await host.produce(60)
    assert len(segments(host)) == 2
    await nothing_copied(host)
    await host.upkeep.apply_retention()
    assert segments(host)[0][0] == 0
    # The bytes of newer records reach the limit: the oldest segment is copied.
    await host.produce(60)
    await host.until(lambda: tier_end(host) > 0)
    local = host.partition.log.segment_infos(tier_end(host))
    assert sum(item.size_bytes for item in local[1:]) < 8192
    # Without the delay all closed segments are copied.
    host.config["remote.copy.lag.ms"] = "0"
    await host.apply()
    await host.copied()


async def test_copy_is_delayed_by_the_age_of_records(make_host: MakeHost) -> None:
    """The copier waits for the moment: its task interval is an hour."""
    host = make_host(remote_log_manager_task_interval_ms=3_600_000)
    # Without a local retention in bytes only the age permits the copy.
    host.config |= {"remote.copy.lag.ms": "3000", "local.retention.bytes": "-1"}
    await host.apply()
    # Opening the tier does not count towards the delay of the records.
    await host.until((host.tier_path / "heads").is_dir)
    # Timestamps grow by one millisecond with each record, up to the present.
    await host.produce(60, timestamp_ms=host.context.wall_ms() - 60)
    await nothing_copied(host)
    await host.copied()


@pytest.mark.parametrize("idle", [False, True])
async def test_next_leader_copies_little_again(cluster: TieredCluster, *, idle: bool) -> None:
    """The follower closes its segments when the tier reaches into them."""
    cluster.config |= {**ROOMY, MAX_LAG_MS: str(LAG_MS)}
    await cluster.push()
    leader, follower = cluster.hosts[1], cluster.hosts[2]
    for _ in range(20):
        await leader.produce(20)
        await asyncio.sleep(0.1)
    if idle:
        await within_lag(leader, 400)
        await follower.until(lambda: tier_end(follower) == 400)
        await follower.until(lambda: segments(follower)[-1] == (400, 400))
    copied = tier_end(leader)
    assert len(segments(follower)) > 2
    await cluster.apply(leader=2, leader_epoch=2)
    await follower.produce(20)
    await within_lag(follower, 420)
    again = min(start for start, end in objects(follower) if end >= copied)
    # Without records after the tier's end no record is copied again. Otherwise it is a part of the
    # segment that the former leader has copied last.
    assert again == copied if idle else copied - 200 < again <= copied


def objects(host: TieredHost) -> list[tuple[int, int]]:
    """Return first and last offset of each segment as it is stored, without trimming."""
    return [(entry.start_offset, entry.end_offset_inclusive) for entry in host.head().entries]
