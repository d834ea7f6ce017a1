"""Reconciler of Topics: decide, commit, write the status, notify the brokers, in this order.

:meth:`TopicReconciler.reconcile` is the whole walk. Its steps follow it, in the order in which it
takes them. What a step does is decided by pure functions of the state
(:mod:`tidemark_operator.controller`); the step executes the decision. Steps that are the same with
an Apache Kafka are in :mod:`~tidemark_operator.reconcile.shared_steps`.
"""

import logging

from kio.schema.errors import ErrorCode

from tidemark.wire.control import DeleteRemoteTopicRequest, DisableRemoteTopicRequest, TopicState
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import tiering_disablement, topic_restore
from tidemark_operator.controller.snapshot import topic_state
from tidemark_operator.controller.state.commit import Draft, SliceFull
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.status import deletion_grace
from tidemark_operator.controller.status.topic_events import Outages, damage_news, waiting_news
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import (
    FirstStatuses,
    TopicDecision,
    decide,
    is_placement_only,
    record_placement,
)
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.kinds import TOPIC, Json, Key
from tidemark_operator.reconcile import remote_storage, replication_factor
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.shared_steps import (
    hold_topic,
    quiet_deletion_s,
    record_orphan,
    release_topic,
    write_topic_status,
)
from tidemark_operator.reconcile.workers import earliest

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
#: Interval in seconds while reports of the states that brokers received are missing.
FIRST_REPORTS_S = 0.3

DELETED_IN_TIER = (
    "this topic was deleted, and the tier has no data of it. Remove the "
    "annotation to create a new topic"
)

#: State of a topic that brokers receive in addition to its rows, and how many rows count. It is the
#: message itself, so that no change of it can be missed.
Published = tuple[int, TopicState]


class TopicReconciler:
    """Reconciles the Topics of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._outages = Outages()
        self._first_statuses = FirstStatuses()
        #: Topics with more partitions than their manifest, which were checked already.
        self._beyond_spec: set[str] = set()
        self._published: dict[str, Published] = {
            key: published_state(services.state, topic)
            for key, topic in services.state.topics.items()
        }

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Topic: decide its next step, commit it, write the status, notify brokers.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services, text = self._services, key.namespaced_name
        # Find the object. If it no longer exists, drop what is remembered about it.
        body = services.objects.get(key)
        if body is None:
            self._forget(text)
            return None
        # Hold it: the finalizer is added before any partition or remote data exists.
        if await hold_topic(services, key, body) is None:
            return None
        # After a takeover, nothing is decided until the brokers have reported the states that they
        # received: the PartitionSlices may be older.
        if not services.first_reports.are_complete:
            return FIRST_REPORTS_S
        # A Topic to be restored from the remote tier must not have been deleted there.
        has_tier_answered = await self._look_in_tier(text)
        # Decide the next step and commit it to the PartitionSlices.
        decision, topic = await self._decide(text)
        # The object may have been deleted or recreated during the commit.
        present = services.state.topics.get(text)
        if decision is None or topic is None or present is None or present.uid != topic.uid:
            return None
        # Deletion: True once the object is released. Until then the status shows the progress.
        if decision.deletion is not None and await self._delete(key, topic, decision.deletion):
            return None
        # Partitions and replication factor: either the spec follows the partitions, or the reverse.
        if await self._align_with_manifest(key, present, decision):
            return None
        # The status comes before brokers receive a change. New partitions are the exception:
        # brokers receive them first, so that the first status can be Ready.
        if (later_s := await self._first_status_delay_s(text, decision)) > 0:
            return later_s
        delay_s = await self._write(key, topic, decision)
        self._publish(text)
        # Disablement: send the requests that brokers have not acknowledged.
        self._disable(text)
        # Look again when the grace period ends. Without an answer of the tier, look again even if
        # nothing else is due.
        delay_s = deletion_grace.recheck_s(topic, delay_s, now_ms=wall_ms())
        return delay_s if has_tier_answered else LOOK_AGAIN_S

    def _forget(self, text: str) -> None:
        """Drop what is remembered about a deleted Topic."""
        self._published.pop(text, None)
        self._outages.forget(text)
        self._first_statuses.forget(text)
        self._beyond_spec.discard(text)

    # ------------------------------------------------------------ tier and decision

    async def _look_in_tier(self, text: str) -> bool:
        """Check that a Topic to be restored from the remote tier was not deleted there.

        The result is in ``state.not_in_tier``. Returns False if the store does not answer, in which
        case the check has to be repeated.
        """
        state = self._services.state
        topic = state.topics.get(text)
        topic_id = None if topic is None else topic_restore.unverified_origin(topic)
        if topic_id is None or not state.cluster.remote_storage:
            return True
        try:
            found = await remote_storage.is_deleted(state.cluster.remote_storage, topic_id)
        except remote_storage.RemoteStorageProblem as problem:
            state.not_in_tier[topic_id] = f"{problem}. The request is repeated"
            return False
        state.not_in_tier.pop(topic_id, None)
        # A topic that was deleted in the tier stays deleted: the Topic is refused.
        if found:
            state.not_in_tier[topic_id] = DELETED_IN_TIER
        return True

    async def _decide(self, text: str) -> tuple[TopicDecision | None, TopicInfo | None]:
        """Decide a Topic's next step, and commit it to the PartitionSlices.

        Returns the decision and the Topic as it was when the decision was made, (None, None) if the
        Topic no longer exists. Usually there is no change, and nothing to commit.
        """
        services, now_ms = self._services, wall_ms()

        def decide_in(draft: Draft) -> tuple[TopicDecision | None, TopicInfo | None]:
            decided = decide(draft, text, services.disablements, services.deletions, now_ms=now_ms)
            return decided, draft.state.topics.get(text)

        # A preview decides without a commit; it is None if the decision would change something.
        seen = services.committer.preview(decide_in)
        if seen is not None:
            return seen
        return await services.committer.decide(decide_in, urgent=False)

    # ------------------------------------------------------------ deleting

    async def _delete(self, key: Key, topic: TopicInfo, step: DeletionStep) -> bool:
        """Continue a topic's deletion; return False if its status should show the progress.

        True: the object is released, or the attempt is repeated later without a status.
        """
        services = self._services
        # A broker deletes the remote data, which takes long; its answer queues the Topic again.
        if step.remote is not None:
            node_id, request = step.remote
            services.background.spawn(
                ("empty", topic.id), self._empty_tier(topic.key, node_id, request)
            )
        if not step.release:
            return False
        # deletionPolicy Orphan: the Cluster's status must list the topic before its Topic
        # disappears.
        if step.orphan is not None and not await record_orphan(services, step.orphan):
            services.queue.add_later(key, LOOK_AGAIN_S)
            return True
        body = services.objects.get(key)
        if body is not None:
            # The finalizer is removed last, when nothing of the topic remains.
            is_orphaned = step.orphan is not None
            await release_topic(services, body, topic, step.message, is_orphaned=is_orphaned)
            self._published.pop(topic.key, None)
        return True

    async def _empty_tier(self, text: str, node_id: int, request: DeleteRemoteTopicRequest) -> None:
        """Have one broker delete a topic's remote data, and queue its Topic with the result."""
        services = self._services
        try:
            response = await services.engine.empty_tier(node_id, request)
        except EngineUnavailable as error:
            services.deletions.failed(request.topic_id, str(error))
            services.queue.add_later(TOPIC.key(text), LOOK_AGAIN_S)
            return
        services.deletions.take_remote(request.topic_id, node_id, response)
        # Not finished within the timeout: continue soon. Other errors back off.
        delays_s = {int(ErrorCode.none): 0.0, int(ErrorCode.request_timed_out): 1.0}
        delay_s = delays_s.get(response.error_code, LOOK_AGAIN_S)
        services.queue.add_later(TOPIC.key(text), delay_s)

    # ------------------------------------------------------------ spec and status

    async def _align_with_manifest(
        self, key: Key, topic: TopicInfo, decision: TopicDecision
    ) -> bool:
        """Make the spec and the actual partitions agree; return whether the spec was changed.

        The spec follows the cluster in two cases: a Kafka client has changed the replication factor
        by a reassignment, or more partitions exist than a restored spec has (checked once per
        Topic). Otherwise the partitions follow the spec.
        """
        resizing = self._services.state.resizing
        # More partitions than the manifest has: a restored manifest may follow them.
        if topic.partitions >= self._services.state.partitions_of(topic):
            self._beyond_spec.discard(topic.key)
        elif topic.key not in self._beyond_spec:
            self._beyond_spec.add(topic.key)
            if await replication_factor.follow_partitions(self._services, topic):
                self._services.queue.add(key)
                return True
        # The replication factor: it agrees, or a resize of the partitions is already in progress.
        if decision.resizing is None or topic.id in resizing:
            if decision.resizing is None:
                resizing.discard(topic.id)
            return False
        if await replication_factor.follow(self._services, topic):
            self._services.queue.add(key)
            return True
        # The spec is owned by another manager, so the partitions follow it from the next step on.
        resizing.add(topic.id)
        return False

    async def _first_status_delay_s(self, text: str, decision: TopicDecision) -> float:
        """Return the seconds by which the first status of new partitions is delayed.

        Brokers receive new partitions as soon as the placement is persisted. A short delay lets
        them acknowledge first, so that the first status is already Ready. 0.0: write the status
        now, as for all other decisions.
        """
        services, now_ms = self._services, wall_ms()
        topic = services.state.topics[text]
        if not is_placement_only(services.state, topic, decision):
            self._first_statuses.forget(text)
            return 0.0
        if topic.partitions_placed < topic.partitions and not await self._persist_placement(text):
            return 0.0
        self._publish(text)
        return self._first_statuses.delay_ms(text, now_ms=now_ms) / 1000

    async def _persist_placement(self, text: str) -> bool:
        """Persist the placement in a slice; return False if a status write does it as well.

        Under low load the slice write would not be shared, and a full slice has no room.
        """
        committer = self._services.committer
        if not committer.is_busy():
            return False
        try:
            return await committer.decide(lambda draft: record_placement(draft, text), urgent=False)
        except SliceFull:
            return False

    async def _write(self, key: Key, topic: TopicInfo, decision: TopicDecision) -> float | None:
        """Write the Topic's status and emit its Events if due.

        Return the seconds until the next step. None: nothing is due until something changes.
        """
        services = self._services
        # A deletion that will be over in a moment needs no status.
        if (quiet_s := quiet_deletion_s(topic, decision)) > 0:
            return quiet_s
        figures_s = await write_topic_status(
            services, key, topic, decision, former=topic.status, news=self._news
        )
        recheck_s = None if decision.recheck_ms is None else decision.recheck_ms / 1000
        return earliest(recheck_s, figures_s)

    def _news(self, topic: TopicInfo, status: Json) -> tuple[Event, ...]:
        """Return the Events about outages, damage and waiting that a written status shows."""
        return (
            *self._outages.news(topic, status),
            *damage_news(topic, status),
            *waiting_news(topic, status),
        )

    def _publish(self, text: str) -> None:
        """Send the brokers a Topic if its placement, configuration or tiering has changed."""
        topic = self._services.state.topics.get(text)
        if topic is None:
            return
        published = published_state(self._services.state, topic)
        if self._published.get(text) != published:
            self._published[text] = published
            if published[1].partition_count:
                self._services.engine.publish(topics=[text])

    # ------------------------------------------------------------ disabling (KIP-950)

    def _disable(self, text: str) -> None:
        """Send the outstanding disablement requests of a Topic (KIP-950) to connected brokers."""
        services = self._services
        topic = services.state.topics.get(text)
        if topic is None or topic.paused:
            return
        # One request per broker and epoch at a time; the key of the task prevents duplicates.
        requests = tiering_disablement.requests(services.state, topic, services.disablements)
        for node_id, request in requests.items():
            if services.engine.connected(node_id):
                name = ("disable", topic.id, request.tiered_epoch, node_id)
                services.background.spawn(name, self._disable_on(text, node_id, request))

    async def _disable_on(
        self, text: str, node_id: int, request: DisableRemoteTopicRequest
    ) -> None:
        """Send one broker the request to disable a topic's tiering (KIP-950); record its answer."""
        services = self._services
        try:
            response = await services.engine.disable_tiering(node_id, request)
        except EngineUnavailable as error:
            logger.info("DisableRemoteTopic of %s: %s", text, error)
            return
        news = services.disablements.take(
            services.state, request.topic_id, node_id, response, now_ms=wall_ms()
        )
        still_at_work = any(
            result.error_code == int(ErrorCode.request_timed_out) for result in response.results
        )
        # Progress is shown at once; a broker that is still working is queried again soon.
        if news:
            services.queue.add(TOPIC.key(text))
        if still_at_work:
            services.queue.add_later(TOPIC.key(text), 1.0)


def published_state(state: ControllerState, topic: TopicInfo) -> Published:
    """Return what brokers receive of a topic in addition to its rows."""
    count = state.partitions_of(topic)
    return topic.partitions_placed, topic_state(topic, (), partition_count=count)
