"""Output of ``tidemark status``: the verdict, the tables, and what a program reads."""

import dataclasses
import io
import json
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli.clusters import CLUSTERS, WELL, body, broker, changed, lease, row, topic
from tidemark.ids import id_text
from tidemark_cli.inspection.snapshot import ClusterSnapshot, Json, pod_text
from tidemark_cli.inspection.status import chosen_findings, document, is_healthy, print_text
from tidemark_cli.inspection.topic_rows import cluster_line, joined
from tidemark_cli.inspection.verdict import findings, verdict

GOLDEN = Path(__file__).with_name("golden")


def text(
    snapshot: ClusterSnapshot, *names: str, width: int = 80, limit: int = 0, wide: bool = False
) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    found = chosen_findings(snapshot, names)
    print_text(console, snapshot, found, names, limit, wide=wide)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def first_line(snapshot: ClusterSnapshot) -> str:
    return verdict(snapshot, findings(snapshot))


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", CLUSTERS)
def test_screen_is_that_of_its_golden_file(name: str, width: int) -> None:
    """A change of the screens is reviewed as a change of its golden files."""
    assert text(CLUSTERS[name], width=width) == (GOLDEN / f"{name}-{width}.txt").read_text()


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_table_is_wider_than_80_columns(name: str) -> None:
    # The first line is the verdict, which terminals wrap.
    lines = text(CLUSTERS[name], width=80).splitlines()[1:]
    assert max(map(len, lines)) <= 80


def test_verdict_names_the_cause_rather_than_its_consequences() -> None:
    lines = {name: first_line(snapshot) for name, snapshot in CLUSTERS.items()}
    assert lines["well"] == "HEALTHY: 3 brokers, 3 topics"
    assert lines["operator-killed"].startswith(
        "NOT HEALTHY: no operator leads: tidemark-operator-0-1-f8919e last renewed its Lease 95 s"
    )
    assert lines["broker-down"].startswith("NOT HEALTHY: broker/broker-3: no heartbeat")
    assert lines["broker-down"].endswith("(1 of 3 brokers, 1 of 3 topics)")
    assert lines["key-refused"].startswith("NOT HEALTHY: cluster/tidemark: access key refused")
    assert "(Secret tier)" in lines["key-refused"]
    assert lines["partition-offline"].endswith("(2 of 3 brokers, 1 of 1 topic)")
    # Placeholders are declared and accepted (KIP-409): they are named, and are no problem.
    assert lines["placeholders"] == "HEALTHY: 3 brokers, 1 topic; in progress: topic/orders"


def test_a_broker_that_has_ended_differs_from_one_that_hangs() -> None:
    """The operator only sees that it is silent."""
    ended = {3: "its process has ended"}
    snapshot = dataclasses.replace(CLUSTERS["broker-down"], processes=ended)
    assert first_line(snapshot).startswith("NOT HEALTHY: broker/broker-3: its process has ended (")
    assert "its process has ended. No heartbeat" in text(snapshot, width=200)
    # A broker that is heard has no such text.
    hung = {1: "its process 7 runs, but does not answer"}
    snapshot = dataclasses.replace(CLUSTERS["broker-down"], processes=hung)
    assert "its process" not in text(snapshot)


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"state": {"running": {"startedAt": "T"}}}, "its pod runs since T and is not ready"),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            },
            "its pod is CrashLoopBackOff, last exit: OOMKilled (137)",
        ),
        (
            {"state": {"terminated": {"reason": "Error", "exitCode": 1}}},
            "its pod is Error, last exit: Error (1)",
        ),
        ({}, "its pod is unknown"),
    ],
    ids=["running", "crashing", "ended", "unknown"],
)
def test_state_of_a_pod_is_what_the_kubelet_says(container: Json, expected: str) -> None:
    assert pod_text({"status": {"containerStatuses": [container]}}) == expected


def test_a_pod_that_is_not_scheduled_has_its_phase() -> None:
    assert pod_text({"status": {"phase": "Pending"}}) == "its pod is Pending"


def test_screen_says_how_old_its_figures_are() -> None:
    assert "LOG BYTES, SEGMENTS and REMOTE BYTES are up to a minute old." in text(WELL)


def test_a_change_in_progress_is_healthy_until_a_person_must_act() -> None:
    disabling = "TieringSettled=False Disabling: waiting for broker 2"
    serving = "Ready=True Serving: every partition has a leader"
    snapshot = changed(topics=[topic("orders", serving, disabling)])
    assert first_line(snapshot) == "HEALTHY: 3 brokers, 1 topic; in progress: topic/orders"
    stalled = "Stalled=True NoProgress: no progress for 10 min"
    snapshot = changed(topics=[topic("orders", serving, disabling, stalled)])
    assert first_line(snapshot).startswith("NOT HEALTHY: topic/orders: no progress for 10 min")


def test_a_suspended_export_is_healthy() -> None:
    suspended = "Exporting=False Suspended: spec.suspend is true"
    spec = {"topicRef": {"name": "orders"}, "table": {"name": "lake.orders"}}
    export = body("Export", "daily", "Ready=True Suspended: suspended", suspended, spec=spec)
    assert is_healthy(findings(changed(exports=[export])))


def test_a_broker_that_serves_without_its_tier_is_a_problem() -> None:
    reason = "Ready=True RemoteStorageUnavailable: serves, but the store does not respond"
    snapshot = changed(brokers=[broker(1, reason)])
    assert first_line(snapshot).startswith("NOT HEALTHY: broker/broker-1: serves, but the store")


@pytest.mark.parametrize(
    ("of", "cause"),
    [
        (None, "no operator has started: there is no Lease tidemark-operator"),
        (lease(1.0, holder=""), "no operator leads: the last one has stopped"),
        (lease(31.0), "last renewed its Lease 31 s ago"),
        (lease(7200.0), "last renewed its Lease 2 h ago"),
    ],
)
def test_statuses_without_a_leading_operator_are_not_trusted(
    of: dict[str, object], cause: str
) -> None:
    assert cause in first_line(changed(lease=of))


def test_a_lease_that_may_not_be_read_is_no_problem() -> None:
    assert is_healthy(findings(changed(lease={})))


def test_a_lease_without_a_time_is_no_problem() -> None:
    assert is_healthy(findings(changed(lease={"spec": {"holderIdentity": "another"}})))


def test_an_object_without_status_is_a_problem_after_a_minute() -> None:
    new = topic("orders", "Ready=Unknown Pending: no operator has reconciled the object")
    new.obj["metadata"]["creationTimestamp"] = "2026-03-01T11:59:30Z"
    assert is_healthy(findings(changed(topics=[new])))
    new.obj["metadata"]["creationTimestamp"] = "2026-03-01T11:58:00Z"
    assert not is_healthy(findings(changed(topics=[new])))


def test_an_empty_namespace_says_that_there_is_no_cluster() -> None:
    nothing = changed(clusters=[], brokers=[], topics=[], users=[], exports=[])
    assert first_line(nothing) == "NOT HEALTHY: the namespace has no Cluster"


@pytest.mark.parametrize("status", [{"topicId": id_text(uuid.UUID(int=1))}, {}], ids=["id", "name"])
def test_rows_are_those_of_the_topics_id(status: dict[str, str]) -> None:
    """Rows come in the order of the slices: above 64 partitions, partition 0 is not the first."""
    nameless = [dataclasses.replace(row(number, 1, (1,)), name="") for number in (64, 65, 1)]
    other = dataclasses.replace(row(0, 1, (1,)), topic_id=uuid.UUID(int=2), name="others")
    orders = {"metadata": {"name": "orders"}, "spec": {}, "status": status}
    (found,) = joined([orders], [*nameless, row(0, 1, (1,)), other])
    assert [row_.partition for row_ in found.rows] == [0, 1, 64, 65]


def test_a_pending_deletion_is_shown_and_no_problem() -> None:
    leaving = topic("orders", "Ready=True DeletionPending: deleted at 12:00, with 3 partitions")
    snapshot = changed(topics=[leaving])
    assert is_healthy(findings(snapshot))
    assert "In progress\n  topic/orders DeletionPending (Ready=True" in text(snapshot)


def test_a_refused_topic_of_the_same_name_has_no_rows() -> None:
    status = {"topicId": id_text(uuid.UUID(int=1))}
    orders = {"metadata": {"name": "orders"}, "spec": {}, "status": status}
    copy = {"metadata": {"name": "orders-copy"}, "spec": {"topicName": "orders"}}
    found = joined([copy, orders], [row(0, 1, (1,))])
    assert [(item.name, len(item.rows)) for item in found] == [("orders-copy", 0), ("orders", 1)]


def test_brokers_of_apache_kafka_are_counted_by_their_statuses() -> None:
    """Apache Kafka's topics have no rows, so nothing else has their leaders and placeholders."""
    observed = body("Broker", "tidemark-1", "Ready=True Serving: ", leaders=4, replicas=9)
    observed["spec"] = {"nodeId": 1, "workload": "Observed"}
    existing = topic("orders", replicas={"placeholders": 2})
    lines = text(changed(brokers=[observed], topics=[existing])).splitlines()
    assert next(line for line in lines if line.startswith("tidemark-1")).split()[-3:] == [
        "4",
        "9",
        "-",
    ]
    assert next(line for line in lines if line.startswith("orders")).split()[-1] == "2"


def test_partitions_are_shown_of_topics_with_a_problem_and_of_named_ones() -> None:
    snapshot = CLUSTERS["broker-down"]
    assert "Partitions of orders" in text(snapshot)
    assert "Partitions of clicks" not in text(snapshot)
    assert "Partitions of clicks" in text(snapshot, "clicks")
    assert "Partitions of clicks" in text(snapshot, wide=True)


def test_status_of_named_topics_leaves_out_problems_of_others() -> None:
    serving = "Ready=True Serving: every partition has a leader"
    refused = "Ready=False InvalidConfig: min.insync.replicas 9 is too high"
    spec = {"topicRef": {"name": "orders"}, "table": {"name": "lake.orders"}}
    export = body("Export", "daily", "Ready=False JobFailed: the run failed", spec=spec)
    snapshot = changed(topics=[topic("orders", serving), topic("clicks", refused)])
    assert text(snapshot, "orders").startswith("HEALTHY: 3 brokers, 1 topic\n")
    assert "InvalidConfig" not in text(snapshot, "orders")
    assert "1 other problem in this cluster: tidemark status" in text(snapshot, "orders")
    found = chosen_findings(snapshot, ["orders"])
    assert document(snapshot, found, ["orders"])["healthy"]
    # Its export, and the causes in brokers and the operator, belong to a topic.
    snapshot = dataclasses.replace(snapshot, exports=[export], lease=None)
    kinds = [item.kind for item in chosen_findings(snapshot, ["orders"])]
    assert kinds == ["Operator", "Export"]
    assert "InvalidConfig" in text(snapshot)


def test_topics_with_a_problem_are_first_and_internal_ones_last() -> None:
    late = "FullyReplicated=False ReplicasBehind: broker 3 is down"
    serving = "Ready=True Serving: every partition has a leader"
    snapshot = changed(topics=[*WELL.topics, topic("zebra", serving, late)])
    lines = text(snapshot).splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("TOPIC"))
    names = [line.split()[0] for line in lines[start + 1 : start + 5]]
    assert names == ["zebra", "clicks", "orders", "__consumer_offsets"]


def test_the_first_topics_are_shown_and_how_to_see_the_others() -> None:
    many = [topic(f"{'orders' if n % 2 else 'clicks'}-{n:03}") for n in range(300)]
    snapshot = changed(topics=many)
    assert "20 of 300 topics shown; show all with --limit 0" in text(snapshot, limit=20)
    chosen = text(snapshot, "orders-*", "clicks-000", limit=20)
    assert "clicks-000" in chosen
    assert "clicks-002" not in chosen
    assert "20 of 151 topics" in chosen
    assert "none of 300 topics matches order" in text(snapshot, "order", limit=20)
    assert " topics shown" not in text(changed(topics=many[:20]), limit=20)


def test_a_program_reads_the_verdict_the_findings_and_all_topics() -> None:
    snapshot = CLUSTERS["broker-down"]
    read = json.loads(json.dumps(document(snapshot, findings(snapshot))))
    assert not read["healthy"]
    assert read["findings"][0]["reason"] == "Fenced"
    assert read["findings"][0]["severity"] == "problem"
    assert [item["name"] for item in read["topics"]] == [
        "consumer-offsets-68c8",
        "clicks",
        "orders",
    ]
    assert read["topics"][2]["partitions"][0]["isr"] == [1, 2]


@pytest.mark.parametrize(
    ("conditions", "line"),
    [
        ([], "cluster main: not reconciled yet"),
        (["Ready=True Serving: 3 brokers live"], "cluster main: 3 brokers live"),
        (
            ["Ready=False NoBrokers: no broker is live"],
            "NoBrokers: cluster main: no broker is live",
        ),
        (
            ["Ready=True Low: few epochs", "Stalled=True Low: few epochs"],
            "Low: cluster main: few epochs",
        ),
    ],
)
def test_line_of_a_cluster_has_the_reason_if_it_needs_attention(
    conditions: list[str], line: str
) -> None:
    assert cluster_line(body("Cluster", "main", *conditions)) == line
