"""Tasks of a term, with any engine: workers of the queue, periodic lists, and the end of the term.

Each worker handles one key at a time. No failure ends a worker.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Invalid, KubeError
from tidemark_operator.kube.kinds import WATCHED, Key, resource_version
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


# ------------------------------------------------------------ tasks of a term


#: Reconcilers at work at once; most of them wait for the API server or for brokers.
WORKERS = 1024


class TermTasks:
    """One group of tasks: the first that ends ends all, and the term with them."""

    def __init__(self, services: TermServices, *, resync_s: float) -> None:
        """Prepare the group; ``resync_s``: interval of lists that find what a watch has missed."""
        self._services = services
        self._resync_s = resync_s
        #: Set by :meth:`end` to the exception that ends the term.
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, why: TermEnded) -> None:
        """End the term. The first reason counts, and no further objects are delivered."""
        if not self._ending.done():
            # A later reason would hide the cause.
            self._ending.set_exception(why)
            self._services.objects.listener = None

    def deliver(self, key: Key, gone: bool) -> None:
        """Reconcile an object that has changed or is deleted."""
        self._services.queue.add(key)
        if gone and key == self._services.cluster_key:
            self.end(TermEnded("the Cluster was deleted"))

    async def run(self, workers: Workers, **tasks: Coroutine[Any, Any, None]) -> None:
        """Run the tasks and the workers until the term ends.

        Raises the reason alone (a ``TermEnded``, or a fault), not as an exception group.
        """
        # The group ends with its first failure; `most_informative` picks the reason among several.
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_ended(), name="ending")
                group.create_task(relist(self._services, self._resync_s), name="relist")
                for name, task in tasks.items():
                    group.create_task(task, name=name)
                for number in range(WORKERS):
                    group.create_task(workers.work(), name=f"worker-{number}")
        except BaseExceptionGroup as failed:
            raise most_informative(failed) from failed

    async def _until_ended(self) -> None:
        await self._ending


async def relist(services: TermServices, every_s: float) -> None:
    """List everything again at intervals, to find what a watch has missed."""
    while True:
        await asyncio.sleep(every_s)
        for kind in WATCHED:
            try:
                changed = await services.client.relist(kind, services.cluster_key.namespace)
            except KubeError as error:
                logger.warning("cannot list %s: %s", kind.plural, error)
                continue
            for key in changed:
                services.queue.add(key)


def most_informative(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most informative exception of those that ended the tasks of a term."""
    leaves: list[BaseException] = []
    for error in failed.exceptions:
        leaves.extend(
            [most_informative(error)] if isinstance(error, BaseExceptionGroup) else [error]
        )
    # A fault comes before a reason, and a reason before the mere end of the term.
    unexpected = [error for error in leaves if not isinstance(error, TermEnded)]
    reasons = [error for error in leaves if type(error) is not TermEnded]
    return (unexpected or reasons or leaves)[0]
