"""``tidemark topics``: topics as the brokers know them."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark_cli.option_groups import option_groups
from tidemark_cli.records.session import BrokerOptions, OutputOption, run
from tidemark_cli.records.text import columns
from tidemark_cli.sizes import size_text

if TYPE_CHECKING:
    from tidemark.kafka_client.client import KafkaClient
    from tidemark_cli.records.topic_figures import Listing

app = typer.Typer(help="Show the topics that brokers serve, with their offsets.")
_UNKNOWN = "?"
_LIST_HEADING = ("TOPIC", "PARTITIONS", "REPLICAS", "IN-SYNC", "TIERED", "OFFSETS")


@app.command("list")
@option_groups
def list_(
    *,
    internal: Annotated[
        bool,
        typer.Option("--internal", "-i", help="Also topics whose names start with underscores."),
    ] = False,
    output: OutputOption = "text",
    brokers: BrokerOptions,
) -> None:
    """List topics: partitions, replicas, those in sync, tiering, and offsets from start to end.

    Brokers answer, of the local cluster or of --bootstrap. The desired state of topics with a
    manifest is in ``tidemark status``.
    """
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        from tidemark_cli.records.topic_figures import list_topics

        # Scripts get JSON also if there is no topic.
        listing = await list_topics(client, internal=internal)
        rows = _rows(listing)
        if output == "json":
            typer.echo(json.dumps(rows, indent=2))
        elif rows:
            cells = [[_shown(value) for value in row.values()] for row in rows]
            typer.echo(columns([_LIST_HEADING, *cells]))
        else:
            typer.echo("no topics")
        # On standard error, so that both outputs stay readable for programs.
        _print_problems(listing)

    run(where, work)


@app.command()
@option_groups
def describe(
    *,
    name: Annotated[str, typer.Argument(help="Topic.")],
    output: OutputOption = "text",
    brokers: BrokerOptions,
) -> None:
    """Describe a topic: its id and configuration, and each partition's replicas and offsets.

    START to END are the offsets in both tiers. From LOCAL-START on they are on the leader's disk,
    where SIZE is their size.
    """
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        from tidemark_cli.records.topic_figures import describe_topic

        # Text is made of the same values as JSON.
        listing = await describe_topic(client, name)
        body = _described(listing)
        typer.echo(json.dumps(body, indent=2) if output == "json" else _description(body))
        _print_problems(listing)

    run(where, work)


def _rows(listing: "Listing") -> list[dict[str, Any]]:
    """Return the topics of a listing, as JSON shows them."""
    from tidemark_cli.records.topic_figures import in_sync_text, replicas_text

    return [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": replicas_text(topic.partitions),
            "inSync": in_sync_text(topic.partitions),
            "tiered": listing.tiered.get(topic.name),
            "offsets": listing.span(topic),
        }
        for topic in listing.topics
    ]


def _described(listing: "Listing") -> dict[str, Any]:
    """Return the description of the only topic of a listing, as JSON shows it."""
    from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST

    # Only values of the topic itself are of interest, not the defaults.
    topic = listing.topics[0]
    configuration = listing.configs.get(topic.name, {})

    # An offset that its leader did not answer is unknown.
    def offset(special: int, partition: int) -> int | None:
        return listing.offsets[special].get((topic.name, partition))

    return {
        "topic": topic.name,
        "id": str(topic.topic_id),
        "internal": topic.internal,
        "tiered": listing.tiered.get(topic.name),
        "config": {key: entry.value for key, entry in sorted(configuration.items()) if entry.own},
        "partitions": [
            {
                "partition": view.partition,
                "leader": view.leader,
                "leaderEpoch": view.leader_epoch,
                "replicas": list(view.replicas),
                "inSync": list(view.isr),
                "start": offset(EARLIEST, view.partition),
                "localStart": offset(EARLIEST_LOCAL, view.partition),
                "end": offset(LATEST, view.partition),
                "bytes": listing.bytes_on_leader.get((topic.name, view.partition)),
            }
            for view in topic.partitions
        ],
    }


def _description(body: dict[str, Any]) -> str:
    """Return a description as text."""
    settings = [f"{key}={value}" for key, value in body["config"].items()]
    head = [
        f"topic    {body['topic']}",
        f"id       {body['id']}",
        f"tiered   {_shown(body['tiered'])}",
        f"config   {', '.join(settings) or 'only defaults'}",
        "",
    ]
    heading = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN-SYNC", "START", "LOCAL-START", "END")
    rows = [
        [
            *(_shown(value) for value in list(part.values())[:-1]),
            _UNKNOWN if part["bytes"] is None else size_text(part["bytes"]),
        ]
        for part in body["partitions"]
    ]
    return "\n".join([*head, columns([(*heading, "SIZE"), *rows])])


def _shown(value: Any) -> Any:
    """Return a value of a table's cell: a number, or text."""
    if value is None:
        return _UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return value


def _print_problems(listing: "Listing") -> None:
    for problem in listing.problems:
        typer.echo(f"unknown: {problem}", err=True)
