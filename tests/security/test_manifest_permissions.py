"""Targets that the operator can be made to reach by a user who may only write manifests."""

import contextlib
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_devcluster.controlplane.minio import MinioServer
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import SECRET
from tidemark_operator.reconcile.remote_storage import RemoteStorageProblem, Terms, accept

TERMS = Terms(cluster_id="c", store_id="", create=False, allowed_endpoints=frozenset())


def storage(endpoint: str, bucket: str = "bucket", **changes: str) -> str:
    keys = {"accessKeyId": "key", "secretAccessKey": "secret"} | changes
    return json.dumps(
        {"s3": {"endpoint": endpoint, "region": "us-east-1", "buckets": [bucket], **keys}}
    )


async def problem(endpoint: str, terms: Terms = TERMS) -> str:
    with pytest.raises(RemoteStorageProblem) as caught:
        await accept(storage(endpoint), {}, terms)
    return str(caught.value)


# ---------------------------------------------------------------- Secrets


@pytest.mark.parametrize("path", ["../../{}/secrets/keys", "%2e%2e/%2e%2e/{}/secrets/keys", ".."])
async def test_secret_name_is_not_a_path(control_plane: ControlPlane, path: str) -> None:
    async with await KubeApi.open(KubernetesAccess(control_plane.kubeconfig)) as api:
        # The Secret exists in another namespace. A name with path segments must not reach it.
        mine, theirs = (f"ns-{uuid.uuid4().hex[:8]}" for _ in range(2))
        for name in (mine, theirs):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await api._call("POST", "/api/v1/namespaces", body=body)
        await api.create(SECRET, theirs, {"metadata": {"name": "keys"}, "stringData": {"a": "b"}})
        with pytest.raises((KubeError, ValueError)):
            await api.get(SECRET, mine, path.format(theirs))


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "endpoint",
    ["http://169.254.169.254", "http://2852039166", "http://[fe80::1]", "http://[fd00:ec2::254]"],
)
async def test_credential_endpoints_are_not_contacted(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The address is refused before any packet is sent.
    def connect(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert "link-local or metadata address" in await problem(endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:word@127.0.0.1:9000",
        "http://127.0.0.1:9000/minio/admin",
        "http://127.0.0.1:9000?a=b",
        "ftp://127.0.0.1",
    ],
)
async def test_endpoint_is_only_an_address(endpoint: str) -> None:
    assert "s3.endpoint must be" in await problem(endpoint)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>the inside of the network</html>")

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield port


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port that accepts connections and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def web_page() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


async def test_endpoint_message_does_not_reveal_the_service() -> None:
    said = set()
    # A closed port, a port that is not HTTP, and a web page give the same message: the operator is
    # no port scanner.
    for place in (closed_port, silent_port, web_page):
        with place() as port:
            text = await problem(f"http://127.0.0.1:{port}")
        said.add(text.replace(str(port), "PORT"))
    (only,) = said
    assert "the endpoint does not respond like the configured store" in only
    assert "inside of the network" not in only


# ---------------------------------------------------------------- buckets


async def test_bucket_is_created_only_if_the_manifest_requests_it(minio: MinioServer) -> None:
    bucket = f"made-{uuid.uuid4().hex[:8]}"
    keys = {"accessKeyId": minio.access_key, "secretAccessKey": minio.secret_key}
    text = storage(minio.endpoint, bucket, **keys)
    # Without createBuckets a missing bucket is an error.
    with pytest.raises(
        RemoteStorageProblem, match="does not exist: create it, or set createBuckets"
    ):
        await accept(text, {}, TERMS)
    asked = Terms(cluster_id="c", store_id="", create=True, allowed_endpoints=frozenset())
    assert (await accept(text, {}, asked)).store_id


async def test_wrong_key_names_the_secret_that_it_is_in(minio: MinioServer) -> None:
    keys = {"accessKeyId": minio.access_key, "secretAccessKey": "wrong"}
    text = storage(minio.endpoint, "any", **keys)
    terms = replace(TERMS, credentials_secret="tier-keys")
    with pytest.raises(RemoteStorageProblem, match="the credentials are in Secret tier-keys"):
        await accept(text, {}, terms)


async def test_first_bucket_of_a_store_in_use_is_never_recreated(minio: MinioServer) -> None:
    keys = {"accessKeyId": minio.access_key, "secretAccessKey": minio.secret_key}
    text = storage(minio.endpoint, f"gone-{uuid.uuid4().hex[:8]}", **keys)
    # A store id is known, so the bucket existed. Creating it again would hide the loss of all its
    # data.
    used = Terms(cluster_id="c", store_id="s", create=True, allowed_endpoints=frozenset())
    with pytest.raises(RemoteStorageProblem, match="does not exist any more"):
        await accept(text, {}, used)
