"""``tidemark why``: explain one object's problem, its cause and the remedy."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tidemark_cli.common import ClusterOptions, console, fail_on
from tidemark_cli.inspection.causes import (
    UnknownReference,
    chain,
    command,
    events_of,
    resolve,
    root,
)
from tidemark_cli.inspection.screens import print_findings
from tidemark_cli.inspection.snapshot import ClusterSnapshot, read_snapshot
from tidemark_cli.inspection.verdict import HealthFinding, findings, verdict
from tidemark_cli.option_groups import option_groups

EVENTS_SHOWN = 10


@option_groups
def why(
    *,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="[KIND/NAME]", help="Object, such as topic/orders. Default: the first problem."
        ),
    ] = "",
    cluster: ClusterOptions,
) -> None:
    """Explain a problem: the conditions, their cause, the remedy and the latest Events."""
    with cluster.kube() as kube:
        snapshot = read_snapshot(kube, cluster.local_brokers())
        events = kube.events()
    # Without a reference the first finding is explained, which is the cause of the others.
    found = findings(snapshot)
    if not reference:
        if not found:
            console.print(verdict(snapshot, found), markup=False)
            return
        reference = found[0].reference
    with fail_on(UnknownReference):
        kind, name = resolve(snapshot, reference)
    print_explanation(
        console,
        snapshot,
        found,
        kind,
        name,
        events=events_of(events, kind, name),
        namespace=kube.namespace,
        local=cluster.is_local,
    )


def print_explanation(
    out: Console,
    snapshot: ClusterSnapshot,
    found: Sequence[HealthFinding],
    kind: str,
    name: str,
    *,
    events: Sequence[dict[str, Any]] = (),
    namespace: str = "default",
    local: bool = True,
) -> None:
    """Print what is wrong with an object, its cause, the remedy and the latest Events.

    ``found``: findings of all objects. ``local``: the cluster was started by ``tidemark up``.
    """
    own = [item for item in found if (item.kind, item.name) == (kind, name)]
    others = chain(snapshot, found, kind, name) if own else []
    if not own:
        out.print(f"{kind.lower()}/{name} is well: no condition needs attention", highlight=False)
    else:
        out.print(Text("What is wrong", style="bold"))
        print_findings(out, own)
    if others:
        _heading(out, "Caused by")
        print_findings(out, others)
    # The cause's remedy is printed, as its consequences end with it.
    cause = root(own, others)
    if cause is not None:
        entry = cause.entry
        _heading(out, f"What to do about {cause.reference}")
        if entry is not None:
            out.print(Padding(Text(entry.meaning), (0, 0, 0, 2)))
            out.print(Padding(Text(entry.action), (0, 0, 0, 2)))
        text = command(snapshot, cause, namespace, is_local=local)
        # Not wrapped, so that it can be copied.
        out.print(Text(f"  $ {text}", style="bold"), soft_wrap=True)
    if events:
        _heading(out, f"Events of {kind.lower()}/{name}")
        for event in events[-EVENTS_SHOWN:]:
            _print_event(out, event)


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))


def _print_event(out: Console, event: dict[str, Any]) -> None:
    seen = event.get("lastTimestamp") or event.get("eventTime") or ""
    count = int((event.get("series") or event).get("count") or 1)
    times = f" ({count} times)" if count > 1 else ""
    out.print(Text(f"  {seen[:19]} {event.get('type', '')} {event.get('reason', '')}{times}"))
    out.print(Padding(Text(str(event.get("message", ""))), (0, 0, 0, 4)))
