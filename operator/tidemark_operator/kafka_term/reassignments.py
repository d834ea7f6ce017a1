"""Reassignments on Apache Kafka: replicas that move, are added or removed, a few at a time.

They are throttled (KIP-73), and no throttle stays behind. The destination and the number of
concurrent moves are decided as for Tidemark's own brokers
(:mod:`tidemark_operator.controller.placement`), from the observed state. Throttles are recorded
before they are set: topics' keys in ``status.configKeys``, brokers in the Cluster's
``status.throttledBrokers``. An operator that starts after a crash therefore removes throttles that
are no longer needed. A recorded reassignment is the operator's own; others are left alone and
waited for.

The throttle rates of brokers are recorded in the Cluster's ``status.throttledBrokers``. A broker
that another client throttles keeps that rate.
"""

import asyncio
import dataclasses
import logging
import time
import weakref
from collections.abc import Iterable, Mapping

from tidemark.kafka_client.values import BROKER, ConfigChange
from tidemark.message_text import count
from tidemark_operator.controller import placement, replication_factor_changes
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import Blocker, PartitionRow, TopicInfo
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import desired_configs, topic_rules
from tidemark_operator.engines.kafka.cluster import change
from tidemark_operator.kafka_term.observer import Observer, config_keys, with_changes
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, TOPIC
from tidemark_operator.resources.scalars import quantity_bytes

logger = logging.getLogger(__name__)

TICK_S = 1.0
FILL_LIMIT = 100
#: Time for which a requested reassignment counts although it is not observed.
SEEN_S = 15.0


@dataclasses.dataclass(frozen=True, slots=True)
class _RequestedMoves:
    """Request for one topic.

    ``targets`` are the final replicas of its partitions, ``throttles`` the throttle keys meanwhile,
    ``until_s`` the time until which it counts unobserved.
    """

    targets: Mapping[int, tuple[int, ...]]
    throttles: dict[str, str]
    until_s: float


class Mover:
    """Mover of one term."""

    def __init__(self, services: KafkaServices, observer: Observer) -> None:
        self._services = services
        self._observer = observer
        self._requests: dict[str, _RequestedMoves] = {}
        self._problems: dict[str, Blocker] = {}
        self._rates = BrokerRates(services)
        self._records: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    async def run(self) -> None:
        """Move replicas periodically until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            seen = self._services.seen
            if seen.cluster is None or seen.problem:
                continue
            try:
                await self._step()
            except (EngineUnavailable, KubeError) as error:
                logger.info("no replicas are moved now: %s", error)

    # ------------------------------------------------------------ queries

    def throttled(self, topic: TopicInfo) -> dict[str, str]:
        """Return the values of KIP-73's keys that a topic must have now."""
        request = self._requests.get(topic.name)
        if request is not None:
            return request.throttles
        return (
            desired_configs.throttles(_moves(self._moving(topic))) if has_own_moves(topic) else {}
        )

    def foreign(self, topic: TopicInfo) -> int:
        """Return how many partitions another client moves."""
        # Kafka does not tell who started a move; the recorded throttles do.
        if has_own_moves(topic) or topic.name in self._requests:
            return 0
        return len(self._moving(topic))

    def record(self, topic: TopicInfo) -> asyncio.Lock:
        """Return the lock for changing a topic's configuration together with its record.

        Two concurrent changes could leave a throttle in Kafka that is not recorded.
        """
        return self._records.setdefault(topic.name, asyncio.Lock())

    def problem(self, topic: TopicInfo) -> Blocker | None:
        """Return Kafka's refusal to move a partition of a topic."""
        return self._problems.get(topic.key)

    def _moving(self, topic: TopicInfo) -> list[PartitionRow]:
        rows = self._services.state.rows_of(topic.id).values()
        return [row for row in rows if row.adding or row.removing]

    # ------------------------------------------------------------ one step

    async def _step(self) -> None:
        """Decide which replicas to move, and request the moves that may start now."""
        state = self._services.state
        self._settle()
        # The same decisions as for Tidemark's own brokers, on a draft. Instead of being stored,
        # they are sent to Kafka as reassignments.
        draft = Draft(state)
        if state.partitions.with_placeholders and state.live_brokers():
            placement.fill_placeholders(draft, limit=FILL_LIMIT)
        if state.resizing:
            replication_factor_changes.step(draft)
        # Skip partitions that move already, or are moved by another tool.
        changed = [row for row in draft.rows.values() if self._may_move(row)]
        if changed:
            changed = await self._without_others(changed)
        if changed:
            await self._move(changed)
        # Nothing moves any more: remove the brokers' throttles.
        elif self._rates.has_throttles:
            await self._release_brokers()

    def _settle(self) -> None:
        """Forget move requests that are complete or had no effect, and queue their Topics."""
        services, now_s = self._services, time.monotonic()
        for name, request in list(self._requests.items()):
            # A Topic without an id does not own the topic yet.
            topics = [topic for topic in services.state.topics.named(name) if topic.topic_id]
            rows = services.state.rows_of(topics[0].id) if topics else {}
            moving = any(row.adding or row.removing for row in rows.values())
            done = not moving and all(
                part in rows and rows[part].hosts == target
                for part, target in request.targets.items()
            )
            # A request that was never observed may have been lost, and is decided again.
            if done or (not moving and now_s >= request.until_s):
                del self._requests[name]
                for topic in topics:
                    services.queue.add(TOPIC.key(topic.key))

    def _may_move(self, row: PartitionRow) -> bool:
        state = self._services.state
        old, topic = state.row(row.key), state.topics.by_id(row.topic_id)
        # Kafka would replace a move in progress by the new one.
        if old is None or topic is None or old.adding or old.removing:
            return False
        if topic.name in self._requests:
            return False
        return not self.foreign(topic) and _target(row) != old.hosts

    async def _without_others(self, changed: list[PartitionRow]) -> list[PartitionRow]:
        """Return the rows whose topics no other client moves; the observed state is seconds old."""
        moves, state = await self._services.kafka.moves(), self._services.state
        names = {name for name, _ in moves}
        topics = {row.topic_id: state.topics.by_id(row.topic_id) for row in changed}
        found = [
            row
            for row in changed
            if (topic := topics[row.topic_id]) is not None and topic.name not in names
        ]
        if len(found) < len(changed):
            self._observer.look_soon()
        return found

    async def _move(self, changed: list[PartitionRow]) -> None:
        """Throttle the moves (KIP-73), request them, and record each topic's refusal."""
        services, state = self._services, self._services.state
        by_topic: dict[str, list[PartitionRow]] = {}
        for row in changed:
            topic = state.topics.by_id(row.topic_id)
            if topic is not None:
                by_topic.setdefault(topic.key, []).append(row)
        # Brokers are throttled before topics, and both before the first byte is copied.
        if any(self._added(row) for row in changed):
            await self._rates.throttle()
        # Throttle each topic; its own lock excludes other changes of its configuration.
        targets = {}
        for key, rows in by_topic.items():
            topic = state.topics[key]
            async with self.record(topic):
                await self._throttle(topic, rows)
            targets.update({(topic.name, row.partition): _target(row) for row in rows})
        answers = await services.kafka.reassign(targets)
        # A refusal concerns one topic: the others move.
        for key, rows in by_topic.items():
            topic = state.topics[key]
            failures = [f for (name, _), f in answers.items() if name == topic.name and f]
            self._problems.pop(key, None)
            if failures:
                text = f"replicas of topic {topic.name} were not moved"
                self._problems[key] = topic_rules.refused(failures[0], text)
                # A refused move copies nothing, so its throttles are removed by the topic's next
                # step.
                self._requests.pop(topic.name, None)
            else:
                text = f"{topic.name}: {count(len(rows), 'partition')} reassigned"
                services.events.emit(normal("Topic", topic.key, "Reassigned", text))
            services.queue.add(TOPIC.key(key))
        self._observer.look_soon()

    async def _throttle(self, topic: TopicInfo, rows: list[PartitionRow]) -> None:
        """Set a topic's replication throttle (KIP-73) before its first move starts.

        The throttle keys are recorded in the Topic's status first, so that they are removed even
        after a crash.
        """
        #: (partition, former replicas, added replicas)
        moving = [(row.partition, self._former(row), self._added(row)) for row in rows]
        # The keys list the replicas of all moves of a topic, so moves in progress must stay in
        # them.
        values = desired_configs.throttles([*moving, *_moves(self._moving(topic))])
        targets = {row.partition: _target(row) for row in rows}
        self._requests[topic.name] = _RequestedMoves(targets, values, time.monotonic() + SEEN_S)
        # A throttle in the spec's own configuration is left as it is.
        if not values or any(key in topic.config for key in desired_configs.THROTTLED):
            return
        try:
            await self._set_throttles(topic, values)
        # Nothing moves yet: the next tick starts it again.
        except BaseException:
            del self._requests[topic.name]
            raise

    async def _set_throttles(self, topic: TopicInfo, values: dict[str, str]) -> None:
        """Set a topic's throttle keys, after recording them in its Topic's status.

        Raises ``EngineUnavailable`` if Kafka refuses the change.
        """
        services, key = self._services, TOPIC.key(topic.key)
        managed = config_keys(services.state.topics.get(topic.key, topic))
        if not managed.issuperset(values):
            stored = services.objects.get(key)
            if stored is None:
                raise EngineUnavailable(f"Topic {topic.key} is deleted")
            status = {**(stored.get("status") or {}), "configKeys": sorted(managed | set(values))}
            await services.statuses.write(TOPIC, key, status)
        failure = await services.kafka.alterations.ask(topic.name, change(topic.name, values, ()))
        if failure is not None:
            raise EngineUnavailable(f"throttle of topic {topic.name} was not changed: {failure}")
        found = services.seen.topics.get(topic.name)
        if found is not None:
            services.seen.topics[topic.name] = with_changes(found, values, ())

    def _former(self, row: PartitionRow) -> tuple[int, ...]:
        old = self._services.state.row(row.key)
        return () if old is None else old.hosts

    def _added(self, row: PartitionRow) -> tuple[int, ...]:
        former = self._former(row)
        return tuple(node for node in _target(row) if node not in former)

    async def _release_brokers(self) -> None:
        """Remove the brokers' rates when no own reassignment is in progress."""
        if self._requests:
            return
        state = self._services.state
        for topic_id, _ in state.partitions.moving:
            topic = state.topics.by_id(topic_id)
            if topic is not None and has_own_moves(topic):
                return
        await self._rates.release()


def has_own_moves(topic: TopicInfo) -> bool:
    """Return whether an operator started a topic's moves."""
    return any(key in config_keys(topic) for key in desired_configs.THROTTLED)


def _target(row: PartitionRow) -> tuple[int, ...]:
    return tuple(replica for replica in row.hosts if replica not in row.removing)


def _moves(rows: Iterable[PartitionRow]) -> list[desired_configs.Move]:
    """Return the moves in progress in the form of :func:`desired_configs.throttles`."""
    return [(row.partition, set(row.hosts) - set(row.adding), row.adding) for row in rows]


# ------------------------------------------------------------ throttles of brokers


THROTTLE_DEFAULT = "50Mi"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


class BrokerRates:
    """Rates of one term. Raises ``EngineUnavailable``, ``KubeError``."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._throttled: set[int] = set()

    @property
    def has_throttles(self) -> bool:
        """Return whether a live broker has a rate of the operator, or a missing one is recorded."""
        recorded = _recorded(self._services)
        return bool(self._throttled) or recorded != self._away(recorded)

    async def throttle(self) -> None:
        """Throttle each live broker that no other client throttles; record it first."""
        # A broker that another client throttles keeps that rate and is not recorded.
        live, recorded = self._live(), _recorded(self._services)
        fresh = [node for node in sorted(live - recorded) if not await self._has_own_rate(node)]
        # The record is first: a rate that is set without it would stay after a crash.
        if fresh:
            await self._record(recorded | set(fresh))
        rate = str(quantity_bytes(self._throttle_text()))
        for node in sorted((recorded | set(fresh)) & live - self._throttled):
            await self._alter(ConfigChange(BROKER, str(node), dict.fromkeys(RATES, rate)))
            self._throttled.add(node)

    async def release(self) -> None:
        """Remove all rates of the operator.

        Only the broker itself can do that, so one that is down stays recorded until it returns.
        """
        recorded = _recorded(self._services)
        # A broker without the rate is no longer recorded, even if the next one fails.
        for node in sorted(recorded & self._live()):
            await self._alter(ConfigChange(BROKER, str(node), {}, RATES))
            self._throttled.discard(node)
        await self._record(self._away(recorded))
        self._throttled.clear()

    def _live(self) -> set[int]:
        return {broker.node_id for broker in self._services.state.live_brokers()}

    def _away(self, nodes: set[int]) -> set[int]:
        """Return the registered brokers that are not live."""
        known = {broker.node_id for broker in self._services.state.brokers.values()}
        return nodes & known - self._live()

    async def _alter(self, change: ConfigChange) -> None:
        failure = await self._services.kafka.alter_broker(change)
        if failure is not None:
            # Unthrottled copies could starve clients, so nothing moves without the rate.
            text = f"throttle of broker {change.name} was not changed: {failure}"
            raise EngineUnavailable(text)

    async def _has_own_rate(self, node_id: int) -> bool:
        return bool(await self._services.kafka.broker_values(node_id, RATES, own=True))

    async def _record(self, nodes: Iterable[int]) -> None:
        services = self._services
        status = {**services.state.cluster.status}
        status.pop("throttledBrokers", None)
        if nodes:
            status["throttledBrokers"] = sorted(nodes)
        await services.statuses.write(CLUSTER, services.cluster_key, status)

    def _throttle_text(self) -> str:
        body = self._services.objects.get(self._services.cluster_key) or {"spec": {}}
        kafka = (body["spec"].get("engine") or {}).get("kafka") or {}
        return str((kafka.get("reassignment") or {}).get("throttle") or THROTTLE_DEFAULT)


def _recorded(services: KafkaServices) -> set[int]:
    kept = services.state.cluster.status.get("throttledBrokers")
    return {int(node) for node in kept} if isinstance(kept, list | tuple) else set()
