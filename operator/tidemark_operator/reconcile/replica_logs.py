"""Queries to brokers for the ends of their replicas' logs, for elections and Events.

It runs after every commit and once a second. A query without an answer, or with an answer that is
void by now, is repeated. Answers are kept in memory; the resulting election is decided and stored
like any other.
"""

import logging

from tidemark_operator.controller import elections
from tidemark_operator.controller.replica_logs import ReplicaLogs
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.reconcile.services import ReconcilerServices

logger = logging.getLogger(__name__)


class LogQueries:
    """Queries of one term, one at a time to each broker."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._logs = ReplicaLogs()

    def ask(self) -> None:
        """Query every connected broker for the log ends that are needed."""
        services = self._services
        for node_id in services.state.brokers:
            if services.engine.connected(node_id) and self._logs.unanswered(
                services.state, node_id
            ):
                services.background.spawn(("replica logs", node_id), self._query(node_id))

    def forget_gone(self) -> None:
        """Drop what was queried about partitions that do not exist any more."""
        self._logs.forget_gone(self._services.state)

    async def _query(self, node_id: int) -> None:
        """Query one broker for the log ends of offline partitions (KIP-966 unclean recovery).

        Then decide the elections that waited for these answers. A failed query is repeated later.
        """
        services = self._services
        keys = self._logs.unanswered(services.state, node_id)
        try:
            response = await services.engine.replica_logs(node_id, keys)
        except EngineUnavailable as error:
            logger.info("replica logs: %s", error)
            return
        # Record the answer; `answered` are the partitions whose log end is now known.
        answered, events = self._logs.take(services.state, node_id, response)
        for event in events:
            services.events.emit(event)
        # Elections that waited for these answers.
        waiting = [key for key in answered if key in services.state.partitions.awaiting_logs]
        if not waiting:
            return
        await services.committer.until_decided(
            lambda draft: elections.settle_rows(draft, waiting),
            "an election by log end",
            holds=lambda: not services.state.partitions.awaiting_logs.isdisjoint(waiting),
        )
        for topic_id in {topic_id for topic_id, _ in waiting}:
            services.wake_topic(topic_id)
