"""``tidemark status``: print a verdict, clusters, brokers, topics, users, exports and findings."""

import dataclasses
import json
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from tidemark.message_text import count
from tidemark_cli.common import ClusterOptions, console, fail
from tidemark_cli.inspection.causes import of_topics
from tidemark_cli.inspection.screens import ordered, print_screen
from tidemark_cli.inspection.snapshot import ClusterSnapshot, read_snapshot
from tidemark_cli.inspection.topic_rows import TopicRows, is_named
from tidemark_cli.inspection.verdict import HealthFinding, Severity, findings, verdict
from tidemark_cli.option_groups import option_groups
from tidemark_kube.client import KubeClient

TOPICS_SHOWN = 20
#: Exit status of ``--exit-code`` and of ``tidemark check`` for a cluster that is not healthy. 1 is
#: that of a failure, and 2 that of wrong usage.
NOT_HEALTHY = 3
WATCH_S = 2.0


@option_groups
def status(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these topics, such as orders or 'orders-*'."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Maximum number of topics as text. 0: all.")
    ] = TOPICS_SHOWN,
    output: Annotated[
        Literal["text", "wide", "json", "yaml"],
        typer.Option(
            "--output", "-o", help="Format. wide: text with the partitions of all topics."
        ),
    ] = "text",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with status 3 if the cluster is not healthy.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")
    ] = False,
    cluster: ClusterOptions,
) -> None:
    """Show the health of the cluster, its objects and their problems."""
    if watch and output in ("json", "yaml"):
        fail(f"--watch shows text: leave out --output {output}")
    # Everything is read before anything is printed, so that a failure prints no partial status.
    try:
        with cluster.kube() as kube:
            while True:
                # A process may end while the screen is watched.
                snapshot = read_snapshot(kube, cluster.local_brokers())
                found = chosen_findings(snapshot, names or [])
                if watch:
                    console.clear()
                _print(snapshot, found, output, names or [], limit)
                if not watch:
                    break
                time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return
    if exit_code and not is_healthy(found):
        raise typer.Exit(NOT_HEALTHY)


def is_healthy(found: Sequence[HealthFinding]) -> bool:
    """Return whether no finding is a problem."""
    return not any(item.severity is Severity.PROBLEM for item in found)


def chosen_findings(snapshot: ClusterSnapshot, names: Sequence[str]) -> list[HealthFinding]:
    """Return the findings of all objects; with ``names`` those of the topics, and their causes."""
    found = findings(snapshot)
    if not names:
        return found
    return of_topics(snapshot, found, {topic.name for topic in named(snapshot.topics, names)})


def chosen_verdict(
    snapshot: ClusterSnapshot, found: Sequence[HealthFinding], names: Sequence[str]
) -> str:
    """Return the verdict on the topics that ``names`` match, or on the whole cluster."""
    chosen = dataclasses.replace(snapshot, topics=named(snapshot.topics, names))
    return verdict(chosen, found)


def print_status(out: Console, kube: KubeClient) -> None:
    """Print the whole status of a cluster. Raises :class:`KubeRequestError`."""
    snapshot = read_snapshot(kube)
    print_text(out, snapshot, findings(snapshot))


def print_text(
    out: Console,
    snapshot: ClusterSnapshot,
    found: Sequence[HealthFinding],
    names: Sequence[str] = (),
    limit: int = 0,
    *,
    wide: bool = False,
) -> None:
    """Print the tables of ``tidemark status`` as text.

    ``names``: names or patterns of the topics to list; empty for all. ``found``: findings of the
    named topics. ``limit``: maximum number of topics, 0 for all. Figures of brokers cover all
    topics. Partitions are printed of topics with a problem, of named topics, and with ``wide`` of
    all.
    """
    # Names are matched first, so that the limit counts matching topics only.
    chosen = ordered(named(snapshot.topics, names), found)
    shown = chosen[:limit] if limit else chosen
    line = chosen_verdict(snapshot, found, names)
    print_screen(out, snapshot, found, shown, wide=wide or bool(names), line=line)
    # Problems of other objects are not hidden.
    everywhere = findings(snapshot) if names else found
    others = sum(item.severity is Severity.PROBLEM for item in everywhere if item not in found)
    if others:
        text = f"\n{count(others, 'other problem')} in this cluster: tidemark status"
        out.print(text, highlight=False)
    # The output says if it is incomplete, and how to see the rest.
    if len(shown) < len(chosen):
        out.print(
            f"\n{len(shown)} of {count(len(chosen), 'topic')} shown; show all with --limit 0, or "
            "some with: tidemark status NAME or 'PREFIX*'",
            highlight=False,
            soft_wrap=True,
        )
    elif names and not chosen:
        text = f"none of {count(len(snapshot.topics), 'topic')} matches {' or '.join(names)}"
        out.print(text, highlight=False, markup=False)


def named(found: Sequence[TopicRows], patterns: Sequence[str]) -> list[TopicRows]:
    """Return the topics whose name in Kafka or object name matches a shell pattern; all without
    one.
    """
    if not patterns:
        return list(found)
    return [topic for topic in found if is_named(topic, patterns)]


def document(
    snapshot: ClusterSnapshot, found: Sequence[HealthFinding], names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the status as one JSON object; programs get all topics that ``names`` match."""
    return {
        "healthy": is_healthy(found),
        "verdict": chosen_verdict(snapshot, found, names),
        "findings": [
            {**dataclasses.asdict(item), "severity": item.severity.name.lower()} for item in found
        ],
        "clusters": [_figures(body) for body in snapshot.clusters],
        "brokers": [_figures(body) for body in snapshot.brokers],
        "users": [_figures(body) for body in snapshot.users],
        "exports": [_figures(body) for body in snapshot.exports],
        "topics": [_as_json(topic) for topic in named(snapshot.topics, names)],
    }


def _figures(body: dict[str, Any]) -> dict[str, Any]:
    return {"name": body["metadata"]["name"], "status": body.get("status") or {}}


def _as_json(topic: TopicRows) -> dict[str, Any]:
    partitions = []
    for row in topic.rows:
        fields = dataclasses.asdict(row)
        fields["topic_id"] = str(row.topic_id)
        partitions.append(fields)
    names = {"name": topic.name, "topicName": topic.kafka_name}
    return {**names, "status": topic.status, "partitions": partitions}


def _print(
    snapshot: ClusterSnapshot,
    found: Sequence[HealthFinding],
    output: str,
    names: Sequence[str],
    limit: int,
) -> None:
    if output in ("text", "wide"):
        print_text(console, snapshot, found, names, limit, wide=output == "wide")
    elif output == "json":
        print(json.dumps(document(snapshot, found, names), indent=2))
    else:
        import yaml  # costs a tenth of a second, which the other formats do not pay

        print(yaml.safe_dump(document(snapshot, found, names), sort_keys=False), end="")
