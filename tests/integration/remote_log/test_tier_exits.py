"""The remedies of the tier's condition reasons: the reason clears, and no record is lost.

``tests/unit/repository/test_condition_exits.py`` lists which test covers which reason.
"""

import errno
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.forward_proxy import serving
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import swept_clean
from tests.integration.remote_log.test_store_faults import all_is_well, copied_before
from tests.integration.remote_log.tiered_cluster import TieredCluster
from tests.integration.remote_log.tiered_host import TOPIC_ID, TieredHost
from tests.integration.remote_log.watched_store import watched_leader
from tests.s3 import administrator
from tests.s3_stub import Behaviour, S3Stub
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.codec import encode_head
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments.remote_storage_manager import (
    Copied,
    RemoteStorageManager,
    SegmentData,
)
from tidemark.tier.stores import directory
from tidemark.tier.stores.objects import NO_BUCKET, StoreError
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.remote import RemoteUnavailable

RECORDS = 600


async def until_reported(host: TieredHost, reason: str, *expected: str) -> None:
    """Wait until the status has this reason; its message must contain these expected."""
    await host.until(lambda: host.summary.error_reason == reason, 30)
    text = host.summary.error_message
    assert all(word in text for word in expected), text


async def read_all(host: TieredHost) -> None:
    """Read every offset that is only in the tier."""
    await host.upkeep.apply_retention()
    end = host.partition.log.local_log_start_offset
    assert end > 0
    assert await host.read_tier(0, end) == list(range(4, end, 5))


# ---------------------------------------------------------------- what the file system does


@pytest.mark.parametrize(
    ("number", "reason", "advice"),
    [
        (errno.ENOSPC, "StoreFull", "make room"),
        (errno.EACCES, "StorePermissionDenied", "give the broker's user write permission"),
        (errno.EIO, "StoreInputOutputError", "check the file system"),
    ],
    ids=["full", "not-allowed", "broken"],
)
async def test_file_system_that_refuses_and_is_repaired(
    host: TieredHost, monkeypatch: pytest.MonkeyPatch, number: int, reason: str, advice: str
) -> None:
    await copied_before(host)
    rename = os.rename

    # Only the store renames relative to an open directory; the broker's own log does not.
    def refused(source: Any, target: Any, **more: Any) -> None:
        if "dst_dir_fd" in more:
            raise OSError(number, os.strerror(number))
        rename(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "rename", refused)
        await host.produce(300)
        await until_reported(host, reason, advice)
    await all_is_well(host, RECORDS)


async def test_folder_cleaned_by_another_program_is_reported_and_recovers(
    host: TieredHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied_before(host)
    rename = os.rename

    def cleaned(source: Any, target: Any, **more: Any) -> None:
        if "dst_dir_fd" in more:
            raise FileNotFoundError(errno.ENOENT, "its folder was removed just now")
        rename(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "rename", cleaned)
        await host.produce(300)
        await until_reported(host, "StoreDirectoryUnstable", "is another program cleaning")
    await all_is_well(host, RECORDS)


# ---------------------------------------------------------------- objects that are not there


@contextmanager
def away(host: TieredHost, folder: str) -> Iterator[Path]:
    """Move the newest object below a folder out of the store, and bring it back."""
    # Names are ordered by offset, so the largest is the newest object.
    found = max((host.tier_path / folder).rglob("*.*"), key=lambda path: path.name)
    kept = shutil.move(found, host.tier_path.with_name("kept"))
    try:
        yield found
    finally:
        found.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(kept, found)


async def test_missing_page_is_reported_and_recovers_once_restored(host: TieredHost) -> None:
    """An object of one of its segments is missing, too, so the page cannot be rebuilt."""
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(400)
    await host.copied()
    ref = host.head().pages[-1]
    entry = host.tier().manifests.pages(TOPIC_ID, 0)[ref.name].entries[-1]
    with away(host, "pages") as page:
        # Without it the page cannot be rebuilt from its segments.
        kept = shutil.move(host.tier_path / entry.aux_key, host.tier_path.with_name("kept.aux"))
        await host.apply(leader_epoch=3)
        # Deleting records below 300 needs the entries of that page.
        log_start.delete_records(host.partition, 300)
        await until_reported(host, "ManifestPageNotFound", page.stem, "restore that object")
        shutil.move(kept, host.tier_path / entry.aux_key)
    await host.until(lambda: not host.summary.error_reason)
    await host.until(lambda: host.head().log_start_offset == 300)
    await host.until(lambda: len(host.objects()) == 2 * len(host.live()))


async def test_damaged_head_is_reported_and_recovers_once_restored(host: TieredHost) -> None:
    await copied_before(host)
    (head,) = (host.tier_path / "heads").rglob("*.json")
    sound = head.read_bytes()
    # No valid JSON: as written by a newer version, or truncated.
    head.write_bytes(b"{")
    await host.produce(300)
    await until_reported(host, "ManifestCorrupt", "upgrade")
    assert head.read_bytes() == b"{", "The operator does not create another one"
    head.write_bytes(sound)
    await all_is_well(host, RECORDS)


async def test_missing_segment_is_reported_and_recovers_once_restored(host: TieredHost) -> None:
    """Only clients received the error, and might retry forever."""
    await copied_before(host)
    with away(host, "data") as segment:
        with pytest.raises(RemoteUnavailable, match=segment.stem):
            await read_all(host)
        await until_reported(host, "RemoteObjectMissing", segment.stem, "restore the object")
    await read_all(host)
    await host.until(lambda: not host.summary.error_reason)


async def test_missing_segment_is_cleared_by_deleting_its_records(host: TieredHost) -> None:
    await copied_before(host)
    first = min((host.tier_path / "data").rglob("*.log"), key=lambda path: path.name)
    first.unlink()
    with pytest.raises(RemoteUnavailable, match=first.stem):
        await read_all(host)
    await until_reported(host, "RemoteObjectMissing", "RecordDeletion before offset")
    before = int(host.summary.error_message.rpartition(" ")[2])
    log_start.delete_records(host.partition, before)
    await host.until(lambda: not host.summary.error_reason)
    assert host.head().log_start_offset == before


# ---------------------------------------------------------------- what a manifest does not allow


async def test_full_manifest_recovers_with_a_shorter_retention(
    host: TieredHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three pages of two entries: the manifest is full after a few segments.
    monkeypatch.setattr(transitions, "PAGES_MAX", 3)
    await watched_leader(host, lambda *_: None, page_entries=2)
    await host.produce(RECORDS)
    await until_reported(host, "ManifestRefused", "use larger segments or a shorter retention")
    end = host.partition.log.highest_remote_offset
    # A shorter retention removes old entries and makes room.
    host.config["retention.bytes"] = "8192"
    await host.apply()
    await host.upkeep.apply_retention()
    await host.until(lambda: host.partition.log.highest_remote_offset > end, 30)
    await host.until(lambda: not host.summary.error_reason)


async def test_records_missing_on_the_leader_are_copied_by_the_next_leader(
    cluster: TieredCluster,
) -> None:
    """An older head was brought back by hand, under a newer version, and the leader's own log has
    expired since."""
    leader, other = cluster.hosts[1], cluster.hosts[2]
    await leader.produce(100)
    await leader.copied()
    (head,) = (leader.tier_path / "heads").rglob("*.json")
    # The head with 100 records; 100 more are tiered after it.
    older = leader.head()
    await leader.produce(100)
    await leader.copied()
    await other.until(lambda: other.partition.next_offset == 200)
    # The leader deletes its local records, relying on the head that names their copies.
    await leader.upkeep.apply_retention()
    # A higher version with old contents: no broker can tell it from a legitimate commit.
    head.write_bytes(encode_head(replace(older, version=leader.head().version + 9, commit_id="x")))
    await cluster.apply(leader=1, leader_epoch=2)
    await leader.produce(50)  # a segment is closed that would be copied
    await until_reported(leader, "LocalDataMissing", "Elect a replica that has the")
    # The follower has kept its local records, so it can copy the missing range.
    await other.until(lambda: other.partition.next_offset == 250)
    await cluster.apply(leader=2, leader_epoch=3)
    await other.copied()
    assert not other.summary.error_reason
    await read_all(other)
    # Segments that the lost head had named are orphans now.
    swept_clean(other)  # what the lost head had named


# ---------------------------------------------------------------- configuration


async def test_missing_remote_storage_is_reported_and_recovers(host: TieredHost) -> None:
    await copied_before(host)
    states = host.states
    # States without a remote storage, as after its removal from the Cluster.
    host.states = lambda: replace(states(), remote_storage="")  # type: ignore[method-assign]
    await host.apply()
    await host.produce(300)
    await until_reported(host, "RemoteStorageNotConfigured", "set remoteStorage in the Cluster")
    host.states = states  # type: ignore[method-assign]
    await host.apply()
    await all_is_well(host, RECORDS)


async def test_invalid_remote_storage_recovers_once_corrected(host: TieredHost) -> None:
    await copied_before(host)
    sound, host.store = host.store, {"s3": {}}  # type: ignore[dict-item]
    await host.apply()
    await host.produce(300)
    await until_reported(host, "InvalidRemoteStorage", "remoteStorage")
    host.store = sound
    await host.apply()
    await all_is_well(host, RECORDS)


async def test_store_that_fails_in_an_unknown_way_is_retried(
    host: TieredHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copied_before(host)
    guard = "tidemark_broker.remote_log.store.ensure_identity"

    def fails(*_: object) -> str:
        raise RuntimeError("the library has no words for this")

    with monkeypatch.context() as patch:
        patch.setattr(guard, fails)
        # Make the guard verify the store again, which now fails in an unforeseen way.
        host.remote._shared.guard.suspect(StoreError("failed"))
        await host.until(lambda: "no words for this" in host.remote.status().error)
        await host.produce(300)
        await until_reported(host, "RemoteStorageUnavailable", "no words for this")
    await all_is_well(host, RECORDS)


class Opaque(RemoteStorageManager):
    """Another plugin: its custom metadata is its own business."""

    def copy_segment(self, entry: SegmentEntry, data: SegmentData) -> Copied:
        return replace(super().copy_segment(entry, data), custom_metadata=b"opaque")

    def _bucket_of(self, entry: SegmentEntry) -> str:
        return NO_BUCKET


async def test_segments_of_another_plugin_need_that_plugin(host: TieredHost) -> None:
    await host.apply()
    await host.until(lambda: not host.remote.status().error)
    # The plugin of another vendor: its custom metadata cannot be interpreted by the built-in one.
    guard = host.remote._shared.guard
    built_in = guard.tier()
    foreign = replace(built_in, segments=Opaque(built_in.segments._buckets))
    guard._tier = foreign
    await host.produce(300)
    await host.copied()
    # The built-in plugin is configured again, and cannot locate those segments.
    guard._tier = built_in
    with pytest.raises(RemoteUnavailable, match="configure that one"):
        await read_all(host)
    # Deletion of such a segment has to fail as well, instead of losing its objects.
    log_start.delete_records(host.partition, 100)
    await until_reported(host, "ForeignCustomMetadata", "configure that one")
    # The remedy of the message: configure the plugin that wrote the segments.
    guard._tier = foreign
    await host.until(lambda: not host.summary.error_reason)
    end = host.partition.log.local_log_start_offset
    assert await host.read_tier(100, end) == list(range(104, end, 5))
    await host.until(lambda: len(host.objects()) == 2 * len(host.live()))


# ---------------------------------------------------------------- S3

HEADERS = (
    "Content-Length: 4\r\nConnection: close\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n"
)


async def test_missing_bucket_is_reported_and_recovers_once_created(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    name = f"tier-{uuid.uuid4().hex[:12]}"
    host.store = {"s3": s3 | {"buckets": [name]}}
    await host.apply()
    await host.produce(300)
    await until_reported(host, "BucketMissing", name, "create it")
    # The remedy of the message: an administrator creates the bucket.
    administrator(s3).make_bucket(name)
    await all_is_well(host, 300)


async def test_bucket_removed_from_the_configuration_has_to_be_added_again(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    second = f"tier-{uuid.uuid4().hex[:12]}"
    administrator(s3).make_bucket(second)
    # Two buckets, over which segments are distributed.
    host.store = {"s3": s3 | {"buckets": [*s3["buckets"], second]}}
    await copied_before(host)
    # One of them is removed from the configuration, although it has segments.
    host.store = {"s3": s3}
    await host.apply(leader_epoch=2)
    await host.until(lambda: not host.remote.status().error)
    # The first segments have to be deleted, some of them in the removed bucket.
    log_start.delete_records(host.partition, 200)
    await until_reported(host, "BucketNotConfigured", second, "add it")
    host.store = {"s3": s3 | {"buckets": [*s3["buckets"], second]}}
    await host.apply(leader_epoch=3)
    await host.until(lambda: not host.summary.error_reason, 30)
    await host.until(lambda: len(host.objects()) == 2 * len(host.live()))


@pytest.mark.parametrize(
    ("answer", "reason", "advice"),
    [
        ("404 Not Found", "StoreNotS3", "correct the endpoint"),
        ("418 I am a teapot", "StoreError", "retrying"),
        ("501 Not Implemented", "StoreNotImplemented", "conditional writes"),
        ("200 OK", "StoreWithoutETags", "conditional writes"),
    ],
    ids=["no-s3", "strange", "not-implemented", "without-etags"],
)
async def test_unsuitable_server_is_reported_and_can_be_replaced(
    make_host: MakeHost, s3: dict[str, Any], answer: str, reason: str, advice: str
) -> None:
    """A 200 without an ETag is the response of a store that has none."""

    def answered(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 {answer}\r\n{HEADERS}\r\nnope".encode())

    host = make_host()
    with serving(answered) as endpoint:
        host.store = {"s3": s3 | {"endpoint": endpoint}}
        await host.apply()
        await host.produce(300)
        await until_reported(host, reason, advice)
        host.store = {"s3": s3}
        await host.apply()
        await all_is_well(host, 300)


@pytest.fixture
def s3_stub() -> Iterator[S3Stub]:
    with S3Stub() as made:
        yield made


async def test_store_that_ignores_conditional_writes_is_not_written(
    s3_stub: S3Stub, make_host: MakeHost
) -> None:
    """Also one that begins to ignore them while it is used."""
    # The store is probed for conditional writes every 100 ms.
    host = make_host(tidemark_remote_store_probe_interval_ms=100)
    host.store = {"s3": s3_stub.config}
    await copied_before(host)
    # The store begins to ignore If-Match, so two leaders could overwrite each other.
    s3_stub.behaviour = Behaviour(ignored=frozenset({"If-Match"}))
    await host.until(lambda: "WithoutConditionalWrites" in host.remote.status().error)
    before = {key for key in s3_stub.objects if "/probes/" not in key}
    # Nothing but probes is written to it.
    await host.produce(300)
    await until_reported(host, "StoreWithoutConditionalWrites", "ignores If-Match", "Use a store")
    assert {key for key in s3_stub.objects if "/probes/" not in key} == before
    s3_stub.behaviour = Behaviour()
    await all_is_well(host, RECORDS)


async def test_locked_object_is_reported_until_it_is_released(
    s3_stub: S3Stub, make_host: MakeHost
) -> None:
    host = make_host()
    host.store = {"s3": s3_stub.config}
    await copied_before(host)
    first = min(key for key in host.objects() if key.endswith(".log"))
    # One object has a legal hold; deletions are done one by one, so all others succeed.
    s3_stub.behaviour = Behaviour(errors={first: ("AccessDenied", -1)}, singly=True)
    log_start.delete_records(host.partition, host.partition.high_watermark)
    await until_reported(host, "StoreRefusesDeletes", first, "lock or legal hold")
    assert set(host.objects()) == {first}
    # The topic's deletion removes all others, names the locked one, and ends once it is released.
    await host.delete()
    with pytest.raises(RemoteUnavailable, match=first):
        await host.delete_remote()
    s3_stub.behaviour = Behaviour()
    await host.delete_remote()
    assert host.objects() == []
