"""An abandoned upload leaves nothing behind and deletes nothing else (invariant 10)."""

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidemark.tier.metadata.head import Claim, Head, new_head
from tidemark.tier.metadata.manifest import LoadedHead, ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.metadata.transitions import abandon_copy, finish_copy, start_copy
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import (
    Copied,
    RemoteStorageManager,
    SegmentData,
)
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tiering import Tiering, TieringState
from tidemark_broker.remote_log.uploads import Upload, Uploads, drop_if_unreferenced
from tidemark_broker.replication.threads import ThreadPool

TOPIC_ID = uuid.UUID(int=7)
BY = Claim(3, 0)
LOG = bytes(100)
AUX = Aux(offset_index=b"", time_index=b"", leader_epochs=b"0\n0\n", producer_snapshot=b"")


@dataclass
class UploadPartition:
    """Partition with a head, and one of its segments that is being copied."""

    root: Path
    tier: Tier
    loaded: LoadedHead
    entry: SegmentEntry
    data: SegmentData

    @property
    def upload(self) -> Upload:
        return Upload(self.tier, TOPIC_ID, 0, self.entry)

    def copy(self) -> Copied:
        return self.tier.segments.copy_segment(self.entry, self.data)

    def commit(self, transition: Callable[[Head], Head]) -> None:
        self.loaded = self.tier.manifests.commit(self.loaded, transition)

    def stored(self) -> int:
        """Return the number of data objects in the store, also while they are being deleted."""
        return len(list(self.tier.store.list("data/")))


@pytest.fixture
def place(tmp_path: Path) -> UploadPartition:
    """Return a partition whose copy was started and whose objects are in the store."""
    root = tmp_path / "tier"
    root.mkdir()
    store = DirectoryStore(root)
    manifests, topics = ManifestStore(store), TopicCatalog(store)
    segments = RemoteStorageManager({"": store})
    tier = Tier(store, manifests, segments, topics, TierReader(manifests, topics))
    loaded = manifests.create(
        new_head(
            topic="t",
            topic_id=TOPIC_ID,
            partition=0,
            cluster_id="c",
            leader_epoch=BY.leader_epoch,
            tiering=Tiering(TieringState.ENABLED, BY.tiered_epoch),
            broker_id=1,
            log_start_offset=0,
        )
    )
    entry = new_segment(
        topic="t",
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=uuid.UUID(int=9),
        start_offset=0,
        end_offset_inclusive=9,
        max_timestamp_ms=1,
        size_bytes=len(LOG),
        broker_id=1,
        event_time_ms=1,
        leader_epochs=((0, 0),),
        leader_epoch=BY.leader_epoch,
        tiered_epoch=BY.tiered_epoch,
    )
    log = tmp_path / "00.log"
    log.write_bytes(LOG)
    made = UploadPartition(root, tier, loaded, entry, SegmentData(log, len(LOG), AUX))
    made.commit(lambda head: start_copy(head, BY, entry))
    segments.copy_segment(entry, made.data)
    # The log and the auxiliary object. The manifest has the segment as COPY_STARTED.
    assert made.stored() == 2
    return made


def test_objects_of_an_abandoned_copy_are_deleted(place: UploadPartition) -> None:
    place.commit(lambda head: abandon_copy(head, BY, place.entry, now_ms=5))
    assert drop_if_unreferenced(place.upload)
    assert place.stored() == 0


def test_objects_without_a_manifest_entry_are_deleted(place: UploadPartition) -> None:
    place.commit(lambda head: replace(head, entries=()))
    assert drop_if_unreferenced(place.upload)
    assert place.stored() == 0


def test_objects_of_a_copy_in_progress_are_left_to_the_next_claim(place: UploadPartition) -> None:
    # COPY_STARTED: the leader may still retry the copy with these objects.
    assert not drop_if_unreferenced(place.upload)
    assert place.stored() == 2


def test_objects_of_a_finished_copy_are_kept(place: UploadPartition) -> None:
    """The commit succeeded although its writer received an error."""
    copied = place.tier.segments.copy_segment(place.entry, place.data)
    place.commit(
        lambda head: finish_copy(head, BY, place.entry, copied.custom_metadata, copied.digests)
    )
    assert not drop_if_unreferenced(place.upload)
    assert place.stored() == 2


def test_nothing_is_deleted_while_the_manifest_cannot_be_read(place: UploadPartition) -> None:
    # The store is unmounted: a copy could be finished without this broker's knowledge.
    away = place.root.rename(place.root.with_name("away"))
    assert not drop_if_unreferenced(place.upload)
    away.rename(place.root)
    assert place.stored() == 2


async def test_a_cancelled_upload_is_cleaned_up_when_its_thread_ends(
    place: UploadPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker has lost the leadership: the copy is abandoned while its thread still uploads.
    place.commit(lambda head: abandon_copy(head, BY, place.entry, now_ms=5))
    begun, may_end = threading.Event(), threading.Event()
    copy = place.tier.segments.copy_segment

    def slow(entry: SegmentEntry, data: SegmentData) -> object:
        begun.set()
        assert may_end.wait(10)
        return copy(entry, data)

    monkeypatch.setattr(place.tier.segments, "copy_segment", slow)
    copier, expiration = ThreadPool("copier", threads=1), ThreadPool("expiration", threads=1)
    uploads = Uploads(copier, expiration)
    caller = asyncio.create_task(uploads.run(place.upload, place.copy))
    async with asyncio.timeout(10):
        await asyncio.to_thread(begun.wait)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert place.entry.segment_id in uploads  # no cleanup may delete its objects before it ends
        may_end.set()
        while place.entry.segment_id in uploads or place.stored():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await copier.close()
    await expiration.close()
