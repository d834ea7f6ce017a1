"""Uploads that a crash left in an S3: found with their age, and aborted under the prefix."""

import time
import uuid
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio import Minio

from tests.clouds import VersityServer
from tests.s3 import two_buckets
from tidemark.tier.identity import ensure_identity
from tidemark.tier.maintenance.sweep_lease import SweepLease
from tidemark.tier.maintenance.sweeper import Sweeper
from tidemark.tier.metadata.head import new_head
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import open_tier
from tidemark.tier.stores import s3_requests
from tidemark.tier.stores.http_exchange import HttpResponse
from tidemark.tier.stores.objects import StoreUnavailable, UnfinishedUpload
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tiering import Tiering, TieringState

TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")


def client_of(config: S3Config) -> Any:
    address = urlsplit(config.endpoint).netloc
    keys = {"access_key": config.access_key_id, "secret_key": config.secret_access_key}
    return Minio(address, **keys, secure=False)


def begin_upload(config: S3Config, key: str, bucket: str = "") -> str:
    """Begin a multipart upload, as a copier that is killed after its first part."""
    path = f"{config.prefix}/{key}".lstrip("/")
    upload_id: str = client_of(config)._create_multipart_upload(
        bucket or config.buckets[0], path, {}
    )
    return upload_id


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_entry(start: int) -> SegmentEntry:
    return new_segment(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=uuid.uuid4(),
        start_offset=start,
        end_offset_inclusive=start + 9,
        max_timestamp_ms=1,
        size_bytes=10,
        broker_id=1,
        event_time_ms=1,
        leader_epochs=[(1, start)],
        leader_epoch=1,
        tiered_epoch=0,
    )


def test_unfinished_uploads_are_listed_and_aborted(config: S3Config) -> None:
    before_ms = now_ms() - 1000
    # Names that need escaping in requests and in XML.
    ids = {begin_upload(config, key): key for key in ("data/a b+c=d/1.log", "data/é/2.log")}
    # Another prefix belongs to another tier.
    begin_upload(replace(config, prefix="other"), "data/3.log")
    store = S3Store(config)
    found = {upload.upload_id: upload for upload in store.unfinished()}
    assert {upload_id: upload.key for upload_id, upload in found.items()} == ids
    assert all(before_ms <= upload.begun_ms <= now_ms() + 1000 for upload in found.values())
    for upload in found.values():
        store.abort(upload)
        store.abort(upload)  # a missing upload is no error
    assert list(store.unfinished()) == []
    # The upload of the other prefix is still there.
    assert len(list(S3Store(replace(config, prefix="")).unfinished())) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"secret_access_key": "wrong"}, "StoreAccessDenied"),
        ({"endpoint": "http://127.0.0.1:1"}, "StoreUnreachable"),
    ],
    ids=["key", "endpoint"],
)
def test_failure_to_list_or_abort_is_reported(
    config: S3Config, wrong: dict[str, str], reason: str
) -> None:
    store = S3Store(replace(config, **wrong))  # type: ignore[arg-type]
    for call in (
        lambda: list(store.unfinished()),
        lambda: store.abort(UnfinishedUpload("k", "u", 0)),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.reason == reason


def test_listing_that_the_store_refuses_is_reported_with_its_answer(config: S3Config) -> None:
    store = S3Store(replace(config, buckets=("no-such-bucket",)))
    with pytest.raises(StoreUnavailable, match=r"status 404 .*NoSuchBucket") as caught:
        list(store.unfinished())
    assert caught.value.reason == "StoreError"
    assert "allow the credentials" not in str(caught.value)


@pytest.mark.parametrize("page", [1, 2, 3])
def test_pages_of_uploads_are_followed(
    config: S3Config, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Also those of one key on two pages, and uploads that are aborted before the next page."""
    keys = ["data/1.log", "data/2.log", "data/2.log", "data/3.log", "data/4.log"]
    ids = sorted(begin_upload(config, key) for key in keys)
    real = s3_requests.send

    def send(*args: Any) -> HttpResponse:
        *others, query = args
        # A server returns up to 1,000 per page; a few make it paginate.
        return real(*others, {**query, "max-uploads": str(page)} if "uploads" in query else query)

    monkeypatch.setattr(s3_requests, "send", send)
    store = S3Store(config)
    # A page of one upload has no earlier key to begin at: those uploads are found by the next run.
    if page > 1:
        assert sorted(upload.upload_id for upload in store.unfinished()) == ids
    aborted = []
    for _ in range(2):
        for upload in store.unfinished():
            store.abort(upload)
            aborted.append(upload.upload_id)
    assert sorted(aborted) == ids


def test_sweep_removes_orphans_and_unfinished_uploads(config: S3Config) -> None:
    """Both buckets are swept; a copy in progress and an unknown topic are left alone."""
    tier = open_tier(config)
    ensure_identity(tier.store, "c", "")
    head = new_head(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=0,
        cluster_id="c",
        leader_epoch=1,
        tiering=Tiering(TieringState.ENABLED, 0),
        broker_id=1,
        log_start_offset=0,
    )
    under_way = new_entry(0)
    # A copy that is in progress: entry and upload exist.
    tier.manifests.create(replace(head, entries=(under_way,)))
    # An orphan of a known topic, and an object of a topic without a catalogue entry.
    lost, unknown = new_entry(10), f"data/flights-{'A' * 22}/0/{0:020d}-{'B' * 21}A.log"
    for bucket, store in tier.segments.stores.items():
        for key in (lost.log_key, under_way.log_key, unknown):
            begin_upload(config, key, bucket)
            store.put(key, b"12345")
    lease = SweepLease(tier.store, "test", now_ms).take()
    # A negative delay: everything is old enough.
    report = Sweeper(tier, now_ms=now_ms, delay_ms=-60_000, lease=lease).run()
    # In each of the two buckets one object and one upload are removed.
    assert (report.removed.count, report.uploads_removed, report.unknown_objects) == (2, 2, 4)
    for store in tier.segments.stores.values():
        left = {info.key for info in store.list("data/")}
        assert left == {under_way.log_key, unknown}
        assert {upload.key for upload in store.unfinished()} == left


class TestUploadsOnSecondS3:
    """The same on another implementation of S3, which refuses the upload ids of its own pages."""

    @pytest.fixture
    def config(self, versity: VersityServer) -> S3Config:
        return two_buckets(versity)

    test_list = staticmethod(test_unfinished_uploads_are_listed_and_aborted)
    test_refused = staticmethod(test_listing_that_the_store_refuses_is_reported_with_its_answer)
    test_pages = staticmethod(test_pages_of_uploads_are_followed)
    test_sweep = staticmethod(test_sweep_removes_orphans_and_unfinished_uploads)
