"""The remote tier goes away under a running cluster: it is told, nothing is lost, and it heals.

Directory: its folder is gone. S3: the Secret holds a wrong key.
"""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.local_cluster import Cluster, run_cluster, wait
from tidemark_cli.local import processes
from tidemark_cli.local.cluster import SECRET

VALUE = b"v" * 1000
SEGMENTS = "kafka_server_brokertopicmetrics_remotelogmetadatacount"
AVAILABLE = "tidemark_broker_remote_store_available"
BATCH = 2500  # 2.5 MB: two segments of the smallest size that there is


class Tier:
    """The tier of one cluster, which can be broken and mended."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.cluster = cluster
        self.kind = kind

    def break_it(self) -> None:
        if self.kind == "directory":
            self._folder.rename(self._folder.with_name("tier-gone"))
        else:
            self._write_secret("not the key of this server")

    def mend(self) -> None:
        if self.kind == "directory":
            self._folder.with_name("tier-gone").rename(self._folder)
        else:
            self._write_secret(self._minio["secretKey"])

    @property
    def _folder(self) -> Path:
        return self.cluster.tier_folder

    @property
    def _minio(self) -> dict[str, Any]:
        record = processes.find(self.cluster.local.layout, "minio")
        assert record is not None
        return record.ready

    def _write_secret(self, secret_key: str) -> None:
        keys = {"accessKeyId": self._minio["accessKey"], "secretAccessKey": secret_key}
        self.cluster.kube.apply_secret(SECRET, keys)


@pytest.fixture(params=["directory", "s3"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tier]:
    with run_cluster(tmp_path / "cluster", brokers=1, tier=request.param) as cluster:
        yield Tier(cluster, request.param)


def produce(cluster: Cluster, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(first, first + BATCH):
        producer.produce(topic, b"%d " % number + VALUE, partition=0)
    assert producer.flush(60) == 0


def consume(cluster: Cluster, topic: str, count: int) -> list[int]:
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


def metric(cluster: Cluster, name: str) -> float:
    """A figure of broker 1."""
    record = processes.find(cluster.local.layout, "broker-1")
    assert record is not None
    text = urllib.request.urlopen(f"http://{record.ready['metrics']}/metrics", timeout=10).read()
    line = next(line for line in text.decode().splitlines() if line.startswith(f"{name} "))
    return float(line.split()[1])


@pytest.mark.slow
def test_a_tier_that_fails_is_told_and_heals(tier: Tier) -> None:
    cluster = tier.cluster

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
    produce(cluster, topic, 0)
    wait(lambda: metric(cluster, SEGMENTS) >= 1, "a segment in the tier")
    wait(lambda: store_ready() == "True", "the Cluster to say that the tier answers")
    assert metric(cluster, AVAILABLE) == 1

    tier.break_it()
    wait(lambda: store_ready() == "False", "the Cluster to say that the tier is not there")
    assert metric(cluster, AVAILABLE) == 0
    before = metric(cluster, SEGMENTS)
    produce(cluster, topic, BATCH)
    wait(lambda: settled().get("status") == "False", "the Topic to say that copying fails")
    assert settled()["message"]

    tier.mend()
    wait(lambda: store_ready() == "True", "the Cluster to say that the tier answers again")
    wait(lambda: metric(cluster, SEGMENTS) > before, "copying to go on")
    assert consume(cluster, topic, 2 * BATCH) == list(range(2 * BATCH))
