"""Frames of ``tidemark top``, made from objects and broker reports without any request."""

import datetime as dt
import io
import re
from collections import Counter

import pytest
from rich.console import Console

from tests.counted_calls import counted_calls, dearer
from tests.unit.cli.top_objects import (
    broker,
    condition,
    export,
    holding,
    many,
    piece,
    pieces,
    row,
    topic,
    topic_id,
)
from tidemark.ids import id_text
from tidemark_cli.top import broker_offsets, pages
from tidemark_cli.top.object_index import BROKER, EXPORT, SLICE, TOPIC, ObjectIndex
from tidemark_cli.top.page_html import page
from tidemark_cli.top.query import SORTS, Query, select_page
from tidemark_cli.top.ranges import PartitionOffsets
from tidemark_cli.top.text import print_frame, progress_bar

DISABLING = {
    "state": "Disabling",
    "epoch": 3,
    "policy": "Delete",
    "pendingBrokers": [2],
    "remainingSegments": 14,
    "remoteSegments": 14,
    "remoteBytes": 4096,
}
OFFSETS = {
    ("orders", 0): PartitionOffsets(
        log_start=0, local_start=600, tier_end=800, high_watermark=1000, log_ends={1: 1000, 2: 988}
    )
}


def as_text(view: pages.View) -> str:
    out = io.StringIO()
    print_frame(Console(file=out, width=200), view)
    return out.getvalue()


def names(object_index: ObjectIndex, query: Query) -> list[str]:
    return [line.name for line in select_page(object_index.lines.values(), query).lines]


@pytest.mark.parametrize("first", ["topics", "slices"])
@pytest.mark.parametrize("number", [0, None], ids=["id", "name"])
def test_objects_may_arrive_in_any_order(first: str, number: int | None) -> None:
    """A Topic whose status has no id yet is found by the name in its first row."""
    object_index = ObjectIndex()
    rows = [row(0, name="orders"), row(0, 1, leader=-1), row(0, 64, replicas=(1, -1))]
    arrivals = [(TOPIC, [topic("orders", number)]), (SLICE, pieces(rows))]
    for kind, objects in arrivals if first == "topics" else reversed(arrivals):
        object_index.put(kind, objects)
    line = object_index.lines["orders"]
    assert (line.partitions, line.leaderless, line.behind, line.placeholders) == (3, 1, 1, 1)
    found = object_index.topic("orders")
    assert found is not None
    assert [row_.partition for row_ in found.rows] == [0, 1, 64]


def test_a_change_of_a_slice_changes_the_lines_of_its_topics() -> None:
    slices = [piece("main-00", [row(0), row(1)]), piece("main-01", [row(0, 64)])]
    object_index = holding([topic("orders", 0), topic("clicks", 1)], slices)
    assert (object_index.leaders(1), object_index.replicas(2)) == (3, 3)
    # Partition 0 of the first topic loses its leader, and its ISR is empty.
    object_index.put(SLICE, [piece("main-00", [row(0, leader=-1, isr=()), row(1, leader=2)])])
    assert (object_index.leaders(1), object_index.leaders(2), object_index.replicas(2)) == (1, 1, 3)
    assert (object_index.lines["orders"].leaderless, object_index.lines["orders"].behind) == (1, 1)
    # The slice no longer has the first topic's partition.
    object_index.put(SLICE, [piece("main-00", [row(1, leader=2)])])
    assert (object_index.lines["orders"].partitions, object_index.lines["orders"].leaderless) == (
        1,
        0,
    )


def test_dropped_objects_leave_nothing() -> None:
    object_index = holding([topic("orders", 0), topic("clicks", 1)], pieces([row(0), row(1)]))
    object_index.drop(TOPIC, ["clicks", "unknown"])
    object_index.keep(SLICE, ())
    object_index.keep(BROKER, {"broker-2"})
    assert list(object_index.lines) == ["orders"]
    assert object_index.lines["orders"].partitions == 0
    assert [item["metadata"]["name"] for item in object_index.of_kind(BROKER)] == ["broker-2"]
    assert (object_index.leaders(1), object_index.partitions) == (0, 0)


def test_without_rows_a_topic_is_counted_by_its_status() -> None:
    """A user without access to the slices sees the counts of the statuses."""
    counts = {"desired": 4, "placed": 3, "inSync": 3, "placeholders": 1}
    line = holding([topic("orders", replicas=counts, partitionsPlaced=2)], []).lines["orders"]
    assert (line.partitions, line.placeholders) == (2, 1)


def test_an_unreadable_slice_is_reported() -> None:
    bad = {"metadata": {"name": "main-00"}, "partitions": ["9|x"]}
    object_index = holding([topic("orders")], [bad])
    (problem,) = pages.view(object_index, Query()).problems
    assert problem.startswith("PartitionSlice main-00: ")
    # The slice becomes readable, and is deleted.
    object_index.put(SLICE, pieces([row(0)]))
    object_index.drop(SLICE, ["main-00"])
    assert pages.view(object_index, Query()).problems == ()


def test_topics_are_filtered_sorted_and_paged() -> None:
    tiering = {"state": "Enabled", "epoch": 1, "remoteBytes": 77}
    topics = [
        topic("b", 0, tiering=tiering),
        topic("a", 1),
        topic("c", 2, spec={"topicName": "orders.c"}),
        topic("ill", 3, conditions=[condition("Ready", "False", "no broker")]),
    ]
    rows = [row(0), row(1), row(1, 1), row(2, isr=(1,)), row(3, replicas=(1, -1, -1))]
    object_index = holding(topics, pieces(rows))
    assert names(object_index, Query(sort="name")) == ["a", "b", "ill", "c"]
    assert names(object_index, Query(sort="remote"))[0] == "b"
    assert names(object_index, Query(sort="partitions"))[0] == "a"
    assert names(object_index, Query(sort="placeholders"))[0] == "ill"
    assert names(object_index, Query(sort="behind"))[:2] == ["ill", "c"]
    # By default topics in trouble come first, and the others by size.
    assert names(object_index, Query()) == ["ill", "c", "a", "b"]
    assert names(object_index, Query(pattern="order")) == ["c"]
    assert names(object_index, Query(pattern="orders.*")) == ["c"]
    assert names(object_index, Query(pattern="[ab]")) == ["a", "b"]
    assert names(object_index, Query(only_unwell=True)) == ["ill", "c"]
    # The last page is shown in the place of one that does not exist.
    chosen = select_page(object_index.lines.values(), Query(sort="name", page=9, page_size=3))
    assert ([line.name for line in chosen.lines], chosen.page, chosen.pages) == (["c"], 1, 2)
    # Each press of the key selects the next order, and the last one leads to the first.
    keys = [Query().sort]
    query = Query()
    for _ in SORTS:
        query = query.sorted_otherwise()
        keys.append(query.sort)
    assert keys == [*SORTS, "trouble"]


def test_a_frame_shows_offset_locations_lagging_replicas_and_problems() -> None:
    settled = condition("TieringSettled", "False", "waits for broker 2", "Disabling")
    short = condition("FullyReplicated", "False", "1 waits for a broker")
    obj = topic(
        "orders",
        conditions=[condition("Ready", "True", "served"), settled, short],
        tiering=DISABLING,
    )
    object_index = holding([obj], pieces([row(0, replicas=(1, 2, 3, -1), isr=(1, 2))]), brokers=0)
    late = [condition("Ready", "False", "no heartbeat", "Fenced")]
    leaving = [condition("Ready", "True"), condition("Draining", "True", "3 replicas left")]
    object_index.put(
        BROKER, [broker(1, conditions=late), broker(2, conditions=leaving, logBytes=9000)]
    )
    view = pages.view(
        object_index, Query(), detailed=["orders"], offsets=OFFSETS, problems=["broker 3 ..."]
    )
    assert view.heading == ("cluster main: 2 brokers live",)
    assert view.problems == ("broker 3 ...",)
    assert view.brokers.rows == (
        ("broker-1", "1", "Fenced", "1", "1", "-"),
        ("broker-2", "2", "True", "0", "1", "9,000"),
    )
    disabling = "Disabling (epoch 3), Delete; waiting for broker 2; 14 segments left"
    assert view.topics.columns[-2:] == ("behind", "placeholders")
    assert view.topics.rows == (("orders", "True", "Disabling", "4.1 kB", "1", "1", "1"),)
    found = [(item.reference, item.condition, item.message) for item in view.findings]
    assert found == [
        ("broker/broker-1", "Ready=False", "no heartbeat"),
        ("broker/broker-2", "Draining=True", "3 replicas left"),
        ("topic/orders", "FullyReplicated=False", "1 waits for a broker"),
        ("topic/orders", "TieringSettled=False", "waits for broker 2"),
    ]
    (table,) = view.partitions
    assert table.title == (
        f"Partitions of orders: tiering {disabling}; remote, up to a minute ago: "
        "14 segments, 4.1 kB"
    )
    # Broker 2 lags by 12 offsets, broker 3 has not reported, and one replica has no broker.
    assert table.rows[0][:5] == (
        "0", "1 (epoch 4)", "1 2", "2:12 3:? placeholder", "0 to 1,000",
    )  # fmt: skip
    output = as_text(view)
    assert "░" * 24 + "▒" * 8 + "█" * 8 in output
    assert "! broker 3 ..." in output


def test_unknown_offsets_are_not_shown_as_zero() -> None:
    object_index = holding([topic("orders")], pieces([row(0)]))
    (table,) = pages.view(object_index, Query(), detailed=["orders", "unknown"]).partitions
    assert table.rows == (("0", "1 (epoch 4)", "1 2", "2:?", "?", "?"),)


def test_partitions_that_need_attention_are_shown_first() -> None:
    rows = [row(0, number) for number in range(60)]
    rows[58], rows[59] = row(0, 58, isr=(1,)), row(0, 59, leader=-1)
    object_index = holding([topic("orders")], pieces(rows))
    (table,) = pages.view(object_index, Query(), detailed=["orders"]).partitions
    # 48 partitions in order, and the two that need attention.
    assert [row_[0] for row_ in table.rows] == [*map(str, range(48)), "58", "59"]
    assert table.notes == ("10 more partitions: tidemark status orders",)


def test_readers_are_named_instead_of_their_replicas() -> None:
    reader = broker(1001, logBytes=0)
    reader["spec"]["role"] = "Reader"
    object_index = holding([topic("orders")], pieces([row(0)]))
    object_index.put(BROKER, [broker(1), reader])
    rows = {str(cells[1]): cells for cells in pages.broker_table(object_index).rows}
    columns = [pages.BROKER_COLUMNS.index(name) for name in ("leaders", "replicas")]
    assert [rows["1001"][column] for column in columns] == ["-", "Reader"]
    assert rows["1"][columns[1]] != "Reader"


def test_brokers_are_queried_only_for_shown_partitions() -> None:
    found = holding([topic("orders")], pieces(row(0, number) for number in range(60)))
    orders = found.topic("orders")
    assert orders is not None
    queries = broker_offsets.queries_for([orders] * 20)
    assert len(queries) == broker_offsets.PARTITIONS_MAX
    endpoints = [
        {"name": name, "host": "h", "port": port}
        for port, name in enumerate(("REPLICATION", "PLAINTEXT", "TEAM"))
    ]
    brokers = [broker(1, endpoints=endpoints), broker(2)]
    assert broker_offsets.addresses(brokers) == {1: ("h", 1)}
    assert broker_offsets.addresses(brokers, "TEAM") == {1: ("h", 2)}
    reported = broker_offsets.query_offsets(queries[:1], {})
    assert reported.offsets == {}
    assert reported.problems == {
        1: "broker 1 has no known address",
        2: "broker 2 has no known address",
    }


def test_a_page_of_html_is_one_file_and_names_are_text() -> None:
    evil = condition("Ready", "False", '<script src="https://x">&')
    obj = topic("orders", conditions=[evil])
    object_index = holding([obj], pieces([row(0), row(0, 1)]))
    empty = PartitionOffsets(log_start=5, local_start=5, tier_end=None, high_watermark=5)
    offsets = {**OFFSETS, ("orders", 1): empty}
    view = pages.view(object_index, Query(), detailed=["orders"], offsets=offsets, problems=["<b>"])
    written = page(view, "2026-01-02 03:04:05 UTC")
    assert "<script" not in written
    assert "&lt;script src=" in written
    assert '<p class="problem">&lt;b&gt;</p>' in written
    assert 'title="remote: 0 to 600; both: 600 to 800; local: 800 to 1,000"' in written
    assert '<i class="remote" style="flex:600"></i>' in written
    assert "no records" in written
    assert "As of 2026-01-02 03:04:05 UTC." in written
    # The page loads nothing from elsewhere.
    assert not re.findall(
        r"\b(?:src|href|url|@import)\b\s*[=(]", written.replace("&lt;script src=", "")
    )


def test_a_frame_costs_the_same_with_ten_thousand_topics() -> None:
    """The exception is one pass over their lines, which matches and sorts them.

    A change costs only what it touches. Topics that need attention come first.
    """

    def cost(count: int) -> tuple[Counter[str], Counter[str]]:
        object_index = holding(*many(count))
        with counted_calls("tidemark_cli") as frame:
            view = pages.view(object_index, Query(page_size=1), detailed=["orders-00000"])
        # Topic 7 of each hundred has no leader, so that it is the first one.
        assert [found[0] for found in view.topics.rows] == ["orders-00007"]
        assert view.topics.notes[0].startswith(f"{count:,} of {count:,} topics, by trouble; page 1")
        for name in ("_matches", "<lambda>", "TopicLine.is_well"):
            assert frame.pop(name) == count
        with counted_calls("tidemark_cli") as change:
            object_index.put(TOPIC, [topic("orders-00003", 3)])
        return frame, change

    # Compare the number of calls, which no load of the machine changes.
    few, many_more = cost(100), cost(10_000)
    assert dearer(few[0], many_more[0]) == {}
    assert dearer(few[1], many_more[1]) == {}


def test_only_shown_fields_of_a_topic_are_kept() -> None:
    obj = topic("orders", conditions=[condition("Ready", "False", "x" * 5000), condition("Z", "T")])
    held = holding([obj], [])
    stored = held.topic("orders")
    assert stored is not None
    assert "managedFields" not in stored.obj["metadata"]
    assert stored.condition("Ready") == {"type": "Ready", "status": "False", "reason": "R"}
    (finding,) = held.findings()
    assert len(finding.message) == 1000
    assert stored.status["topicId"] == id_text(topic_id(0))


# ---------------------------------------------------------------- Exports

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def exporting(*exports: dict[str, object]) -> ObjectIndex:
    object_index = holding([], [])
    object_index.put_lease({}, NOW)
    object_index.put(EXPORT, exports)
    return object_index


def test_an_export_has_a_bar_of_its_progress_and_its_lag() -> None:
    busy = export(
        "orders",
        lag=1200,
        exportedOffsets=3600,
        lagSeconds=90,
        observedTime="2026-03-01T11:59:30Z",
        cost={"cpuSeconds": 90, "writtenBytes": 2_000_000_000, "cpuSecondsPerGigabyte": 45},
    )
    view = pages.view(exporting(busy), Query())
    text = as_text(view)
    (line,) = (line for line in text.splitlines() if line.startswith("orders"))
    assert line.split()[:8] == ["orders", "True", "1,200", "90", "s", "45", "s/GB", "<2"]
    assert line.rstrip().endswith("━" * 25 + "╌" * 9 + "  75 %")
    assert "LAG: offsets that the table lacked, AGE ago" in text
    assert '<progress max="100" value="75"></progress> 75 %' in page(view, "now")


def test_unknown_figures_of_an_export_are_question_marks() -> None:
    stopped = [condition("Ready", "False", "no image", "ImageMissing")]
    old = export("old", lag=3, exportedOffsets=0, lagSeconds=0, observedTime="2026-03-01T07:00:00Z")
    bare = {**export("bare"), "status": None}
    bare["metadata"]["creationTimestamp"] = "2026-03-01T11:59:59Z"
    object_index = exporting(old, export("new", conditions=stopped), bare)
    rows = pages.export_table(object_index).rows
    # Exports with a problem come first.
    assert rows[0] == ("bare", "Unknown", *"?????")
    assert rows[1] == ("new", "ImageMissing", *"?????")
    assert rows[2] == ("old", "True", "3", "0 s", "?", "5 h", pages.ProgressBar(0, 3))
    assert "exports" not in as_text(pages.view(holding([], []), Query()))


def test_a_bar_is_full_only_if_nothing_remains() -> None:
    bars = [
        str(progress_bar(pages.ProgressBar(done, remaining), 16))
        for done, remaining in ((10**9, 1), (5, 0), (0, 0), (0, 7))
    ]
    assert bars == [
        *("━━━━━━━━━╌  99 %", "━━━━━━━━━━ 100 %", "━━━━━━━━━━ 100 %", "╌╌╌╌╌╌╌╌╌╌   0 %")
    ]


def test_many_exports_are_cut_and_fit_on_80_columns() -> None:
    exports = [
        export(f"export-{n:03}", lag=10**9, exportedOffsets=10**9, lagSeconds=10**6)
        for n in range(200)
    ]
    view = pages.view(exporting(*exports), Query())
    assert len(view.exports.rows) == pages.EXPORTS_SHOWN
    assert "150 more exports: kubectl get tmx" in view.exports.notes
    out = io.StringIO()
    print_frame(Console(file=out, width=80), view)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("export-")]
    assert len(lines) == pages.EXPORTS_SHOWN
    assert all(line.rstrip().endswith("50 %") for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (10**9, "11,574 d"),
    ],
)
def test_lengths_of_time_have_one_unit(seconds: int, text: str) -> None:
    assert pages.time_text(seconds) == text
