"""Sweeping the tier now and then, by one broker of all.

Every broker looks at the store's lease once in an interval, none at the same time as the others;
who finds that the last sweep is an interval ago, and the lease free, sweeps. So it needs no
controller, goes on when a broker dies, and costs one small read where another was sooner. What is
found shows in the metrics at once, for as long as no other broker has swept since; it is removed by
a later sweep, once it is old enough.
"""

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Mapping

from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric
from tidemark.tier.objects import StoreError
from tidemark.tier.open import Tier
from tidemark.tier.sweep_lease import SweepLease, SweptElsewhere
from tidemark.tier.sweeper import Sweeper, SweepReport
from tidemark_broker.remote_log.manager_state import Shared
from tidemark_broker.remote_log.thread_pools import PoolFull
from tidemark_broker.remote_log.tier_failure import jittered

logger = logging.getLogger(__name__)


class _Stopped(Exception):
    """The broker shuts down, or sweeping was paused meanwhile."""


class Sweeps:
    """The loop's thread owns it; a sweep runs in a thread of the expiration pool."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # Of this process, which sweeps once at a time: a lease that a failing store did not let it
        # give back is its own, and need not be waited for.
        self._holder = f"broker {shared.context.node_id} ({uuid.uuid4().hex[:8]})"
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._last = SweepReport()
        self._last_ms = 0

    def start(self) -> None:
        """Once there is a store; again is fine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sweeps")

    async def close(self) -> None:
        """End with the page of keys that is being looked at."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def gauges(self) -> Mapping[Metric, float]:
        """What this broker's sweep has left, where it was the last of all."""
        left = self._last.left
        return {
            tier_table.ORPHANS: left.orphans,
            tier_table.ORPHAN_BYTES: left.size_bytes,
            tier_table.UNFINISHED_UPLOADS: left.uploads,
            tier_table.UNKNOWN_OBJECTS: left.unknown,
        }

    async def _run(self) -> None:
        settings, pools = self._shared.settings, self._shared.pools
        while True:
            await asyncio.sleep(jittered(settings.sweep_interval_s, settings.jitter))
            if not self._shared.dynamic.sweeps:
                continue
            try:
                tier = self._shared.guard.tier()
                await pools.expiration.run_to_end(self._sweep_if_due, tier)
            except SweptElsewhere as error:
                logger.debug("%s", error)
            except (StoreError, PoolFull) as error:
                logger.warning("the tier is not swept now: %s", error)
            except _Stopped:
                continue
            except Exception:
                logger.exception(
                    "the tier is not swept now: this is a fault of the broker, report it"
                )

    def _sweep_if_due(self, tier: Tier) -> None:
        """In a thread."""
        shared = self._shared
        now_ms = shared.context.wall_ms
        lease = SweepLease(tier.store, self._holder, now_ms)
        # A little early is in time: the pauses are only about as long as the interval.
        swept_ms = lease.swept_ms()
        if swept_ms != self._last_ms:
            self._last = SweepReport()  # another has looked since, and shows what is left
        since_s = (now_ms() - swept_ms) / 1000
        if since_s < shared.settings.sweep_interval_s * (1 - shared.settings.jitter):
            return
        shared.guard.verify(tier)
        lease.take()
        done = False
        try:
            self._sweep(tier, lease)
            done = True
        finally:
            with contextlib.suppress(StoreError, SweptElsewhere):
                lease.end(done=done, left=self._last.left)
                self._last_ms = lease.ended_ms

    def _sweep(self, tier: Tier, lease: SweepLease) -> None:
        sweeper = Sweeper(
            tier,
            now_ms=self._shared.context.wall_ms,
            delay_ms=self._shared.dynamic.sweep_delay_ms,
            lease=lease,
            progress=self._go_on,
        )
        try:
            sweeper.run()
        finally:
            self._report(sweeper.report)

    def _go_on(self, _: SweepReport) -> None:
        if self._stop.is_set() or not self._shared.dynamic.sweeps:
            raise _Stopped

    def _report(self, report: SweepReport) -> None:
        self._last = report
        removed = report.removed.count + report.uploads_removed
        self._shared.metrics.add(tier_table.SWEPT_OBJECTS, removed)
        self._shared.metrics.add(tier_table.SWEPT_BYTES, report.removed.size_bytes)
        if report.orphans.count or report.uploads.count or report.unknown or report.troubles:
            logger.warning(
                "the tier has %d objects and %d unfinished uploads that nothing names (%s); %d are "
                "too young, %d were removed; %d objects lie in folders without a manifest (%s); "
                "%d times something could not be read (%s)",
                report.orphans.count,
                report.uploads.count,
                report.examples[0] if report.examples else "none",
                report.waiting.count,
                removed,
                report.unknown_objects,
                next(iter(report.unknown), "none"),
                report.passed_over,
                report.troubles[0] if report.troubles else "none",
            )
