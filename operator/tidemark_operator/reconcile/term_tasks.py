"""Tasks of every term other than its reconcilers, with any engine."""

import asyncio
import logging

from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import WATCHED
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.services import TermServices

logger = logging.getLogger(__name__)


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
