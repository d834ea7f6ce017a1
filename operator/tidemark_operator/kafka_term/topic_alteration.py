"""Reconciliation of an owned topic of Apache Kafka: partitions, configuration, tiering, replicas.

Managed keys (``configKeys``) and each step of its tiering are recorded before Kafka receives the
request.
"""

import asyncio
import dataclasses

from kio.schema.errors import ErrorCode

from tidemark.kafka_client.values import RequestFailure
from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import replication_factor_changes, tiering_disablement
from tidemark_operator.controller.placement import BrokersMissing
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import Blocker, TieringSpec, TopicInfo
from tidemark_operator.controller.topics import TopicDecision, joined, resizing_waits
from tidemark_operator.engines.kafka import desired_configs, topic_rules
from tidemark_operator.engines.kafka.cluster import FoundTopic, change
from tidemark_operator.kafka_term.disablement import Disabler
from tidemark_operator.kafka_term.observer import Observer, config_keys, with_changes
from tidemark_operator.kafka_term.reassignments import Mover
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topic_creation import plan
from tidemark_operator.kafka_term.topic_steps import (
    KNOWN_S,
    KNOWN_TRIES,
    LOOK_AGAIN_S,
    REFUSED_S,
    RequestBackoff,
    write_status,
)
from tidemark_operator.kube.kinds import TOPIC, Key


class KafkaTopicChanger:
    """Changer of existing topics, of one term."""

    def __init__(
        self,
        services: KafkaServices,
        backoff: RequestBackoff,
        *,
        observer: Observer,
        mover: Mover,
        disabler: Disabler,
    ) -> None:
        """Prepare changes of existing topics.

        ``backoff`` remembers requests that were just sent.
        """
        # The helpers are shared with the other parts of the term.
        self._services = services
        self._backoff = backoff
        self._observer = observer
        self._mover = mover
        self._disabler = disabler

    async def keep(self, key: Key, topic: TopicInfo, found: FoundTopic) -> float | None:
        """Bring an existing topic closer to its spec, and write the Topic's status.

        Tiering, partitions, configuration and replication factor, as far as each is possible.
        ``found`` is the topic as observed. Returns the seconds until the next step, None to wait
        for a change.
        """
        services, now_ms = self._services, wall_ms()
        blockers = topic_rules.refusals(topic, len(found.view.partitions), services.seen.not_tiered)
        externally_tiered = topic_rules.tiered_externally(topic, found.own)
        blockers += [] if externally_tiered is None else [externally_tiered]
        # `acted`: the Topic with those parts of its spec that can be fulfilled.
        acted = topic
        # Without storage the refused tiering is ignored, and the rest of the spec is not.
        if any(blocker.reason == Reason.STORAGE_UNAVAILABLE for blocker in blockers):
            acted = dataclasses.replace(topic, tiering_spec=TieringSpec())
        # The next tiering state is decided here; the status records it before it is requested.
        next_tiering, event = tiering_disablement.step(
            services.state, acted, services.disablements, now_ms=now_ms
        )
        # Partitions, then configuration: one observation shows both.
        missing = await self._grow(topic, found, blockers)
        keys = await self._configure(key, topic, found, blockers)
        # More managed keys than desired values: some keys are still to be removed.
        unsettled = len(keys) > len(desired_configs.of_topic(topic, topic.tiering).values)
        draft = Draft(services.state)
        resized = self._resize(draft, topic, blockers)
        decision = TopicDecision(
            tiering_status=next_tiering,
            missing=missing,
            refused=joined(blockers),
            resizing=resized,
            events=() if event is None else (event,),
        )
        await write_status(self._services, key, topic, decision, keys=keys)
        if next_tiering.tiering != topic.tiering:
            return 0.0  # recorded now, and requested in the next step
        if next_tiering.tiering.is_disabling or resized is not None or unsettled:
            return LOOK_AGAIN_S
        return REFUSED_S if blockers else None

    async def _grow(
        self, topic: TopicInfo, found: FoundTopic, blockers: list[Blocker]
    ) -> BrokersMissing | None:
        """Add missing partitions; return the brokers that are missing for them, None if none are.

        Refusals are appended to ``blockers``.
        """
        present = len(found.view.partitions)
        if topic.partitions <= present:
            return None
        # Brokers show new partitions with a delay, so the same request is not repeated at once.
        if self._backoff.was_just_sent(topic.key, "grow", topic.partitions):
            blockers += self._backoff.refusal(topic.key, "grow")
            return None
        # New partitions are placed like those of Tidemark's own brokers.
        planned = plan(self._services, topic, present)
        if isinstance(planned, BrokersMissing):
            return planned
        growth = topic.partitions, planned
        failure = await self._services.kafka.growths.ask(topic.name, growth)
        blocker = None
        if failure is not None and not await self._is_grown(topic, failure):
            blocker = topic_rules.refused(
                failure, f"no partitions were added to topic {topic.name}"
            )
            blockers.append(blocker)
        self._backoff.put(topic.key, "grow", topic.partitions, blocker)
        self._observer.look_soon()
        return None

    async def _is_grown(self, topic: TopicInfo, failure: RequestFailure) -> bool:
        """Return whether the topic has grown although Kafka answered with an error.

        A broker forwards a request again if a controller died before it answered, and the first
        attempt may have succeeded.
        """
        if failure.code is not ErrorCode.invalid_partitions:
            return False
        for number in range(KNOWN_TRIES):
            view = await self._services.kafka.views.ask(topic.name, None)
            if view is not None and len(view.partitions) >= topic.partitions:
                return len(view.partitions) == topic.partitions
            await asyncio.sleep(KNOWN_S * (number + 1))
        return False

    async def _configure(
        self, key: Key, topic: TopicInfo, found: FoundTopic, blockers: list[Blocker]
    ) -> list[str]:
        """Change the configuration values that differ; return the keys to record as managed.

        Managed keys are those that the operator has set, and removes when the spec drops them. They
        are recorded before they are set. Refusals are appended to ``blockers``.
        """
        services, managed = self._services, config_keys(topic)
        desired = desired_configs.of_topic(topic, topic.tiering, self._mover.throttled(topic))
        differs = desired_configs.difference(found.own, desired, managed)
        if not differs:
            return sorted(desired.values)
        # Do not repeat a request that was just sent: brokers show changes with a delay.
        token = tuple(differs.set.items()), differs.unset
        if self._backoff.was_just_sent(topic.key, "config", token):
            refusal = self._backoff.refusal(topic.key, "config")
            blockers += refusal
            # A removal is repeated: the operation that set the key may have overtaken it.
            if refusal or differs.set:
                return sorted(managed | set(desired.values))
        # Record a key before it is set, or a crash would leave it in Kafka forever.
        if not managed.issuperset(desired.values):
            stored = services.objects.get(key)
            if stored is None:
                return []
            keys = sorted(managed | set(desired.values))
            status = {**(stored.get("status") or {}), "configKeys": keys}
            await services.statuses.write(TOPIC, key, status)
        # When remote data is to be deleted, the local log start can only be read before the switch.
        await self._disabler.remember(topic)
        altered = change(topic.name, differs.set, differs.unset)
        failure = await services.kafka.alterations.ask(topic.name, altered)
        if failure is not None:
            blocker = topic_rules.refused(failure, f"the configuration of topic {topic.name}")
            self._backoff.put(topic.key, "config", token, blocker)
            blockers.append(blocker)
            return sorted(managed | set(desired.values))
        self._backoff.put(topic.key, "config", token, None)
        services.seen.topics[topic.name] = with_changes(found, dict(differs.set), differs.unset)
        names = ", ".join([*differs.set, *differs.unset][:5])
        services.events.emit(normal("Topic", topic.key, "Configured", f"{topic.name}: {names}"))
        return sorted(desired.values)

    def _resize(
        self, draft: Draft, topic: TopicInfo, blockers: list[Blocker]
    ) -> replication_factor_changes.Resizing | None:
        """Have the mover change the replication factor; return what differs, None if nothing does.

        Reasons why it cannot continue at present are appended to ``blockers``.
        """
        state = self._services.state
        found = replication_factor_changes.outlook(draft, topic)
        # The mover acts on the topics in this set.
        (state.resizing.discard if found is None else state.resizing.add)(topic.id)
        # Kafka runs one reassignment of a partition at a time, so those of other tools come first.
        foreign = self._mover.foreign(topic)
        if foreign:
            text = (
                f"a reassignment of {count(foreign, 'partition')} that was "
                "started outside Tidemark is in progress. The operator starts "
                "none until it is complete"
            )
            blockers.append(
                Blocker(reason=Reason.REASSIGNMENT_IN_PROGRESS, message=text, goes_on=True)
            )
        problem = self._mover.problem(topic)
        if problem is not None:
            blockers.append(problem)
        # The replication factor stays until enough brokers accept replicas.
        waits = resizing_waits(topic, found)
        if waits is not None and found is not None and found.without_broker:
            blockers.append(waits)
        return found
