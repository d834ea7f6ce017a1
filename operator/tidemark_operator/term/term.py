"""One term over Tidemark's own brokers, from a finished takeover to its end.

Its own tasks are the committer and the pacemaker. When it ends, command connections close and the
listener answers NOT_CONTROLLER.
"""

import logging
import math
import time
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any

from tidemark_operator.controller.state.commit import SliceWrite
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo
from tidemark_operator.kube.kinds import BROKER, CLUSTER, EXPORT, RECORD_DELETION, TOPIC, USER
from tidemark_operator.listener.server import ControlServer
from tidemark_operator.listener.standby_discovery import BrokerSearches
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler, write_broker
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.engine_term import EngineTerm
from tidemark_operator.reconcile.export_reconciler import ExportReconciler
from tidemark_operator.reconcile.first_reports import OTHERS_TURNS
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.reflector import Reflector
from tidemark_operator.reconcile.replica_logs import LogQueries
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.user_reconciler import UserReconciler
from tidemark_operator.reconcile.workers import LastPass
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.slices.committer import CommitListener, Committed
from tidemark_operator.term.broker_requests import BrokerRequests, RequestedTerm
from tidemark_operator.term.pacemaker import TICK_S, Pacemaker
from tidemark_operator.term.producer_ids import ProducerIdBlocks
from tidemark_operator.topic_changes.changer import TopicChanger

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
        for topic_id in {topic_id for topic_id, _ in services.state.partitions.awaiting_logs}:
            services.wake_topic(topic_id)
        for topic in services.state.topics.values():
            waiting = topic.partitions_placed < topic.partitions or topic.deletion_ms is not None
            if waiting or topic.tiering_status.pending_brokers:
                services.queue.add(TOPIC.key(topic.key))


logger = logging.getLogger(__name__)


class Term(EngineTerm):
    """Runs one term; ``run`` raises the reason for its end."""

    services: ReconcilerServices

    def __init__(
        self,
        services: ReconcilerServices,
        server: ControlServer,
        requests: BrokerRequests,
        *,
        settings: OperatorSettings,
        last_pass: LastPass,
    ) -> None:
        """Create the parts of a term: reconcilers, workers, periodic work. :meth:`run` starts them.

        ``last_pass``: see :class:`EngineTerm`.
        """
        reflector = Reflector(services, server)
        self._clusters = ClusterReconciler(services)
        super().__init__(
            services,
            reflector,
            {
                TOPIC.kind: TopicReconciler(services).reconcile,
                BROKER.kind: BrokerReconciler(services, reflector).reconcile,
                RECORD_DELETION.kind: RecordDeletionReconciler(services).reconcile,
                CLUSTER.kind: self._clusters.reconcile,
                USER.kind: UserReconciler(services).reconcile,
                EXPORT.kind: ExportReconciler(services).reconcile,
            },
            resync_s=settings.resync_s,
            last_pass=last_pass,
        )
        self._server = server
        self._requests = requests
        self._settings = settings
        # Log queries decide unclean recoveries, the effects publish commits, and the pacemaker does
        # periodic work.
        log_queries = LogQueries(services)
        self._effects = CommitEffects(services, server, log_queries)
        self._pacemaker = Pacemaker(services, log_queries)

    def _tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {
            "committer": self.services.committer.run(self._effects),
            "pacemaker": self._pacemaker.run(),
        }

    async def _serve(self) -> None:
        """Answer brokers' requests as long as the tasks run."""
        try:
            # A Cluster that this version cannot control ends the term before any request is
            # answered.
            await self._clusters.check_first()
            self._begin()
            await super()._serve()
        finally:
            # Stop answering first, so that no decision follows the end of the engine.
            self._requests.end()
            self.services.first_reports.end()
            self._server.end_term()

    def _begin(self) -> None:
        """Start to accept brokers' requests."""
        # Sessions of registered brokers start now: silence during the takeover is not their fault.
        services, session_timeout_s = self.services, self._settings.session_timeout_s
        known = [
            (broker.node_id, broker.broker_epoch, not broker.live)
            for broker in services.state.brokers.values()
            if broker.registered
        ]
        self._requests.begin(
            RequestedTerm(
                services,
                TopicChanger(services),
                ProducerIdBlocks(services),
                self._server,
                session_timeout_s,
                self.end,
            )
        )
        # Brokers that searched for a controller here are alive, and the time of the search counts.
        searches = self._server.searches.snapshot()
        if searches.last_s:
            logger.info(
                "brokers %s have searched for a controller here for %.1f s",
                sorted(searches.last_s),
                searches.seconds(time.monotonic()),
            )
        # The wait for reports is set up before the listener lets brokers register.
        self._expect_reports(searches)
        self._server.begin_term(
            services.state.controller_epoch,
            session_timeout_s,
            known,
            searches,
            suspect_timeout_s=self._settings.suspect_timeout_s,
        )

    def _expect_reports(self, searches: BrokerSearches) -> None:
        """Expect the first report of every broker that the slices may name.

        Without rows, only live brokers are expected: empty slices cannot name a broker wrongly.
        """
        state = self.services.state
        known = (
            [broker for broker in state.brokers.values() if not broker.is_reader]
            if any(content.encoded for content in state.slices)
            else state.live_brokers()
        )
        self.services.first_reports.expect(
            (broker.node_id for broker in known if broker.live),
            (broker.node_id for broker in known if not broker.live),
            bound=math.ceil(self._settings.session_timeout_s) + OTHERS_TURNS,
            looking=searches.last_s.keys(),
            turns_before=int(searches.seconds(time.monotonic()) / TICK_S),
        )
