"""Unnamed objects of a tier (invariant 10), regardless of age, as the sweeper finds them."""

import time

from tidemark.tier.maintenance.sweep_lease import SweepLease
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.open import Tier


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def look(tier: Tier, *, remove: bool = False) -> SweepReport:
    """One sweep, in which everything counts as old: a report, or removals."""
    lease = SweepLease(tier.store, "test", now_ms).take() if remove else None
    return Sweeper(tier, now_ms=now_ms, delay_ms=-60_000, lease=lease).run()


def found(report: SweepReport) -> list[str]:
    """Return unnamed objects, and places that could not be read."""
    return [*report.examples, *report.unknown, *report.troubles]
