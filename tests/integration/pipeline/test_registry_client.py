"""Requests to a schema registry and the handling of its answers, with a server on the loopback
that fails as registries do. test_schemas.py uses a whole registry.
"""

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.security.client_certificates import ClientAuthority
from tidemark_pipeline.errors import DependencyUnavailable, ExportError
from tidemark_pipeline.schemas.registry.access import RegistryAccess
from tidemark_pipeline.schemas.registry.client import (
    ANSWER_BYTES_MAX,
    Reference,
    Registry,
    RegistryDown,
    RegistryRefused,
    SchemaNotFound,
)
from tidemark_pipeline.schemas.schema_cache import QUERIES_MAX, Schemas
from tidemark_pipeline.schemas.sources import SchemaSource

AVRO = '{"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]}'


@dataclass
class FakeRegistry:
    """Answers by path, and 404 otherwise; ``fails`` are answers that come first."""

    answers: dict[str, Any] = field(default_factory=dict)
    fails: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        self.requests.append((path, authorization))
        if self.fails:
            return self.fails.pop(0)
        found = self.answers.get(path.partition("?")[0])
        if found is None:
            return (
                404,
                {},
                json.dumps({"error_code": 40403, "message": "Schema not found"}).encode(),
            )
        return 200, {}, json.dumps(found).encode()


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    made = FakeRegistry()
    with serving(made) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        yield made


class serving:
    def __init__(self, fake: FakeRegistry, context: ssl.SSLContext | None = None) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, body = fake.answer(
                    self.path, self.headers.get("Authorization") or ""
                )
                # Close the connection without a response.
                if status == 0:  # nothing at all
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Keep the server's log out of the output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> ThreadingHTTPServer:
        self._thread.start()
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def registry(url: str, **options: str) -> Registry:
    # A patience of five seconds bounds the retries.
    given = {"timeout": "5", "patience": "5", **options}
    return Registry(RegistryAccess.of(url, given, {}))


def test_schema_is_requested_by_its_id_and_by_its_subject(fake: FakeRegistry) -> None:
    reference = {"name": "b.proto", "subject": "b", "version": 3}
    fake.answers["/schemas/ids/7"] = {"schema": AVRO}
    # The subject has a slash, which has to be escaped.
    fake.answers["/subjects/a%2Fb-value/versions/latest"] = {
        "schema": "s", "schemaType": "PROTOBUF", "references": [reference], "id": 9, "version": 2
    }  # fmt: skip
    asks = registry(fake.url, user="me", password="secret")
    assert asks.schema(7).text == AVRO
    latest = asks.latest("a/b-value")
    assert (latest.kind, latest.id, latest.version) == ("PROTOBUF", 9, 2)
    assert latest.references == (Reference("b.proto", "b", 3),)
    assert {authorization for _, authorization in fake.requests} == {"Basic bWU6c2VjcmV0"}
    with pytest.raises(SchemaNotFound, match="Schema not found"):
        asks.schema(8)


def test_token_is_read_from_the_environment(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/7"] = {"schema": AVRO}
    access = RegistryAccess.of(fake.url, {}, {"TIDEMARK_REGISTRY_TOKEN": "t"})
    Registry(access).schema(7)
    assert fake.requests[0][1] == "Bearer t"
    assert "t'" not in repr(access)


PASSING = {
    "429": (429, {"Retry-After": "0"}, b""),
    "500": (500, {}, b'{"error_code": 50001}'),
    "503": (503, {}, b"busy"),
    "no answer": (0, {}, b""),
}


@pytest.mark.parametrize("name", PASSING)
def test_transient_failure_is_retried(fake: FakeRegistry, name: str) -> None:
    fake.answers["/schemas/ids/7"] = {"schema": AVRO}
    fake.fails = [PASSING[name]] * 2
    assert registry(fake.url).schema(7).text == AVRO
    # Two failures, then the answer.
    assert len(fake.requests) == 3


def test_another_address_is_tried_at_once(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/7"] = {"schema": AVRO}
    asks = registry(f"http://127.0.0.1:1,{fake.url}", patience="0.1")
    assert asks.schema(7).text == AVRO


def test_unavailable_registry_is_a_retriable_error(fake: FakeRegistry) -> None:
    fake.fails = [(503, {}, b"")] * 100
    with pytest.raises(RegistryDown, match="nothing is committed without it") as caught:
        registry(fake.url, patience="0.5").schema(7)
    # The job ends with a retriable error, and commits nothing.
    assert isinstance(caught.value, DependencyUnavailable)


FINAL: dict[str, tuple[tuple[int, dict[str, str], bytes], str]] = {
    "401": ((401, {}, b""), "give it a user"),
    "403": ((403, {}, b"{}"), "give it a user"),
    "a page": ((200, {}, b"<html>"), "is the address right"),
    "another 404": (
        (404, {}, b'{"error_code": 404, "message": "HTTP 404"}'),
        "is the address right",
    ),
    "elsewhere": ((302, {"Location": "http://127.0.0.2/"}, b""), "is the address right"),
    "no schema": ((200, {}, b'{"id": 7}'), "has no schema"),
    "an odd schema": ((200, {}, b'{"schema": 7}'), "has no schema"),
    "odd references": ((200, {}, b'{"schema": "", "references": [1]}'), "has no schema"),
    "a list": ((200, {}, b"[]"), "is the address right"),
    "nested": ((200, {}, b"[" * 100_000), "is the address right"),
    "endless": ((200, {}, b"x" * (ANSWER_BYTES_MAX + 1)), "more than"),
}


@pytest.mark.parametrize("name", FINAL)
def test_permanent_failure_is_reported_at_once(fake: FakeRegistry, name: str) -> None:
    answer, expected = FINAL[name]
    fake.fails = [answer]
    with pytest.raises(RegistryRefused, match=expected):
        registry(fake.url).schema(7)
    # One request only: a retry cannot change the answer.
    assert len(fake.requests) == 1


def test_certificates_are_checked_on_both_sides(tmp_path: Path) -> None:
    authority = ClientAuthority()
    server, client = (authority.leaf(tmp_path / name, f"CN={name}") for name in ("server", "me"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(server.trusted)
    context.verify_mode = ssl.CERT_REQUIRED
    shown = {"certificate": client.certificate, "key": client.key}
    with serving(FakeRegistry({"/schemas/ids/7": {"schema": AVRO}}), context) as listening:
        url = f"https://127.0.0.1:{listening.server_port}"
        assert registry(url, ca=server.trusted, **shown).schema(7).text == AVRO
        # Without the authority the server is not trusted.
        with pytest.raises(RegistryRefused, match="not trusted"):
            registry(url, **shown).schema(7)
        # Without a client certificate the handshake fails, which looks like a network error.
        with pytest.raises(RegistryDown):
            registry(url, ca=server.trusted, patience="0.3").schema(7)
    with pytest.raises(RegistryRefused, match="cannot be read"):
        registry(url, ca=str(tmp_path / "none.pem")).schema(7)


def test_schemas_are_requested_once_and_unknown_ones_again(fake: FakeRegistry) -> None:
    fake.answers["/schemas/ids/7"] = {"schema": AVRO}
    fake.answers["/schemas/ids/8"] = {"schema": "{", "schemaType": "THRIFT"}
    schemas = Schemas(registry(fake.url))
    # One schema is known, one of an unsupported type, one unknown.
    known = schemas.learn([7, 8, 9])
    assert isinstance(known[7], SchemaSource)
    assert known[8] == "schemas of type THRIFT are not supported"
    assert "does not know it" in str(known[9])
    assert set(schemas.learn(())) == {7, 8}
    # The second call requests nothing.
    assert len(fake.requests) == 3


def test_unknown_id_stops_on_request(fake: FakeRegistry) -> None:
    with pytest.raises(ExportError, match=r"schema 9: .*unknown=dead-letter"):
        Schemas(registry(fake.url, unknown="stop")).learn([9])


def test_thousands_of_ids_are_not_all_requested(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A producer of garbage could otherwise cause a request for each record.
    monkeypatch.setattr("tidemark_pipeline.schemas.schema_cache.QUERIES_MAX", 5)
    known = Schemas(registry(fake.url)).learn(range(100))
    assert len(fake.requests) == 5
    assert len(known) == 100
    assert QUERIES_MAX == 1_000
    assert "the batch has 100 unknown ids" in str(known[99])


def test_schemas_are_kept_within_bounds(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        fake.answers[f"/schemas/ids/{number}"] = {"schema": AVRO + " " * number}
    # Three schemas in memory at most.
    monkeypatch.setattr("tidemark_pipeline.schemas.schema_cache.CACHED_MAX", 3)
    schemas = Schemas(registry(fake.url))
    assert len(schemas.learn(range(8))) == 8
    assert len(schemas.known) == 3
    # A single batch whose schemas exceed the limit cannot be read.
    monkeypatch.setattr("tidemark_pipeline.schemas.schema_cache.CACHED_BYTES_MAX", 200)
    with pytest.raises(ExportError, match="maxOffsetsPerTrigger"):
        schemas.learn(range(8))


def refers(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "subject": subject, "version": 1} for name, subject in pairs]


def test_references_are_resolved_in_order(fake: FakeRegistry) -> None:
    inner = '{"type": "record", "name": "n.I", "fields": [{"name": "x", "type": "int"}]}'
    middle = '{"type": "record", "name": "n.M", "fields": [{"name": "i", "type": "n.I"}]}'
    outer = '{"type": "record", "name": "n.O", "fields": [{"name": "m", "type": "n.M"}]}'
    fake.answers["/schemas/ids/7"] = {"schema": outer, "references": refers(("n.M", "m"))}
    fake.answers["/subjects/m/versions/1"] = {"schema": middle, "references": refers(("n.I", "i"))}
    # The references form a cycle, which must not be followed forever.
    fake.answers["/subjects/i/versions/1"] = {"schema": inner, "references": refers(("n.M", "m"))}
    source = Schemas(registry(fake.url)).learn([7])[7]
    assert isinstance(source, SchemaSource)
    assert source.named == (inner, middle)
    del fake.answers["/subjects/i/versions/1"]
    fake.answers["/schemas/ids/8"] = fake.answers["/schemas/ids/7"]
    assert "it refers to n.I" in str(Schemas(registry(fake.url)).learn([8])[8])


def test_waiting_for_a_registry_can_be_stopped(fake: FakeRegistry) -> None:
    fake.fails = [(503, {}, b"")] * 1000
    # Ten minutes of patience, unless the job is stopped.
    asks = registry(fake.url, patience="600")
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            asks.schema(7)
        except RegistryDown as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    asks.stop.set()
    thread.join(10)
    assert len(ended) == 1
