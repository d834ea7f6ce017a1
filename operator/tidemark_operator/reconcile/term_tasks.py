"""Tasks and end of a term of leadership, with any engine."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import WATCHED, Key
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.reconcile.workers import Workers

logger = logging.getLogger(__name__)

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
