"""Rules of the port to object stores, on MinIO, Versity S3 Gateway, Azurite and fake-gcs-server."""

import contextlib
import datetime as dt
import http.server
import json
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio.credentials import AssumeRoleProvider

from tests.aws import serving as serving_answers
from tests.clouds import AzureServer, GcsServer, VersityServer
from tests.forward_proxy import Deviation, Forwarded, ForwardProxy, serving
from tests.s3 import administrator, fresh_bucket, only_without
from tidemark.tier.conditional_writes import NoConditionalWrites, check_conditional_writes
from tidemark.tier.identity import WrongStore, ensure_identity
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim, new_head
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import open_store, open_tier
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.integrity import digest_of
from tidemark.tier.segments.remote_storage_manager import SegmentData, decode_custom_metadata
from tidemark.tier.stores import bucket, s3_requests
from tidemark.tier.stores.azure import azure_store
from tidemark.tier.stores.azure_config import AzureConfig
from tidemark.tier.stores.bucket import REQUEST_S
from tidemark.tier.stores.config import RemoteStorage, parse
from tidemark.tier.stores.gcs import gcs_store
from tidemark.tier.stores.gcs_config import GcsConfig
from tidemark.tier.stores.objects import (
    AlreadyExists,
    DeletesRefused,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)
from tidemark.tiering import Tiering, TieringState
from tidemark_operator.reconcile.remote_storage import RemoteStorageProblem, Terms, accept

TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
ONE = Claim(1, 0)
NOW_MS = 2**50


#: Credentials that a bucket (its name) refuses one action.
Denied = Callable[[str, str], dict[str, str]]


def error_answer(status: int, code: str, more: str = "") -> tuple[int, str]:
    """Return the status and the body of an error."""
    return status, f"<Error><Code>{code}</Code><Message>as configured</Message>{more}</Error>"


@dataclass(frozen=True)
class Place:
    """Two fresh buckets of a cloud. ``buckets``: field that names them."""

    kind: str
    fields: dict[str, Any]
    buckets: str = "buckets"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.fields[self.buckets])

    def config(self, **changes: Any) -> RemoteStorage:
        return parse({self.kind: {**self.fields, **changes}})

    def store(self, **changes: Any) -> ObjectStore:
        return open_store(self.config(**changes))


def calls_of(store: ObjectStore) -> list[Callable[[], object]]:
    """Return every operation of the port once."""
    return [
        lambda: store.get("k"),
        lambda: store.get_range("k", 0, 1),
        lambda: store.put("k", b"x"),
        lambda: store.create("c", b"x"),
        lambda: store.replace("k", b"x", Version("17")),
        lambda: store.delete("k"),
        lambda: store.delete_many(["k", "l"]),
        lambda: list(store.list("")),
    ]


class BucketStoreTests:
    """Tests of the port. A subclass has the fixture ``place``, and what its cloud answers."""

    #: Reason for a server of another kind.
    other_server = "StoreError"
    #: Changes of the configuration that make its credentials wrong.
    wrong: tuple[dict[str, str], ...] = ()
    #: More keys than a bulk request may name.
    many = 300
    #: Answers with which the cloud limits the rate.
    limits = (error_answer(503, "SlowDown"), error_answer(429, "TooManyRequests"))

    @pytest.fixture
    def store(self, place: Place) -> ObjectStore:
        return place.store()

    @pytest.fixture
    def proxy(self, place: Place) -> Iterator[ForwardProxy]:
        """Yield a way to the store on which faults happen."""
        with ForwardProxy(urlsplit(place.fields["endpoint"]).netloc) as made:
            yield made

    @pytest.fixture
    def behind(self, place: Place, proxy: ForwardProxy) -> ObjectStore:
        """The store behind the proxy."""
        return place.store(endpoint=f"http://{proxy.address}")

    @pytest.fixture
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One repetition, and one second for a request."""
        monkeypatch.setattr(bucket, "RETRIES", 1)
        monkeypatch.setattr(bucket, "REQUEST_S", 1)
        monkeypatch.setattr(s3_requests, "_ATTEMPTS", 2)
        monkeypatch.setattr(s3_requests, "TIMEOUT_S", 1)

    def skewed(self) -> Deviation:
        """Return what a wrong clock of the client does to a request."""
        raise NotImplementedError

    def test_store_with_conditional_writes_passes_the_probe(self, store: ObjectStore) -> None:
        check_conditional_writes(store, now_ms=NOW_MS)
        assert list(store.list("")) == []

    async def test_operator_accepts_the_store(self, place: Place) -> None:
        text, terms = json.dumps({place.kind: place.fields}), Terms(**TERMS, store_id="")
        accepted = await accept(text, {}, terms)
        again = await accept(text, {}, Terms(**TERMS, store_id=accepted.store_id))
        assert accepted.store_id == again.store_id != ""

    async def test_operator_refuses_a_missing_bucket(self, place: Place) -> None:
        fields = {**place.fields, place.buckets: [*place.names, "no-such-bucket"]}
        with pytest.raises(RemoteStorageProblem, match=r"no-such-bucket.* does not exist"):
            await accept(json.dumps({place.kind: fields}), {}, Terms(**TERMS, store_id=""))

    def test_objects_round_trip(self, store: ObjectStore) -> None:
        store.put("a/b", b"12345")
        assert store.get("a/b").data == b"12345"
        # End-exclusive ranges; a range beyond the end is cut.
        assert store.get_range("a/b", 1, 3) == b"23"
        assert store.get_range("a/b", 3, 99) == b"45"
        assert store.get_range("a/b", 5, 99) == b""
        assert list(store.get_parts("a/b", 1, [2, 1, 5, 5])) == [b"23", b"4", b"5", b""]
        assert list(store.get_parts("a/b", 3, [9])) == [b"45"]
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
        store.put("x/y/z/1", b"")
        assert set(store.folders("")) == {"a", "x"}
        assert [*store.folders("x/"), *store.folders("x/y/z/")] == ["y"]
        # Deleting an object twice is no error.
        for key in ("x/few", "x/few", "x/whole", "a/b", "x/y/z/1"):
            store.delete(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("good", [0, 3, 20])
    def test_stream_that_ends_early_stores_nothing(self, store: ObjectStore, good: int) -> None:
        def failing() -> Iterator[bytes]:
            yield from (bytes(1 << 20) for _ in range(good))
            raise ValueError("the file is shorter")

        with pytest.raises(ValueError, match=r"^the file is shorter$"):
            store.put_stream("x", failing())
        # Neither an object nor an unfinished upload.
        assert list(store.list("")) == []
        assert list(store.unfinished()) == []

    def test_many_objects_are_deleted(self, store: ObjectStore) -> None:
        """Most of the keys do not exist."""
        for number in range(3):
            store.put(f"d/{number * self.many // 2}", b"x")
        store.put("d/kept", b"x")
        store.delete_many([f"d/{number}" for number in range(self.many + 1)])
        assert [info.key for info in store.list("")] == ["d/kept"]

    def test_key_of_a_delete_is_required(self, store: ObjectStore) -> None:
        with pytest.raises(StoreUnavailable, match="no key"):
            store.delete("")

    def test_compare_and_set(self, store: ObjectStore) -> None:
        first = store.create("h/1", b"one")
        assert store.get("h/1").version == first
        with pytest.raises(AlreadyExists):
            store.create("h/1", b"other")
        second = store.replace("h/1", b"two", first)
        # An outdated version, and one of another object.
        for expected in (first, store.create("h/3", b"three")):
            with pytest.raises(PreconditionFailed):
                store.replace("h/1", b"three", expected)
        with pytest.raises(PreconditionFailed):
            store.replace("h/2", b"three", first)
        assert (store.get("h/1").data, store.get("h/1").version) == (b"two", second)
        # An unconditional write has a version, too.
        store.put("h/1", b"four")
        assert store.replace("h/1", b"five", store.get("h/1").version)

    def test_one_of_many_concurrent_writers_wins(self, store: ObjectStore) -> None:
        version, won = store.create("h/1", b"none"), []

        def write(number: int) -> None:
            with contextlib.suppress(PreconditionFailed):
                store.replace("h/1", f"{number}".encode(), version)
                won.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.get("h/1").data] == [f"{number}".encode() for number in won]

    def test_missing_object_is_not_found(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFound):
            store.get("a")
        with pytest.raises(ObjectNotFound):
            store.get_range("a", 0, 1)

    def test_missing_bucket_is_unavailable(self, place: Place) -> None:
        for call in calls_of(place.store(**{place.buckets: ["no-such-bucket"]})):
            with pytest.raises(StoreUnavailable, match="create it, or correct the name") as caught:
                call()
            assert (caught.value.reason, caught.value.retriable) == ("BucketMissing", False)

    def test_wrong_credentials_are_unavailable(self, place: Place) -> None:
        for wrong in self.wrong:
            for call in calls_of(place.store(**wrong)):
                with pytest.raises(
                    StoreUnavailable, match=r"correct the (credentials|key)"
                ) as caught:
                    call()
                assert (caught.value.reason, caught.value.retriable) == ("StoreAccessDenied", False)
                # The secret is not in any message.
                assert not [text for text in wrong.values() if text in str(caught.value)]

    def test_refusing_endpoint_is_unavailable(self, place: Place) -> None:
        with socket.socket() as bound:  # bound, and not listening
            bound.bind(("127.0.0.1", 0))
            store = place.store(endpoint=f"http://127.0.0.1:{bound.getsockname()[1]}")
            for call in calls_of(store):
                with pytest.raises(StoreUnavailable, match="does not answer: check that") as caught:
                    call()
                assert (caught.value.reason, caught.value.retriable) == ("StoreUnreachable", True)

    @pytest.mark.slow
    def test_silent_endpoint_times_out(self, place: Place) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            store = place.store(endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}")
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                store.get("k")
            assert time.monotonic() - began < REQUEST_S + 5

    def test_other_web_server_is_not_an_empty_store(self, place: Place) -> None:
        def answer(connection: socket.socket) -> None:
            with connection:
                connection.recv(65536)
                # A 404 of any web server must not count as a missing object.
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")

        with serving(answer) as endpoint, pytest.raises(StoreUnavailable) as caught:
            place.store(endpoint=endpoint).get("k")
        assert caught.value.reason == self.other_server
        assert "correct the endpoint" in str(caught.value)

    @pytest.mark.parametrize("kind", [0, 1])
    def test_throttled_requests_are_repeated(
        self, behind: ObjectStore, proxy: ForwardProxy, kind: int
    ) -> None:
        limited: set[tuple[str, str]] = set()

        def deviate(request: Forwarded) -> Deviation | None:
            # The first request of each kind to each place.
            first = (request.method, request.path) not in limited
            limited.add((request.method, request.path))
            return Deviation(answer=self.limits[kind]) if first else None

        proxy.deviate = deviate
        behind.put("k", b"123")
        version = behind.create("c", b"x")
        behind.replace("c", b"y", version)
        assert behind.get("k").data == b"123"
        assert behind.get_range("c", 0, 9) == b"y"
        assert [info.key for info in behind.list("")] == ["c", "k"]
        behind.delete_many(["k", "missing"])
        behind.delete("c")
        assert list(behind.list("")) == []
        assert {method for method, _ in limited} >= {"PUT", "GET"}

    def test_lasting_throttling_is_reported(
        self, behind: ObjectStore, proxy: ForwardProxy, impatient: None
    ) -> None:
        for limit in self.limits:
            proxy.deviate = lambda _, limit=limit: Deviation(answer=limit)  # type: ignore[misc]
            for call in (*calls_of(behind), lambda: behind.put_stream("s", [bytes(9 << 20)])):
                with pytest.raises(StoreUnavailable, match="limits the rate") as caught:
                    call()
                assert (caught.value.reason, caught.value.retriable) == ("StoreThrottled", True)
        proxy.deviate = lambda _: None
        assert list(behind.list("")) == []

    def test_truncated_answers_are_never_taken_for_whole_ones(
        self, behind: ObjectStore, proxy: ForwardProxy, impatient: None
    ) -> None:
        data = secrets.token_bytes(100_000)
        keys = [f"d/{number:02}" for number in range(20)]
        for key in keys:
            behind.put(key, data)

        def cut_gets(times: int) -> None:
            left = iter(range(times))
            proxy.deviate = lambda request: (
                Deviation(body_bytes=1000)
                if request.method == "GET" and next(left, None) is not None
                else None
            )

        calls: list[tuple[Callable[[], object], object]] = [
            (lambda: behind.get(keys[0]).data, data),
            (lambda: behind.get_range(keys[0], 0, 100_000), data),
            (lambda: [info.key for info in behind.list("d/")], keys),
        ]
        for call, expected in calls:
            # One answer that breaks off may be repeated or reported.
            cut_gets(1)
            with contextlib.suppress(StoreUnavailable):
                assert call() == expected
            cut_gets(1_000_000)
            with pytest.raises(StoreUnavailable) as caught:
                call()
            assert caught.value.retriable
            cut_gets(0)
            assert call() == expected

    def test_slow_answers_are_given_up(
        self, behind: ObjectStore, proxy: ForwardProxy, impatient: None
    ) -> None:
        # A minute is longer than the test: the proxy gives up when it is closed.
        proxy.deviate = lambda _: Deviation(pause_s=60)
        for call in (lambda: behind.get("k"), lambda: behind.put("k", b"x")):
            with pytest.raises(StoreUnavailable, match="does not answer") as caught:
                call()
            assert (caught.value.reason, caught.value.retriable) == ("StoreUnreachable", True)

    def test_wrong_clock_is_reported(self, behind: ObjectStore, proxy: ForwardProxy) -> None:
        proxy.deviate = lambda _: self.skewed()
        for call in calls_of(behind):
            with pytest.raises(StoreUnavailable, match="correct the clock") as caught:
                call()
            assert (caught.value.reason, caught.value.retriable) == ("StoreClockSkewed", True)

    def test_identity(self, store: ObjectStore, place: Place) -> None:
        store_id = ensure_identity(store, "c1", "")
        assert ensure_identity(store, "c1", store_id) == store_id
        # Another prefix is another store.
        with pytest.raises(WrongStore):
            ensure_identity(place.store(prefix="another"), "c1", store_id)

    # A proxy loses the first response: the write has happened. The client inside obstore repeats it
    # and finds its own effect, or reports the failure, after which reading decides.

    def test_own_claim_is_recognised(self, place: Place, store: ObjectStore) -> None:
        loaded = ManifestStore(store).create(_head())
        # The proxy loses the response of the claim's conditional write.
        with _losing_an_answer(place.fields["endpoint"]) as endpoint:
            lossy = ManifestStore(place.store(endpoint=endpoint))
            after = lossy.commit(loaded, _claim(Claim(2, 0)))
            del lossy
        assert (after.head.version, after.head.claim) == (2, Claim(2, 0))
        assert after == ManifestStore(store).load(TOPIC_ID, 0)

    def test_own_head_is_recognised(self, place: Place, store: ObjectStore) -> None:
        with _losing_an_answer(place.fields["endpoint"]) as endpoint:
            loaded = ManifestStore(place.store(endpoint=endpoint)).create(_head())
        assert loaded == ManifestStore(store).load(TOPIC_ID, 0)

    def test_own_identity_is_recognised(self, place: Place, store: ObjectStore) -> None:
        with _losing_an_answer(place.fields["endpoint"]) as endpoint:
            store_id = ensure_identity(place.store(endpoint=endpoint), "c1", "")
        assert ensure_identity(store, "c1", store_id) == store_id

    def test_partition_lifecycle_in_two_buckets(self, place: Place, tmp_path: Path) -> None:
        """Claim, copy through pages, read, expire, delete, disable with Delete: nothing is left."""
        tier = open_tier(place.config())
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
        pieces = (digest_of(log.read_bytes(), aux.algorithm),)
        assert tier.segments.fetch_aux(plan[0].entry) == replace(aux, pieces=pieces)
        used = {decode_custom_metadata(r.entry.custom_metadata or b"")[0] for r in plan}
        # Segments are distributed over both buckets.
        assert used == set(place.names)
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


#: What the operator knows of a new store.
TERMS: dict[str, Any] = {"cluster_id": "c1", "create": False, "allowed_endpoints": frozenset()}


class TestS3(BucketStoreTests):
    other_server = "StoreNotS3"
    many = 1200
    wrong = ({"secretAccessKey": "mistaken"}, {"accessKeyId": "mistaken"})

    @pytest.fixture
    def place(self, minio: Any) -> Place:
        return _s3_place(minio)

    def skewed(self) -> Deviation:
        # The server compares the time of the signature with its own.
        past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
        return Deviation(headers={"x-amz-date": past.strftime("%Y%m%dT%H%M%SZ")})

    def test_policy_that_denies_one_action_is_named(self, place: Place, denied: Denied) -> None:
        for action, request, call in (
            ("s3:PutObject", "PUT", lambda store: store.put("k", b"x")),
            ("s3:PutObject", "PUT", lambda store: store.create("c", b"x")),
            ("s3:GetObject", "GET", lambda store: store.get("k")),
            ("s3:ListBucket", "GET", lambda store: list(store.list(""))),
            ("s3:DeleteObject", "DeleteObject", lambda store: store.delete("k")),
        ):
            place.store().put("k", b"1")
            with pytest.raises(StoreUnavailable, match=f"It refused {request}$") as caught:
                call(place.store(**denied(place.names[0], action)))
            assert caught.value.reason == "StoreAccessDenied"
        assert place.store().get("k").data == b"1"

    def test_denied_deletes_are_named_and_the_others_are_executed(
        self, place: Place, denied: Denied
    ) -> None:
        place.store().put("k", b"1")
        with pytest.raises(DeletesRefused, match="1 objects cannot be deleted, k among them"):
            place.store(**denied(place.names[0], "s3:DeleteObject")).delete_many(["k"])

    def test_invalid_version_is_a_conflict(self, store: ObjectStore) -> None:
        store.put("h/1", b"one")
        with pytest.raises(PreconditionFailed):
            store.replace("h/1", b"two", Version('"nonsense"'))

    def test_equal_bodies_have_equal_versions(self, store: ObjectStore) -> None:
        assert store.create("h/1", b"one") == store.create("h/2", b"one")

    @pytest.fixture
    def denied(self, minio: Any) -> Denied:
        """Return keys of a session that may do everything but one action."""

        def deny(name: str, action: str) -> dict[str, str]:
            policy = json.dumps(only_without((action,), name))
            keys = {"access_key": minio.access_key, "secret_key": minio.secret_key}
            provider = AssumeRoleProvider(sts_endpoint=minio.endpoint, policy=policy, **keys)
            found = provider.retrieve()
            return {
                "accessKeyId": found.access_key,
                "secretAccessKey": found.secret_key,
                "sessionToken": found.session_token or "",
            }

        return deny


class TestSecondS3(TestS3):
    """Another implementation of S3, on a directory."""

    @pytest.fixture
    def place(self, versity: VersityServer) -> Place:
        return _s3_place(versity)

    @pytest.fixture
    def denied(self, place: Place, versity: VersityServer) -> Denied:
        """Let a new account do everything but one action, by the bucket's policy."""

        def deny(name: str, action: str) -> dict[str, str]:
            account = versity.create_account()
            policy = only_without((action,), name, account["accessKeyId"])
            administrator(place.fields).set_bucket_policy(name, json.dumps(policy))
            return account

        return deny

    def test_credentials_that_are_revoked_end_an_upload(
        self, place: Place, versity: VersityServer, denied: Denied
    ) -> None:
        account = denied(place.names[0], "s3:PutBucketPolicy")
        store = place.store(**account)

        def parts() -> Iterator[bytes]:
            for number in range(4):
                yield bytes([number]) * (8 << 20)
                if number == 1:
                    revoked.update(versity.revoke(account["accessKeyId"]))

        revoked: dict[str, Any] = {}
        with pytest.raises(StoreUnavailable, match="correct the credentials") as caught:
            store.put_stream("k", parts())
        assert caught.value.reason == "StoreAccessDenied"
        # Nothing is visible, and the account continues once it is back.
        assert list(place.store().list("")) == []
        versity.restore(revoked)
        store.put_stream("k", [b"x"])
        assert store.get("k").data == b"x"


def _s3_place(server: Any) -> Place:
    s3 = fresh_bucket(server)
    second = f"{s3['buckets'][0]}-2"
    administrator(s3).make_bucket(second)
    return Place("s3", {**s3, "buckets": [*s3["buckets"], second]})


class TestAzure(BucketStoreTests):
    wrong = ({"credential": "d3Jvbmc="},)
    limits = (error_answer(503, "ServerBusy"), error_answer(429, "TooManyRequests"))

    def skewed(self) -> Deviation:
        # The emulator accepts all times: this is Azure's own answer.
        detail = "Request date header too old: &apos;Sun, 29 Nov 2026 20:00:00 GMT&apos;"
        return Deviation(
            answer=error_answer(
                403,
                "AuthenticationFailed",
                f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>",
            )
        )

    def test_signature_that_expires_ends_an_upload(
        self, place: Place, azurite: AzureServer
    ) -> None:
        expiry_s = time.time() + 3
        short = azurite.signature(place.names[0], hours=3 / 3600)

        def parts() -> Iterator[bytes]:
            for number in range(4):
                yield bytes([number]) * (8 << 20)
                # Half of the parts are sent in time.
                if number == 1:
                    time.sleep(max(0.0, expiry_s + 1 - time.time()))

        with pytest.raises(StoreUnavailable, match="correct the key or token") as caught:
            place.store(credential=short).put_stream("k", parts())
        assert caught.value.reason == "StoreAccessDenied"
        # Nothing is visible, and another signature continues.
        assert list(place.store().list("")) == []
        renewed = place.store(credential=azurite.signature(place.names[0]))
        renewed.put_stream("k", [bytes(8 << 20), b"x"])
        assert renewed.get_range("k", 8 << 20, 9 << 20) == b"x"

    @pytest.fixture
    def place(self, azurite: AzureServer) -> Place:
        return Place("azure", azurite.fresh(2), "containers")

    def test_shared_access_signature_suffices(self, place: Place, azurite: AzureServer) -> None:
        store = place.store(credential=azurite.signature(place.names[0]))
        check_conditional_writes(store, now_ms=NOW_MS)
        self.test_many_objects_are_deleted(store)

    @pytest.mark.parametrize("limit", [{"permissions": "rl"}, {"hours": -1}], ids=str)
    def test_signature_that_does_not_suffice_is_reported(
        self, place: Place, azurite: AzureServer, limit: dict[str, Any]
    ) -> None:
        store = place.store(credential=azurite.signature(place.names[0], **limit))
        with pytest.raises(StoreUnavailable, match="Storage Blob Data Contributor") as caught:
            store.put("k", b"x")
        assert caught.value.reason == "StoreAccessDenied"
        assert "sig=" not in str(caught.value)

    def test_workload_identity_is_sent_to_the_store(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The emulator takes tokens over HTTPS only: a server that records them takes its place."""
        (tmp_path / "token").write_text("of-the-pod")
        with _recording(json.dumps({"access_token": "t", "expires_in": 3600})) as server:
            monkeypatch.setenv("AZURE_CLIENT_ID", "client")
            monkeypatch.setenv("AZURE_TENANT_ID", "tenant")
            monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.endpoint)
            config = AzureConfig(account="acc", containers=("con",), endpoint=server.endpoint)
            with contextlib.suppress(StoreUnavailable):
                azure_store(config, "con").put("k", b"x")
        login, put = server.requests
        assert login.path == "/tenant/oauth2/v2.0/token"
        assert "client_assertion=of-the-pod" in login.body
        assert (put.path, put.authorization) == ("/acc/con/k", "Bearer t")

    def test_missing_identity_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:1/")
        config = AzureConfig(account="acc", containers=("con",), endpoint="http://127.0.0.1:1")
        _check_missing_identity(azure_store(config, "con"))


class TestGcs(BucketStoreTests):
    """The emulator checks no credentials. Where that matters, a proxy does."""

    limits = (error_answer(503, "ServiceUnavailable"), error_answer(429, "RateLimitExceeded"))

    def skewed(self) -> Deviation:
        # Google's words about a token that a wrong clock has dated.
        words = "Invalid JWT: Token must be a short-lived token and in a reasonable timeframe."
        return Deviation(
            answer=error_answer(401, "AuthenticationRequired", f"<Details>{words}</Details>")
        )

    @contextlib.contextmanager
    def expiring(self, proxy: ForwardProxy, *, ends_s: float) -> Iterator[set[str]]:
        """Serve tokens that the store accepts for a second; yield those that it has seen.

        ``ends_s``: time of the last token that is issued.
        """
        # Times of issue by token, and tokens of requests.
        issued: dict[str, float] = {}
        seen: set[str] = set()
        began_s = time.monotonic()

        def metadata(*_: object) -> tuple[int, bytes]:
            now_s = time.monotonic()
            if now_s - began_s > ends_s:
                return 404, b"no identity"
            token = f"t{len(issued)}"
            issued[token] = now_s
            return 200, json.dumps({"access_token": token, "expires_in": 1}).encode()

        # The emulator accepts every token, so the proxy refuses old ones.
        def check(request: Forwarded) -> Deviation | None:
            token = request.authorization.removeprefix("Bearer ")
            seen.add(token)
            if time.monotonic() - issued.get(token, -9) < 1:
                return None
            return Deviation(answer=error_answer(401, "AuthenticationRequired"))

        proxy.deviate = check
        with serving_answers(metadata) as address, pytest.MonkeyPatch.context() as patch:
            patch.setenv("GCE_METADATA_HOST", urlsplit(address).netloc)
            yield seen

    def test_tokens_are_renewed_during_an_upload(self, place: Place, proxy: ForwardProxy) -> None:
        config = GcsConfig(buckets=place.names, endpoint=f"http://{proxy.address}")
        with self.expiring(proxy, ends_s=60) as seen:
            store = gcs_store(config, place.names[0])
            store.put_stream("k", _slow_parts())
            assert store.get_range("k", 24 << 20, (24 << 20) + 1) == b"\x03"
        assert len(seen) >= 3

    def test_tokens_that_can_no_longer_be_renewed_end_an_upload(
        self, place: Place, proxy: ForwardProxy
    ) -> None:
        config = GcsConfig(buckets=place.names, endpoint=f"http://{proxy.address}")
        with self.expiring(proxy, ends_s=1.5), pytest.raises(StoreUnavailable) as caught:
            gcs_store(config, place.names[0]).put_stream("k", _slow_parts())
        assert caught.value.reason == "StoreCredentialsMissing"
        assert list(place.store().list("")) == []

    @pytest.fixture
    def place(self, gcs: GcsServer) -> Place:
        return Place("gcs", gcs.fresh(2))

    def test_refused_credentials_are_unavailable(self, place: Place) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"

        def answer(connection: socket.socket) -> None:
            with connection:
                connection.recv(65536)
                connection.sendall(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )

        with serving(answer) as endpoint:
            store = place.store(endpoint=endpoint)
            with pytest.raises(StoreUnavailable, match="Storage Object User") as caught:
                store.get("k")
        assert (caught.value.reason, caught.value.retriable) == ("StoreAccessDenied", False)

    def test_store_that_ignores_generations_is_refused(self, gcs: GcsServer) -> None:
        store = open_store(parse({"gcs": gcs.fresh(prefix="ignoring-")}))
        with pytest.raises(NoConditionalWrites, match="Two brokers would overwrite"):
            check_conditional_writes(store, now_ms=NOW_MS)
        assert list(store.list("")) == []

    def test_token_comes_from_the_metadata_server(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with _recording(json.dumps({"access_token": "t", "expires_in": 3600})) as server:
            monkeypatch.setenv("GCE_METADATA_HOST", urlsplit(server.endpoint).netloc)
            config = GcsConfig(buckets=place.names, endpoint=place.fields["endpoint"])
            check_conditional_writes(gcs_store(config, place.names[0]), now_ms=NOW_MS)
            # The store itself records the token that it gets.
            with contextlib.suppress(StoreUnavailable):
                gcs_store(replace(config, endpoint=server.endpoint), "bucket").put("k", b"x")
        assert "/service-accounts/default/token" in server.requests[0].path
        assert server.requests[-1].authorization == "Bearer t"

    def test_missing_identity_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
        config = GcsConfig(buckets=("bucket",), endpoint="http://127.0.0.1:1")
        _check_missing_identity(gcs_store(config, "bucket"))


def _slow_parts() -> Iterator[bytes]:
    """Yield the parts of an upload that takes longer than a token lives."""
    for number in range(4):
        yield bytes([number]) * (8 << 20)
        time.sleep(1)


def _check_missing_identity(store: ObjectStore) -> None:
    with pytest.raises(StoreUnavailable, match="has credentials: give the pod") as caught:
        store.get("k")
    assert caught.value.reason == "StoreCredentialsMissing"


@dataclass(frozen=True)
class _Request:
    path: str
    authorization: str
    body: str


@dataclass(frozen=True)
class _Recorder:
    endpoint: str
    requests: list[_Request]


@contextlib.contextmanager
def _recording(answer: str) -> Iterator[_Recorder]:
    """Run a server that records requests, and gives all of them the same answer."""
    requests: list[_Request] = []

    # Every method is handled in the same way.
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            authorization = self.headers.get("Authorization", "")
            # Recorded before the answer, so that the client cannot be ahead of the list.
            requests.append(_Request(urlsplit(self.path).path, authorization, body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer.encode())

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield _Recorder(f"http://127.0.0.1:{server.server_port}", requests)
        finally:
            server.shutdown()
            thread.join()


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
                or not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201"))
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
