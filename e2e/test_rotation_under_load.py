"""Another authority, new leaves, and records with acks=all that flow all the while."""

import threading
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.conformance.local_cluster import RunningCluster, wait
from tidemark_operator.certificates.certificate_stores import read_files
from tidemark_operator.certificates.stored_authority import STATE
from tidemark_operator.resources.names import RENEWAL_ANNOTATION

pytestmark = pytest.mark.full

BROKERS = 3


class Flow:
    """Records with acks=all until it is stopped, one partition; failures are kept."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = 0
        self.failures: list[Any] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Flow":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self._producer.produce(self._topic, b"x" * 500, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(30)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(error)


def issued(cluster: RunningCluster, name: str) -> dict[str, bytes]:
    return read_files(cluster.local.layout.certificates / name)


def phase(cluster: RunningCluster) -> str:
    return issued(cluster, "tidemark-ca")[STATE].decode().split("\n")[2]


def leaves(cluster: RunningCluster) -> list[bytes]:
    return [issued(cluster, f"broker-{n + 1}-tls")["tls.crt"] for n in range(BROKERS)]


def condition(cluster: RunningCluster, kind: str, name: str) -> str:
    body = cluster.kube.get(kind, name)
    assert body is not None
    return next(c["status"] for c in body["status"]["conditions"] if c["type"] == "Ready")


def ask_for_renewal(cluster: RunningCluster) -> None:
    cluster.kube.merge_patch(
        cluster.kube._path("Cluster", "tidemark"),
        {"metadata": {"annotations": {RENEWAL_ANNOTATION: "now"}}},
    )


@pytest.mark.slow
def test_certificate_renewal_interrupts_no_client(local_cluster: RunningCluster) -> None:
    cluster = local_cluster
    topic = cluster.new_topic(config={"min.insync.replicas": "3"})
    authority, before = issued(cluster, "tidemark-ca"), leaves(cluster)
    with Flow(cluster.bootstrap, topic) as flow:
        ask_for_renewal(cluster)
        wait(lambda: phase(cluster) == "Announced", "the next authority")
        wait(lambda: phase(cluster) == "Issuing", "new leaves")
        wait(lambda: phase(cluster) == "Steady", "the former one to go")
        seen = flow.acknowledged
        wait(lambda: flow.acknowledged > seen + 100, "records to flow on")
    assert flow.failures == []
    assert issued(cluster, "tidemark-ca")["tls.crt"] != authority["tls.crt"]
    assert all(new != old for new, old in zip(leaves(cluster), before, strict=True))
    for number in range(BROKERS):
        assert condition(cluster, "Broker", f"broker-{number + 1}") == "True"
    # Only new connections count: none from before the rotation may remain.
    assert cluster.local.stop_broker(1)
    cluster.local.start_broker(1)
    wait(lambda: len(cluster.view(topic).rows[0].isr) == BROKERS, "all replicas in sync")
