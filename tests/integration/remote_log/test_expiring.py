"""Expiration in the tier by time and size, DeleteRecords into it, delayed and repeated deletion."""

import asyncio

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.tiered_host import NOW_MS, TOPIC, TOPIC_ID, TieredHost
from tidemark.tier.metadata import queries
from tidemark_broker.replication.partition import consumer_reads, log_start
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable
from tidemark_broker.replication.threads import ThreadPool


async def tiered(host: TieredHost, records: int = 500) -> list[tuple[int, int]]:
    """Fill the tier, delete its records locally, and return the live segments."""
    await host.apply()
    await host.produce(records)
    await host.copied()
    await host.upkeep.apply_retention()
    return host.live()


async def test_retention_by_time_covers_tier_and_local_log(host: TieredHost) -> None:
    clock_ms = NOW_MS
    host.context.wall_ms = lambda: clock_ms
    before = await tiered(host)
    host.config["retention.ms"] = "1000"
    # The newest record of the third segment is exactly as old as allowed: it stays.
    clock_ms = NOW_MS + before[2][1] + 1000
    await host.apply()
    await host.until(lambda: host.partition.log_start_offset == before[2][0])
    assert host.live() == before[2:]
    assert host.head().log_start_offset == before[2][0]
    with pytest.raises(RemoteOffsetOutOfRange):
        await host.remote.read(host.partition, 0, 100, asyncio.get_running_loop().time() + 5)
    clock_ms += 60_000
    await host.until(lambda: len(host.objects()) == 2 * len(before[2:]))


async def test_retention_of_an_idle_partition_needs_no_thread(
    host: TieredHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_ms = NOW_MS
    host.context.wall_ms = lambda: clock_ms
    host.config["retention.ms"] = "100000"
    before = await tiered(host)
    expirer = host.remote._tasks[host.partition.key]._expirer
    await expirer.run_once()

    def refused(*_: object) -> None:
        raise AssertionError("a thread was used")

    # Nothing has changed since the last runs, neither in the tier nor in the local log.
    with monkeypatch.context() as patched:
        patched.setattr(ThreadPool, "__call__", refused)
        await expirer.run_once()
        await host.upkeep.apply_retention()
    # Time alone makes both due again, although the head and the log are unchanged.
    clock_ms = NOW_MS + before[0][1] + 100_001
    await host.until(lambda: host.live() == before[1:])


async def test_expired_log_start_is_visible_once_it_is_durable(host: TieredHost) -> None:
    """The head has it already; fetch, ListOffsets and the log start still agree."""
    before = await tiered(host)
    third_start = before[2][0]
    # Without checkpoints the new log start is in memory and in the head, but not on disk.
    host._checkpoints.cancel()
    clock_ms = NOW_MS + before[2][1] + 1000
    host.context.wall_ms = lambda: clock_ms
    host.config["retention.ms"] = "1000"
    await host.apply()
    await host.until(lambda: host.head().log_start_offset == third_start)
    await host.until(lambda: host.partition.log.announced_log_start_offset == third_start)
    # Clients still see the old start: after a crash the broker would return to it.
    assert (
        host.partition.log_start_offset
        == (await consumer_reads.list_offset(host.partition, -2)).offset
        == 0
    )
    assert consumer_reads.fetch(host.partition, 0, max_bytes=10, min_one=True).error.name == "none"
    # Records in between are refused with an error that consumers retry.
    with pytest.raises(RemoteUnavailable, match="being deleted"):
        await host.remote.read(host.partition, 0, 100, host.context.monotonic() + 5)
    # Once it is durable, clients may see it.
    await host.upkeep.checkpoint()
    assert host.partition.log_start_offset == third_start
    assert host.partition.durable_log_start_offset == third_start
    with pytest.raises(RemoteOffsetOutOfRange):
        await host.remote.read(host.partition, 0, 100, host.context.monotonic() + 5)


async def test_all_of_a_quiet_partition_is_copied_and_expires(host: TieredHost) -> None:
    """Nothing is appended any more, so retention itself must close the last segment."""
    clock_ms = NOW_MS
    host.context.wall_ms = lambda: clock_ms
    host.config["retention.ms"] = "100000"
    host.config["local.retention.ms"] = "1000"
    await tiered(host)
    end = host.partition.next_offset
    assert host.partition.log.highest_remote_offset is not None
    # Precondition: the active segment has records that are not in the tier.
    assert host.partition.log.highest_remote_offset < end - 1
    # 50 s: older than local retention (1 s), younger than retention (100 s).
    clock_ms += 50_000
    await host.upkeep.apply_retention()
    await host.until(lambda: host.partition.log.highest_remote_offset == end - 1)
    await host.upkeep.apply_retention()
    # The closed segment was copied and then deleted locally: the local log is empty.
    assert (host.partition.log.local_log_start_offset, host.partition.log.size_bytes) == (end, 0)
    # All records are older than retention.ms now.
    clock_ms += 200_000
    await host.until(lambda: host.partition.log_start_offset == end)
    # The delay of the deletion (50 ms) has passed on this clock too.
    clock_ms += 60_000
    await host.until(lambda: host.objects() == [])


async def test_retention_by_size_counts_what_is_in_both_tiers_once(host: TieredHost) -> None:
    await tiered(host)
    await host.produce(20)
    # Copied segments that are also local count once, as in Kafka's totalSizeInBytes.
    await host.copied()
    await host.upkeep.apply_retention()
    before, log = host.live(), host.partition.log
    local_only = sum(s.size_bytes for s in log.segment_infos())
    live_bytes = host.summary.size_bytes
    sizes = [e.size_bytes for e in queries.live_segments(host.head(), {})]
    # One byte less than the two oldest: only one of them lies wholly above the limit.
    host.config["retention.bytes"] = str(live_bytes + local_only - sizes[0] - sizes[1] + 1)
    host.config["local.retention.bytes"] = "1000000"
    await host.apply()
    await host.until(lambda: host.partition.log_start_offset == before[1][0])
    await host.until(lambda: len(host.objects()) == 2 * len(before[1:]))
    assert host.live() == before[1:]


async def test_copying_at_the_same_time_expires_nothing_too_early(host: TieredHost) -> None:
    """The limit is never exceeded, so nothing may go, whatever is counted while copies finish."""
    host.config["retention.bytes"] = str(10_000_000)
    await host.apply()
    # Copies and expiration run at the same time, every 100 ms.
    for _ in range(20):
        await host.produce(100)
        # The limit is always 10,000 bytes above the size, so even counting some segment twice must
        # not exceed it.
        total = host.summary.size_bytes + 10_000
        host.config["retention.bytes"] = str(total + host.partition.log.size_bytes)
        await host.apply()
    await host.copied()
    assert host.live()[0][0] == 0


# The delay protects readers that have already located a segment.
async def test_objects_are_deleted_after_the_delete_delay(make_host: MakeHost) -> None:
    clock_ms = NOW_MS
    host = make_host()
    host.cluster_config["remote.delete.delay.ms"] = "60000"
    host.context.wall_ms = lambda: clock_ms
    before = await tiered(host)
    log_start.delete_records(host.partition, before[2][0])
    await host.until(lambda: host.live() == before[2:])
    await host.until(lambda: host.summary.remaining_segments == 2)
    assert host.summary.segments == len(before) - 2
    # One millisecond before the delay has passed.
    clock_ms = NOW_MS + 59_999
    deletes = host.remote._shared.metrics.values()
    await asyncio.sleep(0.3)  # three intervals: nothing is to happen
    assert host.remote._shared.metrics.values() == deletes
    assert len(host.objects()) == 2 * len(before)
    clock_ms = NOW_MS + 60_000
    await host.until(lambda: len(host.objects()) == 2 * len(before[2:]))
    await host.until(lambda: host.summary.remaining_segments == 0)


async def test_delete_records_in_the_middle_of_a_remote_segment(host: TieredHost) -> None:
    before = await tiered(host)
    # The middle of the second segment: the first is deleted, the second stays with its records
    # below the start hidden.
    middle = before[1][0] + 3
    assert log_start.delete_records(host.partition, middle).error.name == "none"
    await host.until(lambda: host.head().log_start_offset == middle)
    assert host.partition.log_start_offset == middle
    await host.until(lambda: len(host.objects()) == 2 * len(before[1:]))
    end = host.partition.log.local_log_start_offset
    seen = await host.read_tier(middle, end)
    assert seen[0] >= middle
    assert seen[-1] == end - 1
    assert consumer_reads.fetch(
        host.partition, middle - 1, max_bytes=1, min_one=True
    ).error.name == ("offset_out_of_range")
    # A deletion below the log start changes nothing, as in Kafka.
    assert log_start.delete_records(host.partition, 0).error.name == "none"
    assert host.partition.log_start_offset == middle


async def test_delete_records_beyond_the_tier_skips_the_gap(host: TieredHost) -> None:
    await tiered(host)
    # 20 records are only local, so the requested start is beyond the tier.
    await host.produce(20)
    to = host.partition.high_watermark
    # -1 is the high watermark (DeleteRecordsRequest.HIGH_WATERMARK).
    log_start.delete_records(host.partition, -1)
    await host.until(lambda: not host.objects())
    assert host.partition.log_start_offset == host.head().log_start_offset == to
    await host.produce(300)
    await host.copied()
    # The copier continues at the log start, not at the tier's former end.
    assert host.live()[0][0] == to


async def test_expiry_survives_a_new_leader(make_host: MakeHost, host: TieredHost) -> None:
    # Ten minutes: the objects are not deleted before the leader changes.
    host.cluster_config["remote.delete.delay.ms"] = "600000"
    before = await tiered(host)
    log_start.delete_records(host.partition, before[2][0])
    await host.until(lambda: host.head().log_start_offset == before[2][0])
    row = host.row
    await host.close()
    again = make_host()
    # The delay is now that of the new host (50 ms); the marks are in the manifest.
    again.row = row
    await again.apply(leader_epoch=2)
    await again.until(lambda: len(again.objects()) == 2 * len(before[2:]))
    assert again.partition.log_start_offset == before[2][0]
    assert again.live() == before[2:]


async def test_deleted_topic_leaves_no_object_and_deletion_may_be_repeated(
    make_host: MakeHost, host: TieredHost
) -> None:
    await tiered(host)
    assert host.objects()
    partition = host.partition
    await host.delete()
    # The replica is deleted locally; deletion of its objects is a command of its own.
    assert host.broker.manager.get(TOPIC, 0) is None
    await host.delete_remote()
    assert not host.objects()
    assert not list(host.tier().topics.all())
    # A repeated command finds nothing and succeeds.
    assert await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0) == 0
    # A leader that does not know of the deletion is rejected by the tombstone.
    other = make_host(node_id=2)
    other.row = host.row
    other.store_id = host.remote.status().store_id
    await other.apply(leader=2, leader_epoch=9, replicas=(2,), isr=(2,))
    assert host.head().deleted_at_ms is not None
    assert partition.removed
    assert not host.objects()


async def test_deletion_of_a_never_tiered_topic_succeeds(host: TieredHost) -> None:
    await host.apply()
    await host.until(lambda: not host.remote.status().error)
    # A topic id of which the tier has no object.
    other = type(TOPIC_ID)(int=7)
    assert await host.remote.delete_topic(other, "other", 3, 0) == 0


async def test_deletion_without_the_store_is_refused(host: TieredHost) -> None:
    await tiered(host)
    # Without the store the command fails, and the operator's finalizer stays.
    moved = host.tier_path.rename(host.tier_path.with_name("moved"))
    await host.delete()
    with pytest.raises(RemoteUnavailable, match="does not exist"):
        await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0)
    await host.until(lambda: bool(host.remote.status().error))
    # The store is verified again before it is used.
    moved.rename(host.tier_path)
    await host.until(lambda: not host.remote.status().error)
    await host.delete_remote()
    assert not host.objects()


async def test_failed_object_deletion_is_reported_and_retried(host: TieredHost) -> None:
    """A directory in place of an object: the store responds, but does not delete it."""
    before = await tiered(host)
    victim = host.tier_path / host.objects()[1]
    victim.unlink()
    (victim / "child").mkdir(parents=True)
    log_start.delete_records(host.partition, before[1][0])
    await host.until(lambda: host.summary.error_reason == "StoreInputOutputError")
    assert "directory" in host.summary.error_message
    # The store as a whole is healthy; the error is that of one partition.
    assert not host.remote.status().error
    (victim / "child").rmdir()
    victim.rmdir()
    await host.until(lambda: not host.summary.error_reason)
    await host.until(lambda: len(host.objects()) == 2 * len(before[1:]))


async def test_local_retention_ignores_timestamps_in_the_future(host: TieredHost) -> None:
    """All of it was appended long enough ago, and is in the tier."""
    host.config |= {
        "local.retention.ms": "1",
        "local.retention.bytes": "-1",
        "message.timestamp.after.max.ms": str(2**62),
    }
    await host.apply()
    await host.produce(100)
    # The year 2100: by timestamp this segment would never expire.
    await host.produce(5, timestamp_ms=4_102_444_800_000)
    await host.produce(200)
    await host.copied()
    await host.partition.context.states.written()
    # Local retention of 1 ms is measured by the time of the append, so wait until it has passed.
    await host.until(
        lambda: host.context.wall_ms() > host.partition.log.segment_infos()[-1].modified_ms
    )
    await host.upkeep.apply_retention()
    # Records after the future ones are deleted locally, too.
    copied = host.head().highest_remote_offset + 1
    assert host.partition.log.local_log_start_offset == copied > 200
