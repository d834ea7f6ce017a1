"""``tidemark up`` and what is done with it: a topic, records, a death, Ctrl-C, and up again."""

import contextlib
import os
import signal
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from e2e.commands import Up, run

pytestmark = pytest.mark.full

MANIFEST = """
apiVersion: tidemark.dev/v1alpha1
kind: Topic
metadata: {name: orders}
spec:
  clusterRef: {name: tidemark}
  partitions: 1
  replicationFactor: 2
"""

#: Topics that users created; brokers create their own where a client names a group.
USERS = "!tidemark.dev/internal"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cluster"
    yield folder
    if folder.exists():
        run(folder, "down")


def produce(bootstrap: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(60) == 0


def consume(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [message.value().decode() for message in messages]


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.slow
def test_cluster_is_interrupted_and_resumed(folder: Path) -> None:
    up = Up(folder, "--brokers", "2")
    try:
        first = up.addresses()
        # The kubeconfig has the administrator's credentials.
        assert stat.S_IMODE(Path(first["kubeconfig"]).stat().st_mode) == 0o600
        metrics = urllib.request.urlopen(first["metrics"], timeout=10).read().decode()
        assert "tidemark_" in metrics
        assert "topic.tidemark.dev/orders created" in run(
            folder, "kubectl", "apply", "-f", "-", stdin=MANIFEST
        )
        run(folder, "kubectl", "wait", "--for=condition=Ready", "topic/orders", "--timeout=60s")
        produce(first["bootstrap"], ["a", "b", "c"])
        assert consume(first["bootstrap"], 3) == ["a", "b", "c"]
        # Users' topics only, without the coordinators' topics.
        topics = run(folder, "kubectl", "get", "topics", "-l", USERS, "-o", "name")
        assert topics.split() == ["topic.tidemark.dev/orders"]
        assert "orders" in run(folder, "status")
        assert up.interrupt() == 0
    finally:
        up.close()
    assert not [pid for pid in first["processes"].values() if alive(pid)]

    # The same folder: objects and records are found again.
    again = Up(folder, "--brokers", "2")
    try:
        second = again.addresses()
        run(folder, "kubectl", "wait", "--for=condition=Ready", "topic/orders", "--timeout=60s")
        produce(second["bootstrap"], ["d"])
        assert consume(second["bootstrap"], 4) == ["a", "b", "c", "d"]
        again.interrupt()
    finally:
        again.close()


@pytest.mark.long
@pytest.mark.slow
def test_existing_cluster_is_used_in_the_context_namespace(folder: Path, tmp_path: Path) -> None:
    run(folder, "up", "--brokers", "1", "--detach")
    run(folder, "kubectl", "create", "namespace", "other")
    own = (folder / "control-plane" / "kubeconfig").read_text()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(own.replace("namespace: default", "namespace: other"))
    guest = tmp_path / "guest"
    try:
        run(guest, "up", "--kubeconfig", str(kubeconfig), "--brokers", "1", "--detach")
        found = run(guest, "kubectl", "get", "brokers", "--all-namespaces", "-o", "name")
        assert found.split() == ["broker.tidemark.dev/broker-1"] * 2
        assert "broker-1" in run(guest, "status")
    finally:
        run(guest, "down")


@pytest.mark.slow
def test_a_waiting_up_ends_when_the_cluster_is_stopped_elsewhere(folder: Path) -> None:
    up = Up(folder, "--brokers", "1")
    try:
        first = up.addresses()
        # The next operator does not wait until the Lease of a killed one expires.
        os.kill(first["processes"]["operator"], signal.SIGKILL)
        run(folder, "up", "--brokers", "1", "--detach")
        assert "standing by" not in (folder / "logs" / "operator.log").read_text()
        run(folder, "down")
        assert up.ended() == 0
    finally:
        up.close()
    assert "was stopped by another command" in folder.with_suffix(".err").read_text()
