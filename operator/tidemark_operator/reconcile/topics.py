"""One Topic: decide, commit, write the status, tell the brokers. In that order, always."""

import logging

from kio.schema.errors import ErrorCode

from tidemark.wire.control import (
    DeleteRemoteTopicRequest,
    DisableRemoteTopicRequest,
    TopicState,
)
from tidemark_operator.controller import tiering
from tidemark_operator.controller.model import OrphanedTopic, TopicView
from tidemark_operator.controller.rows import id_text
from tidemark_operator.controller.snapshot import topic_state
from tidemark_operator.controller.status import time_text, topic_status
from tidemark_operator.controller.status.pacing import figures_interval_ms, quiet_deletion_ms
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import TopicDecision, decide
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key
from tidemark_operator.reconcile.context import Context
from tidemark_operator.reconcile.elsewhere import elsewhere
from tidemark_operator.resources.names import TOPIC_FINALIZER

logger = logging.getLogger(__name__)

DISABLE_TIMEOUT_MS = 30_000
LOOK_AGAIN_S = 5.0

#: What a broker is told of a topic beside its rows, and how many rows count: the very message, so
#: that nothing can be sent whose change is not seen.
Told = tuple[int, TopicState]


class TopicReconciler:
    """Reconciles the Topics of one term."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._told: dict[str, Told] = {
            key: _told(topic) for key, topic in context.state.topics.items()
        }

    async def reconcile(self, key: Key) -> float | None:
        """One step; when to look again, in seconds."""
        context = self._context
        body = context.objects.get(key)
        text = f"{key.namespace}/{key.name}"
        if body is None:
            self._told.pop(text, None)
            return None
        if text not in context.state.topics:
            return await elsewhere(context, TOPIC, key, body)
        if not await self._hold(body, context.state.topics[text]):
            return None
        now_ms = context.now_ms()
        decision = await context.committer.decide(
            lambda draft: decide(
                draft, text, context.disablements, context.deletions, now_ms=now_ms
            ),
            urgent=False,
        )
        topic = context.state.topics.get(text)
        if decision is None or topic is None:
            return None
        if decision.deletion is not None and await self._delete(key, topic, decision.deletion):
            return None
        delay_s = await self._write(key, topic, decision)
        self._tell(text)
        self._disable(text)
        return delay_s

    async def _hold(self, body: Json, topic: TopicView) -> bool:
        """Our finalizer stands before anything exists outside; False: nothing is left to do."""
        if topic.deletion_ms is not None:
            return TOPIC_FINALIZER in finalizers_of(body)
        if not topic.paused:
            await self._context.hold(TOPIC, body, TOPIC_FINALIZER)
        return True

    async def _write(self, key: Key, topic: TopicView, decision: TopicDecision) -> float | None:
        context, now_ms = self._context, self._context.now_ms()
        if (quiet_s := _quiet_s(topic, decision, now_ms)) > 0:
            return quiet_s
        result = topic_status(context.state, topic, decision, context.disablements, now_ms=now_ms)
        recheck_s = None if decision.recheck_ms is None else decision.recheck_ms / 1000
        if context.pacer.should_write(str(key), topic.status, result.status, now_ms=now_ms):
            await context.write_status(TOPIC, key, result.status)
            logger.info("%s", result.sentence)
            for event in decision.events:
                context.emit(event)
        elif topic.status != result.status:
            later_s = figures_interval_ms(result.status) / 1000
            return later_s if recheck_s is None else min(recheck_s, later_s)
        return recheck_s

    def _tell(self, text: str) -> None:
        """Tell the brokers a Topic whose placement, configuration or tiering was just stored."""
        topic = self._context.state.topics.get(text)
        if topic is None:
            return
        told = _told(topic)
        if self._told.get(text) != told:
            self._told[text] = told
            if topic.partitions_placed:
                self._context.engine.publish(topics=[text])

    # ------------------------------------------------------------ disabling (KIP-950)

    def _disable(self, text: str) -> None:
        context = self._context
        topic = context.state.topics.get(text)
        if topic is None or topic.paused:
            return
        wanted = tiering.requests(
            context.state, topic, context.disablements, timeout_ms=DISABLE_TIMEOUT_MS
        )
        for node_id, request in wanted.items():
            if context.engine.connected(node_id):
                name = ("disable", topic.id, request.tiered_epoch, node_id)
                context.spawn(name, self._ask_to_disable(text, node_id, request))

    async def _ask_to_disable(
        self, text: str, node_id: int, request: DisableRemoteTopicRequest
    ) -> None:
        context = self._context
        try:
            response = await context.engine.disable_remote_topic(node_id, request)
        except EngineUnavailable as error:
            logger.info("DisableRemoteTopic of %s: %s", text, error)
            return
        news = context.disablements.take(
            context.state, request.topic_id, node_id, response, now_ms=context.now_ms()
        )
        still_at_work = any(
            result.error_code == int(ErrorCode.request_timed_out) for result in response.results
        )
        if news:
            context.add_topic(text)
        if still_at_work:
            context.queue.add_later(context.key(TOPIC, text), 1.0)

    # ------------------------------------------------------------ deleting

    async def _delete(self, key: Key, topic: TopicView, step: DeletionStep) -> bool:
        """Carry a deletion on; True when the Topic was released."""
        context = self._context
        if step.remote is not None:
            node_id, request = step.remote
            context.spawn(("empty", topic.id), self._ask_to_empty(topic.key, node_id, request))
        if not step.release:
            return False
        if step.orphan is not None:
            await self._record_orphan(step.orphan)
        body = context.objects.get(key)
        if body is not None:
            await context.release(TOPIC, body, TOPIC_FINALIZER)
            context.disablements.forget(topic.id)
            self._told.pop(topic.key, None)
            logger.info("%s: released: %s", key, step.message)
        return True

    async def _ask_to_empty(
        self, text: str, node_id: int, request: DeleteRemoteTopicRequest
    ) -> None:
        context = self._context
        try:
            response = await context.engine.delete_remote_topic(node_id, request)
        except EngineUnavailable as error:
            context.deletions.failed(request.topic_id, str(error))
            context.queue.add_later(context.key(TOPIC, text), LOOK_AGAIN_S)
            return
        context.deletions.take_remote(request.topic_id, node_id, response)
        delays_s = {int(ErrorCode.none): 0.0, int(ErrorCode.request_timed_out): 1.0}
        delay_s = delays_s.get(response.error_code, LOOK_AGAIN_S)
        context.queue.add_later(context.key(TOPIC, text), delay_s)

    async def _record_orphan(self, orphan: OrphanedTopic) -> None:
        """What is left behind stands in the Cluster's status before the Topic goes."""
        context = self._context
        held = context.objects.get(context.cluster_key)
        status = dict((held or {}).get("status") or {})
        left = list(status.get("leftBehind") or [])
        text = id_text(orphan.topic_id)
        if any(entry.get("topicId") == text for entry in left):
            return
        left.append(
            {"topicName": orphan.name, "topicId": text, "since": time_text(orphan.since_ms)}
        )
        status["leftBehind"] = left
        await context.write_status(CLUSTER, context.cluster_key, status)


def _quiet_s(topic: TopicView, decision: TopicDecision, now_ms: int) -> float:
    if decision.deletion is None or decision.deletion.problem or topic.deletion_ms is None:
        return 0.0
    return quiet_deletion_ms(topic.deletion_ms, now_ms=now_ms) / 1000


def _told(topic: TopicView) -> Told:
    return topic.partitions_placed, topic_state(topic, ())
