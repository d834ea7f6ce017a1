"""Term, as far as both engines share it.

The tasks of a term are in one group: the workers of the queue, periodic lists, and the engine's own
tasks. The first task that ends ends them all. Nothing of a term outlives it.
"""

import abc
import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import WATCHED, Key
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.failures import reporter
from tidemark_operator.reconcile.reflector import ObjectReflector
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.reconcile.workers import LastPass, Reconcile, Workers

logger = logging.getLogger(__name__)

#: Reconcilers at work at once; most of them wait for the API server or for brokers.
WORKERS = 1024


class EngineTerm(abc.ABC):
    """One term with any engine; :meth:`run` raises the reason of its end."""

    def __init__(
        self,
        services: TermServices,
        reflector: ObjectReflector,
        reconcilers: Mapping[str, Reconcile],
        *,
        resync_s: float,
        last_pass: LastPass,
    ) -> None:
        """Prepare a term.

        ``reconcilers``: by kind, each with the memory of this term only. ``resync_s``: interval of
        lists that find what a watch has missed. ``last_pass``: time of the last reconciliation,
        for /healthz.
        """
        self.services = services
        self._reflector = reflector
        self._resync_s = resync_s
        self._workers = Workers(services, reconcilers, last_pass)
        #: Set by :meth:`end` to the exception that ends the term.
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @abc.abstractmethod
    def _tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return the engine's own tasks by name."""

    def end(self, why: TermEnded) -> None:
        """End the term. The first reason counts, and no further objects are delivered."""
        if not self._ending.done():
            # A later reason would hide the cause.
            self._ending.set_exception(why)
            self.services.objects.listener = None

    def deliver(self, key: Key, gone: bool) -> None:
        """Reconcile an object that has changed or is deleted."""
        self.services.queue.add(key)
        if gone and key == self.services.cluster_key:
            self.end(TermEnded("the Cluster was deleted"))

    async def run(self) -> None:
        """Serve as the controller until the term ends.

        Raises the reason alone (a ``TermEnded``, or a fault), not as an exception group.
        """
        services = self.services
        # From now on the reflector receives changes of objects. Those that arrive before it has
        # caught up are read from the store.
        services.objects.listener = self._reflector
        services.client.api.own.on_refusal = reporter(services)
        try:
            await self._serve()
        finally:
            await services.engine.close()
            await services.background.close()
            services.objects.listener = None

    async def _serve(self) -> None:
        """Load the objects into the state, and run all tasks until one of them ends."""
        self._reflector.catch_up()
        # The group ends with its first failure; `most_informative` picks the reason among several.
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_ended(), name="ending")
                group.create_task(relist(self.services, self._resync_s), name="relist")
                for name, task in self._tasks().items():
                    group.create_task(task, name=name)
                for number in range(WORKERS):
                    group.create_task(self._workers.work(), name=f"worker-{number}")
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
