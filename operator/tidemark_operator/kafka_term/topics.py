"""One Topic on Apache Kafka: see what is there, make it so, say how far it is.

What was asked of Kafka and may have been done, though nobody heard of it, is on record before it is
asked: that a topic is to be created (``partitionsPlaced`` without ``topicId``), which keys are ours
(``configKeys``), a step of its tiering. So whoever comes next goes on from the picture and the
status alone.
"""

import asyncio
import dataclasses
import logging
import time
import uuid
from collections.abc import Hashable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.kafka_client.values import Failure, NewTopic, TopicView
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import disablement, left_behind, resizing
from tidemark_operator.controller.adoption import Adoption
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.events import Event, count, normal
from tidemark_operator.controller.model import (
    Acceptance,
    DeletionPolicy,
    OrphanedTopic,
    TieringSpec,
    TopicInfo,
)
from tidemark_operator.controller.placement import BrokersMissing, place_topic
from tidemark_operator.controller.status import topic_status
from tidemark_operator.controller.status.left_behind import rendered
from tidemark_operator.controller.status.pacing import quiet_deletion_ms
from tidemark_operator.controller.topic_deletion import DeletionStep
from tidemark_operator.controller.topics import Blocker, TopicDecision
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import decide, wanted
from tidemark_operator.engines.kafka.cluster import Found, change
from tidemark_operator.kafka_term.disabling import Disabler
from tidemark_operator.kafka_term.moves import Mover
from tidemark_operator.kafka_term.observer import Observer, config_keys, take_rows, with_changes
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key
from tidemark_operator.objects.conversions import cluster_of, topic_info
from tidemark_operator.reconcile.elsewhere import elsewhere
from tidemark_operator.resources.names import TOPIC_FINALIZER

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0
#: A topic that was there is gone only once no broker has known it for so long.
GONE_S = 10.0
#: What a person has to mend is asked of Kafka again after so long.
REFUSED_S = 30.0
#: Whether what stands in a topic's way is still so.
RECHECK_S = 10.0
#: A topic that was just created may not be known yet to the broker that is asked.
KNOWN_TRIES, KNOWN_S = 12, 0.05


class Asked:
    """What Kafka was asked for last, by topic and kind, and why it refused (None: it did not). The
    same is not asked again before its time: brokers tell of what was done in their own time, and
    what was refused waits for a person."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Hashable, Blocker | None, float]] = {}

    def stands(self, topic: str, what: str, asked: Hashable) -> bool:
        """Whether the very same was asked a moment ago."""
        former, _, until_s = self._known.get((topic, what), (None, None, 0.0))
        return former == asked and time.monotonic() < until_s

    def refusal(self, topic: str, what: str) -> list[Blocker]:
        """Why it was refused, if it was."""
        blocker = self._known[topic, what][1]
        return [] if blocker is None else [blocker]

    def put(self, topic: str, what: str, asked: Hashable, blocker: Blocker | None) -> None:
        """It was asked for now."""
        is_final = blocker is not None and not blocker.goes_on
        pause_s = REFUSED_S if is_final else LOOK_AGAIN_S
        self._known[topic, what] = asked, blocker, time.monotonic() + pause_s

    def forget(self, topic: str) -> None:
        """The Topic is gone."""
        for key in [key for key in self._known if key[0] == topic]:
            del self._known[key]


class TopicReconciler:
    """Of one term."""

    def __init__(
        self, services: KafkaServices, observer: Observer, mover: Mover, disabler: Disabler
    ) -> None:
        self._services = services
        self._observer = observer
        self._mover = mover
        self._disabler = disabler
        self._asked = Asked()
        #: Topics of which this term has asked Kafka, and does not know whether they were created.
        self._in_doubt: set[uuid.UUID] = set()

    async def reconcile(self, key: Key) -> float | None:
        """One step; when to look again, in seconds."""
        services, text = self._services, key.namespaced_name
        body = services.objects.get(key)
        if body is None:
            self._asked.forget(text)
            return None
        topic = services.state.topics.get(text)
        if topic is None:
            if cluster_of(body) == services.cluster_key.name:
                topic_info(body, {})  # raises what is wrong with it
            return await elsewhere(services, TOPIC, key, body)
        if not await self._hold(body, topic):
            return None
        topic = services.state.topics.get(text)
        if topic is None:
            return 0.0
        if topic.paused:
            return await self._write(key, topic, _nothing(topic, paused=True))
        try:
            return await self._step(key, body, topic)
        except EngineUnavailable as error:
            return await self._unavailable(key, topic, str(error))

    async def _hold(self, body: Json, topic: TopicInfo) -> bool:
        """Our finalizer stands before anything exists outside; False: nothing is left to do."""
        if body["metadata"].get("deletionTimestamp"):
            return TOPIC_FINALIZER in finalizers_of(body)
        if not topic.paused:
            await self._services.client.hold(TOPIC, body, TOPIC_FINALIZER)
        return True

    async def _unavailable(self, key: Key, topic: TopicInfo, problem: str) -> float:
        """Kafka cannot be asked. A topic that serves goes on to: its status stays, unless something
        is asked of it."""
        self._observer.look_soon()
        waits = topic.deletion_ms is not None or not topic.was_ready
        if waits and topic.topic_id is None and topic.deletion_ms is None:
            blocker = Blocker(reason="KafkaUnavailable", message=problem, goes_on=True)
            await self._write(key, topic, _nothing(topic, blocker=blocker))
        elif waits and topic.deletion_ms is not None:
            step = DeletionStep(message=problem)
            await self._write(key, topic, _nothing(topic, deletion=step))
        elif waits:
            blocker = Blocker(reason="KafkaUnavailable", message=problem, goes_on=True)
            kept = TopicDecision(tiering_status=topic.tiering_status, refused=blocker)
            await self._write(key, topic, kept)
        return LOOK_AGAIN_S

    async def _step(self, key: Key, body: Json, topic: TopicInfo) -> float | None:
        services, seen = self._services, self._services.seen
        if seen.problem or seen.cluster is None:
            raise EngineUnavailable(seen.problem or "the Kafka cluster has not answered yet")
        taken = decide.name_taken(services.state, topic)
        if topic.deletion_ms is not None:
            return await self._delete(key, body, topic, taken)
        if taken is not None:
            return await self._write(key, topic, _nothing(topic, blocker=taken))
        if topic.topic_id is None:
            return await self._begin(key, topic)
        found = seen.topics.get(topic.name)
        if found is None:
            found = await services.kafka.looks.ask(topic.name, None)
            if found is None and seen.missing_for_s(topic.name) < GONE_S:
                return 1.0
        if found is None or found.view.topic_id != topic.topic_id:
            blocker = decide.gone(topic, None if found is None else found.view)
            return await self._write(key, topic, _nothing(topic, blocker=blocker))
        if topic.name not in seen.topics:
            seen.topics[topic.name] = found
            take_rows(services, topic, found)
        return await self._keep(key, topic, found)

    # ------------------------------------------------------------ what is not there yet

    async def _begin(self, key: Key, topic: TopicInfo) -> float | None:
        services, kafka = self._services, self._services.kafka
        found = await kafka.looks.ask(topic.name, None)
        asked_for = topic.partitions_placed > 0
        if found is not None:
            return await self._claim(key, topic, found, asked_for=asked_for)
        blocker = decide.joined(decide.refusals(topic, 0, services.seen.not_tiered))
        tiering = disablement.step_by_spec(
            topic.tiering_status, topic.tiering_spec, services.state.cluster, now_ms=wall_ms()
        )
        values = wanted.wanted(topic, tiering.tiering).values
        asked = tuple(values.items()), topic.partitions, topic.replication_factor
        if blocker is None and self._asked.stands(topic.key, "create", asked):
            blocker = next(iter(self._asked.refusal(topic.key, "create")), None)
        if blocker is not None:
            return await self._write(key, topic, _nothing(topic, blocker=blocker))
        planned = _plan(services, topic, 0)
        if isinstance(planned, BrokersMissing):
            decision = dataclasses.replace(_nothing(topic), missing=planned)
            return await self._write(key, topic, decision)
        if not asked_for:
            await self._record_intent(key, topic, values)
        new = NewTopic(topic.name, planned, values)
        self._in_doubt.add(topic.uid)
        answer = await kafka.creations.ask(topic.name, new)
        if isinstance(answer, uuid.UUID):
            services.seen.topics.pop(topic.name, None)
            return await self._created(key, topic, answer, values)
        return await self._not_created(key, topic, answer, asked, asked_for=asked_for)

    async def _record_intent(self, key: Key, topic: TopicInfo, values: Mapping[str, str]) -> None:
        """That Kafka is asked to create it stands in the status first: if nobody hears of the
        answer, the topic is known again."""
        now_ms = wall_ms()
        blocker = Blocker(reason="Creating", message="Kafka is asked to create it", goes_on=True)
        services = self._services
        result = topic_status(
            services.state, topic, _nothing(topic, blocker=blocker), services.disablements,
            now_ms=now_ms,
        )  # fmt: skip
        status = {
            **result.status, "partitionsPlaced": topic.partitions, "configKeys": sorted(values)
        }  # fmt: skip
        await services.statuses.write(TOPIC, key, status)

    async def _created(
        self, key: Key, topic: TopicInfo, topic_id: uuid.UUID, values: Mapping[str, str]
    ) -> float | None:
        self._in_doubt.discard(topic.uid)
        view = await self._known(topic.name, topic_id)
        if view is None:
            return 0.2  # it is there, and the next look claims it
        found = Found(view, values)
        return await self._claim(key, topic, found, asked_for=True, created=topic_id)

    async def _known(self, name: str, topic_id: uuid.UUID) -> TopicView | None:
        """A topic that was just made, once its leaders are known."""
        found = None
        for number in range(KNOWN_TRIES):
            await asyncio.sleep(KNOWN_S * (number + 1))
            view = await self._services.kafka.views.ask(name, None)
            if view is not None and view.topic_id == topic_id:
                found = view
                if all(each.leader >= 0 for each in view.partitions):
                    break
        return found

    async def _not_created(
        self, key: Key, topic: TopicInfo, failure: Failure, asked: Hashable, *, asked_for: bool
    ) -> float | None:
        """Nothing was created by this request. Where none before it may have, that it was asked for
        is taken back: what is made under the name by others is theirs."""
        blocker = decide.refused(failure, f"topic {topic.name} is not created")
        exists = failure.code is ErrorCode.topic_already_exists
        if not blocker.goes_on:
            self._in_doubt.discard(topic.uid)
        self._asked.put(topic.key, "create", asked, blocker)
        held = self._services.objects.get(key)
        withdrawn = not asked_for and not blocker.goes_on
        if held is not None and withdrawn:
            status = dict(held.get("status") or {})
            status.pop("partitionsPlaced", None)
            status.pop("configKeys", None)
            topic = dataclasses.replace(topic, status=status, partitions_placed=0)
        if exists:
            if withdrawn and held is not None:
                await self._services.statuses.write(TOPIC, key, topic.status)
            return 1.0
        return await self._write(key, topic, _nothing(topic, blocker=blocker))

    async def _claim(
        self,
        key: Key,
        topic: TopicInfo,
        found: Found,
        *,
        asked_for: bool,
        created: uuid.UUID | None = None,
    ) -> float | None:
        """The write of its id makes a topic the Topic's."""
        services = self._services
        claimed = decide.claim(
            topic,
            found,
            asked_for=asked_for,
            created=created,
            may_lack=services.state.cluster.under_replicated_creation,
        )
        if isinstance(claimed, Blocker):
            return await self._write(key, topic, _nothing(topic, blocker=claimed))
        tiering_status = claimed.tiering_status
        mine = dataclasses.replace(
            topic,
            topic_id=claimed.topic_id,
            partitions_placed=claimed.partitions,
            tiering_status=tiering_status,
        )
        services.seen.topics[topic.name] = found
        take_rows(services, mine, found)
        keys = sorted(wanted.wanted(mine, tiering_status.tiering).values)
        decision = TopicDecision(
            tiering_status=tiering_status,
            accepted=_accepted(topic, claimed),
            events=_told(mine, claimed),
        )
        await self._write(key, mine, decision, keys=keys)
        return LOOK_AGAIN_S if services.state.offline else None

    # ------------------------------------------------------------ what is there

    async def _keep(self, key: Key, topic: TopicInfo, found: Found) -> float | None:
        services, now_ms = self._services, wall_ms()
        blockers = decide.refusals(topic, len(found.view.partitions), services.seen.not_tiered)
        elsewhere_ = decide.tiered_elsewhere(topic, found.own)
        blockers += [] if elsewhere_ is None else [elsewhere_]
        acted = topic
        if any(each.reason == "StorageUnavailable" for each in blockers):
            acted = dataclasses.replace(topic, tiering_spec=TieringSpec())
        next_tiering, event = disablement.step(
            services.state, acted, services.disablements, now_ms=now_ms
        )
        missing = await self._grow(topic, found, blockers)
        keys = await self._configure(key, topic, found, blockers)
        draft = Draft(services.state)
        resized = self._resize(draft, topic, blockers)
        decision = TopicDecision(
            tiering_status=next_tiering,
            missing=missing,
            refused=decide.joined(blockers),
            resizing=resized,
            events=() if event is None else (event,),
        )
        await self._write(key, topic, decision, keys=keys)
        if next_tiering.tiering != topic.tiering:
            return 0.0  # it is on record now, and carried out next
        if next_tiering.tiering.is_disabling or resized is not None:
            return LOOK_AGAIN_S
        return REFUSED_S if blockers else None

    async def _grow(
        self, topic: TopicInfo, found: Found, blockers: list[Blocker]
    ) -> BrokersMissing | None:
        present = len(found.view.partitions)
        if topic.partitions <= present:
            return None
        if self._asked.stands(topic.key, "grow", topic.partitions):
            blockers += self._asked.refusal(topic.key, "grow")
            return None
        planned = _plan(self._services, topic, present)
        if isinstance(planned, BrokersMissing):
            return planned
        growth = topic.partitions, planned
        failure = await self._services.kafka.growths.ask(topic.name, growth)
        blocker = None
        if failure is not None:
            blocker = decide.refused(failure, f"topic {topic.name} is given no more partitions")
            blockers.append(blocker)
        self._asked.put(topic.key, "grow", topic.partitions, blocker)
        self._observer.look_soon()
        return None

    async def _configure(
        self, key: Key, topic: TopicInfo, found: Found, blockers: list[Blocker]
    ) -> list[str]:
        """Values that differ are set; which keys are ours is on record before. The keys to have on
        record."""
        services, ours = self._services, config_keys(topic)
        asked = wanted.wanted(topic, topic.tiering, self._mover.throttled(topic))
        differs = wanted.difference(found.own, asked, ours)
        if not differs:
            return sorted(asked.values)
        token = tuple(differs.set.items()), differs.unset
        if self._asked.stands(topic.key, "config", token):
            blockers += self._asked.refusal(topic.key, "config")
            return sorted(ours | set(asked.values))
        if not ours.issuperset(asked.values):
            held = services.objects.get(key)
            if held is None:
                return []
            keys = sorted(ours | set(asked.values))
            status = {**(held.get("status") or {}), "configKeys": keys}
            await services.statuses.write(TOPIC, key, status)
        await self._disabler.remember(topic)
        altered = change(topic.name, differs.set, differs.unset)
        failure = await services.kafka.alterations.ask(topic.name, altered)
        if failure is not None:
            blocker = decide.refused(failure, f"the configuration of topic {topic.name}")
            self._asked.put(topic.key, "config", token, blocker)
            blockers.append(blocker)
            return sorted(ours | set(asked.values))
        self._asked.put(topic.key, "config", token, None)
        services.seen.topics[topic.name] = with_changes(found, dict(differs.set), differs.unset)
        names = ", ".join([*differs.set, *differs.unset][:5])
        services.events.emit(normal("Topic", topic.key, "Configured", f"{topic.name}: {names}"))
        return sorted(asked.values)

    def _resize(
        self, draft: Draft, topic: TopicInfo, blockers: list[Blocker]
    ) -> resizing.Resizing | None:
        state = self._services.state
        found = resizing.outlook(draft, topic)
        (state.resizing.discard if found is None else state.resizing.add)(topic.id)
        foreign = self._mover.foreign(topic)
        if foreign:
            text = (
                f"somebody else moves {count(foreign, 'partition')}; until that is done, none is "
                "moved from here"
            )
            blockers.append(Blocker(reason="ReassignedElsewhere", message=text, goes_on=True))
        problem = self._mover.problem(topic)
        if problem is not None:
            blockers.append(problem)
        if found is not None and found.without_broker:
            text = (
                f"replicationFactor {topic.replication_factor} waits in "
                f"{count(found.without_broker, 'partition')}: fewer live brokers take replicas; "
                "start more, or set it back"
            )
            blockers.append(Blocker(reason="ReplicationFactorWaits", message=text))
        return found

    # ------------------------------------------------------------ deleting

    async def _delete(
        self, key: Key, body: Json, topic: TopicInfo, taken: Blocker | None
    ) -> float | None:
        services = self._services
        if topic.deletion_policy is DeletionPolicy.ORPHAN:
            if topic.topic_id is not None and not await self._record_orphan(topic):
                text = left_behind.full_message(services.state.cluster)
                step = DeletionStep(problem=text)
                await self._write(key, topic, _nothing(topic, deletion=step))
                return LOOK_AGAIN_S
            await self._release(body, topic, "TopicLeftBehind", "it stays in Kafka")
            return None
        topic_id = topic.topic_id
        if topic_id is None and topic.partitions_placed and taken is None:
            found = await services.kafka.looks.ask(topic.name, None)
            lacks = services.state.cluster.under_replicated_creation
            claimed = found and decide.claim(topic, found, asked_for=True, may_lack=lacks)
            topic_id = claimed.topic_id if isinstance(claimed, Adoption) else None
        if topic_id is None:
            await self._release(body, topic, "TopicDeleted", "nothing was created")
            return None
        failure = await services.kafka.deletions.ask(topic_id, None)
        gone = (None, ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
        if failure is None or failure.code in gone:
            await self._release(body, topic, "TopicDeleted", "Kafka has deleted it")
            return None
        blocker = decide.refused(failure, f"topic {topic.name} is not deleted")
        step = DeletionStep(
            message=blocker.message, problem="" if blocker.goes_on else blocker.message
        )
        await self._write(key, topic, _nothing(topic, deletion=step))
        return LOOK_AGAIN_S

    async def _record_orphan(self, topic: TopicInfo) -> bool:
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

    # ------------------------------------------------------------ status

    async def _write(
        self,
        key: Key,
        topic: TopicInfo,
        decision: TopicDecision,
        *,
        keys: list[str] | None = None,
    ) -> float | None:
        services, now_ms = self._services, wall_ms()
        if decision.deletion is not None and topic.deletion_ms is not None:
            quiet_ms = quiet_deletion_ms(topic.deletion_ms, now_ms=now_ms)
            if quiet_ms and not decision.deletion.problem:
                return quiet_ms / 1000
        held = services.objects.get(key)
        if held is None or held["metadata"]["uid"] != str(topic.uid):
            return None
        former: Json = held.get("status") or {}
        base = topic.status if decision.blocker is not None else former
        view = dataclasses.replace(topic, status=base)
        result = topic_status(services.state, view, decision, services.disablements, now_ms=now_ms)
        status = dict(result.status)
        if keys is not None:
            status["configKeys"] = keys
        if await services.statuses.write_if_due(TOPIC, key, former, status, now_ms=now_ms):
            logger.info("%s", result.sentence)
            for event in decision.events:
                services.events.emit(event)
        return RECHECK_S if decision.blocker is not None else None


def _nothing(
    topic: TopicInfo,
    *,
    blocker: Blocker | None = None,
    deletion: DeletionStep | None = None,
    paused: bool = False,
) -> TopicDecision:
    return TopicDecision(
        tiering_status=topic.tiering_status, blocker=blocker, deletion=deletion, paused=paused
    )


def _accepted(topic: TopicInfo, claimed: Adoption) -> tuple[Acceptance, ...]:
    if not claimed.annotation:
        return ()
    text = f"topic {topic.name} with {count(claimed.partitions, 'partition')} is taken over"
    return (Acceptance(claimed.annotation, topic.asked[claimed.annotation], text),)


def _told(topic: TopicInfo, claimed: Adoption) -> tuple[Event, ...]:
    reason = "TopicAdopted" if claimed.annotation else "TopicCreated"
    text = f"topic {topic.name} with {count(claimed.partitions, 'partition')}"
    return (normal("Topic", topic.key, reason, text),)


def _plan(
    services: KafkaServices, topic: TopicInfo, present: int
) -> tuple[tuple[int, ...], ...] | BrokersMissing:
    """The brokers of partitions from ``present`` on, as our own controller would place them."""
    draft = Draft(services.state)
    placed = place_topic(draft, dataclasses.replace(topic, partitions_placed=present))
    if isinstance(placed, BrokersMissing):
        return placed
    rows = draft.rows_of(topic.id)
    return tuple(rows[part].hosts for part in placed.created)
