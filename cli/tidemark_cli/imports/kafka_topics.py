"""Topics of a Kafka cluster as the source of an import: partitions, replicas, configuration.

No manifest leaves a topic unchanged whose partitions have different numbers of replicas or are
being reassigned. Such a topic is refused until the user fixes it.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.ids import id_text
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.configs import Configuration, topic_configs
from tidemark.kafka_client.values import RequestFailure, TopicView
from tidemark_cli.imports.topics import ImportedTopic, NotImported, is_internal

#: Topics per request; each answer has about 40 keys per topic.
PAGE = 500


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """Topic of a cluster; ``configuration`` has every effective key, or why it is unknown."""

    view: TopicView
    configuration: Configuration | RequestFailure
    is_moving: bool

    @property
    def replication_factors(self) -> list[int]:
        """Return the distinct replication factors of its partitions, ascending."""
        return sorted({len(partition.replicas) for partition in self.view.partitions})


def read(
    access: KafkaAccess,
    pattern: str = "",
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> list[ExistingTopic]:
    """Return the topics whose full name matches the regular expression ("": all), by name.

    Internal topics are included. ``on_progress`` receives the topics read and their total. Raises
    ``KafkaError``.
    """
    return asyncio.run(_read(access, re.compile(pattern or ".*"), on_progress))


async def _read(
    access: KafkaAccess, pattern: re.Pattern[str], on_progress: Callable[[int, int], None]
) -> list[ExistingTopic]:
    """Return the cluster's topics that match the pattern, with their configurations.

    ``on_progress``: receives the number of topics read and their total.
    """
    async with KafkaClient(access) as client:
        admin = Admin(client)
        views = await admin.topics()
        names = sorted(filter(pattern.fullmatch, views))
        # A topic that is being moved has more replicas than its manifest should have.
        moving = {topic for topic, _ in await admin.reassignments()}
        topics: list[ExistingTopic] = []
        for begin in range(0, len(names), PAGE):
            page = names[begin : begin + PAGE]
            configs = await topic_configs(client, page)
            topics += (ExistingTopic(views[name], configs[name], name in moving) for name in page)
            on_progress(len(topics), len(names))
        return topics


def is_own(view: TopicView) -> bool:
    """Return whether brokers or other Kafka programs store their own state in the topic."""
    return view.internal or is_internal(view.name)


def imported_topic(topic: ExistingTopic, cluster_name: str) -> ImportedTopic:
    """Return a cluster's topic as the desired state that leaves it unchanged.

    Raises :class:`NotImported` if there is no such manifest.
    """
    view, factors = topic.view, topic.replication_factors
    if isinstance(topic.configuration, RequestFailure):
        raise NotImported(f"its configuration cannot be read: {topic.configuration}")
    if topic.is_moving:
        raise NotImported("its partitions are being reassigned: import it after the reassignment")
    if len(factors) != 1:
        raise NotImported(
            f"its partitions have {' and '.join(map(str, factors))} replicas: give all of them the "
            "same number first (kafka-reassign-partitions.sh)"
        )
    # Inherited values are left out: the manifest would freeze the brokers' current defaults.
    own = {key: entry.value for key, entry in topic.configuration.items() if entry.own}
    return ImportedTopic(
        source=f"{cluster_name}, topic {view.name}",
        name=view.name,
        partitions=len(view.partitions),
        replication_factor=factors[0],
        config={key: value for key, value in own.items() if value is not None},
        topic_id=id_text(view.topic_id),
    )


def with_topic_id(topic: ImportedTopic, existing: Mapping[str, ExistingTopic]) -> ImportedTopic:
    """Return a topic described by a KafkaTopic with its topic ID in the cluster.

    ``existing``: topics of the cluster by name. Differences to the cluster become remarks. Raises
    :class:`NotImported`.
    """
    in_cluster = existing.get(topic.name)
    if in_cluster is None:
        remarks = (*topic.remarks, "is not in the cluster: it will be created")
        return replace(topic, topic_id="", remarks=remarks)
    topic_id = id_text(in_cluster.view.topic_id)
    if topic.topic_id not in ("", topic_id):
        raise NotImported(
            f"its status has the id {topic.topic_id}, but the topic in the cluster has {topic_id}: "
            "it was recreated, or this is another cluster"
        )
    return replace(
        topic, topic_id=topic_id, remarks=(*topic.remarks, *_differences(topic, in_cluster))
    )


def _differences(topic: ImportedTopic, in_cluster: ExistingTopic) -> Sequence[str]:
    pairs = (
        ("partitions", topic.partitions, [len(in_cluster.view.partitions)]),
        ("replicas", topic.replication_factor, in_cluster.replication_factors),
    )
    return [
        f"has {' and '.join(map(str, actual))} {noun} in the cluster, but {in_manifest} in the "
        "manifest"
        for noun, in_manifest, actual in pairs
        if actual != [in_manifest]
    ]
