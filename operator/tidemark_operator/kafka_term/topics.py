"""Reconciliation of one Topic on Apache Kafka: observe the topic, and dispatch.

Requests to Kafka are recorded before they are sent, because they may succeed although the answer is
lost. A later operator continues from the observed state and the status alone. A missing topic is
for :mod:`~tidemark_operator.kafka_term.topic_creation`, an existing one for
:mod:`~tidemark_operator.kafka_term.topic_alteration`, a deleted one for
:mod:`~tidemark_operator.kafka_term.topic_deletion`.
"""

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.controller.status import deletion_grace
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import Blocker, TopicDecision
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import topic_rules
from tidemark_operator.kafka_term import requeue_delays
from tidemark_operator.kafka_term.disablement import Disabler
from tidemark_operator.kafka_term.observer import Observer, take_rows
from tidemark_operator.kafka_term.reassignments import Mover
from tidemark_operator.kafka_term.request_backoff import RequestBackoff
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topic_alteration import KafkaTopicChanger
from tidemark_operator.kafka_term.topic_creation import TopicCreator
from tidemark_operator.kafka_term.topic_deletion import TopicRemover
from tidemark_operator.kafka_term.topic_writer import TopicWriter, unchanged_decision
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import TOPIC, Json, Key
from tidemark_operator.objects.conversions import cluster_of, topic_info
from tidemark_operator.reconcile.foreign_objects import report_foreign
from tidemark_operator.resources.names import TOPIC_FINALIZER


class KafkaTopicReconciler:
    """Reconciler of Topics of one term."""

    def __init__(
        self, services: KafkaServices, observer: Observer, mover: Mover, disabler: Disabler
    ) -> None:
        """Prepare the reconciler with its helpers for creation, change and deletion.

        ``observer`` reads the Kafka cluster, ``mover`` reassigns replicas, and ``disabler`` follows
        disablements; all run beside the reconciler.
        """
        self._services = services
        self._observer = observer
        self._mover = mover
        self._backoff = RequestBackoff()
        self._writer = TopicWriter(services)
        self._creator = TopicCreator(services, self._writer, self._backoff)
        self._changer = KafkaTopicChanger(
            services,
            self._writer,
            self._backoff,
            observer=observer,
            mover=mover,
            disabler=disabler,
        )
        self._remover = TopicRemover(services, self._writer)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Topic of an existing Kafka cluster.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services, text = self._services, key.namespaced_name
        body = services.objects.get(key)
        if body is None:
            self._backoff.forget(text)
            return None
        topic = services.state.topics.get(text)
        if topic is None:
            if cluster_of(body) == services.cluster_key.name:
                topic_info(body, {})  # raises the cause
            return await report_foreign(services, TOPIC, key, body)
        # The finalizer is set before Kafka has anything of the Topic.
        if not await self._hold(body, topic):
            return None
        # The Topic may have changed during the call of the API server.
        topic = services.state.topics.get(text)
        if topic is None:
            return 0.0
        if topic.paused:
            return await self._writer.write(key, topic, unchanged_decision(topic, paused=True))
        try:
            delay_s = await self._step(key, body, topic)
            return deletion_grace.recheck_s(topic, delay_s, now_ms=wall_ms())
        except EngineUnavailable as error:
            # The record of a request stays: Kafka may have received it.
            present = services.state.topics.get(text, topic)
            present = present if present.uid == topic.uid else topic
            return await self._unavailable(key, present, str(error))

    async def _hold(self, body: Json, topic: TopicInfo) -> bool:
        """Set the finalizer before anything exists outside.

        Return False if nothing is left to do.
        """
        if body["metadata"].get("deletionTimestamp"):
            return TOPIC_FINALIZER in finalizers_of(body)
        if not topic.paused:
            await self._services.client.ensure_finalizer(TOPIC, body, TOPIC_FINALIZER)
        return True

    async def _unavailable(self, key: Key, topic: TopicInfo, problem: str) -> float:
        """Write the status of a Topic while Kafka is unreachable; return the seconds until a retry.

        A topic that is served stays Ready: its status changes only if the Topic waits for a change.
        """
        if not self._services.seen.problem:
            self._observer.look_soon()
        waits = topic.deletion_ms is not None or not topic.was_ready
        if waits and topic.topic_id is None and topic.deletion_ms is None:
            blocker = Blocker(reason=Reason.KAFKA_UNAVAILABLE, message=problem, goes_on=True)
            await self._writer.write(key, topic, unchanged_decision(topic, blocker=blocker))
        elif waits and topic.deletion_ms is not None:
            step = DeletionStep(message=problem)
            await self._writer.write(key, topic, unchanged_decision(topic, deletion=step))
        elif waits:
            blocker = Blocker(reason=Reason.KAFKA_UNAVAILABLE, message=problem, goes_on=True)
            kept = TopicDecision(tiering_status=topic.tiering_status, refused=blocker)
            await self._writer.write(key, topic, kept)
        return requeue_delays.LOOK_AGAIN_S

    async def _step(self, key: Key, body: Json, topic: TopicInfo) -> float | None:
        """Take one step with a reachable Kafka cluster: create, change or delete the topic.

        Returns the seconds until the next step. Raises :class:`EngineUnavailable`.
        """
        services, seen = self._services, self._services.seen
        if seen.problem or seen.cluster is None:
            raise EngineUnavailable(seen.problem or "the Kafka cluster has not answered yet")
        # The name is checked before deletion, or the loser of a name would delete the winner's
        # topic.
        taken = topic_rules.name_taken(services.state, topic)
        if topic.deletion_ms is not None:
            return await self._remover.delete(key, body, topic, taken)
        if taken is not None:
            return await self._writer.write(key, topic, unchanged_decision(topic, blocker=taken))
        if topic.topic_id is None:
            return await self._creator.begin(key, topic)
        found = seen.topics.get(topic.name)
        # The periodic observation may be older than the topic, so it is read once directly.
        if found is None:
            found = await services.kafka.looks.ask(topic.name, None)
            if found is None and seen.missing_for_s(topic.name) < requeue_delays.GONE_S:
                return 1.0
        # Another id under the name is another topic: nothing is changed in it.
        if found is None or found.view.topic_id != topic.topic_id:
            blocker = topic_rules.gone(topic, None if found is None else found.view)
            return await self._writer.write(key, topic, unchanged_decision(topic, blocker=blocker))
        if topic.name not in seen.topics:
            seen.topics[topic.name] = found
            take_rows(services, topic, found)
        # The mover changes the topic's throttle keys, so its lock excludes it.
        async with self._mover.record(topic):
            return await self._changer.keep(key, services.state.topics.get(topic.key, topic), found)
