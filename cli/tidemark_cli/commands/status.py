"""``tidemark status``: print clusters, brokers, users, topics, partitions, tiering and exports."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from tidemark_cli.commands.common import (
    DEFAULT_DIR,
    ContextOption,
    DirOption,
    KubeconfigOption,
    NamespaceOption,
    console,
    fail,
    open_kube,
)
from tidemark_cli.local.kube import KubeClient, KubeRequestError
from tidemark_cli.local.object_summaries import (
    both_names,
    cluster_line,
    figure,
    is_named,
    messages,
    ready_of,
    remote_text,
    tiering_text,
    why_not_ready,
)
from tidemark_cli.local.topic_rows import TopicRows, condition, topics
from tidemark_operator.controller.model import PartitionRow
from tidemark_operator.resources.names import Workload

TOPICS_SHOWN = 20
#: HTTP status for a resource that the API server does not serve.
NOT_FOUND = 404


def status(
    called: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these topics, such as orders or 'orders-*'."
        ),
    ] = None,
    directory: DirOption = DEFAULT_DIR,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of topics as text. 0: all.")
    ] = TOPICS_SHOWN,
    output: Annotated[Literal["text", "json"], typer.Option(help="Format of the output.")] = "text",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    namespace: NamespaceOption = "",
) -> None:
    """Show the objects of the cluster and their progress."""
    kube = open_kube(called, directory, kubeconfig, context, namespace)
    # Everything is read before anything is printed, so that a failure prints no partial status.
    try:
        clusters, brokers, users = (kube.objects(kind) for kind in ("Cluster", "Broker", "User"))
        topic_rows, exports = topics(kube), _exports(kube)
        kube.close()
    except (KubeRequestError, OSError) as error:
        fail(f"{error}; if the local cluster is down, start it with: tidemark up")
    # JSON is for programs: no limit and no other objects than topics.
    if output == "json":
        print(json.dumps([_as_json(topic) for topic in named(topic_rows, names or [])]))
        return
    for body in clusters:
        console.print(cluster_line(body), highlight=False, soft_wrap=True, markup=False)
    print_status(console, brokers, topic_rows, names or [], limit, users, exports)


def _exports(kube: KubeClient) -> list[dict[str, Any]]:
    """Return the Exports; none if the API server's CRDs predate them."""
    try:
        return kube.objects("Export")
    except KubeRequestError as error:
        if error.status == NOT_FOUND:
            return []
        raise


def named(topic_rows: list[TopicRows], patterns: Sequence[str]) -> list[TopicRows]:
    """Return the topics whose name in Kafka or object name matches a shell pattern; all without
    one.
    """
    if not patterns:
        return topic_rows
    return [topic for topic in topic_rows if is_named(topic, patterns)]


def print_status(
    out: Console,
    brokers: list[dict[str, Any]],
    topic_rows: list[TopicRows],
    names: Sequence[str] = (),
    limit: int = 0,
    users: Sequence[dict[str, Any]] = (),
    exports: Sequence[dict[str, Any]] = (),
) -> None:
    """Print the tables of ``tidemark status`` for the first ``limit`` topics that ``names`` match.

    Figures of brokers cover all topics. Partitions of the coordinators' topics, 100 by default, are
    printed only if ``names`` match these topics.
    """
    # Names are matched first, so that the limit counts matching topics only.
    chosen = named(topic_rows, names)
    shown = chosen[:limit] if limit else chosen
    # Brokers' figures come from all topics, also those that are not shown.
    out.print(_broker_table(brokers, [row for topic in topic_rows for row in topic.rows]))
    if users:
        out.print(_user_table(users))
    out.print(_topic_table(shown))
    if exports:
        out.print(_export_table(exports))
    # Partitions of internal topics would hide the others.
    for topic in shown:
        if topic.rows and (names or not topic.is_internal):
            out.print(_partition_table(topic))
    # The output says if it is incomplete, and how to see the rest.
    if len(shown) < len(chosen):
        out.print(
            f"{len(shown)} of {len(chosen)} topics shown; show all with --limit 0, or "
            "some with: tidemark status NAME or 'PREFIX*'",
            highlight=False,
            soft_wrap=True,
        )
    elif names and not chosen:
        out.print(f"none of {len(topic_rows)} topics matches {' or '.join(names)}", highlight=False)


def _broker_table(brokers: list[dict[str, Any]], rows: list[PartitionRow]) -> Table:
    """Return the table of brokers.

    Leaders and replicas are counted from the partition rows, which are newer than a Broker's status
    (written once a minute). For brokers of Apache Kafka only the status has them.
    """
    columns = ("broker", "node", "ready", "leaders", "replicas", "log bytes", "message")
    table = Table(*columns, title="brokers")
    for broker in brokers:
        node_id, status = broker["spec"]["nodeId"], broker.get("status") or {}
        # Brokers of Apache Kafka have no partition rows of their own here, only a status.
        observed = broker["spec"].get("workload") == Workload.OBSERVED
        table.add_row(
            broker["metadata"]["name"],
            str(node_id),
            ready_of(broker),
            figure(status.get("leaders") if observed else sum(r.leader == node_id for r in rows)),
            figure(
                status.get("replicas") if observed else sum(node_id in r.replicas for r in rows)
            ),
            figure(status.get("logBytes")),
            why_not_ready(broker),
        )
    return table


def _user_table(users: Sequence[dict[str, Any]]) -> Table:
    table = Table("user", "principal", "ready", "secret", "message", title="users")
    for user in users:
        status = user.get("status") or {}
        table.add_row(
            user["metadata"]["name"],
            f"User:{status['username']}" if "username" in status else "",
            ready_of(user),
            status.get("secret", ""),
            why_not_ready(user),
        )
    return table


def _export_table(exports: Sequence[dict[str, Any]]) -> Table:
    """Return the table of exports; "as of": the table contains all records up to that time.

    The figures are at most a minute old.
    """
    columns = ("export", "topic", "table", "ready", "lag", "rows", "as of", "message")
    # Names are folded rather than truncated, so that they can be copied.
    table = Table(*(Column(name, overflow="fold") for name in columns), title="exports")
    for export in exports:
        spec, status = export["spec"], export.get("status") or {}
        message = why_not_ready(export) or _not_exporting(export)
        table.add_row(
            export["metadata"]["name"],
            spec["topicRef"]["name"],
            spec["table"]["name"],
            ready_of(export),
            figure(status.get("lag")),
            figure(status.get("rows")),
            status.get("currentTime", "-"),
            message,
        )
    return table


def _not_exporting(export: dict[str, Any]) -> str:
    exporting = condition(export, "Exporting")
    return "" if exporting.get("status") == "True" else str(exporting.get("message", ""))


def _topic_table(topic_rows: list[TopicRows]) -> Table:
    """Return the table of topics: readiness, tiering, remote bytes, placeholders."""
    names = ("topic", "ready", "tiering", "remote", "placeholders", "message")
    # Folded, so that names and references in messages are not cut.
    table = Table(*(Column(name, overflow="fold") for name in names), title="topics")
    for topic in topic_rows:
        table.add_row(
            both_names(topic),
            ready_of(topic.obj),
            tiering_text(topic),
            remote_text(topic),
            str(topic.placeholders()),
            "\n".join(messages(topic)),
        )
    return table


def _partition_table(topic: TopicRows) -> Table:
    """Return the table of a topic's partitions.

    ``eligible`` are replicas outside the ISR that may lead (KIP-966). One marked ``?`` may have
    lost a tail of its log. It leads only if its log is known to reach furthest.
    """
    names = ("partition", "leader", "leader epoch", "replicas", "ISR", "eligible")
    table = Table(*names, title=topic.kafka_name)
    for row in topic.rows:
        table.add_row(
            str(row.partition),
            str(row.leader) if row.leader >= 0 else "none",
            str(row.leader_epoch),
            " ".join(map(str, row.replicas)),
            " ".join(map(str, row.isr)),
            " ".join([*map(str, row.elr), *(f"{replica}?" for replica in row.last_known_elr)]),
        )
    return table


def _as_json(topic: TopicRows) -> dict[str, Any]:
    partitions = []
    for row in topic.rows:
        fields = asdict(row)
        fields["topic_id"] = str(row.topic_id)
        partitions.append(fields)
    names = {"name": topic.name, "topicName": topic.kafka_name}
    return {**names, "status": topic.status, "partitions": partitions}
