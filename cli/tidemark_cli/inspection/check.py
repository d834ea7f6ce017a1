"""``tidemark check``: an exit status for scripts, and what is missing while it waits."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from tidemark_cli.common import ClusterOptions, console, fail
from tidemark_cli.inspection.causes import UnknownReference, resolve
from tidemark_cli.inspection.snapshot import ClusterSnapshot, read_snapshot
from tidemark_cli.inspection.status import NOT_HEALTHY
from tidemark_cli.inspection.verdict import findings, verdict
from tidemark_cli.option_groups import option_groups
from tidemark_kube.client import KubeRequestError

POLL_S = 1.0
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


@option_groups
def check(
    *,
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND/NAME]...", help="Only these objects, such as topic/orders."),
    ] = None,
    wait: Annotated[
        str, typer.Option(help="Time to wait until everything is well, such as 90s or 2m.")
    ] = "0s",
    cluster: ClusterOptions,
) -> None:
    """Exit with status 0 if the cluster, or the named objects, are healthy; otherwise with 3."""
    # The wait includes the time until the API server responds.
    deadline = time.monotonic() + _seconds(wait)
    with cluster.kube() as kube:
        # A process may end while the command waits.
        healthy = _wait(
            lambda: read_snapshot(kube, cluster.local_brokers()), references or [], deadline
        )
    if not healthy:
        raise typer.Exit(NOT_HEALTHY)


def _wait(read: Callable[[], ClusterSnapshot], references: Sequence[str], deadline: float) -> bool:
    """Poll until the objects are healthy or the deadline passes; return whether they are.

    ``references``: objects such as ``topic/orders``; empty for the whole cluster. ``deadline``: a
    time of the monotonic clock. Prints the problem whenever it changes.
    """
    printed = ""
    while True:
        try:
            line, is_well = state(read(), references)
        except (KubeRequestError, OSError) as error:
            # The API server may be starting, so its errors are retried as well.
            line, is_well = f"NOT HEALTHY: {error}", False
        is_last = is_well or time.monotonic() >= deadline
        if line != printed:
            prefix = "" if is_last else "waiting: "
            console.print(prefix + line, markup=False, soft_wrap=True)
            printed = line
        if is_last:
            return is_well
        time.sleep(POLL_S)


def state(snapshot: ClusterSnapshot, references: Sequence[str]) -> tuple[str, bool]:
    """Return one line about the health of the named objects, and whether they are healthy.

    ``references``: such as ``topic/orders``; empty for the whole cluster.
    """
    found = findings(snapshot)
    if not references:
        line = verdict(snapshot, found)
        return line, not line.startswith("NOT HEALTHY")
    missing = []
    for reference in references:
        try:
            target = resolve(snapshot, reference)
        except UnknownReference as error:
            missing.append(str(error))
            continue
        # A named object is only healthy when no change is in progress either, as a script waits for
        # the change.
        missing += [
            f"{item.reference}: {item.message}"
            for item in found
            if (item.kind, item.name) == target
        ]
    if missing:
        return f"NOT HEALTHY: {'; '.join(missing)}", False
    return f"HEALTHY: {', '.join(references)}", True


def _seconds(text: str) -> float:
    """Return the seconds of a duration such as 90s, 2m or 1h30m; exit with a hint otherwise."""
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        fail(f"--wait {text} is not a duration: write for example 90s, 2m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds
