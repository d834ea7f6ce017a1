"""One Apache Kafka cluster during a term: requests to it, many of a kind in one each.

The callers are level-based, so nothing is retried here. No change is requested after the Lease has
run out, because Kafka knows no controller epoch that would fence it (docs/explanation/engines.md).

Batches send many items of one kind in one request, each caller with its own answer. While a request
is in progress the next one fills, so that a single item is sent at once, and a thousand cost a few
requests. A request that fails as a whole fails for all its items.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidemark.kafka_client import configs
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import ClusterRefused, KafkaError
from tidemark.kafka_client.values import (
    TOPIC,
    ClusterView,
    ConfigChange,
    NewTopic,
    Reassignment,
    RequestFailure,
    TopicPartition,
    TopicView,
)
from tidemark_operator.engines.base import EngineUnavailable

# ------------------------------------------------------------ batches


K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

#: Wait of a batch's first item for others: short for a single one, longer among many, because
#: each request that changes something reaches every broker.
LINGER_S, AMONG_MANY_S = 0.01, 0.15
QUIET_S = 0.5


class Batches(Generic[K, V, R]):
    """Batches of one loop. A second request for a key waits for the former answer."""

    def __init__(
        self,
        send: Callable[[Mapping[K, V]], Awaitable[Mapping[K, R]]],
        *,
        at_most: int,
        weigh: Callable[[V], int] = lambda _: 1,
    ) -> None:
        """Prepare an empty queue of requests.

        ``send`` sends one request for many keys and raises ``EngineUnavailable``. ``at_most`` is
        the largest weight of a batch, where ``weigh`` gives the weight of one item; an item that
        exceeds it is sent alone.
        """
        self._send = send
        self._at_most = at_most
        self._weigh = weigh
        #: Items that are not sent yet, with the future that their caller waits for.
        self._waiting: dict[K, tuple[V, asyncio.Future[R]]] = {}
        self._task: asyncio.Task[None] | None = None  # Sends batches until nothing waits.
        self._last_s = float("-inf")  # Loop time of the last batch.

    async def ask(self, key: K, value: V) -> R:
        """Return the answer for a key. Raises ``EngineUnavailable``."""
        loop = asyncio.get_running_loop()
        # Two values for one key cannot share a request.
        while key in self._waiting:
            await asyncio.wait([self._waiting[key][1]])
        answer: asyncio.Future[R] = loop.create_future()
        self._waiting[key] = value, answer
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _, answer in self._waiting.values():
            answer.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            quiet = asyncio.get_running_loop().time() - self._last_s > QUIET_S
            await asyncio.sleep(LINGER_S if quiet else AMONG_MANY_S)
            self._last_s = asyncio.get_running_loop().time()
            await self._one({key: self._waiting.pop(key) for key in self._next()})

    def _next(self) -> list[K]:
        """Return the first waiting keys, up to the weight of one request."""
        keys: list[K] = []
        weight = 0
        for key, (value, _) in self._waiting.items():
            weight += self._weigh(value)
            # The first item always goes, even if it is heavier than the limit.
            if keys and weight > self._at_most:
                break
            keys.append(key)
        return keys

    async def _one(self, batch: Mapping[K, tuple[V, "asyncio.Future[R]"]]) -> None:
        """Send one batch, and give each waiting caller its answer or an exception."""
        try:
            answers = await self._send({key: value for key, (value, _) in batch.items()})
        except BaseException as error:
            # Every waiting caller gets an exception, also if this task is cancelled.
            failed = error if isinstance(error, EngineUnavailable) else None
            for _, answer in batch.values():
                if not answer.done():
                    answer.set_exception(
                        failed or EngineUnavailable(f"the request was not sent: {error!r}")
                    )
            if failed is None:
                raise
            return
        for key, (_, answer) in batch.items():
            # A caller that was cancelled needs no answer.
            if answer.done():
                continue
            if key in answers:
                answer.set_result(answers[key])
            else:
                answer.set_exception(EngineUnavailable(f"no answer for {key}"))


logger = logging.getLogger(__name__)

#: Items in one request.
TOPICS_AT_ONCE = 200
LOOKS_AT_ONCE = 1000
#: Kafka's controller writes at most 10,000 records for one request.
PARTITIONS_AT_ONCE = 4000


class EngineRefused(EngineUnavailable):
    """The spec's access to the cluster does not work: a person has to fix it."""


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic in the cluster; ``own`` are its own values of the requested keys."""

    view: TopicView
    own: Mapping[str, str] = field(default_factory=dict)


class KafkaCluster:
    """Requests to one cluster; owned by the loop, and closed with the term."""

    def __init__(self, access: KafkaAccess, *, leads: Callable[[], bool]) -> None:
        """Prepare requests to one Apache Kafka cluster; no connection is opened yet.

        ``leads`` returns whether this operator still holds the Lease; it is checked before each
        request that changes the cluster. Each attribute below collects single requests of many
        Topics into batches (:class:`Batches`): key, value of the request, and the answer.
        """
        self.client = KafkaClient(access)
        self._admin = Admin(self.client)
        self._leads = leads
        #: Topic name: the topic with its own configuration values, None if it does not exist.
        self.looks: Batches[str, None, FoundTopic | None] = Batches(
            self._look, at_most=LOOKS_AT_ONCE
        )
        #: Topic name: the topic's partitions only, None if it does not exist.
        self.views: Batches[str, None, TopicView | None] = Batches(
            self._view, at_most=LOOKS_AT_ONCE
        )
        #: Topic name, new topic: the id of the created topic.
        self.creations: Batches[str, NewTopic, uuid.UUID | RequestFailure] = Batches(
            self._create, at_most=PARTITIONS_AT_ONCE, weigh=lambda new: len(new.assignment)
        )
        #: Topic name, (new total number of partitions, replicas of each added partition).
        self.growths: Batches[str, tuple[int, Sequence[Sequence[int]]], RequestFailure | None] = (
            Batches(self._grow, at_most=PARTITIONS_AT_ONCE, weigh=lambda growth: len(growth[1]))
        )
        #: Id of a topic to delete.
        self.deletions: Batches[uuid.UUID, None, RequestFailure | None] = Batches(
            self._delete, at_most=TOPICS_AT_ONCE
        )
        #: Topic name, changes of its configuration.
        self.alterations: Batches[str, ConfigChange, RequestFailure | None] = Batches(
            self._alter, at_most=TOPICS_AT_ONCE
        )

    async def close(self) -> None:
        """End waiting requests, and the connections."""
        for batches in (
            self.looks,
            self.views,
            self.creations,
            self.growths,
            self.deletions,
            self.alterations,
        ):
            await batches.close()
        await self.client.close()

    # ------------------------------------------------------------ queries

    async def describe(self) -> ClusterView:
        """Return the brokers with their racks.

        Raises ``EngineUnavailable``, as all methods here.
        """
        with answers():
            return await self._admin.describe_cluster()

    async def topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        """Return those of the topics that exist."""
        with answers():
            return await self._admin.topics(names)

    async def moves(self) -> dict[TopicPartition, Reassignment]:
        """Return all reassignments in progress, including those of other tools."""
        with answers():
            return await self._admin.reassignments()

    async def topic_values(
        self, names: Sequence[str], keys: Sequence[str] | None, *, in_force_on: int | None = None
    ) -> dict[str, dict[str, str]]:
        """Return topics' own values of configuration keys; missing topics are left out.

        ``in_force_on``: all values in force on that broker instead, defaults included.
        """
        with answers():
            found = await configs.topic_configs(self.client, names, keys=keys, node_id=in_force_on)
        return {
            name: {
                key: entry.value or ""
                for key, entry in entries.items()
                if entry.own or in_force_on is not None
            }
            for name, entries in found.items()
            if not isinstance(entries, RequestFailure)
        }

    async def broker_values(
        self, node_id: int, keys: Sequence[str], *, own: bool = False
    ) -> dict[str, str]:
        """Return a live broker's values of configuration keys, without keys that have no value.

        Includes values of its server.properties file and defaults. ``own``: only dynamic values
        that were set for this broker alone. Raises ``EngineUnavailable``.
        """
        with answers():
            found = await configs.broker_config(self.client, node_id, keys)
        return {
            key: entry.value
            for key, entry in found.items()
            if entry.value is not None and (entry.own or not own)
        }

    # ------------------------------------------------------------ changes

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, RequestFailure | None]:
        """Start reassignments, or cancel them with None; return the failures."""
        with self._changes():
            return await self._admin.reassign(targets)

    async def alter_broker(self, change: ConfigChange) -> RequestFailure | None:
        """Change one live broker's configuration."""
        with self._changes():
            return await configs.alter_broker(self.client, change)

    async def _look(self, names: Mapping[str, None]) -> dict[str, FoundTopic | None]:
        views = await self.topics(list(names))
        own = await self.topic_values(list(views), None)
        return {
            name: FoundTopic(views[name], own.get(name, {})) if name in views else None
            for name in names
        }

    async def _view(self, names: Mapping[str, None]) -> dict[str, TopicView | None]:
        views = await self.topics(list(names))
        return {name: views.get(name) for name in names}

    async def _create(
        self, topics: Mapping[str, NewTopic]
    ) -> Mapping[str, uuid.UUID | RequestFailure]:
        with self._changes():
            return await self._admin.create_topics(list(topics.values()))

    async def _grow(
        self, growths: Mapping[str, tuple[int, Sequence[Sequence[int]]]]
    ) -> Mapping[str, RequestFailure | None]:
        with self._changes():
            return await self._admin.add_partitions(growths)

    async def _delete(
        self, ids: Mapping[uuid.UUID, None]
    ) -> Mapping[uuid.UUID, RequestFailure | None]:
        with self._changes():
            return await self._admin.delete_topics(list(ids))

    async def _alter(
        self, changes: Mapping[str, ConfigChange]
    ) -> Mapping[str, RequestFailure | None]:
        with self._changes():
            found = await configs.alter_configs(self.client, list(changes.values()))
        return {name: failure for (_, name), failure in found.items()}

    @contextlib.contextmanager
    def _changes(self) -> Iterator[None]:
        """Send a request that changes the cluster."""
        # Kafka has no epoch to fence an old operator with, so the check is right before the
        # request.
        if not self._leads():
            raise EngineUnavailable("the Lease expired, so nothing more is changed")
        with answers():
            yield


def change(topic: str, values: Mapping[str, str], unset: Sequence[str]) -> ConfigChange:
    """Return a change of a topic's configuration."""
    return ConfigChange(TOPIC, topic, values, tuple(unset))


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """Turn the client's errors into those of an engine."""
    try:
        yield
    except KafkaError as error:
        kind = EngineRefused if isinstance(error, ClusterRefused) else EngineUnavailable
        raise kind(str(error)) from error
