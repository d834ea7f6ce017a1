"""``tidemark status``: the cluster, brokers, users, topics, partitions, tiers, placeholders, a
disablement's progress."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from tidemark_cli.commands.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_cli.local.kube import KubeError
from tidemark_cli.local.topic_rows import TopicRows, condition, topics
from tidemark_operator.controller.model import PartitionRow

TOPICS_SHOWN = 20


def status(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these topics, e.g. orders or 'orders-*'."),
    ] = None,
    directory: DirOption = DEFAULT_DIR,
    limit: Annotated[
        int, typer.Option(min=0, help="How many topics to show as text; 0 shows all.")
    ] = TOPICS_SHOWN,
    output: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
) -> None:
    """Show what the cluster holds and how far it is."""
    cluster = open_cluster(directory)
    try:
        kube = cluster.kube()
        clusters, brokers, users = (kube.objects(kind) for kind in ("Cluster", "Broker", "User"))
        found = topics(kube)
        kube.close()
    except (KubeError, OSError) as error:
        fail(f"{error}; is the cluster up? tidemark up")
    if output == "json":
        print(json.dumps([_as_json(topic) for topic in named(found, names or [])]))
        return
    for body in clusters:
        console.print(cluster_line(body), highlight=False, soft_wrap=True, markup=False)
    print_status(console, brokers, found, names or [], limit, users)


def cluster_line(cluster: dict[str, Any]) -> str:
    """What its Ready says; with the reason where that needs somebody."""
    ready, stalled = condition(cluster, "Ready"), condition(cluster, "Stalled")
    text = f"cluster {cluster['metadata']['name']}: {ready.get('message', 'not looked at yet')}"
    is_well = ready.get("status") == "True" and stalled.get("status") != "True"
    return text if is_well or not ready else f"{ready['reason']}: {text}"


def named(found: list[TopicRows], patterns: Sequence[str]) -> list[TopicRows]:
    """The topics whose name, in Kafka or as an object, matches one of the shell patterns; all where
    there is none."""
    if not patterns:
        return found
    return [topic for topic in found if any(_matches(topic, p) for p in patterns)]


def _matches(topic: TopicRows, pattern: str) -> bool:
    return fnmatchcase(topic.kafka_name, pattern) or fnmatchcase(topic.name, pattern)


def print_status(
    out: Console,
    brokers: list[dict[str, Any]],
    found: list[TopicRows],
    names: Sequence[str] = (),
    limit: int = 0,
    users: Sequence[dict[str, Any]] = (),
) -> None:
    """The tables of ``tidemark status``: of topics that ``names`` matches, the first ``limit``.

    The figures of the brokers are those of all topics, whichever are shown. The partitions of the
    coordinators' own topics, 100 as they come, are shown only where these are named.
    """
    chosen = named(found, names)
    shown = chosen[:limit] if limit else chosen
    out.print(_broker_table(brokers, [row for topic in found for row in topic.rows]))
    if users:
        out.print(_user_table(users))
    out.print(_topic_table(shown))
    for topic in shown:
        if topic.rows and (names or not topic.is_internal):
            out.print(_partition_table(topic))
    if len(shown) < len(chosen):
        out.print(
            f"{len(shown)} of {len(chosen)} topics; all: --limit 0, "
            "some: tidemark status NAME or 'PREFIX*'",
            highlight=False,
            soft_wrap=True,
        )
    elif names and not chosen:
        out.print(f"no topic of {len(found)} is called {' or '.join(names)}", highlight=False)


def _broker_table(brokers: list[dict[str, Any]], rows: list[PartitionRow]) -> Table:
    """Leaders and replicas are counted in the rows, as the other tables do: a Broker's status has
    them too, but is written once a minute."""
    columns = ("broker", "node", "ready", "leaders", "replicas", "log bytes", "message")
    table = Table(*columns, title="brokers")
    for broker in brokers:
        node_id = broker["spec"]["nodeId"]
        table.add_row(
            broker["metadata"]["name"],
            str(node_id),
            condition(broker, "Ready").get("status", "Unknown"),
            _figure(sum(row.leader == node_id for row in rows)),
            _figure(sum(node_id in row.replicas for row in rows)),
            _figure((broker.get("status") or {}).get("logBytes")),
            _why_not_ready(broker),
        )
    return table


def _why_not_ready(found: dict[str, Any]) -> str:
    """Why a broker is fenced, or what is wrong with a user."""
    ready = condition(found, "Ready")
    return "" if ready.get("status") == "True" else str(ready.get("message", ""))


def _user_table(users: Sequence[dict[str, Any]]) -> Table:
    table = Table("user", "principal", "ready", "secret", "message", title="users")
    for user in users:
        status = user.get("status") or {}
        table.add_row(
            user["metadata"]["name"],
            f"User:{status['username']}" if "username" in status else "",
            condition(user, "Ready").get("status", "Unknown"),
            status.get("secret", ""),
            _why_not_ready(user),
        )
    return table


def _topic_table(found: list[TopicRows]) -> Table:
    names = ("topic", "ready", "tiering", "remote", "placeholders", "message")
    # Folded, so that a name, and what a message refers to, is there whole.
    table = Table(*(Column(name, overflow="fold") for name in names), title="topics")
    for topic in found:
        ready = topic.condition("Ready")
        table.add_row(
            _both_names(topic),
            ready.get("status", "Unknown"),
            _tiering(topic),
            _remote(topic),
            str(topic.placeholders()),
            _message(topic),
        )
    return table


def _both_names(topic: TopicRows) -> str:
    """Kafka's, and the object's where it is another one."""
    same = topic.kafka_name == topic.name
    return topic.name if same else f"{topic.kafka_name}\n(object {topic.name})"


def _message(topic: TopicRows) -> str:
    """What Ready says, and what other conditions say that need somebody."""
    messages = [str(topic.condition("Ready").get("message", ""))]
    for kind, trouble in (
        ("Stalled", "True"),
        ("TierIntegrity", "False"),
        ("TieringSettled", "False"),
        ("FullyReplicated", "False"),
    ):
        found = topic.condition(kind)
        text = str(found.get("message", ""))
        if found.get("status") != trouble or found.get("reason") in ("Disabling", "TierIntegrity"):
            continue
        if text not in messages:
            messages.append(f"{kind}: {text}")
    return "\n".join(messages)


def _tiering(topic: TopicRows) -> str:
    tiering = topic.tiering
    if not tiering:
        return "never"
    text = f"{tiering['state']} (epoch {tiering.get('epoch', 0)})"
    if tiering["state"] == "Disabling":
        waiting = ", ".join(map(str, tiering.get("pendingBrokers") or []))
        left = tiering.get("remainingSegments")
        text += f", {tiering.get('policy')}; waits for brokers {waiting or 'none'}"
        text += f"; {left} segments left" if left is not None else ""
    return text


def _remote(topic: TopicRows) -> str:
    tiering = topic.tiering
    if not tiering or tiering.get("remoteSegments") is None:
        return "-"
    return f"{tiering['remoteSegments']} segments, {tiering.get('remoteBytes', 0):,} bytes"


def _partition_table(topic: TopicRows) -> Table:
    """``eligible``: replicas outside the ISR that may lead (KIP-966); one marked ``?`` may have
    lost a tail, and leads only once its log is known to reach furthest."""
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


def _figure(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _as_json(topic: TopicRows) -> dict[str, Any]:
    partitions = []
    for row in topic.rows:
        fields = asdict(row)
        fields["topic_id"] = str(row.topic_id)
        partitions.append(fields)
    names = {"name": topic.name, "topicName": topic.kafka_name}
    return {**names, "status": topic.status, "partitions": partitions}
