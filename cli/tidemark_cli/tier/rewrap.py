"""``tidemark rewrap``: encrypt the keys of all segments with the active key-encryption key."""

from typing import Annotated

import typer

from tidemark.message_text import count
from tidemark.tier.maintenance.rewrap import RewrapReport
from tidemark.tier.maintenance.rewrap import rewrap as rewrap_tier
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, errors, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.stores import TierOptions

_SHOWN = 20


@option_groups
def rewrap(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the segments by their keys.")
    ] = False,
    tier: TierOptions,
) -> None:
    """Encrypt the keys of segments with the first of the --encryption-keys.

    Logs are neither read nor written. Older keys can be removed once no segment has them.
    """
    opened = tier.open()
    console.print(f"tier: {opened.tier.store.describe()}", markup=False)
    with fail_on(StoreError, InvalidConfig):
        report = rewrap_tier(opened.tier, dry_run=dry_run, progress=_progress)
    for line in lines_of(report, opened.tier.segments.keys.active_id):
        console.print(line, markup=False, soft_wrap=True)
    if report.failed:
        raise typer.Exit(1)


def _progress(report: RewrapReport) -> None:
    errors.print(f"{count(report.examined, 'segment')} examined")


def lines_of(report: RewrapReport, active_id: str) -> list[str]:
    """Return the text of a report."""
    lines = [f"{count(report.rewrapped, 'segment')} rewrapped, 0 bytes of logs read or written"]
    # One line for each key, so that an administrator sees which keys are still needed.
    for key_id, number in sorted(report.segments.items()):
        name = f"key {key_id}" if key_id else "not encrypted"
        active = ", active" if key_id and key_id == active_id else ""
        lines.append(f"  {count(number, 'segment')}: {name}{active}")
    if report.failed:
        lines.append(f"{count(report.failed, 'segment')} could not be rewrapped:")
        lines += [f"  {failure}" for failure in report.failures[:_SHOWN]]
    return lines
