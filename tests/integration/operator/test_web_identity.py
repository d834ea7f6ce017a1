"""An installation whose store knows the pods' identities: no key of it is in Kubernetes."""

import base64
import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws import ROLE, Issuer, forget_providers, serving
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.remote_log import tiered_host
from tests.integration.remote_log.tiered_host import TieredHost
from tidemark_broker.log import appending
from tidemark_devcluster.controlplane.minio import MinioServer
from tidemark_operator.kube import kinds

pytestmark = pytest.mark.full


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MinioServer]:
    """MinIO that trusts an issuer, and a token as EKS mounts it into annotated pods."""
    issuer = Issuer()
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    token = tmp_path / "token"
    with contextlib.ExitStack() as stack:
        issuer.address = stack.enter_context(serving(issuer.answer))
        made = MinioServer.start(tmp_path / "minio", extra=issuer.minio)
        server = stack.enter_context(made)
        token.write_text(issuer.token(lives_s=3600), encoding="ascii")
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
        forget_providers()
        yield server
    forget_providers()


async def test_no_object_in_kubernetes_has_a_key_of_the_store(
    world: ClusterWorld, store: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3 = {
        "endpoint": store.endpoint,
        "region": "us-east-1",
        "buckets": [f"tier-{uuid.uuid4().hex[:12]}"],
        "createBuckets": True,
    }
    spec = {
        "config": {"remote.log.storage.system.enable": "true"},
        "remoteStorage": {"s3": s3},
    }
    body = {
        "apiVersion": kinds.CLUSTER.api_version,
        "kind": "Cluster",
        "metadata": {"name": "demo"},
        "spec": spec,
    }
    await world.api.create(kinds.CLUSTER, world.namespace, body)
    # The operator makes the bucket, and identifies the store, with its own identity.
    peer = await world.start_broker(1, await world.start_operator())
    await world.condition(kinds.CLUSTER, "demo", "RemoteStorageReady", "True")
    await world.until(lambda: bool(peer.store_id), "the broker is to receive the store")
    sent = json.loads(peer.remote_storage)
    assert sent == {"s3": {name: s3[name] for name in ("endpoint", "region", "buckets")}}

    # A broker uses the store with what it has received, and its own identity.
    monkeypatch.setattr(tiered_host, "CLUSTER", await world.cluster_id())
    host = TieredHost(world.folder, world.folder)
    host.store, host.store_id = sent, peer.store_id
    await host.apply()
    await host.produce(300)
    appending.roll(host.partition.log, 1)
    await host.copied()
    await host.close()

    # Neither a Secret nor the Cluster has a key of the store, or the name of one.
    secrets = await world.api.list_all(kinds.SECRET, world.namespace)
    values = [
        base64.b64decode(value).decode("utf-8", "replace")
        for secret in secrets
        for value in (secret.get("data") or {}).values()
    ]
    everything = json.dumps([values, secrets, await world.get(kinds.CLUSTER, "demo")])
    for text in (store.secret_key, "secretAccessKey", "credentialsSecretRef"):
        assert text not in everything
