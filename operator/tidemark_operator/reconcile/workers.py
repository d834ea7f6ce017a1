"""Workers of the queue. Each handles one key at a time, and no failure ends a worker."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Invalid, KubeError
from tidemark_operator.kube.kinds import Key, resource_version
from tidemark_operator.leadership.terms import ControllerFenced, TermEnded
from tidemark_operator.reconcile.failures import Failures
from tidemark_operator.reconcile.object_conditions import report_deleted
from tidemark_operator.reconcile.queue import RETRY
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.slices.committer import DecisionFailed

logger = logging.getLogger(__name__)

#: Longest backoff after a conflict with news. An object that others change frequently is reconciled
#: as soon as any changed object, not only after the last change.
CHANGED_S = 1.0

#: Reconciles a key; returns the seconds until the next step (None: when something changes).
Reconcile = Callable[[Key], Awaitable[float | None]]


def earliest(*delays_s: float | None) -> float | None:
    """Return the shortest of the delays until an object is reconciled again, None if none is."""
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)


class LastPass:
    """Time of the last reconciliation (monotonic seconds), for /healthz."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()


class Workers:
    """Shared part of the workers of one term."""

    def __init__(
        self, services: TermServices, reconcilers: Mapping[str, Reconcile], last_pass: LastPass
    ) -> None:
        self._services = services
        self._reconcilers = reconcilers
        self._last_pass = last_pass
        self._failures = Failures(services)

    async def work(self) -> None:
        """Serve the queue until the term ends."""
        services = self._services
        while True:
            key = await services.queue.get()
            started_s = time.monotonic()
            outcome = await self._one(key)
            services.metrics.reconciles.labels(key.kind, outcome).inc()
            services.metrics.reconcile_seconds.labels(key.kind).observe(
                time.monotonic() - started_s
            )
            if outcome == "done":
                self._last_pass.at_s = time.monotonic()
                services.metrics.last_pass.set_to_current_time()

    async def _one(self, key: Key) -> str:
        """Reconcile one key, and queue it again if necessary; return the outcome for the metrics.

        The outcome is "done", "retry" (conflict) or "error". Failures are retried with backoff.
        Raises :class:`TermEnded` if this operator may no longer lead.
        """
        queue, began_at = self._services.queue, self._version(key)
        if self._services.objects.is_deletion_unconfirmed(
            key
        ):  # deleted with its definition: unchanged
            queue.done(key)
            return "done"
        try:
            delay_s = await self._reconcilers[key.kind](key)
            await report_deleted(self._services, key)
        # Another writer was faster: read the object and try again, soon if it has changed.
        except Conflict as error:
            logger.debug("%s: %s", key, error)
            self._services.metrics.conflicts.labels(key.kind).inc()
            is_news = await self._refresh(key) or self._version(key) != began_at
            queue.failed(key, at_most_s=CHANGED_S if is_news else RETRY.most_s)
            await self._failures.report(key, error)
            return "retry"
        # The end of the term ends all workers; the key is no failure.
        except TermEnded:
            queue.done(key)
            raise
        except (KubeError, InvalidResource, DecisionFailed) as error:
            # The CRD's rule rejects a stale epoch: another controller leads.
            if isinstance(error, Invalid) and "STALE_CONTROLLER_EPOCH" in error.message:
                raise ControllerFenced(error.message) from error
            at_least_s = error.retry_after_s if isinstance(error, ApiServerUnavailable) else 0.0
            delay_s = queue.failed(key, at_least_s=at_least_s)
            logger.warning("%s: retry in %.1f s: %s", key, delay_s, error)
            await self._failures.report(key, error)
            return "error"
        except Exception as error:  # a fault in one object must not stop the others
            delay_s = queue.failed(key, at_least_s=1.0)
            logger.exception("%s: failed, retry in %.1f s", key, delay_s)
            await self._failures.report(key, error)
            return "error"
        # Success: the failure count restarts, and a periodic check is scheduled.
        queue.done(key)
        self._failures.clear(key)
        if delay_s is not None:
            queue.add_later(key, delay_s)
        return "done"

    def _version(self, key: Key) -> int:
        body = self._services.objects.get(key)
        return 0 if body is None else resource_version(body)

    async def _refresh(self, key: Key) -> bool:
        """Read the object again; return whether it is news, which a faster watch prevents."""
        try:
            return await self._services.client.refresh(key)
        except KubeError as error:
            logger.info("%s cannot be read again: %s", key, error)
            return False
