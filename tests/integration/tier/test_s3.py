"""The S3 store on a real MinIO: the port's rules, the meaning of absence, and lost responses."""

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio import Minio

from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.identity import WrongStore, ensure_identity
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim, new_head
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import open_tier
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.integrity import digest_of
from tidemark.tier.segments.remote_storage_manager import SegmentData, decode_custom_metadata
from tidemark.tier.stores.bucket import REQUEST_S
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tiering import Tiering, TieringState

TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
ONE = Claim(1, 0)


@pytest.fixture
def config(minio: Any) -> S3Config:
    """Configuration with two fresh buckets."""
    address = urlsplit(minio.endpoint).netloc
    client = Minio(address, access_key=minio.access_key, secret_key=minio.secret_key, secure=False)
    buckets = tuple(f"tier-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for bucket in buckets:
        client.make_bucket(bucket)
    return S3Config(
        endpoint=minio.endpoint,
        buckets=buckets,
        access_key_id=minio.access_key,
        secret_access_key=minio.secret_key,
        prefix="some/prefix",
    )


@pytest.fixture
def store(config: S3Config) -> S3Store:
    return S3Store(config)


def calls_of(store: S3Store) -> list[Callable[[], object]]:
    """Return every operation of the port once."""
    return [
        lambda: store.get("k"),
        lambda: store.get_range("k", 0, 1),
        lambda: store.put("k", b"x"),
        lambda: store.create("c", b"x"),
        lambda: store.replace("k", b"x", Version('"x"')),
        lambda: store.delete("k"),
        lambda: store.delete_many(["k", "l"]),
        lambda: list(store.list("")),
    ]


def test_store_with_conditional_writes_passes_the_probe(store: S3Store) -> None:
    check_conditional_writes(store, now_ms=2**50)
    assert list(store.list("")) == []


def test_objects_round_trip(store: S3Store) -> None:
    store.put("a/b", b"12345")
    assert store.get("a/b").data == b"12345"
    # End-exclusive ranges; a range beyond the end is cut.
    assert store.get_range("a/b", 1, 3) == b"23"
    assert store.get_range("a/b", 3, 99) == b"45"
    assert store.get_range("a/b", 5, 99) == b""
    # 16 MiB are uploaded in several parts, three bytes in one request.
    whole = b"0123456789abcdef" * (1 << 20)
    store.put_stream(
        "x/whole", (whole[at : at + 1_000_000] for at in range(0, 16 << 20, 1_000_000))
    )
    store.put_stream("x/few", iter([b"12", b"", b"3"]))
    assert store.get_range("x/whole", 7, 17 << 20) == whole[7:]
    assert store.get("x/few").data == b"123"
    found = [(info.key, info.size_bytes) for info in store.list("x/")]
    assert found == [("x/few", 3), ("x/whole", 16 << 20)]
    # Deleting an object twice is no error.
    for key in ("x/few", "x/few", "x/whole", "a/b"):
        store.delete(key)
    assert list(store.list("")) == []


@pytest.mark.parametrize("good", [0, 3, 20])
def test_stream_that_ends_early_stores_nothing(store: S3Store, good: int) -> None:
    def failing() -> Iterator[bytes]:
        yield from (bytes(1 << 20) for _ in range(good))
        raise ValueError("the file is shorter")

    with pytest.raises(ValueError, match=r"^the file is shorter$"):
        store.put_stream("x", failing())
    # Neither an object nor an unfinished upload.
    assert list(store.list("")) == []


def test_many_objects_are_deleted_in_bulk(config: S3Config) -> None:
    """More keys than one DeleteObjects may name, some of which do not exist."""
    store = S3Store(config)
    for number in range(3):
        store.put(f"d/{number * 600}", b"x")
    store.put("d/kept", b"x")
    store.delete_many([f"d/{number}" for number in range(1201)])
    assert [info.key for info in store.list("")] == ["d/kept"]


def test_compare_and_set(store: S3Store) -> None:
    first = store.create("h/1", b"one")
    assert store.get("h/1").version == first
    with pytest.raises(AlreadyExists):
        store.create("h/1", b"other")
    second = store.replace("h/1", b"two", first)
    # An outdated and an invalid version.
    for expected in (first, Version('"nonsense"')):
        with pytest.raises(PreconditionFailed):
            store.replace("h/1", b"three", expected)
    with pytest.raises(PreconditionFailed):
        store.replace("h/2", b"three", first)
    assert (store.get("h/1").data, store.get("h/1").version) == (b"two", second)


def test_missing_object_is_not_found(store: S3Store) -> None:
    with pytest.raises(ObjectNotFound):
        store.get("a")
    with pytest.raises(ObjectNotFound):
        store.get_range("a", 0, 1)


def test_missing_bucket_is_unavailable(config: S3Config) -> None:
    for call in calls_of(S3Store(config, "no-such-bucket")):
        with pytest.raises(StoreUnavailable, match="create it, or correct the name") as caught:
            call()
        assert (caught.value.reason, caught.value.retriable) == ("BucketMissing", False)


@pytest.mark.parametrize("wrong", [{"secret_access_key": "wrong"}, {"access_key_id": "wrong"}])
def test_wrong_credentials_are_unavailable(config: S3Config, wrong: dict[str, str]) -> None:
    for call in calls_of(S3Store(replace(config, **wrong))):  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable, match="correct the credentials") as caught:
            call()
        assert (caught.value.reason, caught.value.retriable) == ("StoreAccessDenied", False)
        # The secret is not in any message.
        assert config.secret_access_key not in str(caught.value)


def test_refusing_endpoint_is_unavailable(config: S3Config) -> None:
    with socket.socket() as bound:  # bound, and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        store = S3Store(replace(config, endpoint=f"http://127.0.0.1:{port}"))
        for call in calls_of(store):
            with pytest.raises(StoreUnavailable, match="does not answer: check that") as caught:
                call()
            assert (caught.value.reason, caught.value.retriable) == ("StoreUnreachable", True)


@pytest.mark.slow
def test_silent_endpoint_times_out(config: S3Config) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = S3Store(replace(config, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            store.get("k")
        assert time.monotonic() - began < REQUEST_S + 5


def test_other_web_server_is_not_an_empty_store(config: S3Config) -> None:
    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            # A 404 of any web server must not count as a missing object.
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")

    with serving(answer) as endpoint, pytest.raises(StoreUnavailable) as caught:
        S3Store(replace(config, endpoint=endpoint)).get("k")
    assert caught.value.reason == "StoreNotS3"


def test_identity(store: S3Store, config: S3Config) -> None:
    store_id = ensure_identity(store, "c1", "")
    assert ensure_identity(store, "c1", store_id) == store_id
    # Another prefix is another store.
    with pytest.raises(WrongStore):
        ensure_identity(S3Store(replace(config, prefix="another")), "c1", store_id)


class TestLostAnswers:
    """A proxy loses the first response: the write has happened, and the client inside obstore
    repeats it and finds its own effect."""

    def test_own_claim_is_recognised(self, config: S3Config, store: S3Store) -> None:
        loaded = ManifestStore(store).create(_head())
        # The proxy loses the response of the claim's conditional write.
        with _losing_an_answer(config.endpoint) as endpoint:
            lossy = ManifestStore(S3Store(replace(config, endpoint=endpoint)))
            after = lossy.commit(loaded, _claim(Claim(2, 0)))
            del lossy
        assert (after.head.version, after.head.claim) == (2, Claim(2, 0))
        assert after == ManifestStore(store).load(TOPIC_ID, 0)

    def test_own_head_is_recognised(self, config: S3Config, store: S3Store) -> None:
        with _losing_an_answer(config.endpoint) as endpoint:
            loaded = ManifestStore(S3Store(replace(config, endpoint=endpoint))).create(_head())
        assert loaded == ManifestStore(store).load(TOPIC_ID, 0)

    def test_own_identity_is_recognised(self, config: S3Config, store: S3Store) -> None:
        with _losing_an_answer(config.endpoint) as endpoint:
            store_id = ensure_identity(S3Store(replace(config, endpoint=endpoint)), "c1", "")
        assert ensure_identity(store, "c1", store_id) == store_id


def test_partition_lifecycle_in_two_buckets(config: S3Config, tmp_path: Path) -> None:
    """Claim, copy through pages, read, expire, delete, disable with Delete: nothing is left."""
    tier = open_tier(config)
    # Four entries per page, so twelve segments need pages.
    manifests = ManifestStore(tier.store, page_entries=4)
    log = tmp_path / "log"
    log.write_bytes(b"records" * 1000)
    aux = Aux(offset_index=b"o", time_index=b"t", leader_epochs=b"e", producer_snapshot=b"p")
    loaded = manifests.commit(manifests.create(_head()), _claim(ONE))
    pages = manifests.pages(TOPIC_ID, 0)
    # Twelve segments, each committed before and after its copy.
    for n in range(12):
        entry = _segment(n)
        loaded = manifests.commit(loaded, lambda h, e=entry: transitions.start_copy(h, ONE, e))  # type: ignore[misc]
        copied = tier.segments.copy_segment(entry, SegmentData(log, 7000, aux))
        loaded = manifests.commit(
            loaded,
            lambda h, e=entry, c=copied: transitions.finish_copy(  # type: ignore[misc]
                h, ONE, e, c.custom_metadata, c.digests
            ),
        )
    snapshot, plan = tier.reader.plan(TOPIC_ID, 0, 3, 115)
    # The first and the last range of the plan; both are cut to the requested offsets.
    assert [(r.from_offset, r.to_offset_inclusive) for r in plan][::11] == [(3, 9), (110, 114)]
    assert {tier.segments.fetch(r.entry, 7, 21) for r in plan} == {b"recordsrecords"}
    assert tier.segments.fetch_aux(plan[0].entry) == replace(
        aux, pieces=(digest_of(log.read_bytes()),)
    )
    used = {decode_custom_metadata(r.entry.custom_metadata or b"")[0] for r in plan}
    # Segments are distributed over both buckets.
    assert used == set(config.buckets)
    assert snapshot.version == loaded.version

    loaded = manifests.commit(
        loaded,
        lambda h: transitions.disable_delete(
            h,
            Claim(1, 1),
            cluster_id="c1",
            broker_id=1,
            log_start_offset=118,
            now_ms=10,
            delete_delay_ms=5,
        ),
    )
    # One millisecond before the delay of the deletion is over.
    assert queries.pending_deletes(loaded.head, pages, now_ms=14, delay_ms=5) == ()
    due = queries.pending_deletes(loaded.head, pages, now_ms=15, delay_ms=5)
    tier.segments.delete([item.entry for item in due])
    loaded = manifests.commit(loaded, lambda h: transitions.finish_delete(h, Claim(1, 1), due))
    # An empty commit removes pages that no longer have entries.
    loaded = manifests.commit(loaded, lambda h: h)
    assert loaded.head.is_empty
    assert list(tier.segments.list_topic("flights", TOPIC_ID)) == []
    assert [info.key.split("/")[0] for info in tier.store.list("")] == ["heads"]


def _head() -> Any:
    return new_head(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=0,
        cluster_id="c1",
        leader_epoch=0,
        tiering=Tiering(TieringState.ENABLED, 0),
        broker_id=1,
        log_start_offset=0,
    )


def _claim(by: Claim) -> Any:
    return lambda head: transitions.claim(
        head,
        by.leader_epoch,
        Tiering(TieringState.ENABLED, by.tiered_epoch),
        cluster_id="c1",
        broker_id=1,
        now_ms=1,
    )


def _segment(number: int) -> SegmentEntry:
    return new_segment(
        topic="flights",
        topic_id=TOPIC_ID,
        partition=0,
        segment_id=uuid.uuid4(),
        start_offset=number * 10,
        end_offset_inclusive=number * 10 + 9,
        max_timestamp_ms=number,
        size_bytes=7000,
        broker_id=1,
        event_time_ms=1,
        leader_epochs=((0, 0),),
        leader_epoch=1,
        tiered_epoch=0,
    )


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that passes each connection to ``answer`` in a thread of its own."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    # Shutting the listener down ends accept with an error.
                    return
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            for thread in threads:
                thread.join(10)


@contextlib.contextmanager
def _losing_an_answer(upstream: str) -> Iterator[str]:
    """Run a proxy that loses the first successful response to a PUT."""
    host, port = urlsplit(upstream).netloc.split(":")
    left = [1]
    lock = threading.Lock()

    def swallow(request: bytes, answer: bytes) -> bool:
        with lock:
            if (
                # Only successful writes: the effect has happened when the response is lost.
                not left[0]
                or not request.startswith(b"PUT ")
                or not answer.startswith(b"HTTP/1.1 200")
            ):
                return False
            left[0] -= 1
            return True

    def proxy(client: socket.socket) -> None:
        with client, socket.create_connection((host, int(port))) as server:
            client.settimeout(10)
            server.settimeout(10)
            with contextlib.suppress(OSError):
                while request := _message(client):
                    server.sendall(request)
                    answer = _message(server)
                    if swallow(request, answer):
                        return
                    client.sendall(answer)

    with serving(proxy) as endpoint:
        yield endpoint
    assert left == [0], "no answer was lost"


def _message(connection: socket.socket) -> bytes:
    """Read one HTTP message with a Content-Length; return nothing at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    length = int(fields.get(b"content-length", b"0"))
    while len(body) < length:
        part = connection.recv(65536)
        if not part:
            return b""
        body += part
    return head + b"\r\n\r\n" + body
