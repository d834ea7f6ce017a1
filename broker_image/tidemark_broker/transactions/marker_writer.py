"""Writes markers to partitions that this broker leads, for whichever coordinator asks.

Each is appended at once and answered when it is committed, or when time is up: a partition that
cannot commit must not hold up the markers of others that came with it. The coordinator asks again
then, and waits for the same marker instead of having another one appended.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.lru import Lru
from tidemark.records.control import EndMarker
from tidemark.tls.identity import Identity
from tidemark_broker.answer_memory import AnswerMemory
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.types import ProduceResult
from tidemark_broker.transactions.wire import WireMarker, WriteMarkersRequest, WriteMarkersResponse

#: How long the markers of one request may take to be committed.
_WAIT_S = 0.5
#: Markers that are appended before others have their turn.
_AT_ONCE = 50
#: Markers that were appended and not known to be committed when their coordinator was answered.
_REMEMBERED_MAX = 10_000

#: Writes markers of a topic that has a coordinator of its own; otherwise as ``write_one``.
TopicWriter = Callable[[WireMarker, float], Awaitable[ErrorCode]]


class Replicas(Protocol):
    """Where partitions are."""

    def get(self, topic: str, partition: int) -> Partition | None:
        """A hosted replica."""

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Why there is none."""


class MarkerWriter:
    """The loop's. ``topic_writers``: by topic; what its coordinator keeps in memory depends on the
    markers in its log."""

    def __init__(
        self, replicas: Replicas, topic_writers: Mapping[str, TopicWriter] | None = None
    ) -> None:
        self._replicas = replicas
        self._topic_writers = topic_writers or {}
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
        tasks: list[asyncio.Task[ErrorCode]] = []
        async with asyncio.TaskGroup() as group:
            for marker in markers:
                writing = self._write_one(marker, _WAIT_S if wait_s is None else wait_s)
                tasks.append(group.create_task(writing))
                if len(tasks) % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        return [task.result() for task in tasks]

    async def _write_one(self, marker: WireMarker, wait_s: float) -> ErrorCode:
        writer = self._topic_writers.get(marker.topic)
        if writer is not None:
            return await writer(marker, wait_s)
        partition = self._replicas.get(marker.topic, marker.partition)
        if partition is None:
            return self._replicas.error_of(marker.topic, marker.partition)
        written = await self._written(partition, marker, int(wait_s * 1000))
        if written.error is ErrorCode.request_timed_out and written.end_offset >= 0:
            self._remembered.put(marker, written)
            self._remembered.evict()
        else:
            self._remembered.pop(marker)
        return written.error

    async def _written(
        self, partition: Partition, marker: WireMarker, timeout_ms: int
    ) -> ProduceResult:
        before = self._remembered.get(marker)
        if before is not None and before.leader_epoch == partition.leader_epoch:
            again = replace(before, error=ErrorCode.none)
            return await produce.acknowledged(
                partition, again, acks=produce.ACKS_ALL, timeout_ms=timeout_ms
            )
        return await produce.append_marker(
            partition,
            EndMarker(marker.commit, marker.coordinator_epoch),
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_version=marker.version,
            timeout_ms=timeout_ms,
        )
