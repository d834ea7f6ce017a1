"""Output of ``tidemark status``: every table shows the content of the slices."""

import io
import uuid
from dataclasses import replace

import pytest
from rich.console import Console

from tidemark.ids import id_text
from tidemark_cli.commands.status import print_status
from tidemark_cli.local.object_summaries import cluster_line
from tidemark_cli.local.topic_rows import TopicRows, joined
from tidemark_operator.controller.model import PartitionRow


def row(partition: int, leader: int, replicas: tuple[int, ...]) -> PartitionRow:
    return PartitionRow(
        topic_id=uuid.UUID(int=1),
        name="orders",
        partition=partition,
        leader=leader,
        leader_epoch=partition,
        partition_epoch=3,
        replicas=replicas,
        isr=tuple(node for node in replicas if node >= 0),
    )


def text(brokers: list[dict[str, object]], views: list[TopicRows], *names: str, limit: int) -> str:
    out = io.StringIO()
    print_status(Console(file=out, width=200), brokers, views, names, limit)
    return out.getvalue()


def printed(brokers: list[dict[str, object]], views: list[TopicRows]) -> list[list[str]]:
    """Return the rows of all tables, with cells without padding."""
    lines = (line for line in text(brokers, views, limit=0).splitlines() if line.startswith("│"))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_leaders_and_replicas_are_counted_in_the_rows() -> None:
    brokers = [
        {
            "metadata": {"name": f"broker-{node}"},
            "spec": {"nodeId": node},
            "status": {"leaders": 0, "replicas": 0, "logBytes": 1234},
        }
        for node in (1, 2)
    ]
    rows = (row(0, 1, (1, 2)), row(1, 1, (1, -1)), row(2, -1, (2, 1)))
    cells = printed(brokers, [TopicRows("orders", {"spec": {}}, rows)])
    # Broker 1 leads two partitions and has three replicas, by the rows. Its status is older.
    assert ["broker-1", "1", "Unknown", "2", "3", "1,234", ""] in cells
    assert ["broker-2", "2", "Unknown", "0", "2", "1,234", ""] in cells
    assert ["orders", "Unknown", "never", "-", "1", ""] in cells
    assert ["2", "none", "2", "2 1", "2 1", ""] in cells


def test_objects_of_kafka_are_counted_by_status() -> None:
    """Topics of Apache Kafka have no rows, so that counts are from statuses."""
    broker = {
        "metadata": {"name": "tidemark-1"},
        "spec": {"nodeId": 1, "workload": "Observed"},
        "status": {"leaders": 4, "replicas": 9},
    }
    topic = TopicRows("orders", {"spec": {}, "status": {"replicas": {"placeholders": 2}}}, ())
    cells = printed([broker], [topic])
    assert ["tidemark-1", "1", "Unknown", "4", "9", "-", ""] in cells
    assert ["orders", "Unknown", "never", "-", "2", ""] in cells


@pytest.mark.parametrize("status", [{"topicId": id_text(uuid.UUID(int=1))}, {}], ids=["id", "name"])
def test_rows_are_those_of_the_topics_id(status: dict[str, str]) -> None:
    """Slices order rows otherwise: above 64 partitions, partition 0 is not the first."""
    nameless = [replace(row(partition, 1, (1,)), name="") for partition in (64, 65, 1)]
    other = replace(row(0, 1, (1,)), topic_id=uuid.UUID(int=2), name="others")
    orders = {"metadata": {"name": "orders"}, "spec": {}, "status": status}
    (found,) = joined([orders], [*nameless, row(0, 1, (1,)), other])
    assert [row_.partition for row_ in found.rows] == [0, 1, 64, 65]


@pytest.mark.parametrize(
    ("conditions", "line"),
    [
        ([], "cluster main: not reconciled yet"),
        ([("Ready", "True", "Serving", "3 brokers live")], "cluster main: 3 brokers live"),
        (
            [("Ready", "False", "NoBrokers", "no broker is live")],
            "NoBrokers: cluster main: no broker is live",
        ),
        (
            [("Ready", "True", "Low", "few epochs"), ("Stalled", "True", "Low", "few epochs")],
            "Low: cluster main: few epochs",
        ),
    ],
)
def test_the_cluster_has_a_line(conditions: list[tuple[str, ...]], line: str) -> None:
    names = ("type", "status", "reason", "message")
    listed = [dict(zip(names, condition, strict=True)) for condition in conditions]
    cluster = {"metadata": {"name": "main"}, "status": {"conditions": listed}}
    assert cluster_line(cluster) == line


def ready(status: str, message: str, **more: str) -> dict[str, object]:
    condition = {"type": "Ready", "status": status, "reason": "R", "message": message}
    return {"conditions": [condition], **more}


def test_fenced_broker_and_failing_user_have_messages() -> None:
    broker = {"metadata": {"name": "b"}, "spec": {"nodeId": 1}, "status": ready("False", "late")}
    # Bob is not ready, and shows his condition's message.
    users = [
        {"metadata": {"name": name}, "status": ready(status, "said", username=name, secret=name)}
        for name, status in (("ann", "True"), ("bob", "False"))
    ]
    out = io.StringIO()
    print_status(Console(file=out, width=200), [broker], [], users=users)
    lines = (line for line in out.getvalue().splitlines() if line.startswith("│"))
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert ["b", "1", "False", "0", "0", "-", "late"] in cells
    assert ["ann", "User:ann", "True", "ann", ""] in cells
    assert ["bob", "User:bob", "False", "bob", "said"] in cells


def test_an_export_reports_its_progress_and_problems() -> None:
    spec = {"topicRef": {"name": "t"}, "table": {"name": "db.t"}}
    figures = {"lag": 1200, "rows": 7, "currentTime": "2026-01-01T00:00:00Z"}
    # The export runs, and is ready, but lags behind its limit.
    late = {"type": "Exporting", "status": "False", "reason": "Lagging", "message": "it is old"}
    behind: dict[str, object] = {**ready("True", "runs"), **figures}
    behind["conditions"] = [*ready("True", "runs")["conditions"], late]  # type: ignore[misc]
    exports = [
        {"metadata": {"name": "late"}, "spec": spec, "status": behind},
        {"metadata": {"name": "new"}, "spec": spec},
        {"metadata": {"name": "bad"}, "spec": spec, "status": ready("False", "no room")},
    ]
    out = io.StringIO()
    print_status(Console(file=out, width=200), [], [], exports=exports)
    lines = (line for line in out.getvalue().splitlines() if line.startswith("│"))
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    as_of = "2026-01-01T00:00:00Z"
    # Lag, rows and time are shown if the status has them, and a dash otherwise.
    assert ["late", "t", "db.t", "True", "1,200", "7", as_of, "it is old"] in cells
    assert ["new", "t", "db.t", "Unknown", "-", "-", "-", ""] in cells
    assert ["bad", "t", "db.t", "False", "-", "-", "-", "no room"] in cells


def test_eligible_leaders_outside_the_isr_are_shown() -> None:
    waiting = replace(row(0, -1, (1, 2, 3)), isr=(), elr=(2,), last_known_elr=(1, 3))
    cells = printed([], [TopicRows("orders", {"spec": {}}, (waiting,))])
    assert ["0", "none", "0", "1 2 3", "", "2 1? 3?"] in cells


def test_a_damaged_object_is_shown_beside_a_ready_topic() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "Serving", "message": "served"},
        {"type": "Stalled", "status": "False", "reason": "Progressing", "message": ""},
        {"type": "TieringSettled", "status": "False", "reason": "TierIntegrity", "message": "x"},
        {
            "type": "TierIntegrity",
            "status": "False",
            "reason": "ObjectDamaged",
            "message": "k is bad",
        },
        {
            "type": "RemoteIntegrity",
            "status": "False",
            "reason": "DamageFound",
            "message": "k is missing",
        },
    ]
    view = TopicRows("orders", {"spec": {}, "status": {"conditions": conditions}}, ())
    # The object is damaged, although Ready is true: each damage has a line of its own.
    cells = printed([], [view])
    assert ["orders", "True", "never", "-", "0", "served"] in cells
    assert ["", "", "", "", "", "TierIntegrity: k is bad"] in cells
    assert ["", "", "", "", "", "RemoteIntegrity: k is missing"] in cells


def many(count: int) -> list[TopicRows]:
    names = [f"{'orders' if n % 2 else 'clicks'}-{n:03}" for n in range(count)]
    rows = [replace(row(0, 1, (1,)), name=name) for name in names]
    return [TopicRows(r.name, {"spec": {}}, (r,)) for r in rows]


def test_first_of_many_topics_are_shown_with_a_hint() -> None:
    broker = {"metadata": {"name": "broker-1"}, "spec": {"nodeId": 1}}
    output = text([broker], many(300), limit=20)
    assert "orders-019" in output
    assert "clicks-020" not in output
    assert "20 of 300 topics shown; show all with --limit 0" in output
    # The broker's count includes topics that are not shown.
    assert "300" in next(line for line in output.splitlines() if "broker-1" in line)


def test_topics_are_chosen_by_name_or_pattern() -> None:
    output = text([], many(300), "orders-*", "clicks-000", limit=20)
    assert "clicks-000" in output
    assert "orders-001" in output
    assert "clicks-002" not in output
    assert "20 of 151 topics" in output
    assert "none of 300 topics matches order" in text([], many(300), "order", limit=20)
    assert " topics;" not in text([], many(20), limit=20)


def test_internal_topics_show_partitions_only_if_named() -> None:
    obj = {
        "metadata": {"name": "consumer-offsets-68c8", "labels": {"tidemark.dev/internal": "true"}},
        "spec": {"topicName": "__consumer_offsets"},
    }
    views = [TopicRows("consumer-offsets-68c8", obj, (row(0, 1, (1, 2)),)), *many(1)]
    cells = printed([], views)
    assert ["__consumer_offsets", "Unknown", "never", "-", "0", ""] in cells
    assert ["(object consumer-offsets-68c8)", "", "", "", "", ""] in cells
    assert ["0", "1", "0", "1 2", "1 2", ""] not in cells
    assert ["0", "1", "0", "1", "1", ""] in cells
    for name in ("__consumer_offsets", "consumer-offsets-*"):
        output = text([], views, name, limit=20)
        assert "1 2" in output
        assert "clicks" not in output


def test_conditions_that_ready_refers_to_are_reported_too() -> None:
    """Otherwise a topic's message would name a condition that only kubectl shows."""
    conditions = [
        {"type": "Ready", "status": "True", "message": "served; see FullyReplicated"},
        {"type": "FullyReplicated", "status": "False", "message": "1 waits for a broker"},
    ]
    view = TopicRows("orders", {"spec": {}, "status": {"conditions": conditions}}, ())
    cells = printed([], [view])
    assert ["", "", "", "", "", "FullyReplicated: 1 waits for a broker"] in cells
