"""Tables of a cluster that the screen, the text output and the HTML page share.

This module reads nothing: it turns objects, offsets and problems into tables of cells. Unknown
values are shown as unknown, never as zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_cli.local.object_summaries import (
    both_names,
    cluster_line,
    figure,
    ready_of,
    remote_text,
    tiering_text,
    troubles,
    why_not_ready,
)
from tidemark_cli.local.topic_rows import TopicRows, condition
from tidemark_cli.top.object_index import BROKER, CLUSTER, ObjectIndex, TopicLine
from tidemark_cli.top.query import Query, TopicPage, select_page
from tidemark_cli.top.ranges import PartitionOffsets, Range, lag, ranges
from tidemark_operator.controller.model import PartitionRow

#: (topic in Kafka, partition) -> offsets from its leader, if it answered.
OffsetsByPartition = Mapping[tuple[str, int], PartitionOffsets]
#: Most partitions of one topic that are shown and queried at once.
PARTITIONS_SHOWN = 50
BROKERS_SHOWN = 100
TOPIC_COLUMNS = (
    "topic", "ready", "tiering", "remote", "partitions", "no leader", "behind", "placeholders",
    "not well",
)  # fmt: skip
BROKER_COLUMNS = ("broker", "node", "ready", "leaders", "replicas", "log bytes", "not well")
PARTITION_COLUMNS = ("partition", "leader", "ISR", "followers' lag", "offsets", "where they are")


@dataclass(frozen=True, slots=True)
class Bar:
    """Ranges of a partition, to be drawn."""

    ranges: tuple[Range, ...]


Cell = str | Bar


@dataclass(frozen=True, slots=True)
class ViewTable:
    """Table of cells; ``keys`` identify the rows, ``notes`` are printed below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    keys: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Whole frame.

    ``heading``: a line for each cluster. ``problems``: objects or brokers that could not be read.
    ``pages``: number of pages of the topic list.
    """

    heading: tuple[str, ...]
    problems: tuple[str, ...]
    brokers: ViewTable
    topics: ViewTable
    partitions: tuple[ViewTable, ...] = ()
    pages: int = 1

    @property
    def tables(self) -> tuple[ViewTable, ...]:
        """Return the tables in print order."""
        return (self.brokers, self.topics, *self.partitions)


def view(
    object_index: ObjectIndex,
    query: Query,
    *,
    detailed: Sequence[str] = (),
    offsets: OffsetsByPartition | None = None,
    problems: Iterable[str] = (),
) -> View:
    """Return one frame of the screen.

    ``detailed``: object names of the Topics whose partitions are shown. ``offsets``: answers of the
    brokers, None without any. ``problems``: lines about failed reads.
    """
    topics = [topic for name in detailed if (topic := object_index.topic(name)) is not None]
    # The list shows one page, and partitions are shown only of the detailed topics.
    topic_page = select_page(object_index.lines.values(), query)
    return View(
        tuple(cluster_line(body) for body in object_index.of_kind(CLUSTER)) or ("no Cluster",),
        (*problems, *sorted(object_index.unreadable.values())),
        broker_table(object_index),
        topic_table(object_index, topic_page, query),
        tuple(partition_table(topic, offsets or {}) for topic in topics if topic.rows),
        topic_page.pages,
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
        rows.append(
            (
                str(body["metadata"]["name"]),
                str(node_id),
                ready_of(body),
                figure(object_index.leaders(node_id)),
                figure(object_index.replicas(node_id)),
                figure((body.get("status") or {}).get("logBytes")),
                _broker_trouble(body),
            )
        )
    # The note says where the rest is.
    hidden = len(bodies) - len(rows)
    notes = (f"{hidden} more brokers: kubectl get tmb",) if hidden else ()
    return ViewTable("brokers", BROKER_COLUMNS, tuple(rows), notes=notes)


def _broker_trouble(body: dict[str, Any]) -> str:
    troubles = [why_not_ready(body)]
    draining = condition(body, "Draining")
    if draining.get("status") == "True":
        troubles.append(f"Draining: {draining.get('message', '')}")
    return "; ".join(filter(None, troubles))


def topic_table(object_index: ObjectIndex, topic_page: TopicPage, query: Query) -> ViewTable:
    """Return the table with one page of the topic list.

    ``query``: filter and order of the list, for the note below the table.
    """
    rows = []
    for line in topic_page.lines:
        topic = object_index.topic(line.name)
        if topic is not None:
            rows.append(_topic_row(topic, line))
    # The list shows only a part of the topics, and the note says which part.
    notes = [f"{topic_page.matching:,} of {topic_page.total:,} topics, by {query.sort}"]
    if topic_page.pages > 1:
        notes[0] += f"; page {topic_page.page + 1} of {topic_page.pages}"
    return ViewTable(
        "topics",
        TOPIC_COLUMNS,
        tuple(rows),
        keys=tuple(line.name for line in topic_page.lines),
        notes=tuple(notes),
    )


def _topic_row(topic: TopicRows, line: TopicLine) -> tuple[str, ...]:
    return (
        both_names(topic),
        line.ready,
        tiering_text(topic),
        remote_text(topic),
        str(line.partitions),
        str(line.leaderless),
        str(line.behind),
        str(line.placeholders),
        "\n".join(troubles(topic)),
    )


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
    """Return the table of a topic's partitions: leader, ISR, lag and location of the offsets."""
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
    notes = (f"{hidden} more partitions: tidemark status {topic.kafka_name}",) if hidden else ()
    return ViewTable(
        f"{topic.kafka_name}: {tiering_text(topic)}", PARTITION_COLUMNS, tuple(rows), notes=notes
    )


def _lags(row: PartitionRow, offsets: PartitionOffsets | None) -> str:
    """Return the lag of each follower as text; unknown lags are question marks."""
    lags = []
    for replica in row.replicas:
        if replica == row.leader:
            continue
        if replica < 0:
            lags.append("placeholder")
            continue
        behind = None if offsets is None else lag(offsets, row.leader, replica)
        lags.append(f"{replica}: {'?' if behind is None else format(behind, ',')}")
    return "  ".join(lags)
