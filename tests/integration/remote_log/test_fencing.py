"""Two terms at once: the store fences older leader and tiered epochs, and no orphan remains."""

import asyncio
import itertools
import uuid

from tests.integration.remote_log.blocking_storage import blocking
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import CLUSTER, TOPIC, TOPIC_ID, TieredHost
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Claim, Head
from tidemark.tier.metadata.manifest import LoadedHead
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import SegmentData
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_broker.log import appending
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
    """Commit COPY_STARTED under the host's own claim, like a commit whose response was lost."""
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


async def test_fenced_leader_stops_copying_until_its_next_term(host: TieredHost) -> None:
    await ready(host)
    await host.produce(300)
    await host.copied()
    before = host.live()
    # Another broker claims epoch 5, and this leader does not know of it yet.
    claim(host, Claim(5, 0))
    await host.produce(300)
    # The conditional write of its next copy fails, which is how it notices.
    await host.until(lambda: host.summary.error_reason == "Fenced")
    assert "leader epoch 5" in host.summary.error_message
    assert host.live() == before
    # Elected again, it continues where the tier ends.
    await host.apply(leader_epoch=6)
    await host.copied()
    assert not host.summary.error_reason
    assert is_contiguous(host)


async def test_disablement_fences_a_running_copy(host: TieredHost) -> None:
    await ready(host)
    with blocking(host) as storage:
        # Disable in the middle of an upload: the entry is in the head, the object not complete.
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        assert host.head().copying is not None
        await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=0)
        assert not (await host.disable(1, DisablePolicy.RETAIN)).error_code
        # The disablement removes the entry, so the upload has nothing to finish.
        assert host.head().copying is None
    await host.until(lambda: not host.objects() and host.head().is_empty)
    assert host.live() == []
    # The upload is cancelled and its objects deleted by the broker itself.
    assert not any(entry.segment_id in host.remote._shared.uploads for entry in storage.begun)
    await no_orphans(host)


async def test_upload_that_ends_after_its_entry_was_deleted_leaves_no_object(
    make_host: MakeHost, host: TieredHost
) -> None:
    """A former leader on a slow line: the new leader deletes the entry while the upload runs."""
    await ready(host)
    with blocking(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        # Broker 2 takes over and removes the unfinished entry of broker 1.
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


async def test_copy_cancelled_while_queued_leaves_no_object(
    make_host: MakeHost,
) -> None:
    host = make_host(remote_log_manager_copier_thread_pool_size=1)
    await ready(host)
    with blocking(host) as storage:
        # The only copier thread is blocked by the first upload.
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        # The next term's copy cannot begin: the only thread is busy with the first one.
        await host.apply(leader_epoch=2)
        await host.until(lambda: host.head().leader_epoch == 2)
        await host.apply(tiering_state=DISABLING, tiered_epoch=1, disable_policy=1)
        assert not (await host.disable(1, DisablePolicy.DELETE)).error_code
    await host.until(lambda: not host.objects() and host.head().is_empty)
    # Two checks, because the second term's copy could start after the first one has ended.
    await no_orphans(host)
    await no_orphans(host)


async def test_upload_cancelled_before_it_began_is_forgotten(make_host: MakeHost) -> None:
    host = make_host(remote_log_manager_copier_thread_pool_size=1)
    await ready(host)
    shared = host.remote._shared
    with blocking(host) as storage:
        await host.produce(100)
        await host.until(lambda: bool(storage.begun))
        # A second upload is queued behind the first one, whose thread is blocked.
        first = storage.begun[0]
        entry = new_entry(host.head(), 1000, 1009)
        upload = Upload(shared.guard.tier(), TOPIC_ID, 0, entry)
        # The file does not exist: reading it would fail the test.
        data = SegmentData(
            host.tier_path / "never-read",
            1,
            Aux(offset_index=b"", time_index=b"", leader_epochs=b"", producer_snapshot=b""),
        )
        waiting = asyncio.create_task(
            shared.uploads.run(upload, lambda: upload.tier.segments.copy_segment(entry, data))
        )
        await host.until(lambda: entry.segment_id in shared.uploads)
        # Cancelled before it began: there is nothing to delete or to wait for.
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await host.until(lambda: entry.segment_id not in shared.uploads)
        assert first.segment_id in shared.uploads


async def test_copying_continues_after_a_commit_whose_response_was_lost(host: TieredHost) -> None:
    await ready(host)
    await host.produce(300)
    await host.copied()
    # The commit reached the store, but its response did not reach the leader: an entry without an
    # upload.
    left = start_copy(host, 10_000)
    await host.produce(300)
    await host.copied()
    assert is_contiguous(host)
    # The leader recognizes its own abandoned entry and removes it.
    await host.until(lambda: all(e.segment_id != left.segment_id for e in host.head().entries))
    await no_orphans(host)


async def test_next_leader_recovers_from_a_crash_during_a_copy(
    make_host: MakeHost, host: TieredHost
) -> None:
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
    # Two objects for each live segment: log and index. The half copy is deleted.
    await again.until(lambda: len(again.objects()) == 2 * len(again.live()))
    end = again.partition.log.highest_remote_offset + 1
    assert (await again.read_tier(0, end))[-1] == end - 1
    await no_orphans(again)


async def test_objects_of_a_deleted_topic_are_deleted_without_delay(host: TieredHost) -> None:
    """As in Kafka. An unfinished copy may still arrive, so it waits for the delay."""
    host.cluster_config["remote.delete.delay.ms"] = "600000"
    await ready(host)
    await host.produce(300)
    await host.copied()
    # An unfinished copy: its upload may still arrive.
    left = start_copy(host, 10_000)
    await host.delete()
    # One segment remains, that of the unfinished copy.
    assert await host.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0) == 1
    assert [entry.segment_id for entry in host.head().entries] == [left.segment_id]
    assert not host.objects()
    # Without the delay the last entry is deleted, too.
    host.cluster_config["remote.delete.delay.ms"] = "0"
    await host.delete()
    await host.delete_remote()
    assert not list(host.tier().topics.all())
    await no_orphans(host)


async def test_former_leader_writes_nothing_before_its_tasks_stop(host: TieredHost) -> None:
    """This is also the case before it is fenced and before its tasks are stopped."""
    await ready(host)
    await host.produce(100)
    await host.copied()
    before = host.head()
    # The partition stops leading while its tasks still run, as between two lines of a role change.
    roles.stop_leading(host.partition, Role.IDLE)
    appending.roll(host.partition.log, 1)  # something to copy
    await host.until(lambda: host.summary.error_reason == "Fenced")
    assert host.head() == before
