"""The leader's side of replica fetches: what a follower is given, and what its fetch tells.

Order of checks for a follower (kafka-facts 5.3): epoch, assignment, epoch of its last record,
log start *before* divergence, divergence without any update of the follower's state, and only
then records. A fetch that is answered with records or with nothing says that the follower holds
all below its fetch offset; that alone moves the high watermark and the ISR.
"""

import logging
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import UNDEFINED_END, EpochEnd
from tidemark_broker.log import NotCached, OffsetOutOfRange, StorageError
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication import divergence, reads
from tidemark_broker.replication.isr import FetchSeen
from tidemark_broker.replication.threads import in_read_thread
from tidemark_broker.replication.wire import (
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)

if TYPE_CHECKING:
    from tidemark_broker.replication.manager import ReplicaManager
    from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 30_000


class ReplicaFetchService:
    """Serves :data:`wire.REPLICA_FETCH`."""

    def __init__(self, manager: "ReplicaManager", purgatory: Purgatory) -> None:
        self._manager = manager
        self._purgatory = purgatory

    async def handle(self, request: ReplicaFetchRequest) -> ReplicaFetchResponse:
        """Answer at once if anything is there, else wait for records or a raised log start."""
        if not self._known(request):
            return ReplicaFetchResponse(
                error_code=int(ErrorCode.stale_broker_epoch.value), partitions=()
            )
        results = await self._collect(request)
        if not self._enough(request, results):
            await self._wait(request)
            results = await self._collect(request)
        return ReplicaFetchResponse(error_code=0, partitions=results)

    def _known(self, request: ReplicaFetchRequest) -> bool:
        """A broker that registered again since is another one; one we do not know yet may fetch."""
        known = self._manager.metadata.broker_epoch(request.replica_id)
        return request.broker_epoch >= known

    async def _wait(self, request: ReplicaFetchRequest) -> None:
        keys = []
        for wanted in request.partitions:
            partition = self._manager.by_id(wanted.topic_id, wanted.partition)
            if partition is not None:
                keys += [("leo", partition.tp), ("lw", partition.tp)]
        wait_ms = min(max(request.max_wait_ms, 0), MAX_WAIT_MS)
        await self._purgatory.wait(keys, lambda: self._something(request), wait_ms / 1000)

    def _something(self, request: ReplicaFetchRequest) -> bool:
        """Has anything changed that the follower should hear of? Reads nothing from disk."""
        for wanted in request.partitions:
            partition = self._manager.by_id(wanted.topic_id, wanted.partition)
            if partition is None or partition.check_leader(wanted.current_leader_epoch) is not (
                ErrorCode.none
            ):
                return True
            if partition.next_offset > wanted.fetch_offset:
                return True
            if partition.log_start_offset > wanted.log_start_offset:
                return True
        return False

    def _enough(
        self, request: ReplicaFetchRequest, results: tuple[ReplicaFetchResult, ...]
    ) -> bool:
        size = 0
        for wanted, result in zip(request.partitions, results, strict=True):
            if result.error_code or result.diverging_epoch >= 0:
                return True
            if result.log_start_offset > wanted.log_start_offset:
                return True
            size += len(result.records)
        return size >= max(request.min_bytes, 1) or not request.partitions

    async def _collect(self, request: ReplicaFetchRequest) -> tuple[ReplicaFetchResult, ...]:
        left = request.max_bytes
        results = []
        for wanted in request.partitions:
            result = await self._one(request, wanted, left)
            left -= len(result.records)
            results.append(result)
        return tuple(results)

    async def _one(
        self, request: ReplicaFetchRequest, wanted: ReplicaFetchPartition, left: int
    ) -> ReplicaFetchResult:
        partition = self._manager.by_id(wanted.topic_id, wanted.partition)
        if partition is None:
            return refusal(wanted, ErrorCode.unknown_topic_id)
        error = _check(partition, request.replica_id, wanted)
        if error is not ErrorCode.none:
            return answer(partition, error)
        parted = _parted(partition, wanted)
        if parted is not None:
            return answer(partition, ErrorCode.none, parted=parted)
        now_s = self._manager.context.monotonic()
        partition.follower_fetched(
            request.replica_id,
            FetchSeen(
                fetch_offset=wanted.fetch_offset,
                log_start_offset=wanted.log_start_offset,
                local_log_start_offset=wanted.local_log_start_offset,
                broker_epoch=request.broker_epoch,
                leader_next_offset=partition.next_offset,
                now_s=now_s,
                tiered_epoch=wanted.tiered_epoch,
            ),
        )
        return await _records(partition, wanted, left)


def _check(partition: "Partition", replica_id: int, wanted: ReplicaFetchPartition) -> ErrorCode:
    error = partition.check_leader(wanted.current_leader_epoch)
    if error is not ErrorCode.none:
        return error
    if partition.leader is None or replica_id not in partition.leader.followers:
        return ErrorCode.unknown_leader_epoch
    log = partition.log
    if wanted.fetch_offset < log.log_start_offset:
        return ErrorCode.offset_out_of_range
    if wanted.last_fetched_epoch != divergence.UNKNOWN:
        end = reads.epoch_end(log, wanted.last_fetched_epoch)
        if end.epoch < 0 or end.end_offset < 0:
            return ErrorCode.offset_out_of_range
    elif wanted.fetch_offset > log.next_offset:
        return ErrorCode.offset_out_of_range
    if wanted.fetch_offset < log.local_log_start_offset:
        return ErrorCode.offset_moved_to_tiered_storage
    return ErrorCode.none


def _parted(partition: "Partition", wanted: ReplicaFetchPartition) -> EpochEnd | None:
    if wanted.last_fetched_epoch == divergence.UNKNOWN:
        return None
    return divergence.diverging(
        fetch_offset=wanted.fetch_offset,
        last_fetched_epoch=wanted.last_fetched_epoch,
        leaders_end=reads.epoch_end(partition.log, wanted.last_fetched_epoch),
    )


async def _records(
    partition: "Partition", wanted: ReplicaFetchPartition, left: int
) -> ReplicaFetchResult:
    log = partition.log
    if left <= 0 or wanted.fetch_offset >= log.next_offset:
        return answer(partition, ErrorCode.none)
    context = partition.context
    if not context.failures.may_try(partition.tp, context.monotonic()):
        return answer(partition, ErrorCode.kafka_storage_error)
    offset, max_bytes, end = wanted.fetch_offset, min(wanted.max_bytes, left), log.next_offset
    try:
        try:
            read = log.read_cached(offset, max_bytes=max_bytes, up_to_offset=end, min_one=True)
        except NotCached:
            read = await in_read_thread(
                log.read, offset, max_bytes=max_bytes, up_to_offset=end, min_one=True
            )
    except OffsetOutOfRange:
        return answer(partition, ErrorCode.offset_out_of_range)
    except StorageError as error:
        context.failures.failed(partition.tp, error, context.monotonic())
        return answer(partition, ErrorCode.kafka_storage_error)
    return answer(partition, ErrorCode.none, records=read.data)


def refusal(wanted: ReplicaFetchPartition, error: ErrorCode) -> ReplicaFetchResult:
    """An answer about a partition that is not here."""
    return ReplicaFetchResult(
        topic_id=wanted.topic_id,
        partition=wanted.partition,
        error_code=int(error.value),
        leader_epoch=-1,
        high_watermark=-1,
        log_start_offset=-1,
        local_log_start_offset=-1,
        next_offset=-1,
        diverging_epoch=-1,
        diverging_end_offset=-1,
        head_tiered_epoch=-1,
        remote_end_offset=-1,
        remote_end_epoch=-1,
        records=b"",
    )


def answer(
    partition: "Partition",
    error: ErrorCode,
    *,
    parted: EpochEnd | None = None,
    records: bytes = b"",
) -> ReplicaFetchResult:
    """An answer with the leader's offsets and the end of the tier."""
    log = partition.log
    point = parted or UNDEFINED_END
    end = partition.remote_end
    return ReplicaFetchResult(
        topic_id=partition.topic_id,
        partition=partition.partition,
        error_code=int(error.value),
        leader_epoch=partition.leader_epoch,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        local_log_start_offset=log.local_log_start_offset,
        next_offset=log.next_offset,
        diverging_epoch=point.epoch,
        diverging_end_offset=point.end_offset,
        head_tiered_epoch=partition.head_tiered_epoch,
        remote_end_offset=-1 if end is None else end.offset,
        remote_end_epoch=-1 if end is None else end.epoch,
        records=records,
    )
