"""Reconciler of Topics on Apache Kafka: observe the topic, take one step, write the status.

:meth:`KafkaTopicReconciler.reconcile` is the whole walk. Requests to Kafka are recorded before they
are sent, because they may succeed although the answer is lost. A later operator continues from the
observed state and the status alone. A missing topic is for
:mod:`~tidemark_operator.kafka_term.topic_creation`, an existing one for
:mod:`~tidemark_operator.kafka_term.topic_alteration`. A deleted Topic's topic is deleted by id, or
stays in Kafka with ``deletionPolicy: Orphan``; then the object is released.
"""

from kio.schema.errors import ErrorCode

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import left_behind
from tidemark_operator.controller.adoption import Adoption
from tidemark_operator.controller.state.model import (
    Blocker,
    DeletionPolicy,
    TopicInfo,
)
from tidemark_operator.controller.status import deletion_grace
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import TopicDecision, name_taken
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import topic_rules
from tidemark_operator.kafka_term.disablement import Disabler
from tidemark_operator.kafka_term.observer import Observer, take_rows
from tidemark_operator.kafka_term.reassignments import Mover
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topic_alteration import KafkaTopicChanger
from tidemark_operator.kafka_term.topic_creation import TopicCreator
from tidemark_operator.kafka_term.topic_steps import (
    GONE_S,
    LOOK_AGAIN_S,
    RequestBackoff,
    unchanged_decision,
    write_status,
)
from tidemark_operator.kube.kinds import Json, Key
from tidemark_operator.reconcile.shared_steps import (
    hold_topic,
    record_orphan,
    release_topic,
)


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
        self._creator = TopicCreator(services, self._backoff)
        self._changer = KafkaTopicChanger(
            services,
            self._backoff,
            observer=observer,
            mover=mover,
            disabler=disabler,
        )

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Topic of an existing Kafka cluster.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services, text = self._services, key.namespaced_name
        # Find the object. If it no longer exists, drop what is remembered about it.
        body = services.objects.get(key)
        if body is None:
            self._backoff.forget(text)
            return None
        # Hold it: the finalizer is set before Kafka has anything of the Topic.
        if await hold_topic(services, key, body) is None:
            return None
        # The Topic may have changed during the call of the API server.
        topic = services.state.topics.get(text)
        if topic is None:
            return 0.0
        # A paused Topic only has a status.
        if topic.paused:
            return await write_status(services, key, topic, unchanged_decision(topic, paused=True))
        try:
            delay_s = await self._next_step(key, body, topic)
        except EngineUnavailable as error:
            # The record of a request stays: Kafka may have received it.
            present = services.state.topics.get(text, topic)
            present = present if present.uid == topic.uid else topic
            return await self._report_unavailable(key, present, str(error))
        # Look again when the grace period of a deletion ends.
        return deletion_grace.recheck_s(topic, delay_s, now_ms=wall_ms())

    async def _next_step(self, key: Key, body: Json, topic: TopicInfo) -> float | None:
        """Take one step with a reachable Kafka cluster: delete, create, adopt or change the topic.

        Returns the seconds until the next step. Raises :class:`EngineUnavailable`.
        """
        services, seen = self._services, self._services.seen
        if seen.problem or seen.cluster is None:
            raise EngineUnavailable(seen.problem or "the Kafka cluster has not answered yet")
        # The name is checked before deletion, or the loser of a name would delete the winner's
        # topic.
        taken = name_taken(services.state, topic)
        if topic.deletion_ms is not None:
            return await self._delete(key, body, topic, taken)
        if taken is not None:
            decision = unchanged_decision(topic, blocker=taken)
            return await write_status(services, key, topic, decision)
        # Without an id, the topic is created, or adopted.
        if topic.topic_id is None:
            # A topic that is being deleted is not created. Its lost creation may have succeeded.
            is_leaving = topic.deletion_due_ms is not None
            if is_leaving and await services.kafka.looks.ask(topic.name, None) is None:
                return await self._delete(key, body, topic, taken)
            return await self._creator.begin(key, topic)
        # The periodic observation may be older than the topic, so it is read once directly.
        found = seen.topics.get(topic.name)
        if found is None:
            found = await services.kafka.looks.ask(topic.name, None)
            if found is None and seen.missing_for_s(topic.name) < GONE_S:
                return 1.0
        # Another id under the name is another topic: nothing is changed in it.
        if found is None or found.view.topic_id != topic.topic_id:
            blocker = topic_rules.gone(topic, None if found is None else found.view)
            decision = unchanged_decision(topic, blocker=blocker)
            return await write_status(services, key, topic, decision)
        if topic.name not in seen.topics:
            seen.topics[topic.name] = found
            take_rows(services, topic, found)
        # Change what differs. The mover changes the topic's throttle keys, so its lock excludes it.
        async with self._mover.record(topic):
            return await self._changer.keep(key, services.state.topics.get(topic.key, topic), found)

    async def _report_unavailable(self, key: Key, topic: TopicInfo, problem: str) -> float:
        """Write the status of a Topic while Kafka is unreachable; return the seconds until a retry.

        A topic that is served stays Ready: its status changes only if the Topic waits for a change.
        """
        if not self._services.seen.problem:
            self._observer.look_soon()
        decision = unavailable_decision(topic, problem)
        if decision is not None:
            await write_status(self._services, key, topic, decision)
        return LOOK_AGAIN_S

    # ------------------------------------------------------------ deletion

    async def _delete(
        self, key: Key, body: Json, topic: TopicInfo, taken: Blocker | None
    ) -> float | None:
        """Take the next step of deleting a Topic; return the seconds until the next one.

        ``taken``: another Topic owns the topic of this name, None if none does. Returns None once
        the finalizer is removed.
        """
        services = self._services
        # Orphan: list the topic in the Cluster's status before the Topic and its id are deleted.
        if topic.deletion_policy is DeletionPolicy.ORPHAN:
            orphan = left_behind.orphan_of(topic, now_ms=wall_ms())
            if topic.topic_id is not None and not await record_orphan(services, orphan):
                text = left_behind.full_message(services.state.cluster)
                step = DeletionStep(problem=text)
                await write_status(
                    self._services, key, topic, unchanged_decision(topic, deletion=step)
                )
                return LOOK_AGAIN_S
            await self._release(body, topic, "it stays in Kafka", is_orphaned=True)
            return None
        topic_id = topic.topic_id
        # A recorded creation without an id may have succeeded: look for its topic.
        if topic_id is None and topic.partitions_placed and taken is None:
            found = await services.kafka.looks.ask(topic.name, None)
            accepts_fewer = services.state.cluster.under_replicated_creation
            claimed = found and topic_rules.claim(
                topic, found, is_requested=True, accepts_fewer_replicas=accepts_fewer
            )
            topic_id = claimed.topic_id if isinstance(claimed, Adoption) else None
        if topic_id is None:
            await self._release(body, topic, "nothing was created", is_orphaned=False)
            return None
        failure = await services.kafka.deletions.ask(topic_id, None)
        # A topic that Kafka does not know is deleted already, by an earlier step or another client.
        missing = (None, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
        if failure is None or failure.code in missing:
            await self._release(body, topic, "Kafka has deleted it", is_orphaned=False)
            return None
        blocker = topic_rules.refused(failure, f"topic {topic.name} was not deleted")
        step = DeletionStep(
            message=blocker.message, problem="" if blocker.goes_on else blocker.message
        )
        await write_status(self._services, key, topic, unchanged_decision(topic, deletion=step))
        return LOOK_AGAIN_S

    async def _release(self, body: Json, topic: TopicInfo, text: str, *, is_orphaned: bool) -> None:
        """Release the object, and drop what the state knows of its topic."""
        services = self._services
        await release_topic(services, body, topic, text, is_orphaned=is_orphaned)
        services.state.resizing.discard(topic.id)
        services.seen.topics.pop(topic.name, None)
        for partition in list(services.state.rows_of(topic.id)):
            services.state.remove_row((topic.id, partition))


def unavailable_decision(topic: TopicInfo, problem: str) -> TopicDecision | None:
    """Return what the status of a Topic shows while Kafka is unreachable, None: what it shows."""
    if topic.deletion_ms is not None:
        return unchanged_decision(topic, deletion=DeletionStep(message=problem))
    if topic.was_ready:
        return None
    blocker = Blocker(reason=Reason.KAFKA_UNAVAILABLE, message=problem, goes_on=True)
    if topic.topic_id is None:
        return unchanged_decision(topic, blocker=blocker)
    return TopicDecision(tiering_status=topic.tiering_status, refused=blocker)
