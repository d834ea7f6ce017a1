"""Asking brokers how far their replicas' logs reach, while an election or an Event waits for it.

Called after every commit and once a second: a question that was not answered, or whose answer is
void by now, is asked again. An answer is memory; what follows from it is decided and stored as
everything else.
"""

import logging

from tidemark_operator.controller import elections
from tidemark_operator.controller.replica_logs import ReplicaLogs
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.reconcile.services import Services

logger = logging.getLogger(__name__)


class LogQuestions:
    """The questions of one term; one at a time to each broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._logs = ReplicaLogs()

    def ask(self) -> None:
        """Ask every connected broker what is wanted of it."""
        services = self._services
        for node_id in services.state.brokers:
            if services.engine.connected(node_id) and self._logs.unanswered(
                services.state, node_id
            ):
                services.background.spawn(("replica logs", node_id), self._question(node_id))

    def forget_gone(self) -> None:
        """What was asked of partitions that are no more."""
        self._logs.forget_gone(self._services.state)

    async def _question(self, node_id: int) -> None:
        services = self._services
        keys = self._logs.unanswered(services.state, node_id)
        try:
            response = await services.engine.replica_logs(node_id, keys)
        except EngineUnavailable as error:
            logger.info("replica logs: %s", error)
            return
        answered, events = self._logs.take(services.state, node_id, response)
        for event in events:
            services.events.emit(event)
        waiting = [key for key in answered if key in services.state.awaiting_logs]
        if not waiting:
            return
        await services.committer.until_decided(
            lambda draft: elections.settle_rows(draft, waiting),
            "an election by log end",
            holds=lambda: not services.state.awaiting_logs.isdisjoint(waiting),
        )
        for topic_id in {topic_id for topic_id, _ in waiting}:
            services.wake_topic(topic_id)
