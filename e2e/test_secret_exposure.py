"""The store's credentials and the clusters' keys are nowhere but where they are kept.

A whole local cluster on S3 is used (by other tests too, which make its store fail); then everything
that it wrote and showed is searched: logs, arguments and environments of its processes, objects,
Events, run records.
"""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conformance.local_cluster import RunningCluster, wait
from tidemark_devcluster.cluster import SECRET
from tidemark_operator.resources.kinds import KINDS

pytestmark = pytest.mark.full

#: Where they are kept: the API server's store, MinIO's own settings, the private folder.
KEPT_IN = ("control-plane/", "minio/", "certificates/")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets that must not be exposed, in every form in which they might appear."""

    values: tuple[bytes, ...]

    @classmethod
    def of(cls, cluster: RunningCluster) -> "Secrets":
        made = cluster.kube.read_json(
            f"/api/v1/namespaces/{cluster.kube.namespace}/secrets/{SECRET}"
        )
        found = [base64.b64decode(text) for text in made["data"].values()]
        folder = cluster.local.layout.certificates
        keys = [path.read_bytes() for path in folder.glob("*/tls.key")]
        assert len(found) >= 2
        assert len(keys) >= 2  # the authority's and a broker's
        found += [b"".join(key.splitlines()[1:-1])[:60] for key in keys]
        found += [key.splitlines()[1] for key in keys]
        return cls(tuple(found) + tuple(base64.b64encode(value).rstrip(b"=") for value in found))

    def are_in(self, content: bytes) -> bool:
        """Return whether the content includes a secret."""
        return any(value in content for value in self.values)


@pytest.fixture(scope="module")
def used(s3_cluster: RunningCluster) -> RunningCluster:
    """With a topic whose segments were copied."""
    cluster, name = s3_cluster, s3_cluster.local.settings.cluster

    def remote_bytes() -> int:
        return int(cluster.kube.get("Cluster", name)["status"].get("remoteBytes", 0))

    before = remote_bytes()
    topic = cluster.new_topic(
        replicationFactor=2,
        tiering={"enabled": True},
        config={"segment.bytes": "1048576"},
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(4000):
        producer.produce(topic, bytes(1000), partition=0)
    producer.flush(20)
    # The figure is written once a minute.
    wait(lambda: remote_bytes() > before, "segments in the tier", 120)
    return cluster


@pytest.mark.slow
def test_no_file_contains_a_secret(used: RunningCluster) -> None:
    root, secrets = used.local.layout.root, Secrets.of(used)
    files = [path for path in root.rglob("*") if path.is_file()]
    kept = [path for path in files if str(path.relative_to(root)).startswith(KEPT_IN)]
    searched = [path for path in files if path not in kept]
    assert any(secrets.are_in(path.read_bytes()) for path in kept), "the search finds them at all"
    assert len([path for path in searched if path.suffix == ".log"]) >= 3
    assert [path for path in searched if secrets.are_in(path.read_bytes())] == []


@pytest.mark.slow
def test_no_argument_or_environment_contains_a_secret(used: RunningCluster) -> None:
    secrets = Secrets.of(used)
    for name, pid in used.local.addresses().processes.items():
        assert not secrets.are_in(Path(f"/proc/{pid}/cmdline").read_bytes()), name
        if name != "minio":  # its settings are its own secret, given by its environment
            assert not secrets.are_in(Path(f"/proc/{pid}/environ").read_bytes()), name


@pytest.mark.slow
def test_no_object_or_event_contains_a_secret(used: RunningCluster) -> None:
    secrets, kube = Secrets.of(used), used.kube
    shown = [kube.read_json(kube._path(kind.kind)) for kind in KINDS]
    assert sum(len(item["items"]) for item in shown) > 60  # slices, brokers, topic, cluster
    shown.append({"items": kube.events()})
    assert not any(secrets.are_in(json.dumps(item).encode()) for item in shown)
