"""Text of ``tidemark status``: the verdict, tables, then messages at the full width.

Tables contain short values only, so that they fit on 80 columns. Whatever has sentences is below.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from tidemark.message_text import count
from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.topic_rows import (
    TopicRows,
    both_names,
    condition,
    figure,
    ready_of,
    ready_text,
    tiering_text,
)
from tidemark_cli.inspection.verdict import HealthFinding, Severity, verdict
from tidemark_operator.controller.state.rows import PartitionRow
from tidemark_operator.resources.names import Workload

#: Age of the figures that statuses contain, which the operator writes once a minute.
FIGURES_AGE = "LOG BYTES, SEGMENTS and REMOTE BYTES are up to a minute old."
#: Legend of the partition tables.
LEGEND = (
    "LEADER EPOCH: increases with every election. ISR: in-sync replicas.",
    "ELIGIBLE: replicas outside the ISR that may lead (KIP-966); ? may have lost its log's tail.",
    "A replica id below 0 is a placeholder: it waits for a broker (KIP-409).",
)


def print_screen(
    out: Console,
    snapshot: ClusterSnapshot,
    found: Sequence[HealthFinding],
    shown: Sequence[TopicRows],
    *,
    wide: bool = False,
    line: str = "",
) -> None:
    """Print the screen of ``tidemark status``: the verdict, the tables and the findings.

    ``line``: verdict to print, if it is not the one of the whole cluster. ``shown``: topics to
    list. Partition tables are printed for topics with a problem, with ``wide`` for all listed
    topics.
    """
    in_trouble = {item.name for item in found if item.kind == "Topic"}
    print_verdict(out, line or verdict(snapshot, found))
    if snapshot.clusters:
        _print(out, _clusters(snapshot))
    if snapshot.brokers:
        rows = [row for topic in snapshot.topics for row in topic.rows]
        _print(out, _brokers(snapshot.brokers, rows))
    if shown:
        _print(out, _topics(shown, in_trouble, wide=wide))
    if snapshot.brokers or shown:
        out.print(Text(FIGURES_AGE, style="dim"))
    if snapshot.users:
        _print(out, _users(snapshot.users))
    if snapshot.exports:
        _print(out, _exports(snapshot.exports))
    detailed = [topic for topic in shown if topic.rows and (wide or topic.name in in_trouble)]
    # Partitions of every topic would push the messages off the screen.
    for topic in detailed:
        _print(out, _partitions(topic), title=f"Partitions of {topic.kafka_name}")
    if detailed:
        out.print(Text("\n".join(LEGEND), style="dim"))
    print_by_severity(out, found)


def ordered(topics: Sequence[TopicRows], found: Sequence[HealthFinding]) -> list[TopicRows]:
    """Return topics with a problem first, then those in progress, internal topics last."""
    worst: dict[str, Severity] = {}
    for item in found:
        if item.kind == "Topic":
            worst[item.name] = max(item.severity, worst.get(item.name, item.severity))
    return sorted(topics, key=lambda t: (-worst.get(t.name, 0), t.is_internal, t.kafka_name))


def print_findings(out: Console, found: Sequence[HealthFinding], indent: int = 2) -> None:
    """Print each finding: object, reason and condition in one line, the message below it."""
    for item in found:
        heading = Text(" ".join(filter(None, (item.reference, item.reason))), style="bold")
        if item.condition:
            since = f" since {item.since}" if item.since else ""
            heading.append(f" ({item.condition}{since})", style="not bold")
        out.print(Padding(heading, (0, 0, 0, indent)))
        out.print(Padding(Text(item.message), (0, 0, 0, indent + 2)))


def print_by_severity(out: Console, found: Sequence[HealthFinding]) -> None:
    """Print the problems, then what is in progress, each with a title."""
    for title, severity in (("Problems", Severity.PROBLEM), ("In progress", Severity.PROGRESS)):
        of_severity = [item for item in found if item.severity is severity]
        if of_severity:
            out.print()
            out.print(Text(title, style="bold"))
            print_findings(out, of_severity)


def print_verdict(out: Console, line: str) -> None:
    """Print the first line; it is wrapped on a terminal only, so that a script reads all of it."""
    out.print(Text(line, style=verdict_style(line)), soft_wrap=not out.is_terminal)


def verdict_style(line: str) -> str:
    """Return the style of a verdict: green only for a healthy cluster."""
    return "bold green" if line.startswith("HEALTHY") else "bold red"


def _print(out: Console, table: Table, title: str = "") -> None:
    out.print()
    if title:
        out.print(Text(title, style="bold"))
    out.print(table)


def plain_table(*columns: str | Column) -> Table:
    """Return an empty table without lines; only names are folded, so that they can be copied."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        if isinstance(column, str):
            table.add_column(column.upper(), no_wrap=True)
        else:
            table.add_column(str(column.header).upper(), overflow="fold", justify=column.justify)
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right")


def _clusters(snapshot: ClusterSnapshot) -> Table:
    """Return the table of Clusters with their numbers of live brokers and topics."""
    table = plain_table(Column("cluster"), "ready", "remote storage", "brokers", "topics")
    live = sum(ready_of(broker) == "True" for broker in snapshot.brokers)
    internal = sum(topic.is_internal for topic in snapshot.topics)
    for body in snapshot.clusters:
        remote = condition(body, "RemoteStorageReady")
        table.add_row(
            body["metadata"]["name"],
            ready_text(body),
            # A Cluster without remote storage does not have the condition.
            str(remote.get("reason", "none")),
            f"{live}/{len(snapshot.brokers)}",
            f"{len(snapshot.topics) - internal}" + (f" + {internal} internal" if internal else ""),
        )
    return table


def _brokers(brokers: Sequence[dict[str, Any]], rows: Sequence[PartitionRow]) -> Table:
    """Return the table of brokers.

    Leaders and replicas are counted from the partition rows, which are newer than a Broker's status
    (written once a minute). For brokers of Apache Kafka only the status has them.
    """
    table = plain_table(
        Column("broker"),
        "node",
        "ready",
        _right("leaders"),
        _right("replicas"),
        _right("log bytes"),
    )
    for broker in brokers:
        node_id, status = broker["spec"]["nodeId"], broker.get("status") or {}
        # Brokers of Apache Kafka have no partition rows of their own here, only a status.
        is_observed = broker["spec"].get("workload") == Workload.OBSERVED
        leaders = sum(row.leader == node_id for row in rows)
        replicas = sum(node_id in row.replicas for row in rows)
        table.add_row(
            broker["metadata"]["name"],
            str(node_id),
            ready_text(broker),
            figure(status.get("leaders") if is_observed else leaders),
            figure(status.get("replicas") if is_observed else replicas),
            figure(status.get("logBytes")),
        )
    return table


def _topics(shown: Sequence[TopicRows], in_trouble: set[str], *, wide: bool) -> Table:
    """Return the table of topics; ``wide`` adds the object name to the name in Kafka.

    ``in_trouble``: object names of the topics with a problem, which are red.
    """
    # Most clusters have no placeholder replicas (KIP-409), so the column is optional.
    has_placeholders = any(topic.placeholders() for topic in shown)
    optional = (_right("placeholders"),) if has_placeholders else ()
    columns = ("ready", _right("in sync"), "tiering", _right("segments"), _right("remote bytes"))
    table = plain_table(Column("topic"), *columns, *optional)
    for topic in shown:
        placeholders = (str(topic.placeholders()),) if has_placeholders else ()
        table.add_row(
            both_names(topic) if wide else topic.kafka_name,
            ready_text(topic.obj),
            in_sync_text(topic),
            tiering_text(topic).partition(",")[0],
            figure(topic.tiering.get("remoteSegments")),
            figure(topic.tiering.get("remoteBytes")),
            *placeholders,
            style="red" if topic.name in in_trouble else "",
        )
    return table


def in_sync_text(topic: TopicRows) -> str:
    """Return the replicas in sync and all replicas, such as ``6/10``; ``-`` if unknown."""
    total = sum(len(row.replicas) for row in topic.rows)
    if not total:
        return "-"
    return f"{sum(len(row.isr) for row in topic.rows)}/{total}"


def _users(users: Sequence[dict[str, Any]]) -> Table:
    table = plain_table(Column("user"), "ready", Column("principal"), Column("secret"))
    for user in users:
        status = user.get("status") or {}
        principal = f"User:{status['username']}" if "username" in status else ""
        table.add_row(
            user["metadata"]["name"], ready_text(user), principal, status.get("secret", "")
        )
    return table


def _exports(exports: Sequence[dict[str, Any]]) -> Table:
    """Return the table of exports.

    Column "as of": the exported table contains all records up to that time. Figures are at most a
    minute old.
    """
    columns = ("ready", _right("lag"), _right("rows"), "as of")
    table = plain_table(Column("export"), Column("topic"), Column("table"), *columns)
    for export in exports:
        # A new export has no status.
        spec, status = export["spec"], export.get("status") or {}
        table.add_row(
            export["metadata"]["name"],
            exported_text(spec),
            spec["table"]["name"],
            ready_text(export),
            figure(status.get("lag")),
            figure(status.get("rows")),
            status.get("currentTime", "-"),
        )
    return table


def exported_text(spec: dict[str, Any]) -> str:
    """Return the topic of an Export, or which of many topics it exports."""
    topics = spec.get("topics")
    if topics is None:
        return str(spec["topicRef"]["name"])
    if "selector" in topics:
        labels = topics["selector"]["matchLabels"]
        return ",".join(f"{name}={value}" for name, value in labels.items())
    return str(topics.get("pattern") or count(len(topics["names"]), "topic"))


def _partitions(topic: TopicRows) -> Table:
    """Return the table of a topic's partitions; see :data:`LEGEND`."""
    names = (_right("partition"), _right("leader"), _right("leader epoch"))
    table = plain_table(*names, Column("replicas"), Column("ISR"), Column("eligible"))
    for row in topic.rows:
        table.add_row(
            str(row.partition),
            str(row.leader) if row.leader >= 0 else "none",
            str(row.leader_epoch),
            " ".join(map(str, row.replicas)),
            " ".join(map(str, row.isr)),
            " ".join(_eligible(row)),
        )
    return table


def _eligible(row: PartitionRow) -> Iterator[str]:
    yield from map(str, row.elr)
    yield from (f"{replica}?" for replica in row.last_known_elr)
