"""What a Kafka cluster says of its topics: partitions, replicas, and what is configured of each.

A topic whose partitions differ in their number of replicas, or are being moved, has no manifest
that would leave it as it is: it is refused, for a person to even it out first.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.ids import id_text
from tidemark.kafka_client.access import Access
from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.configs import Configuration, topic_configs
from tidemark.kafka_client.values import Failure, TopicView
from tidemark_cli.imports.topics import NotImported, Wanted, is_internal

#: Topics of one request; each answer has some 40 keys a topic.
PAGE = 500


@dataclass(frozen=True, slots=True)
class Existing:
    """A topic of a cluster; ``configuration``: every key in force, or why it is not known."""

    view: TopicView
    configuration: Configuration | Failure
    is_moving: bool

    @property
    def replication_factors(self) -> list[int]:
        """Of its partitions, ascending, each once."""
        return sorted({len(each.replicas) for each in self.view.partitions})


def read(
    access: Access, pattern: str = "", on_progress: Callable[[int, int], None] = lambda *_: None
) -> list[Existing]:
    """Return the topics whose whole name matches the regular expression ("": all), by name,
    internal ones included. ``on_progress``: read, of how many. Raises ``KafkaError``."""
    return asyncio.run(_read(access, re.compile(pattern or ".*"), on_progress))


async def _read(
    access: Access, pattern: re.Pattern[str], on_progress: Callable[[int, int], None]
) -> list[Existing]:
    async with KafkaClient(access) as client:
        admin = Admin(client)
        views = await admin.topics()
        names = sorted(filter(pattern.fullmatch, views))
        moving = {topic for topic, _ in await admin.reassignments()}
        found: list[Existing] = []
        for begin in range(0, len(names), PAGE):
            page = names[begin : begin + PAGE]
            configs = await topic_configs(client, page)
            found += (Existing(views[name], configs[name], name in moving) for name in page)
            on_progress(len(found), len(names))
        return found


def is_own(view: TopicView) -> bool:
    """Whether brokers or other Kafka programs keep their own state in the topic."""
    return view.internal or is_internal(view.name)


def wanted(topic: Existing, cluster_name: str) -> Wanted:
    """What it is, as what is wanted. Raises :class:`NotImported`."""
    view, factors = topic.view, topic.replication_factors
    if isinstance(topic.configuration, Failure):
        raise NotImported(f"its configuration cannot be read: {topic.configuration}")
    if topic.is_moving:
        raise NotImported("its partitions are being reassigned: import it once that has ended")
    if len(factors) != 1:
        raise NotImported(
            f"its partitions have {' and '.join(map(str, factors))} replicas: give all the same "
            "number first (kafka-reassign-partitions.sh)"
        )
    own = {key: each.value for key, each in topic.configuration.items() if each.own}
    return Wanted(
        source=f"{cluster_name}, topic {view.name}",
        name=view.name,
        partitions=len(view.partitions),
        replication_factor=factors[0],
        config={key: value for key, value in own.items() if value is not None},
        topic_id=id_text(view.topic_id),
    )


def identified(topic: Wanted, there: Mapping[str, Existing]) -> Wanted:
    """A topic that somebody else's manifest describes, with the id that it has in a cluster, and
    with what is different there. Raises :class:`NotImported`."""
    found = there.get(topic.name)
    if found is None:
        said = (*topic.remarks, "is not in the cluster: it will be made")
        return replace(topic, topic_id="", remarks=said)
    topic_id = id_text(found.view.topic_id)
    if topic.topic_id not in ("", topic_id):
        raise NotImported(
            f"its status has the id {topic.topic_id}, and the topic in the cluster {topic_id}: it "
            "was made anew, or this is another cluster"
        )
    return replace(topic, topic_id=topic_id, remarks=(*topic.remarks, *_differences(topic, found)))


def _differences(topic: Wanted, found: Existing) -> Sequence[str]:
    pairs = (
        ("partitions", topic.partitions, [len(found.view.partitions)]),
        ("replicas", topic.replication_factor, found.replication_factors),
    )
    return [
        f"has {' and '.join(map(str, there))} {what} in the cluster, and {here} here"
        for what, here, there in pairs
        if there != [here]
    ]
