"""A real Prometheus scrapes a running cluster: every query of the dashboards returns data, and so
does all that alerts and recording rules ask for; and of a cluster that is well none of them
fires."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.conformance.local_cluster import RunningCluster, wait
from tests.monitoring.prometheus import ScrapeTarget, run_prometheus
from tests.monitoring.promql_queries import has_data, queries
from tests.monitoring.rules import FILE, NAMESPACE, alerts, rules
from tidemark_devcluster import processes

pytestmark = pytest.mark.full

PATIENCE_S = 150.0


def targets(cluster: RunningCluster) -> Iterator[ScrapeTarget]:
    """Every page of every process, labelled as pods are."""
    for record in processes.running(cluster.local.layout):
        labels = {"namespace": NAMESPACE, "pod": record.name}
        if address := (record.ready or {}).get("metrics"):
            yield ScrapeTarget(address, "/metrics", labels)
            if record.name.startswith("broker-"):
                yield ScrapeTarget(address, "/metrics/topics", labels)


@contextmanager
def something_wrong(cluster: RunningCluster, topic: str) -> Iterator[None]:
    """A Topic that another has the name of."""
    spec = {"clusterRef": {"name": cluster.local.settings.cluster}, "topicName": topic}
    cluster.kube.apply("Topic", "name-taken", {**spec, "partitions": 1, "replicationFactor": 1})
    try:
        yield
    finally:
        cluster.kube.delete("Topic", "name-taken")
        wait(lambda: cluster.kube.get("Topic", "name-taken") is None, "the second Topic to go")


def use(cluster: RunningCluster, topic: str) -> None:
    """Use the topic, so that rates and quantiles have values."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(100):
        producer.produce(topic, f"record {number}".encode(), partition=0)
    assert producer.flush(30) == 0
    reader = {"bootstrap.servers": cluster.bootstrap, "group.id": f"of-{topic}"}
    consumer = Consumer(reader)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(100, 30)) == 100
    consumer.close()


@pytest.mark.slow
def test_every_query_returns_data(local_cluster: RunningCluster, tmp_path: Path) -> None:
    topic = local_cluster.new_topic(tiering={"enabled": True})
    watched = list(targets(local_cluster))
    assert len(watched) >= 1 + 2 * 3  # other tests add brokers
    with (
        something_wrong(local_cluster, topic),
        run_prometheus(tmp_path, watched, [FILE]) as prometheus,
    ):
        wait(lambda: len(prometheus.query("up == 1")) == len(watched), "all to be scraped")
        left = queries(topic)
        deadline = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < deadline, f"no data: {left}"
            use(local_cluster, topic)
            left = {
                name: item for name, item in left.items() if not has_data(prometheus.query, item)
            }
        groups = prometheus.get("/api/v1/rules")["groups"]
        health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        assert health == dict.fromkeys(health, "ok")
        assert health.keys() == {rule.get("alert") or rule["record"] for rule in rules()}
        expected = {"TidemarkObjectStalled"}  # the one thing
        assert {name for name in alerts() if prometheus.query(alerts()[name]["expr"])} <= expected
