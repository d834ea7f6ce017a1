"""``tidemark groups``: consumer groups, their lag and their committed offsets."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark_cli.common import fail
from tidemark_cli.option_groups import option_groups
from tidemark_cli.records.positions import FORMS, TIME_FORMS, BadPosition, parse_choice, resolve
from tidemark_cli.records.session import BrokerOptions, OutputOption, run
from tidemark_cli.records.text import columns

if TYPE_CHECKING:
    from tidemark.kafka_client.client import KafkaClient
    from tidemark.kafka_client.groups import GroupView
    from tidemark.kafka_client.topic_leaders import TopicLeaders

app = typer.Typer(help="Show consumer groups with their lag, reset their offsets, or delete them.")
GroupArgument = Annotated[str, typer.Argument(help="Consumer group.")]
#: States of a group without members.
_WITHOUT_MEMBERS = frozenset({"empty", "dead"})


@app.command("list")
@option_groups
def list_(
    *,
    output: OutputOption = "text",
    brokers: BrokerOptions,
) -> None:
    """List groups with their state and protocol: classic, or consumer (KIP-848)."""
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        from tidemark.kafka_client.groups import Groups

        # Each broker lists the groups that it coordinates.
        groups, problems = await Groups(client).listing()
        rows = [(group.name, group.state, group.protocol) for group in groups]
        if output == "json":
            keys = ("group", "state", "protocol")
            typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        elif rows:
            typer.echo(columns([("GROUP", "STATE", "PROTOCOL"), *rows]))
        else:
            typer.echo("no groups")
        # The groups of a broker that did not answer are missing above.
        for problem in problems:
            typer.echo(f"its groups are unknown: {problem}", err=True)

    run(where, work)


@app.command()
@option_groups
def describe(
    *,
    group: GroupArgument,
    output: OutputOption = "text",
    brokers: BrokerOptions,
) -> None:
    """Describe a group: each partition's committed offset, end, lag and member."""
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        body = await _described(client, group)
        typer.echo(json.dumps(body, indent=2) if output == "json" else _description(body))

    run(where, work)


@app.command()
@option_groups
def reset(
    *,
    group: GroupArgument,
    to: Annotated[str, typer.Option("--to", help=f"New offset: {FORMS}; {TIME_FORMS}.")],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="Topic. Default: all for which the group has committed offsets."
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the offsets. Default: only show them.")
    ] = False,
    brokers: BrokerOptions,
) -> None:
    """Show the offsets that a group would continue from, and commit them with --execute.

    The group must have no members: stop its consumers first. Offsets outside of a log become its
    start or end.
    """
    try:
        choice = parse_choice(to)
    except BadPosition as error:
        fail(f"--to: {error}")
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        from tidemark.kafka_client.errors import ClusterRefused
        from tidemark.kafka_client.groups import Groups

        groups = Groups(client)
        committed = await groups.committed(group)
        # A group without offsets can get some for a named topic, before its first consumer.
        names = topics or sorted({topic for topic, _ in committed})
        if not names:
            await groups.describe(group)  # an unknown group is another error
            raise ClusterRefused(
                f"group {group} has no committed offsets: name topics with --topic"
            )
        new: dict[tuple[str, int], int] = {}
        for leaders in await _leaders(client, names):
            resolved = await resolve(choice, leaders, [*leaders.of])
            new |= {(leaders.topic, partition): at for partition, at in resolved.items()}
        if execute:
            await _require_no_members(groups, group)
            failures = await groups.commit(group, new)
            if failures:
                place, failure = next(iter(failures.items()))
                raise ClusterRefused(
                    f"group {group}, partition {place[1]} of {place[0]}: {failure}"
                )
        rows = [(*place, committed.get(place, "-"), at) for place, at in sorted(new.items())]
        typer.echo(columns([("TOPIC", "PARTITION", "FROM", "TO"), *rows]))
        if not execute:
            typer.echo("nothing was changed: add --execute to commit these offsets", err=True)

    run(where, work)


@app.command()
@option_groups
def delete(
    *,
    names: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Groups to delete.")],
    brokers: BrokerOptions,
) -> None:
    """Delete groups that have no members, with their committed offsets."""
    where = brokers.target()

    async def work(client: "KafkaClient", _: asyncio.Event) -> None:
        from tidemark.kafka_client.groups import Groups

        groups = Groups(client)
        for name in names:
            await _require_no_members(groups, name)
            await groups.delete(name)
            typer.echo(f"group {name} deleted")

    run(where, work)


async def _require_no_members(groups: Any, group: str) -> None:
    """Raise ClusterRefused if a group has members; an unknown group has none."""
    from tidemark.kafka_client.errors import ClusterRefused

    listed, _ = await groups.listing()
    state = next((item.state for item in listed if item.name == group), "Empty")
    if state.lower() not in _WITHOUT_MEMBERS:
        raise ClusterRefused(
            f"group {group} has members (state {state}): stop its consumers, and try again"
        )


async def _leaders(client: "KafkaClient", topics: Iterable[str]) -> "list[TopicLeaders]":
    """Return the partitions' leaders of topics. Raises ``KafkaError``."""
    from tidemark.kafka_client.topic_leaders import TopicLeaders

    found = [TopicLeaders(client, topic) for topic in topics]
    for leaders in found:
        await leaders.refresh()
    return found


async def _described(client: "KafkaClient", group: str) -> dict[str, Any]:
    """Return the description of a group as JSON shows it. Raises ``KafkaError``."""
    from tidemark.kafka_client.groups import Groups

    groups = Groups(client)
    view = await groups.describe(group)
    # A partition may have an offset without a member, and a member without an offset.
    committed = await groups.committed(group)
    owners = {place: member for member in view.members for place in member.partitions}
    places = sorted({*committed, *owners})
    ends = await _ends(client, {topic for topic, _ in places})
    rows = []
    for topic, partition in places:
        # Without an offset or an end there is no lag to show.
        at, end = committed.get((topic, partition)), ends.get((topic, partition))
        owner = owners.get((topic, partition))
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed": at,
                "end": end,
                "lag": None if at is None or end is None else max(end - at, 0),
                "member": owner.member_id if owner else None,
                "clientId": owner.client_id if owner else None,
                "host": owner.host if owner else None,
            }
        )
    return {**_head(view), "partitions": rows}


def _head(view: "GroupView") -> dict[str, Any]:
    return {
        "group": view.name,
        "state": view.state,
        "protocol": view.protocol,
        "assignor": view.assignor,
        "members": len(view.members),
    }


async def _ends(client: "KafkaClient", topics: Iterable[str]) -> Mapping[tuple[str, int], int]:
    """Return the end of each partition; topics that were deleted have none."""
    from tidemark.kafka_client.topic_leaders import UnknownTopic
    from tidemark.kafka_client.values import LATEST

    ends: dict[tuple[str, int], int] = {}
    for topic in sorted(topics):
        try:
            (leaders,) = await _leaders(client, [topic])
        except UnknownTopic:
            continue
        found = await leaders.offsets(dict.fromkeys(leaders.of, LATEST))
        ends |= {(topic, partition): end for partition, end in found.items()}
    return ends


def _description(body: dict[str, Any]) -> str:
    """Return a description as text."""
    head = [f"{key:9}  {body[key] or '-'}" for key in ("group", "state", "protocol", "assignor")]
    lags = [row["lag"] for row in body["partitions"] if row["lag"] is not None]
    head += [f"members    {body['members']}", f"lag        {sum(lags):,}", ""]
    rows = [
        ["-" if value is None else value for name, value in row.items() if name != "clientId"]
        for row in body["partitions"]
    ]
    if not rows:
        return "\n".join([*head, "no committed offsets and no assigned partitions"])
    heading = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST")
    return "\n".join([*head, columns([heading, *rows])])
