"""Two terms at once: older leaders and tiered epochs are refused, and leave nothing in the end."""

import asyncio
import itertools
import uuid

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.held_storage import held
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import CLUSTER, TOPIC, TOPIC_ID, TieredHost
from tidemark.tier import transitions
from tidemark.tier.auxiliary import Aux
from tidemark.tier.head import Claim, Head
from tidemark.tier.manifest import LoadedHead
from tidemark.tier.remote_storage_manager import SegmentData
from tidemark.tier.segment import SegmentEntry, new_segment
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_broker.remote_log.uploads import Upload
from tidemark_broker.replication.partition import Role, roles

DISABLING = int(TieringState.DISABLING)


def claim(host: TieredHost, by: Claim) -> LoadedHead:
    """Claim the partition for another broker."""
    manifests = host.tier().manifests
    return manifests.commit(
        manifests.load(TOPIC_ID, 0),
        lambda head: transitions.claim(
            head,
            by.leader_epoch,
            Tiering(TieringState.ENABLED, by.tiered_epoch),
            cluster_id=CLUSTER,
            broker_id=9,
            now_ms=1,
        ),
    )


def new_entry(head: Head, start: int, end: int) -> SegmentEntry:
    return new_segment(
        topic=TOPIC,
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=uuid.uuid4(),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=1,
        size_bytes=10,
        broker_id=9,
        event_time_ms=1,
        leader_epochs=[(head.leader_epoch, start)],
        leader_epoch=head.leader_epoch,
        tiered_epoch=head.tiering.epoch,
    )


def start_copy(host: TieredHost, end: int) -> SegmentEntry:
    """Commit a COPY_STARTED under the host's own claim, as a commit whose answer was lost."""
    manifests = host.tier().manifests
    loaded = manifests.load(TOPIC_ID, 0)
    entry = new_entry(loaded.head, loaded.head.next_copy_offset, end)
    by = loaded.head.claim
    manifests.commit(loaded, lambda head: transitions.start_copy(head, by, entry))
    return entry


def is_contiguous(host: TieredHost) -> bool:
    ranges = host.live()
    return ranges[0][0] == 0 and all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))


async def ready(host: TieredHost) -> None:
    """The head is claimed and the slice knows of it."""
    await host.apply()
    await host.until(lambda: host.row.manifest and not host.summary.error_reason)


async def test_an_older_leader_copies_no_more(host: TieredHost) -> None:
    await ready(host)
    await host.produce(300)
    await host.copied()
    before = host.live()
    claim(host, Claim(5, 0))
    await host.produce(300)
    await host.until(lambda: host.summary.error_reason == "Fenced")
    assert "leader epoch 5" in host.summary.error_message
    assert host.live() == before
    # Elected again, it continues where the tier ends.
    await host.apply(leader_epoch=6)
    await host.copied()
    assert not host.summary.error_reason
    assert is_contiguous(host)


async def test_a_copy_under_way_is_fenced_by_a_disablement(host: TieredHost) -> None:
    await ready(host)
    with held(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        assert host.head().copying is not None
        await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=0)
        assert not (await host.disable(1, DisablePolicy.RETAIN)).error_code
        assert host.head().copying is None
    await host.until(lambda: not host.objects() and host.head().is_empty)
    assert host.live() == []
    assert not any(entry.segment_id in host.remote._shared.uploads for entry in storage.begun)
    await no_orphans(host)


async def test_an_upload_that_outlives_the_deletion_of_its_entry_leaves_nothing(
    make_host: MakeHost, host: TieredHost
) -> None:
    """An old leader on a slow line: the new one has deleted its entry before it has ended."""
    await ready(host)
    with held(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        other = make_host(node_id=2)
        other.row, other.store_id = host.row, host.remote.status().store_id
        await other.apply(leader=2, leader_epoch=2, replicas=(1, 2), isr=(2,))
        # It reads the tier first, which it may not use before it was verified.
        await other.until(lambda: not other.remote.status().error)
        await other.broker.manager.retry()
        await other.until(lambda: other.head().leader_epoch == 2 and other.head().is_empty)
    # Its finish_copy is refused, and no other broker knows of its object.
    await host.until(lambda: host.summary.error_reason == "Fenced")
    await host.until(lambda: not host.objects())
    await no_orphans(host)


async def test_a_copy_that_waits_for_a_thread_when_cancelled_is_forgotten(
    make_host: MakeHost,
) -> None:
    host = make_host(remote_log_manager_copier_thread_pool_size=1)
    await ready(host)
    with held(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        # The next term's copy cannot begin: the only thread is busy with the first one.
        await host.apply(leader_epoch=2)
        await host.until(lambda: host.head().leader_epoch == 2)
        await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=1)
        assert not (await host.disable(1, DisablePolicy.DELETE)).error_code
    await host.until(lambda: not host.objects() and host.head().is_empty)
    await no_orphans(host)
    await no_orphans(host)


async def test_an_upload_cancelled_before_it_began_may_be_deleted(make_host: MakeHost) -> None:
    host = make_host(remote_log_manager_copier_thread_pool_size=1)
    await ready(host)
    shared = host.remote._shared
    with held(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        first = storage.begun[0]
        entry = new_entry(host.head(), 1000, 1009)
        upload = Upload(shared.guard.tier(), TOPIC_ID, 0, entry)
        data = SegmentData(
            host.tier_path / "never-read",
            1,
            Aux(offset_index=b"", time_index=b"", leader_epochs=b"", producer_snapshot=b""),
        )
        waiting = asyncio.create_task(shared.uploads.run(upload, data))
        await host.until(lambda: entry.segment_id in shared.uploads)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await host.until(lambda: entry.segment_id not in shared.uploads)
        assert first.segment_id in shared.uploads


async def test_a_commit_whose_answer_was_lost_does_not_stop_copying(host: TieredHost) -> None:
    await ready(host)
    await host.produce(300)
    await host.copied()
    left = start_copy(host, 10_000)
    await host.produce(300)
    await host.copied()
    assert is_contiguous(host)
    await host.until(lambda: all(e.segment_id != left.segment_id for e in host.head().entries))
    await no_orphans(host)


async def test_a_crash_within_a_copy_is_gone_over(make_host: MakeHost, host: TieredHost) -> None:
    await ready(host)
    await host.produce(300)
    await host.copied()
    row = host.row
    await host.close()
    # What a crash in the middle leaves: the entry, and one of its two objects.
    left = start_copy(host, 10_000)
    host.tier().store.put(left.aux_key, b"half a copy")
    again = make_host()
    again.row = row
    await again.apply(leader_epoch=2)
    await again.until(lambda: again.partition.is_leader)
    await again.produce(200)
    await again.copied()
    assert is_contiguous(again)
    await again.until(lambda: again.head().copying is None)
    await again.until(lambda: len(again.objects()) == 2 * len(again.live()))
    end = again.partition.log.highest_remote_offset + 1
    assert (await again.read_tier(0, end))[-1] == end - 1
    await no_orphans(again)


async def test_a_deleted_topics_objects_go_at_once(host: TieredHost) -> None:
    """As in Kafka. A copy that was never finished may still arrive: it waits for the delay."""
    host.cluster_config["remote.delete.delay.ms"] = "600000"
    await ready(host)
    await host.produce(300)
    await host.copied()
    left = start_copy(host, 10_000)
    await host.delete()
    assert await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0) == 1
    assert [entry.segment_id for entry in host.head().entries] == [left.segment_id]
    assert not host.objects()
    host.cluster_config["remote.delete.delay.ms"] = "0"
    await host.delete()
    await host.delete_remote()
    assert not list(host.tier().topics.all())
    await no_orphans(host)


async def test_a_leader_that_leads_no_more_writes_nothing(host: TieredHost) -> None:
    """This is also the case before it is fenced and before its tasks are stopped."""
    await ready(host)
    await host.produce(100)
    await host.copied()
    before = host.head()
    roles.stop_leading(host.partition, Role.IDLE)
    host.partition.log.roll(1)  # something to copy
    await host.until(lambda: host.summary.error_reason == "Fenced")
    assert host.head() == before
