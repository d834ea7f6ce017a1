"""One Apache Kafka cluster during a term: requests to it, many questions in one each.

What asks is level-based, so nothing is tried again here. Nothing is asked to be changed once the
Lease has run out: Kafka knows no controller epoch of ours that would refuse it
(docs/explanation/engines.md).
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.kafka_client import configs
from tidemark.kafka_client.access import Access
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.errors import KafkaError, Refused
from tidemark.kafka_client.values import (
    TOPIC,
    ClusterView,
    ConfigChange,
    Failure,
    NewTopic,
    Reassignment,
    TopicPartition,
    TopicView,
)
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka.request_batches import Batches

logger = logging.getLogger(__name__)

#: Things in one request.
TOPICS_AT_ONCE = 200
LOOKS_AT_ONCE = 1000
#: Kafka's controller writes at most 10,000 records for one request.
PARTITIONS_AT_ONCE = 4000


class EngineRefused(EngineUnavailable):
    """The cluster cannot be spoken to as the manifest says: a person has to mend it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A topic as the cluster has it. ``own``: values that are set for it, of the keys asked for."""

    view: TopicView
    own: Mapping[str, str] = field(default_factory=dict)


class KafkaCluster:
    """Belongs to the loop; closed with the term."""

    def __init__(self, access: Access, *, leads: Callable[[], bool]) -> None:
        self.client = KafkaClient(access)
        self._admin = Admin(self.client)
        self._leads = leads
        self.looks: Batches[str, None, Found | None] = Batches(self._look, at_most=LOOKS_AT_ONCE)
        self.views: Batches[str, None, TopicView | None] = Batches(
            self._view, at_most=LOOKS_AT_ONCE
        )
        self.creations: Batches[str, NewTopic, uuid.UUID | Failure] = Batches(
            self._create, at_most=PARTITIONS_AT_ONCE, weigh=lambda new: len(new.assignment)
        )
        self.growths: Batches[str, tuple[int, Sequence[Sequence[int]]], Failure | None] = Batches(
            self._grow, at_most=PARTITIONS_AT_ONCE, weigh=lambda growth: len(growth[1])
        )
        self.deletions: Batches[uuid.UUID, None, Failure | None] = Batches(
            self._delete, at_most=TOPICS_AT_ONCE
        )
        self.alterations: Batches[str, ConfigChange, Failure | None] = Batches(
            self._alter, at_most=TOPICS_AT_ONCE
        )

    async def use(self, access: Access) -> None:
        """Reach it in another way from now on, if it is another."""
        await self.client.use(access)

    async def close(self) -> None:
        """End what waits, and the connections."""
        for each in (
            self.looks,
            self.views,
            self.creations,
            self.growths,
            self.deletions,
            self.alterations,
        ):
            await each.close()
        await self.client.close()

    # ------------------------------------------------------------ what there is

    async def describe(self) -> ClusterView:
        """Brokers and their racks. Raises ``EngineUnavailable``, as all of these."""
        try:
            return await self._admin.describe_cluster()
        except KafkaError as error:
            raise _unavailable(error) from error

    async def topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        """Those of the topics that there are."""
        try:
            return await self._admin.topics(names)
        except KafkaError as error:
            raise _unavailable(error) from error

    async def moves(self) -> dict[TopicPartition, Reassignment]:
        """Reassignments under way, whoever began them."""
        try:
            return await self._admin.reassignments()
        except KafkaError as error:
            raise _unavailable(error) from error

    async def own_configs(
        self, names: Sequence[str], keys: Sequence[str] | None
    ) -> dict[str, dict[str, str]]:
        """Values that are set for topics themselves; a topic that is not there is left out."""
        try:
            found = await configs.topic_configs(self.client, names, keys=keys)
        except KafkaError as error:
            raise _unavailable(error) from error
        return {
            name: {key: entry.value or "" for key, entry in entries.items() if entry.own}
            for name, entries in found.items()
            if not isinstance(entries, Failure)
        }

    async def in_force(
        self, node_id: int, names: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Values of topics as one broker has them by now, defaults included."""
        try:
            found = await configs.topic_configs(self.client, names, keys=keys, node_id=node_id)
        except KafkaError as error:
            raise _unavailable(error) from error
        return {
            name: {key: entry.value or "" for key, entry in entries.items()}
            for name, entries in found.items()
            if not isinstance(entries, Failure)
        }

    async def broker_values(
        self, node_id: int, keys: Sequence[str], *, own: bool = False
    ) -> dict[str, str]:
        """Of a broker's configuration, its file included; ``own``: what was set for it alone."""
        try:
            found = await configs.broker_config(self.client, node_id, keys)
        except KafkaError as error:
            raise _unavailable(error) from error
        return {
            key: entry.value
            for key, entry in found.items()
            if entry.value is not None and (entry.own or not own)
        }

    # ------------------------------------------------------------ what is changed

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, Failure | None]:
        """Begin reassignments."""
        self._check_leads()
        try:
            return await self._admin.reassign(targets)
        except KafkaError as error:
            raise _unavailable(error) from error

    async def alter_broker(self, change: ConfigChange) -> Failure | None:
        """Of one live broker's configuration."""
        self._check_leads()
        try:
            return await configs.alter_broker(self.client, change)
        except KafkaError as error:
            raise _unavailable(error) from error

    async def _look(self, asked: Mapping[str, None]) -> dict[str, Found | None]:
        views = await self.topics(list(asked))
        own = await self.own_configs(list(views), None)
        return {
            name: Found(views[name], own.get(name, {})) if name in views else None for name in asked
        }

    async def _view(self, asked: Mapping[str, None]) -> dict[str, TopicView | None]:
        views = await self.topics(list(asked))
        return {name: views.get(name) for name in asked}

    async def _create(self, asked: Mapping[str, NewTopic]) -> Mapping[str, uuid.UUID | Failure]:
        self._check_leads()
        try:
            return await self._admin.create_topics(list(asked.values()))
        except KafkaError as error:
            raise _unavailable(error) from error

    async def _grow(
        self, asked: Mapping[str, tuple[int, Sequence[Sequence[int]]]]
    ) -> Mapping[str, Failure | None]:
        self._check_leads()
        try:
            return await self._admin.add_partitions(asked)
        except KafkaError as error:
            raise _unavailable(error) from error

    async def _delete(self, asked: Mapping[uuid.UUID, None]) -> Mapping[uuid.UUID, Failure | None]:
        self._check_leads()
        try:
            return await self._admin.delete_topics(list(asked))
        except KafkaError as error:
            raise _unavailable(error) from error

    async def _alter(self, asked: Mapping[str, ConfigChange]) -> Mapping[str, Failure | None]:
        self._check_leads()
        try:
            found = await configs.alter_configs(self.client, list(asked.values()))
        except KafkaError as error:
            raise _unavailable(error) from error
        return {name: failure for (_, name), failure in found.items()}

    def _check_leads(self) -> None:
        if not self._leads():
            raise EngineUnavailable("the Lease expired, so nothing more is changed")


def change(topic: str, values: Mapping[str, str], unset: Sequence[str]) -> ConfigChange:
    """Of a topic's configuration."""
    return ConfigChange(TOPIC, topic, values, tuple(unset))


def _unavailable(error: KafkaError) -> EngineUnavailable:
    return (EngineRefused if isinstance(error, Refused) else EngineUnavailable)(str(error))
