"""Screens of ``tidemark top --once``, well and in five incidents."""

import dataclasses
import io
import uuid
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli.clusters import CLUSTERS, NOW, changed, lease, topic
from tests.unit.cli.top_objects import pieces
from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.verdict import findings, verdict
from tidemark_cli.top import pages
from tidemark_cli.top.object_index import SLICE, TOPIC, ObjectIndex
from tidemark_cli.top.query import Query, select_page
from tidemark_cli.top.ranges import PartitionOffsets
from tidemark_cli.top.text import print_frame

GOLDEN = Path(__file__).with_name("golden")


def held(snapshot: ClusterSnapshot) -> ObjectIndex:
    """Return the index of a snapshot's objects, each topic with rows of its own id."""
    object_index = ObjectIndex()
    object_index.put_lease(snapshot.lease, snapshot.read_at)
    for kind, body in snapshot.objects():
        object_index.put(kind, [body])
    for number, item in enumerate(snapshot.topics):
        name, topic_id = item.kafka_name, uuid.UUID(int=number + 1)
        rows = [dataclasses.replace(row, topic_id=topic_id, name=name) for row in item.rows]
        object_index.put(SLICE, [{**piece, "metadata": {"name": name}} for piece in pieces(rows)])
    return object_index


def view(snapshot: ClusterSnapshot) -> pages.View:
    object_index = held(snapshot)
    offsets = {}
    for item in snapshot.topics:
        for row in item.rows:
            if row.leader < 0:
                continue
            # Replicas outside the ISR have not answered.
            ends = {node: 33_402 if node == row.leader else 33_390 for node in row.isr}
            offsets[item.kafka_name, row.partition] = PartitionOffsets(
                log_start=0,
                local_start=26_307 if item.tiering else 0,
                tier_end=30_926 if item.tiering else None,
                high_watermark=33_390,
                log_ends=ends,
            )
    lines = select_page(object_index.lines.values(), Query()).lines
    names = [line.name for line in lines if not line.is_internal]
    return pages.view(object_index, Query(), detailed=names, offsets=offsets)


def text(shown: pages.View, width: int = 80) -> str:
    out = io.StringIO()
    print_frame(Console(file=out, width=width), shown)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", CLUSTERS)
def test_screen_is_that_of_its_golden_file(name: str, width: int) -> None:
    """A change of the screens is reviewed as a change of its golden files."""
    assert text(view(CLUSTERS[name]), width) == (GOLDEN / f"top-{name}-{width}.txt").read_text()


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_line_after_the_verdict_is_wider_than_80_columns(name: str) -> None:
    lines = text(view(CLUSTERS[name])).splitlines()[1:]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", CLUSTERS)
def test_verdict_and_findings_are_those_of_status(name: str) -> None:
    snapshot = CLUSTERS[name]
    shown = view(snapshot)
    found = findings(snapshot)
    assert shown.verdict == verdict(snapshot, found)
    assert list(shown.findings) == found


def test_a_pending_object_becomes_a_problem_while_nothing_changes() -> None:
    new = topic("orders", "Ready=Unknown Pending: no operator has reconciled the object")
    new.obj["metadata"]["creationTimestamp"] = "2026-03-01T11:59:30Z"
    object_index = held(changed(topics=[new]))
    assert pages.view(object_index, Query()).verdict.startswith("HEALTHY")
    later = dataclasses.replace(WELL_LATER, topics=[new])
    object_index.put_lease(later.lease, later.read_at)
    assert pages.view(object_index, Query()).verdict.startswith("NOT HEALTHY: topic/orders: No op")
    assert object_index.lines["orders"].severity == 2


def test_a_lease_that_is_no_longer_renewed_changes_the_verdict() -> None:
    object_index = held(changed())
    object_index.put_lease(lease(1.0), WELL_LATER.read_at)
    assert "last renewed its Lease 61 s ago" in pages.view(object_index, Query()).verdict


def test_findings_of_deleted_objects_are_removed() -> None:
    object_index = held(CLUSTERS["placeholders"])
    assert "orders" in {item.name for item in object_index.findings()}
    object_index.drop(TOPIC, ["orders"])
    assert object_index.findings() == []


def test_many_findings_are_bounded_and_those_of_the_selected_topic_are_shown() -> None:
    late = "FullyReplicated=False ReplicasBehind: broker 3 is down"
    many = [topic(f"orders-{number:03}", late) for number in range(300)]
    shown = pages.view(held(changed(topics=many)), Query(), detailed=["orders-250"])
    assert shown.findings[0].name == "orders-250"
    assert (len(shown.findings), shown.more_findings) == (20, 280)
    assert "280 more: tidemark status --limit 0" in text(shown)


def test_an_unreachable_broker_is_reported_unless_a_finding_explains_it() -> None:
    object_index = held(CLUSTERS["broker-down"])
    unanswered = {1: "broker 1 is unreachable", 3: "broker 3 is unreachable"}
    shown = pages.view(object_index, Query(), unanswered=unanswered)
    assert shown.problems == ("broker 1 is unreachable",)


def test_nothing_is_said_about_health_while_objects_cannot_be_read() -> None:
    shown = pages.view(held(changed()), Query(), outdated="the API server is unreachable")
    assert shown.verdict == "UNKNOWN: the API server is unreachable"


#: The cluster that is well, a minute later, and with an operator.
WELL_LATER = changed(lease=lease(-60.0), read_at=NOW + (NOW - NOW.replace(minute=0, hour=11)) / 60)
