"""``tidemark top``: where every range of every partition lives, who lags, what is not well."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

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
from tidemark_cli.commands.kafka_access import ClientConfigOption, open_access
from tidemark_cli.local.kube import Kube
from tidemark_cli.top import broker_offsets, pages
from tidemark_cli.top.object_index import BROKER, KINDS, SLICE, Holdings
from tidemark_cli.top.page_html import page
from tidemark_cli.top.query import PAGE_SIZE, Query, choose
from tidemark_cli.top.reader import Reader
from tidemark_cli.top.text import print_frame

Ask = Callable[
    [Sequence[broker_offsets.Asked], Mapping[int, tuple[str, int]]], broker_offsets.Figures
]
Sort = Literal["trouble", "name", "remote", "partitions", "placeholders", "behind"]


def top(
    called: typer.Context,
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
        bool, typer.Option("--not-well", help="Only topics with a condition that is not well.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Topics per page.")] = PAGE_SIZE,
    interval: Annotated[int, typer.Option(min=1, max=300, help="Seconds between two updates.")] = 2,
    listener: Annotated[
        str, typer.Option(help="Listener of the brokers for offsets. Default: the first.")
    ] = "",
    client_config: ClientConfigOption = None,
    directory: DirOption = DEFAULT_DIR,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    namespace: NamespaceOption = "",
) -> None:
    """Show the offsets, lags and problems of each partition."""
    ask = asking(client_config)
    kube = open_kube(called, directory, kubeconfig, context, namespace)
    query = Query(sort=sort, pattern=name, only_unwell=not_well, page_size=limit)
    try:
        if once or html is not None or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _once(kube, query, html, listener, ask)
        else:
            _follow(kube, query, interval, listener, ask)
    finally:
        kube.close()


def asking(client_config: Path | None) -> Ask:
    """What asks brokers for offsets; ends with a hint where the file cannot be used."""
    if client_config is None:
        return broker_offsets.ask
    return functools.partial(broker_offsets.ask, access=open_access("", client_config))


def _once(kube: Kube, query: Query, html: Path | None, listener: str, ask: Ask) -> None:
    view = look(kube, query, listener, ask)
    if html is None:
        print_frame(console, view)
        return
    try:
        html.write_text(page(view, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")), "utf-8")
    except OSError as error:
        fail(f"{html} cannot be written: {error.strerror}")


def look(kube: Kube, query: Query, listener: str = "", ask: Ask = broker_offsets.ask) -> pages.View:
    """One frame of all there is. Partitions that cannot be read are a line of it; without the other
    objects there is nothing to show."""
    holdings, problems = Holdings(), []
    for kind in KINDS:
        for batch in Reader(kube, kind).read(0):
            batch.put_into(holdings)
            if batch.problem and kind != SLICE:
                fail(batch.problem)
            problems += [batch.problem] if batch.problem else []
    shown = [line.name for line in choose(holdings.lines.values(), query).lines]
    topics = [found for each in shown if (found := holdings.topic(each)) is not None]
    detailed = [each for each in topics if query.pattern or not each.is_internal]
    told = ask(
        broker_offsets.asked_of(detailed),
        broker_offsets.addresses(holdings.of_kind(BROKER), listener),
    )
    return pages.view(
        holdings,
        query,
        detailed=[each.name for each in detailed],
        told=told.told,
        problems=[*problems, *told.problems],
    )


def _follow(kube: Kube, query: Query, interval_s: int, listener: str, ask: Ask) -> None:
    from tidemark_cli.top.app import TopApp  # textual is 0.2 s of start-up

    readers = [Reader(kube, kind) for kind in KINDS]
    TopApp(readers, ask, interval_s=interval_s, query=query, listener=listener).run()
