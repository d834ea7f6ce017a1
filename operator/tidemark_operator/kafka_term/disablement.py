"""Detection of a disablement (KIP-950) in force on Apache Kafka, which has no signal for it.

Each live broker with a replica reports what *it* has in force: its own answer to DescribeConfigs is
the closest thing to KIP-950's acknowledgement. A broker that is down reads the change before it
serves again. With Delete the leader's part is done once the log starts no earlier on any tier than
on its own disk, twice in a row: a broker switches the topic first, and raises its log start a
moment later. With Retain it is done once the end of the copied range has not advanced for two of
the brokers' copy intervals: a copy in progress may end later than the switch.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from tidemark.kafka_client import offsets
from tidemark.kafka_client.values import EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, Offset
from tidemark.wire.control import DisableRemoteTopicResponse, DisableRemoteTopicResult
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import tiering_disablement
from tidemark_operator.controller.state.model import PartitionRow, RowKey, TopicInfo
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import cluster_snapshot, desired_configs
from tidemark_operator.engines.kafka.cluster import answers
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import TOPIC

logger = logging.getLogger(__name__)

ASK_S = 1.0
#: Copy intervals for which the end of the copied range must not advance.
INTERVALS = 2.0
NOTE = (
    "Apache Kafka has no tiered epoch, so a copy in progress is not fenced. "
    "Each broker reports its own configuration"
)


class Disabler:
    """Disablements of one term.

    Its memory may be lost in a takeover and is then collected again.
    """

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        #: Log starts on the leaders' disks before a Delete.
        self._local_starts: dict[RowKey, int] = {}
        #: Offsets as observed, and since when (monotonic seconds).
        self._last_changes: dict[RowKey, tuple[object, float]] = {}

    async def run(self) -> None:
        """Check all disablements periodically until cancelled."""
        while True:
            await asyncio.sleep(ASK_S)
            state, seen = self._services.state, self._services.seen
            self._forget()
            if state.topics.disabling and seen.cluster is not None and not seen.problem:
                topics = [state.topics[key] for key in sorted(state.topics.disabling)]
                await self._ask([topic for topic in topics if not topic.paused])

    def _forget(self) -> None:
        state = self._services.state
        ids = {state.topics[key].id for key in state.topics.disabling}
        for key in {*self._local_starts, *self._last_changes}:
            if key[0] not in ids:
                self._local_starts.pop(key, None)
                self._last_changes.pop(key, None)

    async def remember(self, topic: TopicInfo) -> None:
        """Record where each partition's local log starts, before its remote data is deleted.

        The deletion of the remote data is complete when the whole log starts no earlier than there.
        Raises ``EngineUnavailable``.
        """
        if not topic.tiering.is_deleting:
            return
        rows = self._services.state.rows_of(topic.id).values()
        unknown = [row for row in rows if row.key not in self._local_starts and row.leader >= 0]
        for node_id in sorted({row.leader for row in unknown}):
            led = [row for row in unknown if row.leader == node_id]
            found = await self._offsets(node_id, topic.name, led, EARLIEST_LOCAL)
            for row in led:
                if row.partition in found:
                    self._local_starts[row.key] = found[row.partition]

    async def _ask(self, topics: list[TopicInfo]) -> None:
        """Query the brokers whose acknowledgements of disablements are missing.

        One query to each broker is for all topics.
        """
        state, disablements = self._services.state, self._services.disablements
        #: By node id and topic id: partitions to acknowledge.
        by_node: dict[int, dict[uuid.UUID, tuple[int, ...]]] = {}
        for topic in topics:
            for node_id, parts in tiering_disablement.pending(state, topic, disablements).items():
                by_node.setdefault(node_id, {})[topic.id] = parts
        for node_id, partitions in sorted(by_node.items()):
            try:
                answers = await self._ask_broker(node_id, partitions)
            except EngineUnavailable as error:
                logger.info("no disablement report from broker %d: %s", node_id, error)
                continue
            for topic_id, replicas in answers.items():
                self._take(topic_id, node_id, replicas)

    async def _ask_broker(
        self, node_id: int, partitions: dict[uuid.UUID, tuple[int, ...]]
    ) -> dict[uuid.UUID, list[DisableRemoteTopicResult]]:
        """Return a broker's acknowledgements by topic id; topics that it still tiers are left out.

        Apache Kafka has no such acknowledgement (KIP-950 is not complete there), so it is derived
        from the configuration in force on the broker.
        """
        state = self._services.state
        topics = [topic for id_ in partitions if (topic := state.topics.by_id(id_)) is not None]
        # A broker that is down reads the configuration before it serves again.
        if not state.is_live(node_id):
            return {topic.id: [_done(part) for part in partitions[topic.id]] for topic in topics}
        names = [topic.name for topic in topics]
        values = await self._services.kafka.topic_values(
            names, desired_configs.SWITCHES, in_force_on=node_id
        )
        answers = {}
        for topic in topics:
            if desired_configs.in_force(topic.tiering, values.get(topic.name, {})):
                parts = partitions[topic.id]
                answers[topic.id] = await self._replicas(node_id, topic, parts)
        return answers

    async def _replicas(
        self, node_id: int, topic: TopicInfo, parts: Iterable[int]
    ) -> list[DisableRemoteTopicResult]:
        """Return the acknowledgements of a topic's partitions on one broker.

        The error code ``request_timed_out`` means that the leader has not finished yet.
        """
        rows = [row for part in parts if (row := self._services.state.row((topic.id, part)))]
        # A follower is done once the configuration is in force. The leader also has to finish
        # copies or deletions.
        led = [row for row in rows if row.leader == node_id]
        settled = await self._settled(node_id, topic, led) if led else set()
        found = [_done(row.partition) for row in rows if row.leader != node_id]
        for row in led:
            code = ErrorCode.none if row.partition in settled else ErrorCode.request_timed_out
            found.append(
                DisableRemoteTopicResult(
                    partition=row.partition,
                    error_code=code.value,
                    leader_epoch=row.leader_epoch,
                    is_leader=True,
                )
            )
        return found

    async def _settled(self, node_id: int, topic: TopicInfo, led: list[PartitionRow]) -> set[int]:
        """Return the partitions of which the leader has finished its copies or deletions."""
        if topic.tiering.deletes:
            # Queried in this order, a start that moves in between can only look unfinished.
            starts = await self._offsets(node_id, topic.name, led, EARLIEST)
            local = await self._offsets(node_id, topic.name, led, EARLIEST_LOCAL)
            return {row.partition for row in led if self._is_deleted(row, starts, local)}
        ends = await self._offsets(node_id, topic.name, led, LATEST_TIERED)
        still_s = INTERVALS * self._services.seen.copy_interval_s
        return {
            row.partition
            for row in led
            if row.partition in ends and self._unchanged_s(row.key, ends[row.partition]) >= still_s
        }

    def _is_deleted(self, row: PartitionRow, starts: dict[int, int], local: dict[int, int]) -> bool:
        start = starts.get(row.partition)
        # Equal starts alone are not enough: before the switch the local log may start at the same
        # offset.
        if start is None or start != local.get(row.partition):
            return False
        if start < self._local_starts.get(row.key, 0):
            return False
        return self._unchanged_s(row.key, start) >= ASK_S

    def _unchanged_s(self, key: RowKey, offset: int) -> float:
        known, since_s = self._last_changes.get(key, (None, 0.0))
        if known != offset:
            since_s = time.monotonic()
            self._last_changes[key] = offset, since_s
        return time.monotonic() - since_s

    async def _offsets(
        self, node_id: int, name: str, rows: Iterable[PartitionRow], special: int
    ) -> dict[int, int]:
        queries = {(name, row.partition): special for row in rows}
        with answers():
            found = await offsets.list_offsets(self._services.kafka.client, node_id, queries)
        return {part: item.offset for (_, part), item in found.items() if isinstance(item, Offset)}

    def _take(
        self, topic_id: uuid.UUID, node_id: int, replicas: list[DisableRemoteTopicResult]
    ) -> None:
        """Record acknowledgements that were derived for one broker."""
        services = self._services
        topic = services.state.topics.by_id(topic_id)
        if topic is None:
            return
        answer = DisableRemoteTopicResponse(
            error_code=ErrorCode.none.value,
            broker_epoch=cluster_snapshot.BROKER_EPOCH,
            tiered_epoch=topic.tiering.epoch,
            results=tuple(replicas),
        )
        if services.disablements.take(services.state, topic_id, node_id, answer, now_ms=wall_ms()):
            services.queue.add(TOPIC.key(topic.key))


def _done(partition: int) -> DisableRemoteTopicResult:
    return DisableRemoteTopicResult(
        partition=partition,
        error_code=ErrorCode.none.value,
        leader_epoch=0,
        is_leader=False,
    )
