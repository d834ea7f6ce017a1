"""``tidemark sweep``: list objects that no manifest names, and remove them with --delete."""

import os
import socket
import time
import uuid
from typing import Annotated

import typer

from tidemark.message_text import count
from tidemark.tier.maintenance.sweep_lease import SweepLease, SweepLeaseTaken
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, errors, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.stores import OpenTier, TierOptions

_SHOWN = 20
_HOUR_MS = 3_600_000


@option_groups
def sweep(
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove orphans that are old enough.")
    ] = False,
    older_than: Annotated[
        float, typer.Option(min=0.0, help="Minimum age in hours of what is removed.")
    ] = 24.0,
    tier: TierOptions,
) -> None:
    """Show orphans in the tier, and remove them with --delete.

    Brokers remove them every six hours. Objects in folders of unknown topics are shown and never
    removed.
    """
    # Without a store in the options, the local cluster's tier is swept.
    opened = tier.open()
    console.print(f"tier: {opened.tier.store.describe()}", markup=False)
    # The minimum age protects recent uploads.
    with fail_on(StoreError, SweepLeaseTaken):
        report = _swept(opened, delete=delete, delay_ms=int(older_than * _HOUR_MS))
    print_report(report, deleted=delete)


def _swept(opened: OpenTier, *, delete: bool, delay_ms: int) -> SweepReport:
    """Search the tier for orphaned objects, and remove them if ``delete`` is set.

    ``delay_ms``: minimum age of a removed object in milliseconds. A sweep that deletes holds the
    store's sweep lease. Raises StoreError, SweepLeaseTaken.
    """
    lease, left = None, None
    # Only a sweep that deletes takes the lease, so that listing never blocks a broker's sweep.
    if delete:
        holder = f"tidemark sweep on {socket.gethostname()} ({os.getpid()}, {uuid.uuid4().hex[:8]})"
        lease = SweepLease(opened.tier.store, holder, _now_ms).take()
    done = False
    try:
        report = Sweeper(
            opened.tier, now_ms=_now_ms, delay_ms=delay_ms, lease=lease, progress=_progress
        ).run()
        done, left = True, report.left
    finally:
        # The lease is released after a failure too. ``done`` decides when brokers sweep next.
        if lease is not None:
            lease.end(done=done, left=left)
    return report


def _progress(report: SweepReport) -> None:
    errors.print(
        f"{count(report.looked_at, 'object')} examined, {count(report.orphans.count, 'orphan')}",
    )


def print_report(report: SweepReport, *, deleted: bool) -> None:
    """Print the counts of a sweep, some examples, and the next step.

    ``deleted``: the sweep was allowed to remove objects.
    """
    # Counts come first: a tier can have millions of orphans.
    orphans, uploads = report.orphans, report.uploads
    lines = [
        f"examined objects and uploads: {report.looked_at:,}",
        (
            f"{count(orphans.count, 'object')} that no manifest names, "
            f"{count(orphans.size_bytes, 'byte')}"
        ),
        f"{count(uploads.count, 'unfinished upload')} that no manifest names",
        f"{report.waiting.count:,} too young to be removed",
        f"{report.removed.count + report.uploads_removed:,} removed",
    ]
    lines += [f"  {example}" for example in report.examples[:_SHOWN]]
    # Unknown folders may belong to another cluster in the same bucket.
    if report.unknown:
        lines.append(
            f"{count(report.unknown_objects, 'object')} in folders without a manifest; "
            "never removed here:"
        )
        lines += [f"  {name} ({number:,})" for name, number in [*report.unknown.items()][:_SHOWN]]
    if report.passed_over:
        lines.append(
            f"{count(report.passed_over, 'object')} could not be read and were left unchanged:"
        )
        lines += [f"  {trouble}" for trouble in report.troubles[:_SHOWN]]
    # The hint appears only if there is something to delete.
    if (orphans.count or uploads.count) and not deleted:
        lines.append("remove objects that are old enough with: tidemark sweep --delete")
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
