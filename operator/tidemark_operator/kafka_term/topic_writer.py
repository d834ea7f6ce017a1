"""Status writes of a Topic on Apache Kafka: only changes, and only to the same object."""

import dataclasses
import logging

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.controller.status import deletion_grace, topic_status
from tidemark_operator.controller.status.write_pacing import quiet_deletion_ms
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import Blocker, TopicDecision
from tidemark_operator.kafka_term import requeue_delays
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import TOPIC, Json, Key

logger = logging.getLogger(__name__)


class TopicWriter:
    """Status writer of one term."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    async def write(
        self,
        key: Key,
        topic: TopicInfo,
        decision: TopicDecision,
        *,
        keys: list[str] | None = None,
    ) -> float | None:
        """Write the status that follows from a decision; return the seconds until the next step.

        ``keys``: configuration keys to record as managed; None: as before. Raises ``KubeError``.
        """
        services, now_ms = self._services, wall_ms()
        # A deletion that will probably be complete in a moment needs no status.
        if decision.deletion is not None and topic.deletion_ms is not None:
            quiet_ms = quiet_deletion_ms(topic.deletion_ms, now_ms=now_ms)
            if quiet_ms and not decision.deletion.problem:
                return quiet_ms / 1000
        # The object may have been deleted and created again under the same name.
        stored = services.objects.get(key)
        if stored is None or stored["metadata"]["uid"] != str(topic.uid):
            return None
        former: Json = stored.get("status") or {}
        # A blocked Topic may have withdrawn fields, which must not return from the stored status.
        base = topic.status if decision.blocker is not None else former
        view = dataclasses.replace(topic, status=base)
        result = topic_status(services.state, view, decision, services.disablements, now_ms=now_ms)
        status = dict(result.status)
        if keys is not None:
            status["configKeys"] = keys
        if await services.statuses.write_if_due(TOPIC, key, former, status, now_ms=now_ms):
            logger.info("%s", result.sentence)
            news = deletion_grace.announced(services.state, view, status)
            for event in (*decision.events, *news):
                services.events.emit(event)
        return requeue_delays.RECHECK_S if decision.blocker is not None else None


def unchanged_decision(
    topic: TopicInfo,
    *,
    blocker: Blocker | None = None,
    deletion: DeletionStep | None = None,
    paused: bool = False,
) -> TopicDecision:
    """Return a decision that changes nothing of the topic itself."""
    return TopicDecision(
        tiering_status=topic.tiering_status, blocker=blocker, deletion=deletion, paused=paused
    )
