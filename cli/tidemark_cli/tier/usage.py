"""``tidemark spark usage``: storage per topic in the tier, and what another policy would free."""

import itertools
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table

from tidemark.message_text import count
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.topics import TopicAmbiguous, TopicNotFound
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, errors, fail, fail_on, shown_text, write_atomically
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.stores import OpenTier, TierOptions
from tidemark_pipeline.usage.figures import (
    DIMENSIONS,
    DISABLE_DELETE,
    DISABLE_RETAIN,
    NO_TOPIC,
    Policy,
    TopicUsage,
    Usage,
)
from tidemark_pipeline.usage.measurement import measure

SHOWN_MAX = 200
_STDOUT = Path("-")


@option_groups
def usage(
    *,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Names of topics. Default: the whole tier.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="Further columns to group by: partition, bucket, day.")
    ] = "bucket",
    retention_ms: Annotated[
        int | None,
        typer.Option(min=-1, help="Show what this retention.ms would delete. -1: no limit."),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option(min=-1, help="Show what this retention.bytes would delete. -1: no limit."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write all rows as JSON to this file, or to standard output (-)."),
    ] = None,
    prometheus: Annotated[
        Path | None, typer.Option(help="Write metrics to this .prom file for the node exporter.")
    ] = None,
    tier: TierOptions,
) -> None:
    """Show bytes by topic in manifests and in the store, unreferenced bytes, and the bytes that
    another retention, or no tiered storage, would free. The command reads no segments.

    Exit status: 0; 3 if a manifest could not be read, so that figures are too low; 1 if the command
    failed.
    """
    # Options are checked before the tier is opened.
    dimensions = _dimensions(by)
    opened = tier.open()
    # One time for all topics, so that their figures are comparable.
    now_ms = time.time_ns() // 1_000_000
    with fail_on(StoreError, ManifestError, TopicNotFound, TopicAmbiguous):
        usage = measure(
            opened.tier,
            opened.chosen_topics(topics),
            all_topics=not topics,
            by=dimensions,
            policies=_policies(retention_ms, retention_bytes),
            now_ms=now_ms,
        )
    # Figures are printed even if they are incomplete; the exit status tells scripts.
    _tell(usage, opened, json, prometheus, now_ms=now_ms)
    if usage.passed_over:
        raise typer.Exit(3)


def _tell(
    usage: Usage, opened: OpenTier, json: Path | None, prometheus: Path | None, *, now_ms: int
) -> None:
    """Print the usage, and write it to the files that the options name.

    ``json`` may be standard output; then nothing else is printed there. ``now_ms``: time of the
    figures.
    """
    from tidemark_pipeline.usage.text import json_text, prometheus_text

    if json == _STDOUT:
        sys.stdout.buffer.write(json_text(usage, now_ms=now_ms))
    else:
        console.print(f"tier: {opened.tier.store.describe()}", markup=False)
        print_usage(usage)
        if json is not None:
            write_atomically(json, json_text(usage, now_ms=now_ms))
    if prometheus is not None:
        write_atomically(prometheus, prometheus_text(usage, now_ms=now_ms))
    # On standard error, so that standard output may be only the JSON object.
    for trouble in usage.troubles:
        errors.print(f"not included: {trouble}", markup=False)


def _dimensions(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in DIMENSIONS]
    if unknown:
        fail(f"--by {unknown[0]} is unknown: use {', '.join(DIMENSIONS)}, separated by commas")
    return tuple(names)


def _policies(retention_ms: int | None, retention_bytes: int | None) -> tuple[Policy, ...]:
    is_given = retention_ms is not None or retention_bytes is not None
    changed = [Policy("retention", retention_ms, retention_bytes)] if is_given else []
    return (*changed, DISABLE_DELETE, DISABLE_RETAIN)


# ---------------------------------------------------------------- tables


def print_usage(usage: Usage) -> None:
    """Print three tables: bytes by manifests, bytes by the store's listing, and freeable bytes.

    Each has at most 200 rows.
    """
    # Bytes according to the manifests; pending are those of segments whose deletion has started.
    _print(
        ("topic", *usage.by, "segments", "log bytes", "stored bytes", "pending bytes"),
        (
            (
                topic.name,
                *row,
                *map(_figure, (of.segments, of.log_bytes, of.stored_bytes, of.pending_bytes)),
            )
            for topic in usage.topics
            for row, of in sorted(topic.rows.items())
        ),
    )
    # Bytes that the store lists, including objects that no manifest names.
    _print(
        ("as listed", "bucket", "objects", "bytes", "unnamed bytes", "without manifest"),
        (
            (
                topic.name if topic.topic_id != NO_TOPIC else "(no topic)",
                bucket,
                *map(_figure, (of.objects, of.size_bytes, of.unnamed_bytes, of.unknown_bytes)),
            )
            for topic in _listed(usage)
            for bucket, of in sorted(topic.listed.items())
        ),
    )
    # Effect of each policy: the given retention, and the two ways to disable tiering.
    names = [policy.name for policy in usage.policies]
    _print(
        ("would be freed", *names),
        ((owner.name, *(_figure(owner.freed[name]) for name in names)) for owner in usage.topics),
    )
    figures = [of for topic in usage.topics for of in topic.buckets.values()]
    if unmeasured := sum(of.unmeasured for of in figures):
        text = f"{count(unmeasured, 'segment', 'has')} no recorded object size: "
        text += "the log size is counted"
        console.print(text)
    if usage.rows_left_out:
        console.print("too many rows to list separately: name topics, or use fewer --by dimensions")


def _listed(usage: Usage) -> list[TopicUsage]:
    return [*usage.topics, *([] if usage.unowned is None else [usage.unowned])]


def _print(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; names may be folded in a narrow terminal, figures never."""
    iterator = iter(rows)
    shown = [tuple(map(shown_text, row)) for row in itertools.islice(iterator, SHOWN_MAX)]
    left_out = sum(1 for _ in iterator)
    table = Table(Column(titles[0], overflow="fold"))
    for at, title in enumerate(titles[1:], start=1):
        width = max(map(len, (*title.split(), *(row[at] for row in shown))))
        table.add_column(title, justify="right", min_width=width)
    for row in shown:
        table.add_row(*row)
    console.print(table, crop=False)
    if left_out:
        console.print(f"{count(left_out, 'more row')}: use --json for all")


def _figure(number: int) -> str:
    return f"{number:,}"
