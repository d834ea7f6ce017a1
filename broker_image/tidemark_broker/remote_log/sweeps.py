"""Periodic sweeps of the tier, each by one broker.

Every broker checks the store's lease once in an interval, with jitter. If the last sweep is an
interval ago and the lease is free, it sweeps. So no controller is needed, sweeps continue when a
broker fails, and a broker that was too late has only one small read. Findings appear in the metrics
at once, until another broker sweeps. A later sweep removes them once they are old enough.
"""

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Mapping

from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric
from tidemark.tier.maintenance.sweep_lease import SweepLease, SweepLeaseTaken
from tidemark.tier.maintenance.sweeper import Sweeper, SweepReport
from tidemark.tier.open import Tier
from tidemark.tier.stores.objects import StoreError
from tidemark_broker.remote_log.manager_state import ManagerState
from tidemark_broker.remote_log.tier_failure import jittered
from tidemark_broker.replication.threads import ThreadsBusy
from tidemark_broker.tasks import cancel

logger = logging.getLogger(__name__)


class _Stopped(Exception):
    """The broker shuts down, or sweeping was paused meanwhile."""


class Sweeps:
    """Sweeps of a broker, owned by the loop's thread; a sweep runs in a thread of the
    expiration pool.
    """

    def __init__(self, shared: ManagerState) -> None:
        self._shared = shared
        # A process sweeps once at a time. So a lease with this name that a failing store did not
        # let it release is its own, and it need not wait for it.
        self._holder = f"broker {shared.context.node_id} ({uuid.uuid4().hex[:8]})"
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._last = SweepReport()
        self._last_ms = 0

    def start(self) -> None:
        """Start once there is a store; repeated calls are harmless."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sweeps")

    async def close(self) -> None:
        """Stop after the page of keys in progress."""
        self._stop.set()
        if self._task is not None:
            await cancel([self._task])

    def gauges(self) -> Mapping[Metric, float]:
        """Return the remains of this broker's sweep, if it was the last one."""
        left = self._last.left
        return {
            tier_table.ORPHANS: left.orphans,
            tier_table.ORPHAN_BYTES: left.size_bytes,
            tier_table.UNFINISHED_UPLOADS: left.uploads,
            tier_table.UNKNOWN_OBJECTS: left.unknown,
        }

    async def _run(self) -> None:
        """Sweep the tier periodically until cancelled; failures are logged and retried later."""
        settings, pools = self._shared.settings, self._shared.pools
        while True:
            # With jitter brokers that started together check at different times.
            await asyncio.sleep(jittered(settings.sweep_interval_s, settings.jitter))
            if not self._shared.dynamic.sweeps:
                continue
            try:
                tier = self._shared.guard.tier()
                await pools.expiration(self._sweep_if_due, tier)
            # Another broker sweeps at present.
            except SweepLeaseTaken as error:
                logger.debug("%s", error)
            except (StoreError, ThreadsBusy) as error:
                logger.warning("the tier could not be swept: %s", error)
            except _Stopped:
                continue
            except Exception:
                logger.exception(
                    "the tier could not be swept: this is a fault of the broker, report it"
                )

    def _sweep_if_due(self, tier: Tier) -> None:
        """Take the sweep lease and sweep, if the last sweep is an interval ago (in a thread).

        A sweep deletes objects that no manifest names. Raises SweepLeaseTaken if another broker
        sweeps at present.
        """
        shared = self._shared
        now_ms = shared.context.wall_ms
        lease = SweepLease(tier.store, self._holder, now_ms)
        # Time of the last sweep by any broker, which the lease object stores.
        swept_ms = lease.swept_ms()
        if swept_ms != self._last_ms:
            self._last = SweepReport()  # another broker has swept since, and reports its remains
        # With jitter the pauses may be a little shorter than the interval.
        since_s = (now_ms() - swept_ms) / 1000
        if since_s < shared.settings.sweep_interval_s * (1 - shared.settings.jitter):
            return
        # A sweep deletes, so the store's identity is checked right before it.
        shared.guard.verify(tier)
        lease.take()
        done = False
        try:
            self._sweep(tier, lease)
            done = True
        finally:
            # Release the lease in any case; if that fails, it expires.
            with contextlib.suppress(StoreError, SweepLeaseTaken):
                lease.end(done=done, left=self._last.left)
                self._last_ms = lease.ended_ms

    def _sweep(self, tier: Tier, lease: SweepLease) -> None:
        """Sweep under a lease that this broker holds, and report the result (in a thread)."""
        sweeper = Sweeper(
            tier,
            now_ms=self._shared.context.wall_ms,
            delay_ms=self._shared.dynamic.sweep_delay_ms,
            lease=lease,
            progress=self._check_stopped,
        )
        try:
            # An interrupted sweep still reports what it has found and removed.
            sweeper.run()
        finally:
            self._report(sweeper.report)

    def _check_stopped(self, _: SweepReport) -> None:
        if self._stop.is_set() or not self._shared.dynamic.sweeps:
            raise _Stopped

    def _report(self, report: SweepReport) -> None:
        """Add a sweep's results to the metrics, and log a warning if it found unnamed objects."""
        self._last = report
        # Counters add up over all sweeps; the gauges show what the last one has left.
        removed = report.removed.count + report.uploads_removed
        self._shared.metrics.add(tier_table.SWEPT_OBJECTS, removed)
        self._shared.metrics.add(tier_table.SWEPT_BYTES, report.removed.size_bytes)
        # Anything that no manifest names may be the effect of a defect or of a lost manifest.
        if report.orphans.count or report.uploads.count or report.unknown or report.troubles:
            logger.warning(
                "the tier has %d objects and %d unfinished uploads that no manifest names (%s); %d "
                "are too young, %d were removed; %d objects are in folders without a manifest (%s);"
                " %d reads failed (%s)",
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
