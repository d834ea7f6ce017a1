"""Findings and deletions of a sweep, and above all the objects that it must not delete."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tier.test_manifest import (
    claim,
    copy,
    filled,
    finish,
    manifests,
    page_keys,
    start,
)
from tidemark.tier.maintenance import sweeper
from tidemark.tier.maintenance.sweep_lease import LEASE_MS, SweepLease, SweepLeaseTaken
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim
from tidemark.tier.metadata.layout import head_key, page_key, page_name
from tidemark.tier.metadata.topics import TopicCatalog
from tidemark.tier.open import Tier
from tidemark.tier.reader import TierReader
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager, SegmentData
from tidemark.tier.stores.key_ring import NO_KEYS, KeyRing
from tidemark.tier.stores.objects import NO_BUCKET, StoreUnavailable, UnfinishedUpload

NOW_MS = 1_000_000_000
DELAY_MS = 1000


def tier_on(store: Any, keys: KeyRing = NO_KEYS) -> Tier:
    made, topics = manifests(store), TopicCatalog(store)
    storage = RemoteStorageManager({NO_BUCKET: store}, keys)
    return Tier(store, made, storage, topics, TierReader(made, topics))


def sweep(
    store: Any, *, delete: bool = True, delay_ms: int = DELAY_MS, keys: KeyRing = NO_KEYS
) -> SweepReport:
    lease = SweepLease(store, "me", lambda: NOW_MS).take() if delete else None
    tier = tier_on(store, keys)
    return Sweeper(tier, now_ms=lambda: NOW_MS, delay_ms=delay_ms, lease=lease).run()


def put_objects(store: Any, *entries: Any) -> list[str]:
    keys = [key for entry in entries for key in (entry.log_key, entry.aux_key)]
    for key in keys:
        store.put(key, b"12345")
    return keys


def data_keys(store: Any) -> list[str]:
    return sorted(key for key in store.objects if key.startswith("data/"))


def test_objects_of_live_segments_are_kept(place: Any, memory: Any) -> None:
    loaded = filled(place, manifests(memory), 23)
    assert len(loaded.head.pages) > 2
    pages = manifests(memory).pages(place.topic_id, place.partition)
    entries = list(queries.live_segments(loaded.head, pages))
    kept = put_objects(memory, *entries)
    report = sweep(memory)
    assert data_keys(memory) == sorted(kept)
    # The objects and the pages.
    assert report.looked_at == len(kept) + len(loaded.head.pages)
    assert (report.orphans.count, report.unknown, report.troubles) == (0, {}, [])


def test_objects_of_a_fenced_copier_are_deleted(place: Any, memory: Any) -> None:
    """The next leader abandoned and removed the entry before the upload arrived."""
    store = manifests(memory)
    loaded, abandoned_copy = store.create(place.head()), place.segment(0, 9)
    loaded = store.commit(loaded, start(abandoned_copy))
    loaded = store.commit(loaded, claim(Claim(2, 0)))
    due = queries.pending_deletes(loaded.head, {}, now_ms=100, delay_ms=0)
    by = Claim(2, 0)
    loaded = store.commit(loaded, lambda head: transitions.finish_delete(head, by, due))
    late = put_objects(memory, abandoned_copy)
    # A dry run reports the orphans and deletes nothing.
    report = sweep(memory, delete=False)
    assert (report.orphans.count, report.orphans.size_bytes, report.removed.count) == (2, 10, 0)
    assert sorted(report.examples) == sorted(late) == data_keys(memory)
    assert sweep(memory).removed.count == 2
    assert data_keys(memory) == []


def test_objects_of_a_copy_in_progress_are_kept(place: Any, memory: Any) -> None:
    store, entry = manifests(memory), place.segment(0, 9)
    store.commit(store.create(place.head()), start(entry))
    put_objects(memory, entry)
    memory.uploads = [UnfinishedUpload(entry.log_key, "u", 0)]
    assert sweep(memory).orphans.count == 0
    assert len(data_keys(memory)) == 2
    assert len(memory.uploads) == 1


def test_a_head_is_read_after_the_listing(place: Any, memory: Any) -> None:
    """A copy that starts and ends during the sweep is not an orphan. COPY_STARTED is committed
    before the upload, so heads must be read after the listing."""
    store, entry = manifests(memory), place.segment(0, 9)
    loaded = store.create(place.head())
    real = memory.list

    def listing(prefix: str) -> Any:
        nonlocal loaded
        if prefix.startswith("data/") and loaded.head.copying is None and not loaded.head.entries:
            loaded = store.commit(loaded, start(entry))
            put_objects(memory, entry)
        return real(prefix)

    memory.list = listing
    assert sweep(memory).orphans.count == 0
    assert len(data_keys(memory)) == 2


def test_young_orphans_are_reported_but_not_deleted(place: Any, memory: Any) -> None:
    manifests(memory).create(place.head())
    put_objects(memory, place.segment(0, 9))
    report = sweep(memory, delay_ms=NOW_MS + 1)
    assert (report.orphans.count, report.waiting.count, report.removed.count) == (2, 2, 0)
    assert len(data_keys(memory)) == 2


def test_folders_without_a_head_are_reported_and_never_swept(place: Any, memory: Any) -> None:
    # One folder of a partition whose head is missing, and one that has nothing to do with
    # Tidemark.
    kept = put_objects(memory, place.segment(0, 9))
    memory.put("data/photos/1.jpeg", b"x")
    memory.uploads = [UnfinishedUpload("data/photos/2.jpeg", "u", 0)]
    report = sweep(memory)
    assert report.unknown == {
        f"data/{place.topic}-b5YZ_4uGTRG0LQDAT8lk_w/3/": 2,
        "data/photos/": 2,
    }
    assert report.unknown_objects == 4
    assert set(kept) < set(data_keys(memory))
    assert memory.uploads


def test_keys_that_only_resemble_the_layout_are_not_deleted(place: Any, memory: Any) -> None:
    manifests(memory).create(place.head())
    entry = place.segment(0, 9)
    # The topic id belongs to another name, and the partition has a leading zero.
    other_name = replace(entry, key=entry.key.replace("flights", "bookings"))
    short = replace(entry, key=entry.key.replace("/3/0000", "/03/0000"))
    put_objects(memory, other_name, short)
    report = sweep(memory)
    assert (report.unknown_objects, report.orphans.count) == (4, 0)
    assert len(data_keys(memory)) == 4


def test_an_unreadable_head_keeps_every_object(place: Any, memory: Any) -> None:
    store = manifests(memory)
    loaded = filled(place, store, 9)
    kept = put_objects(memory, *loaded.head.entries, place.segment(90, 99))
    memory.put(head_key(place.topic_id, place.partition), b"{}")
    report = sweep(memory)
    assert report.passed_over == 2  # the folders of data and of pages
    assert "is no manifest" in report.troubles[0]
    assert data_keys(memory) == sorted(kept)


@pytest.mark.parametrize(
    "keys", [NO_KEYS, KeyRing.parse(f"k1: {'B' * 43}=")], ids=["no key", "other bytes"]
)
def test_an_orphan_of_an_unusable_encryption_key_is_kept_and_reported(
    place: Any, memory: Any, tmp_path: Path, keys: KeyRing
) -> None:
    """Nothing of its partition is removed, because the object may prove that the head is old."""
    tier_on(memory).manifests.create(place.head())
    (tmp_path / "log").write_bytes(b"records")
    aux = Aux(offset_index=b"", time_index=b"", leader_epochs=b"", producer_snapshot=b"")
    ring = KeyRing.parse(f"k1: {'A' * 43}=")
    entry = place.segment(0, 9, size_bytes=7)
    RemoteStorageManager({"": memory}, ring).copy_segment(
        entry, SegmentData(tmp_path / "log", 7, aux)
    )
    report = sweep(memory, keys=keys)
    assert report.removed.count == 0
    assert "'k1'" in report.troubles[0]
    assert data_keys(memory) == [entry.aux_key, entry.log_key]


def test_an_orphan_of_a_newer_version_is_kept_and_reported(
    place: Any, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of its partition is removed, because the object may prove that the head is old."""
    tier_on(memory).manifests.create(place.head())
    entry = place.segment(0, 9)
    made = Aux(offset_index=b"", time_index=b"", leader_epochs=b"", producer_snapshot=b"")
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        memory.put(entry.aux_key, auxiliary.pack(made))
    memory.put(entry.log_key, b"records")
    report = sweep(memory)
    assert report.removed.count == 0
    assert f"{entry.aux_key} has format version 5" in report.troubles[0]
    assert data_keys(memory) == [entry.aux_key, entry.log_key]


def test_a_missing_page_keeps_every_object(place: Any, memory: Any) -> None:
    loaded = filled(place, manifests(memory), 9)
    kept = put_objects(memory, place.segment(90, 99))
    memory.delete(page_key(place.topic_id, place.partition, loaded.head.pages[0].name))
    report = sweep(memory)
    assert (report.passed_over, report.removed.count) == (1, 0)
    assert data_keys(memory) == sorted(kept)


def test_a_page_is_deleted_only_once_no_head_can_name_it(place: Any, memory: Any) -> None:
    """The page's writer may be about to write the head, however old the page is."""
    store = manifests(memory)
    loaded = filled(place, store, 4)
    late = page_key(place.topic_id, place.partition, page_name(0, uuid.UUID(int=9)))
    memory.put(late, b"{}")
    assert sweep(memory).removed.count == 0
    # The head has moved to the next page number, so a head with page 0 would lose its
    # compare-and-set.
    loaded = copy(store, loaded, place.segment(4, 4))
    assert loaded.head.next_page == 1
    assert sweep(memory).removed.count == 1
    assert page_keys(place, memory) == [ref.name for ref in loaded.head.pages]
    late = page_key(place.topic_id, place.partition, page_name(1, uuid.UUID(int=9)))
    memory.put(late, b"{}")
    assert sweep(memory).removed.count == 0
    # No head follows a tombstone, so every page can be deleted.
    store.commit(loaded, lambda head: transitions.make_tombstone(head, now_ms=5))
    assert sweep(memory).removed.count == 1
    assert late not in memory.objects


def test_every_object_of_a_deleted_topic_is_deleted(place: Any, memory: Any) -> None:
    store = manifests(memory)
    loaded = store.create(place.head())
    store.commit(loaded, lambda head: transitions.make_tombstone(head, now_ms=5))
    put_objects(memory, place.segment(0, 9))
    assert sweep(memory).removed.count == 2


def test_unfinished_uploads_are_aborted(place: Any, memory: Any) -> None:
    store, live = manifests(memory), place.segment(0, 9)
    store.commit(store.commit(store.create(place.head()), start(live)), finish(live))
    lost = place.segment(10, 19)
    memory.uploads = [
        UnfinishedUpload(lost.log_key, "old", 0),
        UnfinishedUpload(lost.log_key, "young", NOW_MS),
        # A temporary file in a directory: its purpose is unknown, so it is kept for a day.
        UnfinishedUpload("", "temporary", NOW_MS - 2 * DELAY_MS),
    ]
    report = sweep(memory)
    assert (report.uploads.count, report.waiting.count, report.uploads_removed) == (3, 2, 1)
    assert [upload.upload_id for upload in memory.uploads] == ["young", "temporary"]


def test_a_sweep_keeps_a_limited_number_of_keys_in_memory(
    place: Any, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit does not depend on the number of keys. Without orphans no page is read twice."""
    monkeypatch.setattr(sweeper, "KEYS_AT_ONCE", 4)
    loaded = filled(place, manifests(memory), 21)
    pages = manifests(memory).pages(place.topic_id, place.partition)
    put_objects(memory, *queries.live_segments(loaded.head, pages))
    # Progress is reported after each batch of keys, and reads of pages are counted.
    seen: list[int] = []
    reads: list[str] = []
    real = memory.get
    memory.get = lambda key: (reads.append(key), real(key))[1]
    Sweeper(
        tier_on(memory),
        now_ms=lambda: NOW_MS,
        delay_ms=0,
        progress=lambda report: seen.append(report.looked_at),
    ).run()
    assert seen[:3] == [4, 8, 12]
    of_pages = [key for key in reads if key.startswith("pages/")]
    assert sorted(of_pages) == sorted(set(of_pages))


def test_one_sweeper_at_a_time(memory: Any) -> None:
    now_ms = NOW_MS
    first = SweepLease(memory, "broker 1", lambda: now_ms).take()
    second = SweepLease(memory, "broker 2", lambda: now_ms)
    with pytest.raises(
        SweepLeaseTaken, match="broker 1 sweeps this store: wait for it, at most 120"
    ):
        second.take()
    # The first sweeper has not renewed its lease in time and must stop.
    now_ms += LEASE_MS
    second.take()
    with pytest.raises(SweepLeaseTaken, match="broker 2"):
        first.keep()
    # The end of a sweeper without the lease does not count as a completed sweep.
    first.end(done=True)
    assert second.swept_ms() == 0
    second.end(done=True)
    assert first.swept_ms() == now_ms
    first.take()


def test_objects_are_swept_without_permission_to_list_uploads(place: Any, memory: Any) -> None:
    """Credentials that suffice for copying must suffice to sweep objects."""
    manifests(memory).create(place.head())
    put_objects(memory, place.segment(0, 9))

    def unfinished() -> Any:
        raise StoreUnavailable("allow them", reason="StoreAccessDenied", retriable=True)
        yield

    memory.unfinished = unfinished
    report = sweep(memory)
    assert (report.removed.count, report.passed_over, report.troubles) == (2, 1, ["allow them"])


def test_unprintable_names_are_escaped(memory: Any) -> None:
    for name in ("data/a\nb/x", "data/\udcff/x", "data/\x1b[31m/x"):
        memory.put(name, b"")
    assert list(sweep(memory).unknown) == ["data/\\x1b[31m/", "data/a\\nb/", "data/\\udcff/"]


def test_a_clock_far_ahead_does_not_block_later_sweeps(memory: Any) -> None:
    """The record of that broker claims that its sweep lasts for years, and later that it is
    complete."""
    year_ms = 365 * 24 * 3600 * 1000
    SweepLease(memory, "ahead", lambda: NOW_MS + year_ms).take()
    present = SweepLease(memory, "present", lambda: NOW_MS).take()
    present.end(done=True)
    ahead = SweepLease(memory, "ahead", lambda: NOW_MS + year_ms).take()
    ahead.end(done=True)
    assert (present.swept_ms(), ahead.swept_ms()) == (0, NOW_MS + year_ms)
    # A difference of one minute is normal and respected.
    SweepLease(memory, "a little ahead", lambda: NOW_MS + 60_000).take()
    with pytest.raises(SweepLeaseTaken, match="a little ahead"):
        present.take()


def test_a_lost_lease_ends_the_sweep_before_any_deletion(place: Any, memory: Any) -> None:
    manifests(memory).create(place.head())
    put_objects(memory, place.segment(0, 9))
    now_ms = NOW_MS
    lease = SweepLease(memory, "slow", lambda: now_ms).take()
    work = Sweeper(tier_on(memory), now_ms=lambda: now_ms, delay_ms=0, lease=lease)
    now_ms += LEASE_MS
    SweepLease(memory, "other", lambda: now_ms).take()
    with pytest.raises(SweepLeaseTaken):
        work.run()
    assert len(data_keys(memory)) == 2


def test_a_lost_response_does_not_lose_the_lease(memory: Any) -> None:
    """The client retried internally, so its own success looks like a conflict."""
    lease = SweepLease(memory, "me", lambda: NOW_MS)
    real = memory.create

    def create(key: str, data: bytes) -> Any:
        real(key, data)
        return real(key, data)

    memory.create = create
    lease.take()
    # The lease is held: another sweeper does not get it.
    with pytest.raises(SweepLeaseTaken, match="me sweeps this store"):
        SweepLease(memory, "other", lambda: NOW_MS).take()


def test_a_failing_store_ends_the_sweep(place: Any, memory: Any) -> None:
    manifests(memory).create(place.head())
    put_objects(memory, place.segment(0, 9))

    def delete_many(_: Any) -> None:
        raise StoreUnavailable("SlowDown", reason="SlowDown", retriable=True)

    memory.delete_many = delete_many
    with pytest.raises(StoreUnavailable):
        sweep(memory)
