"""``tidemark top``: where each range of every partition is stored, which replicas lag, what is
wrong.
"""

import functools
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidemark_cli.common import ClusterOptions, console, fail
from tidemark_cli.kafka_access import ClientConfigOption, open_access
from tidemark_cli.option_groups import option_groups
from tidemark_cli.top import broker_offsets, pages
from tidemark_cli.top.broker_offsets import QueryOffsets
from tidemark_cli.top.object_index import BROKER, CLUSTER, KINDS, TOPIC, ObjectIndex
from tidemark_cli.top.page_html import page
from tidemark_cli.top.query import PAGE_SIZE, Query, select_page
from tidemark_cli.top.reader import LeaseReader, ObjectReader
from tidemark_cli.top.text import print_frame
from tidemark_kube.client import KubeClient

Sort = Literal["trouble", "name", "remote", "partitions", "placeholders", "behind"]


@option_groups
def top(
    *,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]", help="Only topics of this name or pattern, such as 'orders-*'."
        ),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print once, as text. Default without a terminal.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one HTML file.")] = None,
    sort: Annotated[Sort, typer.Option(help="Order of topics.")] = "trouble",
    not_well: Annotated[
        bool, typer.Option("--not-well", help="Only topics that have a problem or change.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Topics per page.")] = PAGE_SIZE,
    interval: Annotated[int, typer.Option(min=1, max=300, help="Seconds between two updates.")] = 2,
    listener: Annotated[
        str, typer.Option(help="Listener of the brokers for offsets. Default: the first.")
    ] = "",
    client_config: ClientConfigOption = None,
    cluster: ClusterOptions,
) -> None:
    """Show the offsets, lags and problems of each partition."""
    query_offsets = offsets_query(client_config)
    # Options become one query, which the interactive view can change later.
    query = Query(sort=sort, pattern=name, only_unwell=not_well, page_size=limit)
    # Watches of the API server end with the connection.
    with cluster.kube() as kube:
        # Without a terminal on both sides the view cannot be interactive.
        if once or html is not None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _once(kube, query, html, listener, query_offsets)
            return
        from tidemark_cli.top.app import TopApp  # textual is 0.2 s of start-up

        TopApp(
            _readers(kube), query_offsets, interval_s=interval, query=query, listener=listener
        ).run()


def offsets_query(client_config: Path | None) -> QueryOffsets:
    """Return the function that queries brokers for offsets; exit if the file cannot be used."""
    if client_config is None:
        return broker_offsets.query_offsets
    return functools.partial(broker_offsets.query_offsets, access=open_access("", client_config))


def _once(
    kube: KubeClient, query: Query, html: Path | None, listener: str, query_offsets: QueryOffsets
) -> None:
    view = look(kube, query, listener, query_offsets)
    if html is None:
        print_frame(console, view)
        return
    try:
        html.write_text(page(view, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")), "utf-8")
    except OSError as error:
        fail(f"{html} cannot be written: {error.strerror}")


def look(
    kube: KubeClient,
    query: Query,
    listener: str = "",
    query_offsets: QueryOffsets = broker_offsets.query_offsets,
) -> pages.View:
    """Read the cluster once and return the frame that ``tidemark top --once`` prints.

    Exits if Clusters, Brokers or Topics cannot be read. Without others, the frame has a line that
    says so.
    """
    object_index, problems = ObjectIndex(), []
    for reader in _readers(kube):
        for batch in reader.read(0):
            batch.apply_to(object_index)
            if batch.problem and batch.kind in (CLUSTER, BROKER, TOPIC):
                fail(batch.problem)
            problems += [batch.problem] if batch.problem else []
    shown = [line.name for line in select_page(object_index.lines.values(), query).lines]
    topics = [topic for name in shown if (topic := object_index.topic(name)) is not None]
    # The coordinators' topics have 100 partitions by default, so only a pattern shows them in
    # detail.
    detailed = [topic for topic in topics if query.pattern or not topic.is_internal]
    # Only partitions that are shown are queried.
    figures = query_offsets(
        broker_offsets.queries_for(detailed),
        broker_offsets.addresses(object_index.of_kind(BROKER), listener),
    )
    return pages.view(
        object_index,
        query,
        detailed=[topic.name for topic in detailed],
        offsets=figures.offsets,
        problems=problems,
        unanswered=figures.problems,
    )


def _readers(kube: KubeClient) -> list[ObjectReader | LeaseReader]:
    # The Lease comes first: a new object's age is compared with the time at which it was read.
    return [LeaseReader(kube), *(ObjectReader(kube, kind) for kind in KINDS)]
