"""Deletion of a Topic on Apache Kafka: its topic is deleted by id or left, then it is released.

With ``deletionPolicy: Orphan`` the topic stays in Kafka.
"""

from kio.schema.errors import ErrorCode

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import left_behind
from tidemark_operator.controller.adoption import Adoption
from tidemark_operator.controller.events import normal
from tidemark_operator.controller.model import DeletionPolicy, OrphanedTopic, TopicInfo
from tidemark_operator.controller.status.left_behind import rendered
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import Blocker
from tidemark_operator.engines.kafka import topic_rules
from tidemark_operator.kafka_term import requeue_delays
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topic_writer import TopicWriter, unchanged_decision
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key
from tidemark_operator.resources.names import TOPIC_FINALIZER


class TopicRemover:
    """Remover of topics of one term."""

    def __init__(self, services: KafkaServices, writer: TopicWriter) -> None:
        self._services = services
        self._writer = writer

    async def delete(
        self, key: Key, body: Json, topic: TopicInfo, taken: Blocker | None
    ) -> float | None:
        """Take the next step of deleting a Topic; return the seconds until the next one.

        ``taken``: another Topic owns the topic of this name, None if none does. Returns None once
        the finalizer is removed.
        """
        services = self._services
        # Orphan: list the topic in the Cluster's status before the Topic and its id are deleted.
        if topic.deletion_policy is DeletionPolicy.ORPHAN:
            if topic.topic_id is not None and not await self._record_orphan(topic):
                text = left_behind.full_message(services.state.cluster)
                step = DeletionStep(problem=text)
                await self._writer.write(key, topic, unchanged_decision(topic, deletion=step))
                return requeue_delays.LOOK_AGAIN_S
            await self._release(body, topic, "TopicLeftBehind", "it stays in Kafka")
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
            await self._release(body, topic, "TopicDeleted", "nothing was created")
            return None
        failure = await services.kafka.deletions.ask(topic_id, None)
        # A topic that Kafka does not know is deleted already, by an earlier step or another client.
        missing = (None, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
        if failure is None or failure.code in missing:
            await self._release(body, topic, "TopicDeleted", "Kafka has deleted it")
            return None
        blocker = topic_rules.refused(failure, f"topic {topic.name} was not deleted")
        step = DeletionStep(
            message=blocker.message, problem="" if blocker.goes_on else blocker.message
        )
        await self._writer.write(key, topic, unchanged_decision(topic, deletion=step))
        return requeue_delays.LOOK_AGAIN_S

    async def _record_orphan(self, topic: TopicInfo) -> bool:
        """List an orphaned topic in the Cluster's status; return False if the list is full."""
        services, cluster = self._services, self._services.state.cluster
        orphan = OrphanedTopic(
            topic_id=topic.id,
            name=topic.name,
            since_ms=wall_ms(),
            tiering_status=topic.tiering_status,
        )
        left = left_behind.added(cluster, orphan)
        if left is not None and left != cluster.orphans:
            status = {**cluster.status, "leftBehind": rendered(left)}
            await services.statuses.write(CLUSTER, services.cluster_key, status)
        return left is not None

    async def _release(self, body: Json, topic: TopicInfo, reason: str, text: str) -> None:
        services = self._services
        services.events.emit(normal("Topic", topic.key, reason, f"{topic.name}: {text}"))
        await services.client.release(TOPIC, body, TOPIC_FINALIZER)
        services.disablements.forget(topic.id)
        services.state.resizing.discard(topic.id)
        services.seen.topics.pop(topic.name, None)
        for partition in list(services.state.rows_of(topic.id)):
            services.state.remove_row((topic.id, partition))
