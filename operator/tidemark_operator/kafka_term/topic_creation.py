"""Creation of a topic on Apache Kafka for a Topic, or adoption of an existing one.

The request is recorded before it is sent (``partitionsPlaced`` without ``topicId``), so that a
topic is recognised if the answer is lost.
"""

import asyncio
import dataclasses
import uuid
from collections.abc import Hashable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.kafka_client.values import NewTopic, RequestFailure, TopicView
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import tiering_disablement
from tidemark_operator.controller.adoption import Adoption
from tidemark_operator.controller.placement import BrokersMissing, place_topic
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import Event, normal
from tidemark_operator.controller.state.model import Acceptance, Blocker, TopicInfo
from tidemark_operator.controller.status import topic_status
from tidemark_operator.controller.topics import TopicDecision, joined
from tidemark_operator.engines.kafka import desired_configs, topic_rules
from tidemark_operator.engines.kafka.cluster import FoundTopic
from tidemark_operator.kafka_term.observer import take_rows
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topic_steps import (
    KNOWN_S,
    KNOWN_TRIES,
    LOOK_AGAIN_S,
    RequestBackoff,
    unchanged_decision,
    write_status,
)
from tidemark_operator.kube.kinds import TOPIC, Key


class TopicCreator:
    """Creator of topics of one term."""

    def __init__(self, services: KafkaServices, backoff: RequestBackoff) -> None:
        self._services = services
        self._backoff = backoff

    async def begin(self, key: Key, topic: TopicInfo) -> float | None:
        """Take the next step towards a topic for a Topic without an id: adopt or create it.

        Returns the seconds until the next step, None to wait for a change.
        """
        services, kafka = self._services, self._services.kafka
        found = await kafka.looks.ask(topic.name, None)
        # An earlier CreateTopics request may have succeeded although its answer was lost.
        is_requested = topic.partitions_placed > 0
        if found is not None:
            return await self._claim(key, topic, found, is_requested=is_requested)
        # Refuse what cannot be created as specified.
        blocker = joined(topic_rules.refusals(topic, 0, services.seen.not_tiered))
        # The first tiering state is part of the creation: the topic is tiered from its first
        # segment.
        tiering = tiering_disablement.step_by_spec(
            topic.tiering_status, topic.tiering_spec, services.state.cluster, now_ms=wall_ms()
        )
        values = desired_configs.of_topic(topic, tiering.tiering).values
        request = tuple(values.items()), topic.partitions, topic.replication_factor
        if blocker is None and self._backoff.was_just_sent(topic.key, "create", request):
            blocker = next(iter(self._backoff.refusal(topic.key, "create")), None)
        if blocker is not None:
            return await write_status(
                self._services, key, topic, unchanged_decision(topic, blocker=blocker)
            )
        # Choose replicas like for Tidemark's own brokers.
        planned = plan(services, topic, 0)
        if isinstance(planned, BrokersMissing):
            decision = dataclasses.replace(unchanged_decision(topic), missing=planned)
            return await write_status(self._services, key, topic, decision)
        # Record the request first. From now on a topic of that name may be the operator's own.
        if not is_requested:
            await self._record_intent(key, topic, values)
        new = NewTopic(topic.name, planned, values)
        answer = await kafka.creations.ask(topic.name, new)
        # The answer has the id, so no other topic can be mistaken for it.
        if isinstance(answer, uuid.UUID):
            services.seen.topics.pop(topic.name, None)
            return await self._claim_created(key, topic, answer, values)
        # The topic exists although this was the first request: the client may have repeated it.
        if not is_requested and answer.code is ErrorCode.topic_already_exists:
            found = await self._find_own_creation(new)
            if found is not None:
                return await self._claim(
                    key, topic, found, is_requested=True, created=found.view.topic_id
                )
        return await self._report_failure(key, topic, answer, request, is_requested=is_requested)

    async def _record_intent(self, key: Key, topic: TopicInfo, values: Mapping[str, str]) -> None:
        """Record in the Topic's status that the topic is about to be created.

        If the answer to CreateTopics is lost, the topic is later recognised as the operator's own.
        """
        now_ms = wall_ms()
        blocker = Blocker(
            reason=Reason.CREATING, message="waiting for Kafka to create the topic", goes_on=True
        )
        services = self._services
        result = topic_status(
            services.state,
            topic,
            unchanged_decision(topic, blocker=blocker),
            services.disablements,
            now_ms=now_ms,
        )
        # With this in the status, a topic that exists after a crash may be the operator's own.
        status = {
            **result.status, "partitionsPlaced": topic.partitions, "configKeys": sorted(values)
        }  # fmt: skip
        await services.statuses.write(TOPIC, key, status)

    async def _find_own_creation(self, new: NewTopic) -> FoundTopic | None:
        """Return the topic if it is exactly what was requested.

        A broker forwards a request again if a controller died before it answered, and the first
        attempt may have created the topic.
        """
        for number in range(KNOWN_TRIES):
            await asyncio.sleep(KNOWN_S * (number + 1))
            found = await self._services.kafka.looks.ask(new.name, None)
            if found is not None:
                return found if topic_rules.is_made_of(found, new) else None
        return None

    async def _claim_created(
        self, key: Key, topic: TopicInfo, topic_id: uuid.UUID, values: Mapping[str, str]
    ) -> float | None:
        view = await self._known(topic.name, topic_id)
        if view is None:
            return 0.2  # it exists, and the next step claims it
        found = FoundTopic(view, values)
        return await self._claim(key, topic, found, is_requested=True, created=topic_id)

    async def _known(self, name: str, topic_id: uuid.UUID) -> TopicView | None:
        """Return a topic that was just created, once its leaders are known."""
        found = None
        for number in range(KNOWN_TRIES):
            await asyncio.sleep(KNOWN_S * (number + 1))
            view = await self._services.kafka.views.ask(name, None)
            if view is not None and view.topic_id == topic_id:
                found = view
                if all(partition.leader >= 0 for partition in view.partitions):
                    break
        return found

    async def _report_failure(
        self,
        key: Key,
        topic: TopicInfo,
        failure: RequestFailure,
        request: Hashable,
        *,
        is_requested: bool,
    ) -> float | None:
        """Handle a failed creation; return the seconds until the next step.

        If no earlier request can have created the topic, the record of the request is withdrawn, so
        that a topic that another client creates under this name is not adopted. ``request``:
        identifies the request for the backoff.
        """
        blocker = topic_rules.refused(failure, f"topic {topic.name} was not created")
        exists = failure.code is ErrorCode.topic_already_exists
        self._backoff.put(topic.key, "create", request, blocker)
        stored = self._services.objects.get(key)
        # A retriable error leaves the outcome open, so the record stays.
        withdrawn = not is_requested and not blocker.goes_on
        if stored is not None:
            status = dict(stored.get("status") or {})
            if withdrawn:
                status.pop("partitionsPlaced", None)
                status.pop("configKeys", None)
            placed = 0 if withdrawn else topic.partitions
            topic = dataclasses.replace(topic, status=status, partitions_placed=placed)
        # The name exists after all: the next step finds out whose topic it is.
        if exists:
            if withdrawn and stored is not None:
                await self._services.statuses.write(TOPIC, key, topic.status)
            return 1.0
        return await write_status(
            self._services, key, topic, unchanged_decision(topic, blocker=blocker)
        )

    async def _claim(
        self,
        key: Key,
        topic: TopicInfo,
        found: FoundTopic,
        *,
        is_requested: bool,
        created: uuid.UUID | None = None,
    ) -> float | None:
        """Adopt an existing topic by writing its id into the Topic's status, or write the refusal.

        ``is_requested``: the operator has requested its creation, with unknown outcome.
        ``created``: the topic's id if the operator certainly created it. Returns the seconds until
        the next step.
        """
        services = self._services
        claimed = topic_rules.claim(
            topic,
            found,
            is_requested=is_requested,
            created=created,
            accepts_fewer_replicas=services.state.cluster.under_replicated_creation,
        )
        # Refused: the status shows the reason and the remedy.
        if isinstance(claimed, Blocker):
            return await write_status(
                self._services, key, topic, unchanged_decision(topic, blocker=claimed)
            )
        tiering_status = claimed.tiering_status
        # Rows, status and the next observation are all under the claimed id.
        claimed_topic = dataclasses.replace(
            topic,
            topic_id=claimed.topic_id,
            partitions_placed=claimed.partitions,
            tiering_status=tiering_status,
        )
        services.seen.topics[topic.name] = found
        take_rows(services, claimed_topic, found)
        keys = sorted(desired_configs.of_topic(claimed_topic, tiering_status.tiering).values)
        decision = TopicDecision(
            tiering_status=tiering_status,
            accepted=_accepted(topic, claimed),
            events=_events(claimed_topic, claimed),
        )
        await write_status(self._services, key, claimed_topic, decision, keys=keys)
        return LOOK_AGAIN_S if services.state.partitions.offline else None


def _accepted(topic: TopicInfo, claimed: Adoption) -> tuple[Acceptance, ...]:
    if not claimed.annotation:
        return ()
    text = f"topic {topic.name} with {count(claimed.partitions, 'partition')} is adopted"
    return (Acceptance(claimed.annotation, topic.annotations[claimed.annotation], text),)


def _events(topic: TopicInfo, claimed: Adoption) -> tuple[Event, ...]:
    reason = "TopicAdopted" if claimed.annotation else "TopicCreated"
    text = f"topic {topic.name} with {count(claimed.partitions, 'partition')}"
    return (normal("Topic", topic.key, reason, text),)


def plan(
    services: KafkaServices, topic: TopicInfo, present: int
) -> tuple[tuple[int, ...], ...] | BrokersMissing:
    """Return the brokers of partitions from ``present`` on, placed as by Tidemark's own
    controller.
    """
    draft = Draft(services.state)
    placed = place_topic(draft, dataclasses.replace(topic, partitions_placed=present))
    if isinstance(placed, BrokersMissing):
        return placed
    rows = draft.rows_of(topic.id)
    return tuple(rows[part].hosts for part in placed)
