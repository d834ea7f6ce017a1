"""Tables of a cluster that the screen, the text output and the HTML page share.

This module reads nothing: it turns objects, offsets and problems into tables of cells. Unknown
values are shown as unknown, never as zero.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemark.message_text import count
from tidemark_cli.inspection.topic_rows import (
    TopicRows,
    cluster_line,
    figure,
    ready_of,
    ready_text,
    remote_text,
    tiering_text,
)
from tidemark_cli.inspection.verdict import HealthFinding, verdict_line
from tidemark_cli.sizes import size_text
from tidemark_cli.top.object_index import (
    BROKER,
    CLUSTER,
    EXPORT,
    TOPIC,
    ObjectIndex,
    TopicLine,
)
from tidemark_cli.top.query import Query, TopicPage, select_page
from tidemark_cli.top.ranges import PartitionOffsets, Range, lag, ranges
from tidemark_operator.controller.state.rows import PartitionRow

#: (topic in Kafka, partition) -> offsets from its leader, if it answered.
OffsetsByPartition = Mapping[tuple[str, int], PartitionOffsets]
#: Most partitions of one topic that are shown and queried at once.
PARTITIONS_SHOWN = 50
BROKERS_SHOWN = 100
EXPORTS_SHOWN = 50
#: Findings that are shown at most.
FINDINGS_SHOWN = 20
TOPIC_COLUMNS = ("topic", "ready", "tiering", "remote", "partitions")
#: Columns of troubles that most clusters do not have, shown if a topic of the page has one.
TROUBLE_COLUMNS = ("no leader", "behind", "placeholders")
BROKER_COLUMNS = ("broker", "node", "ready", "leaders", "replicas", "log bytes")
EXPORT_COLUMNS = ("export", "ready", "lag", "lag time", "cost", "age", "exported")
PARTITION_COLUMNS = ("partition", "leader", "ISR", "lag", "offsets", "stored")
#: Role of a broker without replicas.
READER = "Reader"
#: Columns of numbers.
NUMERIC = frozenset(
    {"remote", "partitions", *TROUBLE_COLUMNS, "leaders", "replicas", "log bytes", "partition"}
)


@dataclass(frozen=True, slots=True)
class Bar:
    """Ranges of a partition, to be drawn."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ProgressBar:
    """Progress of an Export: offsets that are in the table, and those that are not."""

    done: int
    remaining: int

    @property
    def percent(self) -> int:
        """Return the progress, 100 only if nothing remains."""
        total = self.done + self.remaining
        return 100 if not self.remaining else 100 * self.done // total


Cell = str | Bar | ProgressBar


@dataclass(frozen=True, slots=True)
class ViewTable:
    """Table of cells; ``keys`` identify the rows, ``notes`` are printed below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Whole frame.

    ``verdict``: the first line, as that of ``tidemark status``. ``heading``: a line for each
    cluster. ``problems``: objects or brokers that could not be read. ``findings``: the first
    findings, problems before changes in progress; ``more_findings`` are not shown. ``pages``:
    number of pages of the topic list.
    """

    verdict: str
    heading: tuple[str, ...]
    problems: tuple[str, ...]
    findings: tuple[HealthFinding, ...]
    more_findings: int
    brokers: ViewTable
    topics: ViewTable
    exports: ViewTable = ViewTable("exports", EXPORT_COLUMNS, ())
    partitions: tuple[ViewTable, ...] = ()
    pages: int = 1

    @property
    def tables(self) -> tuple[ViewTable, ...]:
        """Return the tables in print order."""
        exports = (self.exports,) if self.exports.rows else ()
        return (self.brokers, self.topics, *exports, *self.partitions)


def view(
    object_index: ObjectIndex,
    query: Query,
    *,
    detailed: Sequence[str] = (),
    offsets: OffsetsByPartition | None = None,
    problems: Iterable[str] = (),
    unanswered: Mapping[int, str] | None = None,
    outdated: str = "",
) -> View:
    """Return one frame of the screen.

    ``detailed``: object names of the Topics whose partitions are shown; their findings come first
    if there are many. ``offsets``: answers of the brokers, None without any. ``problems``: lines
    about failed reads. ``unanswered``: why brokers did not answer, by node ID. ``outdated``: why
    nothing is known about the present health, else "".
    """
    topics = [topic for name in detailed if (topic := object_index.topic(name)) is not None]
    # The list shows one page, and partitions are shown only of the detailed topics.
    topic_page = select_page(object_index.lines.values(), query)
    found = object_index.findings()
    line = verdict_line(object_index.counts(), found)
    # Without this, a long list would leave out the findings of the topic that the user selected.
    if len(found) > FINDINGS_SHOWN:
        found.sort(key=lambda item: item.kind != TOPIC or item.name not in detailed)
    # Of a broker that is not ready, its finding says more than that it is unreachable.
    not_ready = {
        int(body["spec"]["nodeId"])
        for body in object_index.of_kind(BROKER)
        if ready_of(body) != "True"
    }
    unexpected = [
        text for node, text in sorted((unanswered or {}).items()) if node not in not_ready
    ]
    return View(
        verdict=f"UNKNOWN: {outdated}" if outdated else line,
        heading=tuple(map(cluster_line, object_index.of_kind(CLUSTER))),
        problems=(*problems, *unexpected, *sorted(object_index.unreadable.values())),
        findings=tuple(found[:FINDINGS_SHOWN]),
        more_findings=max(0, len(found) - FINDINGS_SHOWN),
        brokers=broker_table(object_index),
        topics=topic_table(object_index, topic_page, query),
        exports=export_table(object_index),
        partitions=tuple(partition_table(topic, offsets or {}) for topic in topics if topic.rows),
        pages=topic_page.pages,
    )


def broker_table(object_index: ObjectIndex) -> ViewTable:
    """Return the table of brokers.

    Leaders and replicas are counted from the partition rows, as in ``tidemark status``.
    """
    bodies = object_index.of_kind(BROKER)
    rows = []
    # Bounded, so that a page fits on a screen.
    for body in bodies[:BROKERS_SHOWN]:
        node_id = int(body["spec"]["nodeId"])
        role = body["spec"].get("role")
        # A Reader has no replicas, which is no trouble.
        hosted = (
            ("-", READER)
            if role == READER
            else (figure(object_index.leaders(node_id)), figure(object_index.replicas(node_id)))
        )
        rows.append(
            (
                str(body["metadata"]["name"]),
                str(node_id),
                ready_text(body),
                *hosted,
                figure((body.get("status") or {}).get("logBytes")),
            )
        )
    # The note says where the rest is.
    hidden = len(bodies) - len(rows)
    notes = (f"{count(hidden, 'more broker')}: kubectl get tmb",) if hidden else ()
    return ViewTable("brokers", BROKER_COLUMNS, tuple(rows), notes=notes)


def topic_table(object_index: ObjectIndex, topic_page: TopicPage, query: Query) -> ViewTable:
    """Return the table with one page of the topic list.

    ``query``: filter and order of the list, for the note below the table.
    """
    lines = topic_page.lines
    # Columns that are zero for every topic only make the table too wide for 80 columns.
    counts = {
        "no leader": [line.leaderless for line in lines],
        "behind": [line.behind for line in lines],
        "placeholders": [line.placeholders for line in lines],
    }
    troubles = tuple(name for name in TROUBLE_COLUMNS if any(counts[name]))
    rows = []
    for number, line in enumerate(lines):
        topic = object_index.topic(line.name)
        if topic is not None:
            figures = (figure(counts[name][number]) for name in troubles)
            rows.append((*_topic_cells(topic, line), *figures))
    # The list shows only a part of the topics, and the note says which part.
    noun = "topic" if topic_page.total == 1 else "topics"
    notes = [f"{topic_page.matching:,} of {topic_page.total:,} {noun}, by {query.sort}"]
    if topic_page.pages > 1:
        notes[0] += f"; page {topic_page.page + 1} of {topic_page.pages}"
    notes[0] += "; LOG BYTES: up to a minute old"
    if "behind" in troubles:
        notes[0] += "; BEHIND: partitions with replicas out of sync"
    return ViewTable(
        "topics",
        (*TOPIC_COLUMNS, *troubles),
        tuple(rows),
        keys=tuple(line.name for line in lines),
        notes=tuple(notes),
    )


def _topic_cells(topic: TopicRows, line: TopicLine) -> tuple[str, ...]:
    remote_bytes = topic.tiering.get("remoteBytes")
    return (
        line.kafka_name,
        line.ready,
        str(topic.tiering.get("state", "never")),
        "-" if remote_bytes is None else size_text(remote_bytes),
        figure(line.partitions),
    )


def export_table(object_index: ObjectIndex) -> ViewTable:
    """Return the table of Exports with the progress of each, those with problems first.

    Figures are of the job's last query of the topic's end; their age says how old they are.
    """
    bodies = sorted(object_index.of_kind(EXPORT), key=lambda body: ready_of(body) == "True")
    rows = []
    # Bounded, so that a page fits on a screen.
    for body in bodies[:EXPORTS_SHOWN]:
        status = body["status"]
        done, remaining = status.get("exportedOffsets"), status.get("lag")
        per_gb = (status.get("cost") or {}).get("cpuSecondsPerGigabyte")
        seconds = status.get("lagSeconds")
        rows.append(
            (
                str(body["metadata"]["name"]),
                ready_text(body),
                "?" if remaining is None else figure(remaining),
                "?" if seconds is None else time_text(seconds),
                "?" if per_gb is None else f"{per_gb:,} s/GB",
                _age(status.get("observedTime"), object_index.now),
                "?" if done is None or remaining is None else ProgressBar(done, remaining),
            )
        )
    if not rows:
        return ViewTable("exports", EXPORT_COLUMNS, ())
    # The note says what the figures mean, and where the rest is.
    notes = ["LAG: offsets that the table lacked, AGE ago; COST: CPU time"]
    hidden = len(bodies) - len(rows)
    if hidden:
        notes.append(f"{count(hidden, 'more export')}: kubectl get tmx")
    return ViewTable("exports", EXPORT_COLUMNS, tuple(rows), notes=tuple(notes))


def time_text(seconds: int) -> str:
    """Return a length of time in the largest unit that gives two or more."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def _age(observed: str | None, now: dt.datetime) -> str:
    """Return the age of figures in minutes or more: statuses are written once a minute."""
    if observed is None:
        return "?"
    seconds = int((now - dt.datetime.fromisoformat(observed)).total_seconds())
    return "<2 min" if seconds < 120 else time_text(seconds)


def shown_rows(topic: TopicRows) -> tuple[PartitionRow, ...]:
    """Return the rows that are shown: those without a leader and those behind first, if there are
    many.
    """
    ordered = sorted(
        topic.rows,
        key=lambda row: (row.leader >= 0, len(row.isr) == len(row.replicas), row.partition),
    )
    return tuple(sorted(ordered[:PARTITIONS_SHOWN], key=lambda row: row.partition))


def partition_table(topic: TopicRows, offsets: OffsetsByPartition) -> ViewTable:
    """Return the table of a topic's partitions: leader, ISR, lag and location of the offsets.

    The title has what the list has no room for: the object's name, the progress of a disablement,
    and the content of the tier.
    """
    shown = shown_rows(topic)
    rows = []
    for row in shown:
        # Offsets come from brokers and may be missing; "?" marks unknown values.
        partition_offsets = offsets.get((topic.kafka_name, row.partition))
        rows.append(
            (
                str(row.partition),
                f"{row.leader} (epoch {row.leader_epoch})" if row.leader >= 0 else "none",
                " ".join(map(str, row.isr)) or "none",
                _lags(row, partition_offsets),
                "?"
                if partition_offsets is None
                else f"{partition_offsets.log_start:,} to {partition_offsets.end:,}",
                "?" if partition_offsets is None else Bar(ranges(partition_offsets)),
            )
        )
    # The table is bounded, and the note says how to see the rest.
    hidden = len(topic.rows) - len(shown)
    note = f"{count(hidden, 'more partition')}: tidemark status {topic.kafka_name}"
    notes = (note,) if hidden else ()
    same = topic.kafka_name == topic.name
    title = f"Partitions of {topic.kafka_name}" + ("" if same else f" (object {topic.name})")
    title += f": tiering {tiering_text(topic)}" if topic.tiering else ""
    if topic.tiering.get("remoteSegments") is not None:
        # Statuses have the figures of the tier, which are written once a minute.
        title += f"; remote, up to a minute ago: {remote_text(topic)}"
    return ViewTable(title, PARTITION_COLUMNS, tuple(rows), notes=notes)


def _lags(row: PartitionRow, offsets: PartitionOffsets | None) -> str:
    """Return the lag of each follower, such as ``2:0 3:?``; unknown lags are question marks.

    An item has no space, so that a narrow cell is wrapped between items.
    """
    lags = []
    for replica in row.replicas:
        if replica == row.leader:
            continue
        if replica < 0:
            lags.append("placeholder")
            continue
        behind = None if offsets is None else lag(offsets, row.leader, replica)
        lags.append(f"{replica}:{'?' if behind is None else format(behind, ',')}")
    return " ".join(lags)
