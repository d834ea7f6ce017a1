"""Writes markers to partitions that this broker leads, for whichever coordinator asks.

Each is appended at once and answered when it is committed, or when time is up: a partition that
cannot commit must not hold up the markers of others that came with it. The coordinator asks again
then, and waits for the same marker instead of having another one appended.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.lru import Lru
from tidemark.records.control import EndMarker
from tidemark.tls.identity import Identity
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.types import ProduceResult
from tidemark_broker.response_memory import AnswerMemory
from tidemark_broker.transactions.wire import WireMarker, WriteMarkersRequest, WriteMarkersResponse

#: How long the markers of one request may take to be committed.
_WAIT_S = 0.5
#: Markers that are appended before others have their turn.
_AT_ONCE = 50
#: Markers that wait for their commit at once.
_SOME = 1000
#: Markers that were appended and not known to be committed when their coordinator was answered.
_REMEMBERED_MAX = 10_000


class TopicCoordinator(Protocol):
    """Whoever keeps in memory what the log of a topic holds, ends of transactions included."""

    def ready_for_marker(self, partition: int) -> None:
        """Raises :class:`CoordinatorError` while a marker would pass unseen."""

    def marker_appended(
        self, partition: int, producer: TransactionalProducer, *, committed: bool
    ) -> None:
        """In the same step of the loop as the append."""


class Replicas(Protocol):
    """Where partitions are."""

    def get(self, topic: str, partition: int) -> Partition | None:
        """A hosted replica."""

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Why there is none."""


class MarkerWriter:
    """The loop's. ``coordinators``: of topics that have one, by name."""

    def __init__(
        self, replicas: Replicas, coordinators: Mapping[str, TopicCoordinator] | None = None
    ) -> None:
        self._replicas = replicas
        self._coordinators = coordinators or {}
        self._remembered: Lru[WireMarker, ProduceResult] = Lru(_REMEMBERED_MAX)

    async def serve(
        self, request: WriteMarkersRequest, peer: Identity, memory: AnswerMemory
    ) -> WriteMarkersResponse:
        """Another broker's markers."""
        errors = await self.write(request.markers)
        return WriteMarkersResponse(errors=tuple(map(int, errors)))

    async def write(
        self, markers: Sequence[WireMarker], *, wait_s: float | None = None
    ) -> Sequence[ErrorCode]:
        """Error codes in the order of the markers: INVALID_PRODUCER_EPOCH where the transaction has
        ended before, TRANSACTION_COORDINATOR_FENCED where a later coordinator has written, and what
        a Produce with acks=all is answered."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + (_WAIT_S if wait_s is None else wait_s)
        errors: list[ErrorCode] = []
        for start in range(0, len(markers), _SOME):
            left_s = max(until_s - now_s(), 0.0)
            errors += await self._write_some(markers[start : start + _SOME], left_s)
        return errors

    async def _write_some(self, markers: Sequence[WireMarker], wait_s: float) -> list[ErrorCode]:
        tasks: list[asyncio.Task[ErrorCode]] = []
        async with asyncio.TaskGroup() as group:
            for marker in markers:
                tasks.append(group.create_task(self._write_one(marker, wait_s)))
                if len(tasks) % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return [task.result() for task in tasks]

    async def _write_one(self, marker: WireMarker, wait_s: float) -> ErrorCode:
        partition = self._replicas.get(marker.topic, marker.partition)
        if partition is None:
            return self._replicas.error_of(marker.topic, marker.partition)
        appended = self._remembered.pop(marker)
        if appended is None or not _ended_by(appended, partition, marker):
            appended = self._append(partition, marker)
        written = await produce.acknowledged(
            partition, appended, acks=produce.ACKS_ALL, timeout_ms=int(wait_s * 1000)
        )
        if written.error is ErrorCode.request_timed_out:
            self._remembered.put(marker, appended)
            self._remembered.evict()
        return written.error

    def _append(self, partition: Partition, marker: WireMarker) -> ProduceResult:
        coordinator = self._coordinators.get(marker.topic)
        try:
            if coordinator is not None:
                coordinator.ready_for_marker(marker.partition)
        except CoordinatorError as error:
            return ProduceResult(error=ErrorCode.not_leader_or_follower, message=str(error))
        appended = produce.begin_marker(
            partition,
            EndMarker(marker.commit, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_version=marker.version,
        )
        if coordinator is not None and appended.error is ErrorCode.none:
            producer = TransactionalProducer(marker.producer_id, marker.producer_epoch)
            coordinator.marker_appended(marker.partition, producer, committed=marker.commit)
        return appended


def _ended_by(appended: ProduceResult, partition: Partition, marker: WireMarker) -> bool:
    """Is what the marker is to end ended by the same one, appended before? It is not where the
    leader is another by now, nor if the producer has begun its next transaction since: in the old
    protocol that one's marker looks the same."""
    is_open = partition.log.has_ongoing_transaction(marker.producer_id, marker.producer_epoch)
    return appended.leader_epoch == partition.leader_epoch and not is_open
