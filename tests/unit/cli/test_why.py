"""``tidemark why``: the cause of an object's problem, and the command that remedies it."""

import io

import pytest
from rich.console import Console

from tests.unit.cli.clusters import CLUSTERS, WELL, changed, row, topic
from tidemark_cli.inspection.causes import (
    UnknownReference,
    chain,
    command,
    events_of,
    resolve,
    root,
)
from tidemark_cli.inspection.check import state
from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.verdict import findings, verdict
from tidemark_cli.inspection.why import print_explanation


def explained(snapshot: ClusterSnapshot, kind: str, name: str, *, local: bool = True) -> str:
    out = io.StringIO()
    found = findings(snapshot)
    print_explanation(Console(file=out, width=100), snapshot, found, kind, name, local=local)
    return out.getvalue()


def cause_and_command(
    snapshot: ClusterSnapshot, kind: str, name: str, *, local: bool
) -> tuple[str, str]:
    found = findings(snapshot)
    own = [item for item in found if (item.kind, item.name) == (kind, name)]
    cause = root(own, chain(snapshot, found, kind, name))
    assert cause is not None
    return cause.reference, command(snapshot, cause, "kafka", is_local=local)


@pytest.mark.parametrize(
    ("incident", "cause", "here", "anywhere"),
    [
        (
            "operator-killed",
            "operator/tidemark-operator",
            "tidemark up --detach",
            (
                "kubectl --namespace kafka get pods "
                "--selector app.kubernetes.io/name=tidemark-operator"
            ),
        ),
        (
            "broker-down",
            "broker/broker-3",
            "tidemark broker start 3",
            "kubectl --namespace kafka logs broker-3-0 --tail 50",
        ),
        (
            "key-refused",
            "cluster/tidemark",
            "tidemark kubectl describe clusters.tidemark.dev tidemark",
            "kubectl --namespace kafka describe clusters.tidemark.dev tidemark",
        ),
        (
            "placeholders",
            "topic/orders",
            "tidemark broker add",
            "kubectl --namespace kafka describe topics.tidemark.dev orders",
        ),
    ],
)
def test_remedy_is_that_of_the_cause(incident: str, cause: str, here: str, anywhere: str) -> None:
    snapshot = CLUSTERS[incident]
    assert cause_and_command(snapshot, "Topic", "orders", local=True) == (cause, here)
    assert cause_and_command(snapshot, "Topic", "orders", local=False) == (cause, anywhere)


def test_explanation_has_the_condition_its_cause_and_the_documented_remedy() -> None:
    text = explained(CLUSTERS["partition-offline"], "Topic", "orders")
    assert "topic/orders PartitionsOffline (Ready=False since" in text
    assert "Caused by\n  broker/broker-2 ShutDown" in text
    assert "broker/broker-3 Fenced" in text
    assert "What to do about broker/broker-2" in text
    assert "The broker has shut down" in text
    assert "$ tidemark broker start 2" in text


def test_brokers_without_a_replica_of_the_topic_are_no_cause() -> None:
    snapshot = CLUSTERS["broker-down"]
    offline = topic(
        "small",
        "Ready=False StorageFailed: the storage of broker 1 has failed",
        rows=[row(0, 1, (1,))],
    )
    snapshot = changed(brokers=snapshot.brokers, topics=[offline])
    found = findings(snapshot)
    assert chain(snapshot, found, "Topic", "small") == []


def test_an_object_that_is_well_needs_no_remedy() -> None:
    text = explained(WELL, "Topic", "orders")
    assert text == "topic/orders is well: no condition needs attention\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topic/orders", ("Topic", "orders")),
        ("topics.tidemark.dev/orders", ("Topic", "orders")),
        ("tmt/orders", ("Topic", "orders")),
        ("topic/__consumer_offsets", ("Topic", "consumer-offsets-68c8")),
        ("operator/tidemark-operator", ("Operator", "tidemark-operator")),
        ("Export/orders-daily", ("Export", "orders-daily")),
    ],
)
def test_objects_are_named_as_kubectl_names_them(text: str, found: tuple[str, str]) -> None:
    assert resolve(WELL, text) == found


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("orders", "is not KIND/NAME, such as topic/orders"),
        ("pod/orders", "kinds: operator, cluster, broker, topic"),
        ("topic/order", "there is no topic 'order'; there are: clicks, consumer-offsets"),
    ],
)
def test_an_unknown_object_gets_a_hint(text: str, hint: str) -> None:
    with pytest.raises(UnknownReference, match=hint):
        resolve(WELL, text)


def test_events_are_those_of_the_object() -> None:
    events = [
        {"involvedObject": {"kind": kind, "name": "orders"}, "message": kind}
        for kind in ("Topic", "Export")
    ]
    assert [event["message"] for event in events_of(events, "Topic", "orders")] == ["Topic"]


def test_check_passes_for_named_objects_that_are_well() -> None:
    snapshot = CLUSTERS["broker-down"]
    assert state(snapshot, []) == (verdict(snapshot, findings(snapshot)), False)
    assert state(snapshot, ["topic/clicks"]) == ("HEALTHY: topic/clicks", True)
    line, is_well = state(snapshot, ["topic/clicks", "topic/orders"])
    assert not is_well
    assert line.startswith("NOT HEALTHY: topic/orders: replicas of 3 partitions")


def test_check_waits_for_an_object_that_does_not_exist_yet() -> None:
    line, is_well = state(WELL, ["topic/new"])
    assert not is_well
    assert "there is no topic 'new'" in line


def test_check_waits_for_a_change_of_a_named_object_but_not_of_the_cluster() -> None:
    disabling = "TieringSettled=False Disabling: waiting for broker 2"
    snapshot = changed(topics=[topic("orders", "Ready=True Serving: ", disabling)])
    assert state(snapshot, [])[1]
    assert not state(snapshot, ["topic/orders"])[1]
