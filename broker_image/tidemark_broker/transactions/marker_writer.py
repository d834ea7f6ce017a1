"""Writer of markers to partitions that this broker leads, for any coordinator.

Each marker is appended at once and answered when it is committed or after a time limit: a partition
that cannot commit must not delay the other markers of the request. The coordinator then repeats its
request, which waits for the same marker instead of appending another one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.lru import Lru
from tidemark.records.control import EndMarker
from tidemark.tls.identity import TlsIdentity
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.types import ProduceResult
from tidemark_broker.transactions.wire import WireMarker, WriteMarkersRequest, WriteMarkersResponse

#: Longest wait for the markers of one request to be committed.
_WAIT_S = 0.5
#: Markers that are appended before the loop is yielded.
_AT_ONCE = 50
#: Markers that wait for their commit at the same time.
_SOME = 1000
#: Limit of appended markers that were not committed when their coordinator was answered.
_REMEMBERED_MAX = 10_000


class TopicCoordinator(Protocol):
    """Coordinator whose in-memory state follows the log of a topic, including ends of
    transactions.
    """

    def ready_for_marker(self, partition: int) -> None:
        """Raise :class:`CoordinatorError` while a marker would not be applied."""

    def marker_appended(
        self, partition: int, producer: TransactionalProducer, *, committed: bool
    ) -> None:
        """Apply a marker, in the same step of the loop as its append."""


class Replicas(Protocol):
    """Access to the hosted replicas."""

    def get(self, topic: str, partition: int) -> Partition | None:
        """Return a hosted replica, or None."""

    def error_of(self, topic: str, partition: int) -> ErrorCode:
        """Return why a replica is not available."""


class MarkerWriter:
    """Writer of one broker. Used from the loop only. ``coordinators``: by the topic they follow."""

    def __init__(
        self, replicas: Replicas, coordinators: Mapping[str, TopicCoordinator] | None = None
    ) -> None:
        self._replicas = replicas
        self._coordinators = coordinators or {}
        self._remembered: Lru[WireMarker, ProduceResult] = Lru(_REMEMBERED_MAX)

    async def serve(
        self, request: WriteMarkersRequest, peer: TlsIdentity, memory: ResponseMemory
    ) -> WriteMarkersResponse:
        """Write another broker's markers."""
        errors = await self.write(request.markers)
        return WriteMarkersResponse(errors=tuple(map(int, errors)))

    async def write(
        self, markers: Sequence[WireMarker], *, wait_s: float | None = None
    ) -> Sequence[ErrorCode]:
        """Write transaction markers, and wait until they are committed; return their error codes.

        ``wait_s``: time limit for all together, None for the default. Codes are in the order of the
        markers:

        - INVALID_PRODUCER_EPOCH: the transaction has ended before
        - TRANSACTION_COORDINATOR_FENCED: a later coordinator has written
        - others: as of a Produce with acks=all
        """
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + (_WAIT_S if wait_s is None else wait_s)
        errors: list[ErrorCode] = []
        # In parts, so that other requests are served in between.
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
        """Append one marker and await its commit.

        A repeated request awaits the marker that was appended for the first one. Returns
        REQUEST_TIMED_OUT if it is not committed within ``wait_s`` seconds.
        """
        partition = self._replicas.get(marker.topic, marker.partition)
        if partition is None:
            return self._replicas.error_of(marker.topic, marker.partition)
        # A repeated request waits for the marker that was appended for the first one.
        appended = self._remembered.pop(marker)
        if appended is None or not _ended_by(appended, partition, marker):
            appended = self._append(partition, marker)
        written = await produce.acknowledged(
            partition, appended, acks=produce.ACKS_ALL, timeout_ms=int(wait_s * 1000)
        )
        # Appended but not committed yet: the coordinator will repeat the request.
        if written.error is ErrorCode.request_timed_out:
            self._remembered.put(marker, appended)
            self._remembered.evict()
        return written.error

    def _append(self, partition: Partition, marker: WireMarker) -> ProduceResult:
        """Append a marker to the log of a partition; the result tells what to wait for.

        In a partition that has a coordinator (``__consumer_offsets``) the marker also takes effect
        on the coordinator's state in memory.
        """
        coordinator = self._coordinators.get(marker.topic)
        try:
            # A marker during the load of the coordinator would be in the log but not in memory.
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
        # In the same step as the append, so that no request sees the log without the state.
        if coordinator is not None and appended.error is ErrorCode.none:
            producer = TransactionalProducer(marker.producer_id, marker.producer_epoch)
            coordinator.marker_appended(marker.partition, producer, committed=marker.commit)
        return appended


def _ended_by(appended: ProduceResult, partition: Partition, marker: WireMarker) -> bool:
    """Return whether an earlier append of this marker still ends the transaction.

    It does not after a change of the leader. It also does not if the producer has started its next
    transaction, whose marker looks the same in the old protocol.
    """
    is_open = partition.log.producers.has_ongoing_transaction(
        marker.producer_id, marker.producer_epoch
    )
    return appended.leader_epoch == partition.leader_epoch and not is_open
