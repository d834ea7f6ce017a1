"""One term of leadership: from a finished take-over to its end.

The term's tasks live in one group: the line of decisions, the workers of the queue, the pacemaker.
The first of them that cannot go on ends them all; then command connections close and the listener
answers NOT_CONTROLLER. Nothing of a term outlives it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tidemark_operator.control.requests import BrokerRequests
from tidemark_operator.controller import elections, placement, topic_deletion
from tidemark_operator.controller.commit import SliceWrite, apply_broker
from tidemark_operator.controller.model import NO_LEADER, BrokerInfo
from tidemark_operator.controller.state import ControllerState
from tidemark_operator.controller.status import broker_status
from tidemark_operator.controller.tiering import pending
from tidemark_operator.kube.errors import Conflict, Invalid, KubeError, Unavailable
from tidemark_operator.kube.kinds import BROKER, CLUSTER, RECORD_DELETION, TOPIC, Json, Key, key_of
from tidemark_operator.leadership.terms import Fenced, TermEnded
from tidemark_operator.reconcile.brokers import BrokerReconciler
from tidemark_operator.reconcile.clusters import ClusterReconciler
from tidemark_operator.reconcile.context import Context
from tidemark_operator.reconcile.record_deletions import RecordDeletionReconciler
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.reconcile.views import broker_info
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.storage.committer import Committed, DecisionFailed

logger = logging.getLogger(__name__)

WORKERS = 256
TICK_S = 1.0
FILL_LIMIT = 100
BALANCE_TURNS = 300
MEASURE_TURNS = 5
BALANCE_LIMIT = 50
BROKER_TRIES = 4
BROKER_FIGURES_S = 10.0

Reconcile = Callable[[Key], Awaitable[float | None]]


class LastPass:
    """When something was last reconciled (monotonic seconds); /healthz judges by it."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()


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
        self._context = context
        self._requests = requests
        self._resync_s = resync_s
        self._leads = leads
        self._last_pass = last_pass
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clusters = ClusterReconciler(context)
        self._reconcilers: dict[str, Reconcile] = {
            TOPIC.kind: TopicReconciler(context).reconcile,
            BROKER.kind: BrokerReconciler(context).reconcile,
            RECORD_DELETION.kind: RecordDeletionReconciler(context).reconcile,
            CLUSTER.kind: self._clusters.reconcile,
        }
        self._changed_topics: set[object] = set()

    def end(self, why: TermEnded) -> None:
        """End the term; the first reason counts."""
        if not self._ending.done():
            self._ending.set_exception(why)

    async def run(self) -> None:
        """Serve until the term ends. Raises the reason, alone, not as a group."""
        context = self._context
        await self._clusters.look_first()
        self._begin()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(context.committer.run(), name="committer")
                group.create_task(self._until_ended(), name="ending")
                group.create_task(self._pacemaker(), name="pacemaker")
                group.create_task(self._resync(), name="resync")
                for number in range(WORKERS):
                    group.create_task(self._worker(), name=f"worker-{number}")
        except BaseExceptionGroup as failed:
            raise _first(failed) from failed
        finally:
            self._requests.end()
            context.server.end_term()
            await context.engine.close()
            await context.close()

    def _begin(self) -> None:
        context = self._context
        known = [
            (broker.node_id, broker.broker_epoch, not broker.live)
            for broker in context.state.brokers.values()
            if broker.registered
        ]
        self._requests.begin(context, self.end)
        context.server.begin_term(context.state.controller_epoch, context.session_timeout_s, known)
        for kind in (CLUSTER, BROKER, TOPIC, RECORD_DELETION):
            for body in context.objects.of_kind(kind):
                context.queue.add(key_of(body))

    async def _until_ended(self) -> None:
        await self._ending

    # ------------------------------------------------------------ events from the watches

    def deliver(self, body: Json, gone: bool) -> None:
        """A watch brought an object: enqueue its key if it is news."""
        context = self._context
        key = key_of(body)
        news = context.forget(body) if gone else context.take(body)
        if not news:
            return
        context.queue.add(key)
        if key.kind == TOPIC.kind:
            self._wake_deletions(key)
        if key.kind == CLUSTER.kind and key != context.cluster_key:
            return
        if gone and key == context.cluster_key:
            self.end(TermEnded("the Cluster is gone"))

    def _wake_deletions(self, topic: Key) -> None:
        for body in self._context.objects.of_kind(RECORD_DELETION):
            if body["spec"]["topicRef"]["name"] == topic.name:
                self._context.queue.add(key_of(body))

    # ------------------------------------------------------------ the queue's workers

    async def _worker(self) -> None:
        context = self._context
        while True:
            key = await context.queue.get()
            started_s = time.monotonic()
            outcome = await self._one(key)
            context.metrics.reconciles.labels(key.kind, outcome).inc()
            context.metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started_s)
            if outcome == "done":
                self._last_pass.at_s = time.monotonic()
                context.metrics.last_pass.set_to_current_time()

    async def _one(self, key: Key) -> str:
        """Reconcile one key; what fails comes again, and never ends the worker."""
        queue = self._context.queue
        try:
            delay_s = await self._reconcilers[key.kind](key)
        except Conflict as error:
            logger.debug("%s: %s", key, error)
            self._context.metrics.conflicts.labels(key.kind).inc()
            await self._refresh(key)
            queue.failed(key)
            return "retry"
        except TermEnded:
            queue.done(key)
            raise
        except (KubeError, InvalidResource, DecisionFailed) as error:
            if isinstance(error, Invalid) and "STALE_CONTROLLER_EPOCH" in error.message:
                raise Fenced(error.message) from error
            at_least_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
            delay_s = queue.failed(key, at_least_s=at_least_s)
            logger.warning("%s: again in %.1f s: %s", key, delay_s, error)
            return "error"
        except Exception:  # a fault of ours in one object must not stop the others
            delay_s = queue.failed(key, at_least_s=1.0)
            logger.exception("%s: failed, again in %.1f s", key, delay_s)
            return "error"
        queue.done(key)
        if delay_s is not None:
            queue.add_later(key, delay_s)
        return "done"

    async def _refresh(self, key: Key) -> None:
        try:
            await self._context.refresh(key)
        except KubeError as error:
            logger.info("%s cannot be read again: %s", key, error)

    # ------------------------------------------------------------ commits

    def landing(self, state: ControllerState, write: SliceWrite) -> None:
        """A slice's write took effect (called before the state advances)."""
        self._context.engine.landing(state, write)
        self._changed_topics.update(row.topic_id for row in write.rows)
        self._changed_topics.update(topic_id for topic_id, _ in write.removed)
        self._changed_topics.update(topic_id for topic_id, _ in write.tombstones)
        self._context.metrics.slice_writes.inc()

    async def write_broker(self, drafted: BrokerInfo) -> bool:
        """Persist a registration before it counts. Flags (fenced, shutting down) are not: they can
        be told from the slices, and the Broker's own reconciliation writes them. Nothing comes
        between the API server's answer and the state: another status write would tell the former
        registration."""
        context = self._context
        known = context.state.brokers.get(drafted.node_id)
        if known is not None and _identity(known) == _identity(drafted):
            apply_broker(context.state, _with_status(drafted, known))
            return True
        key = context.key(BROKER, drafted.key)
        for _ in range(BROKER_TRIES):
            held = context.objects.get(key)
            if held is None:
                return False
            fresh = _with_status(drafted, broker_info(held, fenced=True))
            status = broker_status(context.state, fresh, now_ms=context.now_ms()).status
            try:
                written = await context.write_status(BROKER, key, status)
            except Conflict:
                context.metrics.conflicts.labels(BROKER.kind).inc()
                await context.refresh(key)
                continue
            apply_broker(context.state, _with_status(drafted, broker_info(written, fenced=True)))
            return True
        return False

    def committed(self, committed: Committed) -> None:
        """A group is stored: tell the brokers, wake what it concerns, tell people."""
        context = self._context
        context.metrics.commits.inc()
        context.metrics.decisions.inc(committed.decisions)
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
        for event in committed.events:
            context.emit(event)

    def _broker_changed(self, node_id: int) -> None:
        context = self._context
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
        for topic in context.state.topics.values():
            waiting = topic.partitions_placed < topic.partitions or topic.deletion_ms is not None
            if waiting or (
                topic.tiering_status is not None and topic.tiering_status.pending_brokers
            ):
                context.add_topic(topic.key)

    # ------------------------------------------------------------ now and then

    async def _pacemaker(self) -> None:
        context = self._context
        turns = 0
        while True:
            await asyncio.sleep(TICK_S)
            turns += 1
            if not self._leads():
                raise TermEnded("the Lease ran out")
            if context.state.with_placeholders and context.state.live_brokers():
                await self._decide(
                    lambda draft: placement.fill_placeholders(draft, limit=FILL_LIMIT)
                )
            if any(True for _ in context.state.tombstoned_ids()):
                await self._decide(lambda draft: topic_deletion.collect(draft, context.deletions))
            if turns % BALANCE_TURNS == 0:
                await self._decide(
                    lambda draft: elections.balance_leaders(draft, limit=BALANCE_LIMIT)
                )
            if turns % MEASURE_TURNS == 1:
                self._measure()

    async def _decide(self, decide: Callable[..., int]) -> None:
        try:
            await self._context.committer.decide(decide)
        except DecisionFailed as error:
            logger.info("put off: %s", error)

    async def _resync(self) -> None:
        """List everything again now and then: what a watch missed is found here."""
        context = self._context
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
        context = self._context
        for key in changed:
            body = context.objects.get(key)
            if body is None:
                context.vanish(key)
            else:
                context.absorb(body)
            context.queue.add(key)

    def _measure(self) -> None:
        context, metrics, state = self._context, self._context.metrics, self._context.state
        metrics.queue_depth.set(context.queue.depth)
        metrics.queue_head_age.set(context.queue.head_age_s())
        registered = [broker for broker in state.brokers.values() if broker.registered]
        live = sum(broker.live for broker in registered)
        metrics.brokers.labels("live").set(live)
        metrics.brokers.labels("fenced").set(len(registered) - live)
        rows = list(state.all_rows())
        metrics.partitions.set(len(rows))
        metrics.offline.set(sum(row.leader == NO_LEADER for row in rows))
        metrics.under_replicated.set(sum(len(row.isr) < len(row.replicas) for row in rows))
        metrics.placeholders.set(sum(row.placeholders for row in rows))
        metrics.remote_bytes.set(sum(report.remote_bytes for report in state.reports.values()))
        self._measure_tiering()

    def _measure_tiering(self) -> None:
        context = self._context
        counts = dict.fromkeys(("None", "Enabled", "Disabling", "Disabled"), 0)
        waiting = 0
        for topic in context.state.topics.values():
            status = topic.tiering_status
            name = "None" if status is None else status.state.name.capitalize()
            counts[name] += 1
            if name == "Disabling":
                waiting += len(pending(context.state, topic, context.disablements))
        for name, number in counts.items():
            context.metrics.topics.labels(name).set(number)
        context.metrics.pending_disablements.set(waiting)


def _identity(broker: BrokerInfo) -> tuple[object, ...]:
    return broker.broker_epoch, broker.incarnation_id, broker.directory_id, broker.listeners


def _with_status(drafted: BrokerInfo, stored: BrokerInfo) -> BrokerInfo:
    """The drafted registration over what the object says about everything else."""
    return BrokerInfo(
        node_id=drafted.node_id,
        key=stored.key,
        rack=drafted.rack,
        broker_epoch=drafted.broker_epoch,
        incarnation_id=drafted.incarnation_id,
        directory_id=drafted.directory_id,
        listeners=drafted.listeners,
        fenced=drafted.fenced,
        shutting_down=drafted.shutting_down,
        deleting=stored.deleting,
        generation=stored.generation,
        status=stored.status,
    )


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that ended the group: one that tells more than "the term has ended"."""
    leaves: list[BaseException] = []
    for error in failed.exceptions:
        leaves.extend([_first(error)] if isinstance(error, BaseExceptionGroup) else [error])
    unexpected = [error for error in leaves if not isinstance(error, TermEnded)]
    telling = [error for error in leaves if type(error) is not TermEnded]
    return (unexpected or telling or leaves)[0]
