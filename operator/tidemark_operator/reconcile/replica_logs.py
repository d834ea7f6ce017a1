"""Asking brokers how far their replicas' logs reach, while an election or an Event waits for it.

Called after every commit and once a second: a question that was not answered, or whose answer is
void by now, is asked again. An answer is memory; what follows from it is decided and stored as
everything else.
"""

import logging

from tidemark_operator.controller import elections
from tidemark_operator.controller.replica_logs import ReplicaLogs, request_for
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.context import Context
from tidemark_operator.storage.committer import DecisionFailed

logger = logging.getLogger(__name__)


class LogQuestions:
    """The questions of one term; one at a time to each broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._logs = ReplicaLogs()

    def ask(self) -> None:
        """Ask every connected broker what is wanted of it."""
        context = self._context
        for node_id in context.state.brokers:
            if context.engine.connected(node_id) and self._logs.wanted(context.state, node_id):
                context.spawn(("replica logs", node_id), self._ask(node_id))

    async def _ask(self, node_id: int) -> None:
        context = self._context
        keys = self._logs.wanted(context.state, node_id)
        try:
            response = await context.engine.replica_logs(node_id, request_for(context.state, keys))
        except EngineUnavailable as error:
            logger.info("ReplicaLogInfo: %s", error)
            return
        answered, events = self._logs.take(context.state, node_id, response)
        for event in events:
            context.emit(event)
        waiting = [key for key in answered if key in context.state.awaiting_logs]
        if not waiting:
            return
        try:
            await context.committer.decide(lambda draft: elections.settle_rows(draft, waiting))
        except (DecisionFailed, TermEnded) as error:
            logger.info("an election by log end was put off: %s", error)
        for topic_id in {topic_id for topic_id, _ in waiting}:
            context.add_topic_id(topic_id)
