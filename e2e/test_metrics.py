"""A running cluster exposes exactly the metrics in the table of metrics."""

import re
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.local_cluster import RunningCluster
from tests.monitoring.exposition import differences
from tidemark.metrics import (
    broker_table,
    operator_table,
    process_table,
    tier_table,
    topic_table,
)
from tidemark.reason_table import TABLE
from tidemark_broker.api.serving.dispatcher import APIS
from tidemark_devcluster import processes

pytestmark = pytest.mark.full

#: What brokers ask one another, by the names in ``tidemark_broker.broker``.
AMONG_BROKERS = ("ReplicaFetch", "WriteMarkers", "AskCoordinator")


def page(cluster: RunningCluster, process: str, path: str = "/metrics") -> str:
    """As Prometheus would get it."""
    record = processes.find(cluster.local.layout, process)
    assert record is not None
    url = f"http://{record.ready['metrics']}{path}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_operator_metrics_match_the_table(local_cluster: RunningCluster) -> None:
    rows = (*operator_table.ALL, *process_table.ALL)
    reasons = {reason for reasons in TABLE.values() for reason in reasons}
    shown = page(local_cluster, "operator")
    assert differences(shown, rows, {"reason": reasons}) == []
    assert "\ntidemark_operator_term 1.0\n" in shown


def test_broker_metrics_match_the_table(local_cluster: RunningCluster) -> None:
    first, *_ = local_cluster.bootstrap.split(",")
    AdminClient({"bootstrap.servers": first}).list_topics(timeout=30)
    rows = (*broker_table.ALL, *tier_table.ALL, *process_table.ALL)
    bounded = {
        "api": {"ApiVersions", *(api.name for api in APIS), *AMONG_BROKERS},
        "version": {str(number) for api in APIS for number in range(api.versions[1] + 1)},
    }
    shown = page(local_cluster, "broker-1")
    assert differences(shown, rows, bounded) == []
    assert "\ntidemark_broker_fenced 0.0\n" in shown
    assert 'tidemark_broker_requests_total{api="' in shown


def test_topic_metrics_have_their_own_page(local_cluster: RunningCluster) -> None:
    name = local_cluster.new_topic()
    leader = local_cluster.view(name).rows[0].leader
    shown = page(local_cluster, f"broker-{leader}", "/metrics/topics")
    topics = set(re.findall(r'topic="([^"]+)"', shown))
    assert differences(shown, topic_table.ALL, {"topic": topics}) == []
    assert f'tidemark_topic_partitions{{tiering="None",topic="{name}"}} 1.0' in shown
