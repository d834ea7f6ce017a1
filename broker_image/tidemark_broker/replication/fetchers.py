"""Followers' fetching: one task and one connection per leading broker.

A task asks its leader for all partitions that are not backing off, in one request, in turning
order so that none starves; what comes back is applied before the next request. A lost
connection, an unknown address or an error only ever means trying again, later each time.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import FrameError
from tidemark_broker.replication.backoff import Backoff
from tidemark_broker.replication.follower import Outcome, apply_answer, next_request
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.replication.wire import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)

logger = logging.getLogger(__name__)

#: How long the next fetch waits for raised log starts to become durable, so as to report them.
_CHECKPOINT_WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Kafka's ``replica.fetch.*``; ``timeout_s`` bounds one request on top of its wait."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    response_max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0
    timeout_s: float = 30.0


class Fetcher:
    """Everything this broker follows from one leader."""

    def __init__(
        self,
        leader_id: int,
        *,
        node_id: int,
        metadata: MetadataCache,
        limits: FetchLimits,
        broker_epoch: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.leader_id = leader_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self._node_id = node_id
        self._metadata = metadata
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._monotonic = monotonic
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._changed = asyncio.Event()
        self._turn = 0

    def add(self, partition: Partition) -> None:
        """Follow a partition (again: its backoff ends)."""
        self.partitions[partition.tp] = partition
        self._backoffs.pop(partition.tp, None)
        self._changed.set()

    def remove(self, tp: TopicPartition) -> None:
        """Follow it no more; an answer under way is ignored by its role check."""
        self.partitions.pop(tp, None)
        self._backoffs.pop(tp, None)

    async def run(self) -> None:
        """Fetch until cancelled."""
        pause = self._connection_backoff()
        while True:
            began = self._monotonic()
            try:
                await self._session()
            except (OSError, TimeoutError, FrameError) as error:
                if self._monotonic() - began > self._limits.backoff_max_s:
                    pause = self._connection_backoff()
                logger.info("fetching from broker %d: %s", self.leader_id, error)
            except Exception:
                logger.exception("fetching from broker %d failed", self.leader_id)
            now = self._monotonic()
            pause = pause.failed(now)
            await self._pause(pause.until_s - now)

    def _connection_backoff(self) -> Backoff:
        return Backoff(first_s=self._limits.backoff_s, most_s=self._limits.backoff_max_s)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but a newly given partition (a new address, perhaps) ends it."""
        self._changed.clear()
        try:
            async with asyncio.timeout(max(seconds, 0.01)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _session(self) -> None:
        endpoint = self._metadata.endpoint(self.leader_id)
        if endpoint is None:
            raise ConnectionError(f"broker {self.leader_id} has no known address")
        connection = await KafkaConnection.connect(
            endpoint.host, endpoint.port, client_id=f"broker-{self._node_id}-fetcher"
        )
        try:
            while endpoint == self._metadata.endpoint(self.leader_id):
                await self._round(connection)
        finally:
            await connection.close()

    async def _round(self, connection: KafkaConnection) -> None:
        now_s = self._monotonic()
        chosen = [
            partition
            for tp, partition in self.partitions.items()
            if tp not in self._backoffs or self._backoffs[tp].ready(now_s)
        ]
        if not chosen:
            await self._pause(self._limits.backoff_s)
            return
        self._turn += 1
        first = self._turn % len(chosen)
        chosen = chosen[first:] + chosen[:first]
        asked = [next_request(each, self._limits.partition_max_bytes) for each in chosen]
        answer = await connection.request(
            self._request(asked),
            ReplicaFetchResponse,
            self._limits.timeout_s + self._limits.wait_max_ms / 1000,
        )
        if answer.error_code or len(answer.partitions) != len(asked):
            raise ConnectionError(f"the leader answers with error {answer.error_code}")
        await self._apply(chosen, asked, answer)

    def _request(self, asked: list[ReplicaFetchPartition]) -> ReplicaFetchRequest:
        return ReplicaFetchRequest(
            replica_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            max_wait_ms=self._limits.wait_max_ms,
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.response_max_bytes,
            partitions=tuple(asked),
        )

    async def _apply(
        self,
        chosen: list[Partition],
        asked: list[ReplicaFetchPartition],
        answer: ReplicaFetchResponse,
    ) -> None:
        raised = []
        for partition, wanted, result in zip(chosen, asked, answer.partitions, strict=True):
            self._note(partition.tp, await self._apply_one(partition, wanted, result))
            if partition.log.announced_log_start_offset > partition.durable_log_start_offset:
                raised.append(partition.context.checkpoint_log_start(partition))
        if raised:
            await asyncio.wait(raised, timeout=_CHECKPOINT_WAIT_S)

    async def _apply_one(
        self, partition: Partition, wanted: ReplicaFetchPartition, result: ReplicaFetchResult
    ) -> Outcome:
        """One partition's trouble must not stop the others that follow the same leader."""
        try:
            return await apply_answer(partition, wanted, result)
        except Exception:
            logger.exception("%s: the leader's answer cannot be applied", partition.tp)
            return Outcome.BACK_OFF

    def _note(self, tp: TopicPartition, outcome: Outcome) -> None:
        if outcome is Outcome.BACK_OFF:
            backoff = self._backoffs.get(tp) or self._connection_backoff()
            self._backoffs[tp] = backoff.failed(self._monotonic())
        else:
            self._backoffs.pop(tp, None)


class Fetchers:
    """Which partition is fetched from which leader; owns the tasks."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataCache,
        limits: FetchLimits,
        broker_epoch: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._limits = limits
        self._broker_epoch = broker_epoch
        self._monotonic = monotonic
        self._fetchers: dict[int, tuple[Fetcher, asyncio.Task[None]]] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many partitions are followed."""
        return len(self._leader_of)

    def follow(self, partition: Partition, leader_id: int) -> None:
        """Fetch this partition from that broker from now on."""
        if self._leader_of.get(partition.tp, leader_id) != leader_id:
            self.unfollow(partition.tp)
        self._leader_of[partition.tp] = leader_id
        self._fetcher(leader_id).add(partition)

    def unfollow(self, tp: TopicPartition) -> None:
        """Fetch it no more; a task without partitions ends."""
        leader_id = self._leader_of.pop(tp, None)
        if leader_id is None:
            return
        fetcher, task = self._fetchers[leader_id]
        fetcher.remove(tp)
        if not fetcher.partitions:
            del self._fetchers[leader_id]
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _fetcher(self, leader_id: int) -> Fetcher:
        known = self._fetchers.get(leader_id)
        if known is not None:
            return known[0]
        fetcher = Fetcher(
            leader_id,
            node_id=self._node_id,
            metadata=self._metadata,
            limits=self._limits,
            broker_epoch=self._broker_epoch,
            monotonic=self._monotonic,
        )
        task = asyncio.get_running_loop().create_task(
            fetcher.run(), name=f"fetcher of broker {leader_id}"
        )
        self._fetchers[leader_id] = (fetcher, task)
        return fetcher

    async def close(self) -> None:
        """End all tasks and wait for them."""
        tasks = [task for _, task in self._fetchers.values()]
        self._fetchers.clear()
        self._leader_of.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
