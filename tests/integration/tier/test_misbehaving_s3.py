"""S3-compatible stores that misbehave: ignored conditions, refused deletes."""

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.s3_stub import Behaviour, S3Stub
from tidemark.backoff import Backoff
from tidemark.tier import conditional_writes
from tidemark.tier.conditional_writes import NoConditionalWrites, check_conditional_writes
from tidemark.tier.open import open_store
from tidemark.tier.stores import s3_requests
from tidemark.tier.stores.config import parse
from tidemark.tier.stores.objects import DeletesRefused, StoreUnavailable
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config

NOW_MS = 2**50


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as made:
        yield made


@pytest.fixture
def store(stub: S3Stub) -> S3Store:
    made = open_store(parse({"s3": stub.config}))
    assert isinstance(made, S3Store)
    return made


@pytest.mark.parametrize(
    "ignored", [["If-Match"], ["If-None-Match"], ["If-Match", "If-None-Match"]], ids=" ".join
)
def test_store_that_ignores_a_condition_is_refused(
    stub: S3Stub, store: S3Store, ignored: list[str]
) -> None:
    stub.behaviour = Behaviour(ignored=frozenset(ignored))
    with pytest.raises(NoConditionalWrites, match=f"ignores {ignored[0]}") as caught:
        check_conditional_writes(store, now_ms=NOW_MS)
    # The reason that the Cluster's condition has.
    assert caught.value.reason == "StoreWithoutConditionalWrites"
    assert "conditional writes" in str(caught.value)
    assert stub.objects == {}


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("If-None-Match", "of concurrent writers: 4 of 4 created one object"),
        ("If-Match", "of concurrent writers: 4 of 4 replaced one version"),
    ],
)
def test_store_whose_writers_race_is_refused(
    stub: S3Stub, store: S3Store, header: str, found: str
) -> None:
    # It checks a condition and writes in two steps, so only concurrent writers notice.
    stub.behaviour = Behaviour(racing={header: "-raced"})
    with pytest.raises(NoConditionalWrites, match=f"ignores {header} {found}") as caught:
        check_conditional_writes(store, now_ms=NOW_MS)
    assert caught.value.reason == "StoreWithoutConditionalWrites"
    assert stub.objects == {}


def test_race_ends_if_a_thread_cannot_be_started(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FewThreads(ThreadPoolExecutor):
        left = 2

        def submit(self, *arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("can't start new thread")
            return super().submit(*arguments, **named)

    monkeypatch.setattr(conditional_writes, "ThreadPoolExecutor", FewThreads)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        check_conditional_writes(store, now_ms=NOW_MS)


def test_store_with_conditions_passes_and_keeps_no_probe(stub: S3Stub, store: S3Store) -> None:
    # The probe of a process that died is removed.
    stub.objects["p/probes/of-one-that-died"] = b"1"
    check_conditional_writes(store, now_ms=NOW_MS)
    assert stub.objects == {}


def filled(stub: S3Stub, store: S3Store, count: int) -> list[str]:
    keys = [f"data/t-{number:04}" for number in range(count)]
    for key in keys:
        store.put(key, b"x")
    stub.requests.clear()
    return keys


@pytest.mark.parametrize(
    "bulk",
    [(501, "NotImplemented"), (400, "MissingContentMD5"), (405, "MethodNotAllowed")],
    ids=str,
)
def test_without_bulk_deletes_objects_go_one_by_one(
    stub: S3Stub, store: S3Store, bulk: tuple[int, str]
) -> None:
    # Stores answer an unsupported bulk delete with different errors.
    stub.behaviour = Behaviour(bulk=bulk)
    for _ in range(5):
        store.delete_many(filled(stub, store, 3))
        assert stub.objects == {}
    # After some attempts bulk deletes are not tried any more.
    assert [method for method, _ in stub.requests] == ["DELETE"] * 3


def test_bulk_deletes_take_one_request(stub: S3Stub, store: S3Store) -> None:
    store.delete_many(filled(stub, store, 50))
    assert stub.objects == {}
    assert [method for method, _ in stub.requests] == ["POST"]


def test_key_refused_in_bulk_is_deleted_alone(stub: S3Stub, store: S3Store) -> None:
    keys = filled(stub, store, 10)
    stub.behaviour = Behaviour(errors={keys[4]: ("InternalError", 1)})
    store.delete_many(keys)
    assert stub.objects == {}
    # One bulk request, then the failed key on its own.
    assert [method for method, _ in stub.requests] == ["POST", "DELETE"]


@pytest.mark.parametrize("bulk", [None, (501, "NotImplemented"), (400, "InvalidRequest")], ids=str)
def test_refused_deletes_are_named_and_others_succeed(
    stub: S3Stub, store: S3Store, bulk: tuple[int, str] | None
) -> None:
    keys = filled(stub, store, 10)
    errors = {keys[0]: ("AccessDenied", -1), keys[4]: ("InvalidRequest", -1)}
    # singly: the errors apply to single deletes as well.
    stub.behaviour = Behaviour(bulk=bulk, errors=errors, singly=True)
    with pytest.raises(DeletesRefused) as caught:
        store.delete_many(keys)
    assert set(caught.value.refused) == {keys[0], keys[4]}
    # All other objects are deleted.
    assert set(stub.objects) == {f"p/{keys[0]}", f"p/{keys[4]}"}
    for expected in ("2 objects cannot be deleted", keys[0], "lock or legal hold"):
        assert expected in str(caught.value)


def test_missing_key_counts_as_deleted(stub: S3Stub, store: S3Store) -> None:
    keys = filled(stub, store, 2)
    stub.behaviour = Behaviour(errors={keys[0]: ("NoSuchKey", -1)})
    store.delete_many(keys)


@pytest.mark.parametrize("prefix", ["p", ""])
def test_error_without_a_key_never_deletes_the_bucket(stub: S3Stub, prefix: str) -> None:
    store = open_store(parse({"s3": stub.config | {"prefix": prefix}}))
    assert isinstance(store, S3Store)
    keys = filled(stub, store, 5)
    # The error list of the response has no keys, so each key is deleted on its own.
    stub.behaviour = Behaviour(errors={keys[2]: ("InternalError", 1)}, names=False)
    store.delete_many(keys)
    assert stub.objects == {}
    root = f"/stub/{prefix}".rstrip("/")
    # A DELETE of the bucket itself would have the root as its path.
    assert all(path.startswith(f"{root}/data/") for method, path in stub.requests[1:])
    with pytest.raises(StoreUnavailable, match="no key"):
        store.delete("")


@pytest.mark.parametrize("ignored", [[], ["If-Match"]], ids=["keeps", "ignores"])
def test_store_without_deletes_is_judged_by_its_writes(
    stub: S3Stub, store: S3Store, ignored: list[str]
) -> None:
    # The probe's object cannot be deleted; only the writes decide.
    errors = {"probes/": ("AccessDenied", -1)}
    stub.behaviour = Behaviour(ignored=frozenset(ignored), errors=errors, singly=True)
    stub.objects["p/probes/of-one-that-died"] = b"1"
    with pytest.raises(NoConditionalWrites) if ignored else contextlib.nullcontext():
        check_conditional_writes(store, now_ms=NOW_MS)


def _answering(pieces: Callable[[], Iterator[bytes]]) -> contextlib.AbstractContextManager[str]:
    """Return the address of a server that writes these pieces to every client, and closes the
    connection.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # Read the request's head; its body is not needed.
            while self.rfile.readline().strip():
                pass
            with contextlib.suppress(OSError):
                for piece in pieces():
                    self.wfile.write(piece)

    @contextlib.contextmanager
    def serving() -> Iterator[str]:
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            # A client that hangs must not keep the server from closing.
            server.daemon_threads, server.block_on_close = True, False
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{server.server_address[1]}"
            server.shutdown()
            thread.join()

    return serving()


def _store_at(endpoint: str) -> S3Store:
    fields = {"accessKeyId": "k", "secretAccessKey": "s", "buckets": ["stub"]}
    return S3Store(S3Config.parse({**fields, "endpoint": endpoint}))


_HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n<DeleteResult>"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # 50 ms per response and 1 ms between attempts.
    monkeypatch.setattr(s3_requests, "ANSWER_S", 0.05)
    monkeypatch.setattr(s3_requests, "_RETRY", Backoff(first_s=0.001, most_s=0.001))


def test_truncated_response_is_retried(quick: None) -> None:
    attempts = itertools.count()

    def broken_off() -> Iterator[bytes]:
        next(attempts)
        # The header promises 100,000 bytes, and the connection closes after a few.
        yield _HEADERS

    with _answering(broken_off) as endpoint:
        store = _store_at(endpoint)
        with pytest.raises(StoreUnavailable) as raised:
            store.delete_many(["a", "b"])
    assert (raised.value.reason, raised.value.retriable) == ("StoreUnreachable", True)
    # Four attempts.
    assert next(attempts) == 4


def test_endless_response_is_given_up(quick: None) -> None:
    stop = threading.Event()

    def drips() -> Iterator[bytes]:
        yield _HEADERS
        # One space every 10 ms: the connection is never idle.
        while not stop.wait(0.01):
            yield b" "

    with _answering(drips) as endpoint:
        store = _store_at(endpoint)
        with pytest.raises(StoreUnavailable, match="of its answer came in"):
            store.delete_many(["a", "b"])
        stop.set()
