"""The remote tier fails under a running cluster: the status reports it, no record is lost, and
copying resumes.

Directory: its folder is removed. S3: the Secret holds a wrong key, or the endpoint does not answer.
"""

import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.local_cluster import RunningCluster, wait
from tidemark_devcluster import processes
from tidemark_devcluster.cluster import SECRET
from tidemark_devcluster.controlplane import minio

pytestmark = pytest.mark.full

VALUE = b"v" * 1000
SEGMENTS = "kafka_server_brokertopicmetrics_remotelogmetadatacount"
AVAILABLE = "tidemark_broker_remote_store_available"
BATCH = 2500  # 2.5 MB: two segments of the smallest size that there is


class FolderGone:
    """The directory of the tier is not there."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._folder = cluster.tier_folder
        self._away = self._folder.with_name("tier-gone")

    def begin(self) -> None:
        self._folder.rename(self._away)

    def end(self) -> None:
        self._away.rename(self._folder)


class WrongKey:
    """The Secret holds a key that the store does not know."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._kube = cluster.kube
        self._kept = minio.MinioSettings.of(cluster.local.layout.minio)

    def begin(self) -> None:
        self._write("not the key of this server")

    def end(self) -> None:
        self._write(self._kept.secret_key)

    def _write(self, secret_key: str) -> None:
        keys = {"accessKeyId": self._kept.access_key, "secretAccessKey": secret_key}
        self._kube.apply_secret(SECRET, keys)


class EndpointGone:
    """The store is stopped; it comes back under the same address."""

    def __init__(self, cluster: RunningCluster) -> None:
        self._cluster = cluster

    def begin(self) -> None:
        processes.stop(self._cluster.local.layout, minio_of(self._cluster), timeout_s=20)

    def end(self) -> None:
        self._cluster.local.start_tier()


def minio_of(cluster: RunningCluster) -> processes.ProcessRecord:
    record = processes.find(cluster.local.layout, "minio")
    assert record is not None
    return record


Fault = FolderGone | WrongKey | EndpointGone


def produce(cluster: RunningCluster, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(first, first + BATCH):
        producer.produce(topic, b"%d " % number + VALUE, partition=0)
    assert producer.flush(60) == 0


def consume(cluster: RunningCluster, topic: str, count: int) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [int(m.value().split()[0]) for m in consumer.consume(count, 1.0)]
    consumer.close()
    return found


def metric(cluster: RunningCluster, topic: str, name: str) -> float:
    """A figure of the broker that leads the topic."""
    leader = cluster.view(topic).rows[0].leader
    record = processes.find(cluster.local.layout, f"broker-{leader}")
    assert record is not None
    text = urllib.request.urlopen(f"http://{record.ready['metrics']}/metrics", timeout=10).read()
    line = next(line for line in text.decode().splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


@contextmanager
def lasting(trouble: Fault) -> Iterator[None]:
    """Others share the cluster: it ends."""
    trouble.begin()
    try:
        yield
    finally:
        trouble.end()


@pytest.mark.slow
def test_missing_directory_is_reported_and_recovers(local_cluster: RunningCluster) -> None:
    fails_and_heals(local_cluster, FolderGone(local_cluster))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [WrongKey, EndpointGone])
def test_failing_store_is_reported_and_recovers(
    fault: type[Fault], s3_cluster: RunningCluster
) -> None:
    fails_and_heals(s3_cluster, fault(s3_cluster))


def fails_and_heals(cluster: RunningCluster, trouble: Fault) -> None:
    def store_ready() -> str:
        found = cluster.kube.get("Cluster", cluster.local.settings.cluster) or {}
        conditions = found["status"]["conditions"]
        return next(c["status"] for c in conditions if c["type"] == "RemoteStorageReady")

    def settled() -> dict[str, Any]:
        return dict(cluster.view(topic).condition("TieringSettled"))

    topic = cluster.new_topic(
        replicationFactor=1,
        config={"segment.bytes": "1048576", "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    segments = metric(cluster, topic, SEGMENTS)
    produce(cluster, topic, 0)
    wait(lambda: metric(cluster, topic, SEGMENTS) > segments, "a segment in the tier")
    wait(lambda: store_ready() == "True", "the Cluster to say that the tier answers")
    assert metric(cluster, topic, AVAILABLE) == 1

    with lasting(trouble):
        # A Secret is read again once a minute.
        wait(
            lambda: store_ready() == "False",
            "the Cluster to say that the tier is not there",
            120,
        )
        segments = metric(cluster, topic, SEGMENTS)
        produce(cluster, topic, BATCH)
        wait(lambda: settled().get("status") == "False", "the Topic to say that copying fails")
        assert settled()["message"]
        wait(lambda: metric(cluster, topic, AVAILABLE) == 0, "the broker's metric to say so")

    wait(lambda: store_ready() == "True", "the Cluster to say that the tier answers again")
    wait(lambda: metric(cluster, topic, SEGMENTS) > segments, "copying to resume")
    assert consume(cluster, topic, 2 * BATCH) == list(range(2 * BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["replica", "disk"])
def test_damaged_segment_is_copied_by_another_replica(
    local_cluster: RunningCluster, lost: str
) -> None:
    # The test does what the message says.
    cluster = local_cluster

    def settled() -> dict[str, Any]:
        return dict(cluster.view(topic).condition("TieringSettled"))

    topic = cluster.new_topic(
        replicationFactor=3,
        config={"segment.bytes": "1048576", "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    leader = cluster.view(topic).rows[0].leader
    folder = cluster.log_folder(leader, topic)
    # A closed segment is damaged before it is copied.
    with lasting(FolderGone(cluster)):
        produce(cluster, topic, 0)
        path = sorted(folder.glob("*.log"))[0]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    message = f"broker {leader}: {path} is damaged and not copied"
    wait(lambda: message in settled().get("message", ""), "the Topic to name the segment", 120)
    # The broker is stopped, which elects another replica. It fetches the records again.
    cluster.local.stop_broker(leader)
    wait(lambda: cluster.view(topic).rows[0].leader not in (leader, -1), "another leader")
    shutil.rmtree(folder if lost == "replica" else folder.parent)
    cluster.local.start_broker(leader)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == 3, "the replica to be in sync", 120)
    wait(lambda: settled().get("status") == "True", "copying to resume", 120)
    assert consume(cluster, topic, BATCH) == list(range(BATCH))
