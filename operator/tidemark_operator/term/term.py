"""One term of leadership: from a finished take-over to its end.

The term's tasks live in one group: the line of decisions, the workers of the queue, the pacemaker.
The first of them that cannot go on ends them all; then command connections close and the listener
answers NOT_CONTROLLER. Nothing of a term outlives it.
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_operator.controller import elections, placement, topic_deletion
from tidemark_operator.controller.commit import SliceWrite
from tidemark_operator.controller.state import ControllerState
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import BROKER, CLUSTER, RECORD_DELETION, TOPIC, Json, Key, key_of
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.reconcile.brokers import BrokerReconciler
from tidemark_operator.reconcile.clusters import ClusterReconciler
from tidemark_operator.reconcile.context import Context
from tidemark_operator.reconcile.measure import measure
from tidemark_operator.reconcile.record_deletions import RecordDeletionReconciler
from tidemark_operator.reconcile.replica_logs import LogQuestions
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.reconcile.workers import LastPass, Reconcile, Workers
from tidemark_operator.storage.committer import Committed, DecisionFailed
from tidemark_operator.term.broker_requests import BrokerRequests

logger = logging.getLogger(__name__)

WORKERS = 256
TICK_S = 1.0
FILL_LIMIT = 100
BALANCE_TURNS = 300
MEASURE_TURNS = 5
COLLECT_TURNS = 5
BALANCE_LIMIT = 50
BROKER_FIGURES_S = 10.0


class Term:
    """Runs one term; ``run`` ends by raising why."""

    def __init__(
        self,
        context: Context,
        requests: BrokerRequests,
        *,
        resync_s: float,
        leads: Callable[[], bool],
        last_pass: LastPass,
    ) -> None:
        self.context = context
        self._requests = requests
        self._resync_s = resync_s
        self._leads = leads
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clusters = ClusterReconciler(context)
        reconcilers: dict[str, Reconcile] = {
            TOPIC.kind: TopicReconciler(context).reconcile,
            BROKER.kind: BrokerReconciler(context).reconcile,
            RECORD_DELETION.kind: RecordDeletionReconciler(context).reconcile,
            CLUSTER.kind: self._clusters.reconcile,
        }
        self._questions = LogQuestions(context)
        self._workers = Workers(context, reconcilers, last_pass)
        self._changed_topics: set[object] = set()

    def end(self, why: TermEnded) -> None:
        """End the term; the first reason counts."""
        if not self._ending.done():
            self._ending.set_exception(why)

    async def run(self) -> None:
        """Serve until the term ends. Raises the reason, alone, not as a group."""
        context = self.context
        await self._clusters.look_first()
        self._begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(context.committer.run(), name="committer")
                group.create_task(self._until_ended(), name="ending")
                group.create_task(self._pacemaker(), name="pacemaker")
                group.create_task(self._resync(), name="resync")
                for number in range(WORKERS):
                    group.create_task(self._workers.work(), name=f"worker-{number}")
        except BaseExceptionGroup as failed:
            raise _first(failed) from failed
        finally:
            self._requests.end()
            context.server.end_term()
            await context.engine.close()
            await context.close()

    def _begin(self) -> None:
        context = self.context
        known = [
            (broker.node_id, broker.broker_epoch, not broker.live)
            for broker in context.state.brokers.values()
            if broker.registered
        ]
        self._requests.begin(context, self.end)
        context.server.begin_term(context.state.controller_epoch, context.session_timeout_s, known)
        self._catch_up()

    def _catch_up(self) -> None:
        """What the watches brought while the take-over was under way has reached the objects, but
        not the state: let it know them again, and look at everything."""
        context = self.context
        for kind in (CLUSTER, BROKER, TOPIC, RECORD_DELETION):
            for body in list(context.objects.of_kind(kind)):
                context.absorb(body)
                context.queue.add(key_of(body))
        known = [(TOPIC, text) for text in context.state.topics]
        known += [(BROKER, broker.key) for broker in context.state.brokers.values()]
        for kind, text in known:
            key = context.key(kind, text)
            if context.objects.get(key) is None:
                context.vanish(key)

    async def _until_ended(self) -> None:
        await self._ending

    # ------------------------------------------------------------ events from the watches

    def deliver(self, body: Json, gone: bool) -> None:
        """A watch brought an object: enqueue its key if it is news."""
        context = self.context
        key = key_of(body)
        news = context.forget(body) if gone else context.take(body)
        if not news:
            return
        context.queue.add(key)
        if gone and key == context.cluster_key:
            self.end(TermEnded("the Cluster is gone"))

    # ------------------------------------------------------------ commits

    def landing(self, state: ControllerState, write: SliceWrite) -> None:
        """A slice's write took effect (called before the state advances)."""
        self.context.engine.landing(state, write)
        self._changed_topics.update(row.topic_id for row in write.rows)
        self._changed_topics.update(topic_id for topic_id, _ in write.removed)
        self._changed_topics.update(topic_id for topic_id, _ in write.tombstones)
        self.context.metrics.slice_writes.inc()

    def committed(self, committed: Committed) -> None:
        """A group is stored: tell the brokers, wake what it concerns, tell people."""
        context = self.context
        context.metrics.commits.inc()
        context.metrics.decisions.inc(committed.decisions)
        for event in committed.events:
            context.emit(event)
        if not committed.slices and not committed.brokers:
            return
        context.metrics.commit_seconds.observe(committed.seconds)
        context.engine.flush()
        changed, self._changed_topics = self._changed_topics, set()
        for topic_id in changed:
            context.add_topic_id(topic_id)
        for broker in context.state.brokers.values():
            context.queue.add_later(context.key(BROKER, broker.key), BROKER_FIGURES_S)
        for node_id in committed.brokers:
            self._broker_changed(node_id)
        self._questions.ask()

    def _broker_changed(self, node_id: int) -> None:
        context = self.context
        broker = context.state.brokers.get(node_id)
        if broker is None:
            return
        context.server.set_state(
            node_id,
            broker.broker_epoch,
            fenced=not broker.live,
            should_shut_down=broker.shutting_down,
        )
        context.queue.add(context.key(BROKER, broker.key))
        context.queue.add(context.cluster_key)
        for topic_id in {topic_id for topic_id, _ in context.state.awaiting_logs}:
            context.add_topic_id(topic_id)
        for topic in context.state.topics.values():
            waiting = topic.partitions_placed < topic.partitions or topic.deletion_ms is not None
            if waiting or (
                topic.tiering_status is not None and topic.tiering_status.pending_brokers
            ):
                context.add_topic(topic.key)

    # ------------------------------------------------------------ now and then

    async def _pacemaker(self) -> None:
        context = self.context
        turns = 0
        while True:
            await asyncio.sleep(TICK_S)
            turns += 1
            if not self._leads():
                raise TermEnded("the Lease ran out")
            if any(context.state.failed()):
                await self._decide(elections.leave_failed)
            if context.state.with_placeholders and context.state.live_brokers():
                await self._decide(
                    lambda draft: placement.fill_placeholders(draft, limit=FILL_LIMIT)
                )
            if turns % COLLECT_TURNS == 0 and context.state.tombstoned_ids():
                await self._decide(lambda draft: topic_deletion.collect(draft, context.deletions))
            if turns % BALANCE_TURNS == 0:
                await self._decide(
                    lambda draft: elections.balance_leaders(draft, limit=BALANCE_LIMIT)
                )
            if turns % MEASURE_TURNS == 1:
                measure(context)
            self._questions.ask()

    async def _decide(self, decide: Callable[..., int]) -> None:
        try:
            await self.context.committer.decide(decide)
        except DecisionFailed as error:
            logger.info("put off: %s", error)

    async def _resync(self) -> None:
        """List everything again now and then: what a watch missed is found here."""
        context = self.context
        while True:
            await asyncio.sleep(self._resync_s)
            for kind in (CLUSTER, BROKER, TOPIC, RECORD_DELETION):
                try:
                    found = await context.api.list_all(kind, context.cluster_key.namespace)
                except KubeError as error:
                    logger.warning("cannot list %s: %s", kind.plural, error)
                    continue
                self._settle(context.objects.replace_kind(kind, found))

    def _settle(self, changed: list[Key]) -> None:
        context = self.context
        for key in changed:
            body = context.objects.get(key)
            if body is None:
                context.vanish(key)
            else:
                context.absorb(body)
            context.queue.add(key)


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that ended the group: one that tells more than "the term has ended"."""
    leaves: list[BaseException] = []
    for error in failed.exceptions:
        leaves.extend([_first(error)] if isinstance(error, BaseExceptionGroup) else [error])
    unexpected = [error for error in leaves if not isinstance(error, TermEnded)]
    telling = [error for error in leaves if type(error) is not TermEnded]
    return (unexpected or telling or leaves)[0]
