"""Topics as the brokers know them: replicas, offsets in each tier, and bytes on disk."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kio.schema.describe_log_dirs.v4 import request as dirs_request
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from tidemark.kafka_client.admin import Admin
from tidemark.kafka_client.client import KafkaClient
from tidemark.kafka_client.configs import Configuration, topic_configs
from tidemark.kafka_client.errors import KafkaError
from tidemark.kafka_client.offsets import list_offsets
from tidemark.kafka_client.topic_leaders import UnknownTopic
from tidemark.kafka_client.values import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    PartitionView,
    RequestFailure,
    TopicPartition,
    TopicView,
)

TIERED = "remote.storage.enable"
#: Partitions in one request; brokers limit the elements of a request.
_PARTITIONS_AT_ONCE = 5_000
_TOPICS_AT_ONCE = 1_000


@dataclass(slots=True)
class Listing:
    """Topics in the order of their names, with what could be found out about them.

    ``offsets``: by timestamp of ListOffsets and partition; an unknown offset has no entry.
    """

    topics: list[TopicView]
    tiered: dict[str, bool] = field(default_factory=dict)
    configs: dict[str, Configuration] = field(default_factory=dict)
    offsets: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    bytes_on_leader: dict[TopicPartition, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def span(self, topic: TopicView) -> int | None:
        """Return the number of offsets between log start and end of all partitions."""
        total = 0
        for view in topic.partitions:
            place = (topic.name, view.partition)
            start, end = (self.offsets[special].get(place) for special in (EARLIEST, LATEST))
            if start is None or end is None:
                return None
            total += end - start
        return total


async def list_topics(client: KafkaClient, *, internal: bool) -> Listing:
    """Return all topics, with ``internal`` those of Kafka itself too. Raises ``KafkaError``."""
    admin = Admin(client)
    await admin.describe_cluster()
    views = await admin.topics()
    listing = Listing(
        [
            views[name]
            for name in sorted(views)
            if internal or not (views[name].internal or name.startswith("__"))
        ]
    )
    await _add_configs(client, listing, [TIERED])
    await _add_offsets(client, listing, (EARLIEST, LATEST))
    return listing


async def describe_topic(client: KafkaClient, name: str) -> Listing:
    """Return one topic with its configuration, tiers and sizes. Raises ``KafkaError``."""
    admin = Admin(client)
    await admin.describe_cluster()
    view = (await admin.topics([name])).get(name)
    if view is None:
        raise UnknownTopic(f"topic {name} does not exist")
    listing = Listing([view])
    await _add_configs(client, listing, None)
    await _add_offsets(client, listing, (EARLIEST, EARLIEST_LOCAL, LATEST))
    await _add_sizes(client, listing)
    return listing


async def _add_configs(client: KafkaClient, listing: Listing, keys: Sequence[str] | None) -> None:
    names = [topic.name for topic in listing.topics]
    for at in range(0, len(names), _TOPICS_AT_ONCE):
        part = names[at : at + _TOPICS_AT_ONCE]
        for name, found in (await topic_configs(client, part, keys=keys)).items():
            if isinstance(found, RequestFailure):
                listing.problems.append(f"configuration of topic {name}: {found}")
                continue
            listing.configs[name] = found
            listing.tiered[name] = TIERED in found and found[TIERED].value == "true"


async def _add_offsets(client: KafkaClient, listing: Listing, specials: Iterable[int]) -> None:
    """Request offsets from each leader; a leader that does not answer is a problem."""
    led = _by_leader(listing.topics)
    for special in specials:
        found = listing.offsets.setdefault(special, {})
        for leader, places in led.items():
            try:
                for at in range(0, len(places), _PARTITIONS_AT_ONCE):
                    part = dict.fromkeys(places[at : at + _PARTITIONS_AT_ONCE], special)
                    for place, answer in (await list_offsets(client, leader, part)).items():
                        if not isinstance(answer, RequestFailure):
                            found[place] = answer.offset
            except KafkaError as error:
                problem = f"offsets of broker {leader}: {error}"
                if problem not in listing.problems:
                    listing.problems.append(problem)


async def _add_sizes(client: KafkaClient, listing: Listing) -> None:
    """Request the bytes of the leaders' log directories (DescribeLogDirs)."""
    for leader, places in _by_leader(listing.topics).items():
        # Only the partitions that this broker leads: replicas have other sizes.
        request = dirs_request.DescribeLogDirsRequest(
            topics=tuple(
                dirs_request.DescribableLogDirTopic(
                    topic=TopicName(name), partitions=tuple(i32(number) for number in numbers)
                )
                for name, numbers in _grouped(places).items()
            )
        )
        try:
            answer = await client.request_node(leader, request, DescribeLogDirsResponse)
        except KafkaError as error:
            listing.problems.append(f"sizes of broker {leader}: {error}")
            continue
        # A broker may have several log directories, and a partition is in one of them.
        for result in answer.results:
            for topic in result.topics:
                for part in topic.partitions:
                    place = (str(topic.name), int(part.partition_index))
                    listing.bytes_on_leader[place] = int(part.partition_size)


def _by_leader(topics: Iterable[TopicView]) -> dict[int, list[TopicPartition]]:
    """Return the partitions by leader; those without one are left out."""
    led: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in topics:
        for view in topic.partitions:
            if view.leader >= 0:
                led[view.leader].append((topic.name, view.partition))
    return led


def _grouped(places: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for name, number in places:
        numbers[name].append(number)
    return numbers


def replicas_text(partitions: Sequence[PartitionView]) -> str:
    """Return the replication factor, or the range of several."""
    counts = {len(view.replicas) for view in partitions}
    low, high = min(counts, default=0), max(counts, default=0)
    return str(low) if low == high else f"{low}-{high}"


def in_sync_text(partitions: Sequence[PartitionView]) -> str:
    """Return such as "8/9": replicas in sync, and all replicas, of all partitions."""
    in_sync = sum(len(view.isr) for view in partitions)
    return f"{in_sync}/{sum(len(view.replicas) for view in partitions)}"
