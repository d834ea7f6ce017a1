"""Effects of a commit: states for brokers, work for reconcilers, Events for people."""

import uuid

from tidemark_operator.controller.commit import SliceWrite
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import BrokerInfo
from tidemark_operator.kube.kinds import BROKER, TOPIC
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.reconcile.brokers import write_broker
from tidemark_operator.reconcile.replica_logs import LogQueries
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.slices.committer import CommitListener, Committed

BROKER_FIGURES_S = 10.0


class CommitEffects(CommitListener):
    """The committer's listener of one term."""

    def __init__(
        self, services: ReconcilerServices, server: ControlServer, log_queries: LogQueries
    ) -> None:
        self._services = services
        self._server = server
        self._log_queries = log_queries
        self._changed_topics: set[uuid.UUID] = set()

    def slice_stored(self, state: ControllerState, write: SliceWrite) -> None:
        """Apply a slice's write to the engine; called before the state advances."""
        self._services.engine.slice_stored(state, write)
        self._changed_topics.update(row.topic_id for row in write.rows)
        self._changed_topics.update(topic_id for topic_id, _ in write.removed)
        self._changed_topics.update(topic_id for topic_id, _ in write.tombstones)
        self._services.metrics.slice_writes.inc()

    async def write_broker(self, drafted: BrokerInfo) -> bool:
        """Persist a registration before it counts."""
        return await write_broker(self._services, drafted)

    def committed(self, committed: Committed) -> None:
        """Perform what follows from a stored group of decisions.

        Brokers receive the changed partitions, the affected objects are queued, and Events are
        emitted.
        """
        services = self._services
        services.metrics.commits.inc()
        services.metrics.decisions.inc(committed.decisions)
        for event in committed.events:
            services.events.emit(event)
        # Nothing was written: all decisions left the state as it is.
        if not committed.slices and not committed.brokers:
            return
        services.metrics.commit_seconds.observe(committed.seconds)
        # All slices of the group are applied, so each broker receives one request.
        services.engine.flush()
        if services.state.cluster.rebuilding is not None:
            services.queue.add(services.cluster_key)
        changed, self._changed_topics = self._changed_topics, set()
        for topic_id in changed:
            services.wake_topic(topic_id)
        # Counts of replicas and leaders changed on any broker; they are written with a delay.
        for broker in services.state.brokers.values():
            services.queue.add_later(BROKER.key(broker.key), BROKER_FIGURES_S)
        for node_id in committed.brokers:
            self._broker_changed(node_id)
        self._log_queries.ask()

    def _broker_changed(self, node_id: int) -> None:
        """Pass a broker's new state to the control listener; queue the objects that need it."""
        services = self._services
        broker = services.state.brokers.get(node_id)
        if broker is None:
            return
        # The listener answers heartbeats itself, so it needs the broker's new state.
        self._server.set_state(
            node_id,
            broker.broker_epoch,
            fenced=not broker.live,
            should_shut_down=broker.shutting_down,
        )
        services.queue.add(BROKER.key(broker.key))
        services.queue.add(services.cluster_key)
        # Topics that wait for this broker: for logs, for placement, for deletion or for
        # disablement.
        for topic_id in {topic_id for topic_id, _ in services.state.awaiting_logs}:
            services.wake_topic(topic_id)
        for topic in services.state.topics.values():
            waiting = topic.partitions_placed < topic.partitions or topic.deletion_ms is not None
            if waiting or topic.tiering_status.pending_brokers:
                services.queue.add(TOPIC.key(topic.key))
