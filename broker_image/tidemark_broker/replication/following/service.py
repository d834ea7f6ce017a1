"""The leader's side of replica fetches: what a follower is given, and what its fetch tells.

Order of checks for a follower: epoch, assignment, epoch of its last record,
log start *before* divergence, divergence without any update of the follower's state, and only
then records. A fetch that is answered with records or with nothing says that the follower holds
all below its fetch offset; that alone moves the high watermark and the ISR. It counts once, when it
arrives, and in a session (see :mod:`fetch_session`) for the partitions that it does not name, too.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import UNDEFINED_END, EpochEnd
from tidemark_broker.log import NotCached, OffsetOutOfRange, StorageError
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.following.fetch_session import (
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    Said,
)
from tidemark_broker.replication.following.wire import (
    NO_SESSION,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaFetchResult,
)
from tidemark_broker.replication.partition import divergence, in_sync, reads
from tidemark_broker.replication.partition.isr import FetchSeen
from tidemark_broker.replication.threads import in_read_thread

if TYPE_CHECKING:
    from tidemark_broker.replication.hosting.manager import ReplicaManager
    from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 30_000
#: Of records in one answer, whatever the follower would take (but for a first batch that is larger);
#: as Kafka's ``fetch.max.bytes``.
RESPONSE_BYTES_MAX = 55 * 1024 * 1024
#: What no watch tells (the end of the tier) is looked for this often.
LOOK_S = 1.0


class ReplicaFetchService:
    """Serves :data:`wire.REPLICA_FETCH`."""

    def __init__(self, manager: "ReplicaManager", purgatory: Purgatory) -> None:
        self._manager = manager
        self._purgatory = purgatory
        self._sessions = FetchSessionCache(purgatory)

    async def handle(self, request: ReplicaFetchRequest) -> ReplicaFetchResponse:
        """Answer at once if anything is there, else wait for records or a raised log start."""
        if not self._known(request):
            return _refused(ErrorCode.stale_broker_epoch)
        now_s = self._manager.context.monotonic()
        session = self._sessions.of(request, now_s)
        if isinstance(session, ErrorCode):
            return _refused(session)
        try:
            results = await _Round(self._manager, request, session, now_s).answer(self._purgatory)
        finally:
            if session.session_id == NO_SESSION:
                session.close()
        return ReplicaFetchResponse(error_code=0, partitions=results, session_id=session.session_id)

    def _known(self, request: ReplicaFetchRequest) -> bool:
        """A broker that registered again since is another one; one we do not know yet may fetch."""
        known = self._manager.metadata.broker_epoch(request.replica_id)
        return request.broker_epoch >= known


class _Round:
    """One request of a session, from its arrival to its answer."""

    def __init__(
        self,
        manager: "ReplicaManager",
        request: ReplicaFetchRequest,
        session: FetchSession,
        now_s: float,
    ) -> None:
        self._manager = manager
        self._request = request
        self._session = session
        self._now_s = now_s
        self._named: set[CachedPartition] = set()

    async def answer(self, purgatory: Purgatory) -> tuple[ReplicaFetchResult, ...]:
        """The results that the follower should hear of."""
        request = self._request
        self._take()
        results = await self._collect(arrived=True)
        if not self._enough(results):
            wait_ms = min(max(request.max_wait_ms, 0), MAX_WAIT_MS)
            await purgatory.wait([self._session.watch], self._something, wait_ms / 1000)
            results = await self._collect(arrived=False)
        return tuple(self._told(results))

    def _take(self) -> None:
        session = self._session
        for each in self._request.forgotten:
            partition = self._manager.by_id(each.topic_id, each.partition)
            if partition is not None:
                self._left(partition)
            session.forget((each.topic_id, each.partition))
        for wanted in self._request.partitions:
            cached = session.name(wanted)
            self._named.add(cached)
            partition = None if cached.tp else self._manager.by_id(*cached.key)
            if partition is not None:
                session.watch_over(cached, partition.tp)
        session.changes()
        if self._now_s - session.looked_s >= LOOK_S:
            session.looked_s = self._now_s
            self._look_at_all()

    def _look_at_all(self) -> None:
        """What changes without a notification becomes due here."""
        session = self._session
        for cached in session.cached.values():
            partition = self._manager.by_id(*cached.key)
            if partition is None or _said(partition) != cached.said:
                session.due[cached] = None

    def _something(self) -> bool:
        """Has anything changed that the follower should hear of now? Reads nothing from disk."""
        return any(self._is_urgent(cached) for cached in self._session.changes())

    def _is_urgent(self, cached: CachedPartition) -> bool:
        wanted, partition = cached.wanted, self._manager.by_id(*cached.key)
        return (
            partition is None
            or partition.check_leader(wanted.current_leader_epoch) is not ErrorCode.none
            or partition.next_offset > wanted.fetch_offset
            or partition.log_start_offset > _known_log_start(cached)
        )

    def _enough(self, results: "Results") -> bool:
        size = 0
        for cached, (_, result) in results.items():
            if result.error_code or result.diverging_epoch >= 0:
                return True
            if result.log_start_offset > _known_log_start(cached):
                return True
            size += len(result.records)
        return size >= max(self._request.min_bytes, 1) or not self._session.cached

    async def _collect(self, *, arrived: bool) -> "Results":
        """A result of each partition that is due. On arrival the fetch counts: the follower has
        everything below its offsets; of partitions at rest the time of the round says so."""
        session, left = self._session, min(self._request.max_bytes, RESPONSE_BYTES_MAX)
        results: Results = {}
        for cached in tuple(session.due):
            if session.ended:
                return {}
            partition = self._manager.by_id(*cached.key)
            result = await self._one(partition, cached.wanted, left, arrived=arrived)
            results[cached] = (partition, result)
            left -= len(result.records)
        if arrived:
            session.rounds.last_s = self._now_s
        return {} if session.ended else results

    async def _one(
        self,
        partition: "Partition | None",
        wanted: ReplicaFetchPartition,
        left: int,
        *,
        arrived: bool,
    ) -> ReplicaFetchResult:
        if partition is None:
            return refusal(wanted, ErrorCode.unknown_topic_id)
        error = _check(partition, self._request.replica_id, wanted)
        parted = None if error is not ErrorCode.none else _parted(partition, wanted)
        if error is not ErrorCode.none or parted is not None:
            self._left(partition)
            return answer(partition, error, parted=parted)
        if arrived:
            self._fetched(partition, wanted)
        return await _records(partition, wanted, left)

    def _fetched(self, partition: "Partition", wanted: ReplicaFetchPartition) -> None:
        replica_id, session = self._request.replica_id, self._session
        in_sync.follower_fetched(
            partition,
            replica_id,
            FetchSeen(
                fetch_offset=wanted.fetch_offset,
                log_start_offset=wanted.log_start_offset,
                local_log_start_offset=wanted.local_log_start_offset,
                broker_epoch=self._request.broker_epoch,
                leader_next_offset=partition.next_offset,
                now_s=self._now_s,
                tiered_epoch=wanted.tiered_epoch,
            ),
        )
        if partition.leader is not None and session.session_id != NO_SESSION:
            partition.leader.rests_in(replica_id, session.rounds)

    def _left(self, partition: "Partition") -> None:
        if partition.leader is not None:
            partition.leader.left_session(self._request.replica_id)

    def _told(self, results: "Results") -> Iterable[ReplicaFetchResult]:
        """What is sent: of the partitions that are named, and where there is news. Who was given
        records and is not done goes to the end of the queue, so that none starves."""
        due = self._session.due
        for cached, (partition, result) in results.items():
            if cached.is_forgotten:
                continue  # by a request that came meanwhile
            is_news = bool(result.records or result.error_code or result.diverging_epoch >= 0)
            if result.records:
                due.pop(cached, None)
                due[cached] = None
            elif not is_news and self._is_at_rest(partition, cached):
                due.pop(cached, None)
            said = _said_in(result)
            if is_news or cached in self._named or said != cached.said:
                cached.said = said
                yield result

    def _is_at_rest(self, partition: "Partition | None", cached: CachedPartition) -> bool:
        """Would the same fetch once more change nothing but the follower's time, and does the watch
        tell when that is over?"""
        return (
            partition is not None
            and partition.leader is not None
            and cached.tp is not None
            and cached.wanted.fetch_offset >= partition.next_offset
            and partition.high_watermark >= partition.next_offset
            and self._request.replica_id in partition.leader.row.isr
        )


#: By what was asked: the partition where it is hosted here, and what is to be answered.
Results = dict[CachedPartition, "tuple[Partition | None, ReplicaFetchResult]"]


def _known_log_start(cached: CachedPartition) -> int:
    """The leader's log start as the follower was told it, or its own where it was not."""
    said = cached.said
    return cached.wanted.log_start_offset if said is None else said.log_start_offset


def _refused(error: ErrorCode) -> ReplicaFetchResponse:
    return ReplicaFetchResponse(error_code=int(error.value), partitions=())


def _said(partition: "Partition") -> Said:
    """What an answer would say of a partition now; as :func:`_said_in` takes it from one."""
    log, end = partition.log, partition.durable_remote_end
    return Said(
        partition.leader_epoch,
        log.high_watermark,
        log.log_start_offset,
        partition.durable_head_tiered_epoch,
        -1 if end is None else end.offset,
        -1 if end is None else end.epoch,
    )


def _said_in(result: ReplicaFetchResult) -> Said:
    return Said(
        result.leader_epoch,
        result.high_watermark,
        result.log_start_offset,
        result.head_tiered_epoch,
        result.remote_end_offset,
        result.remote_end_epoch,
    )


def _check(partition: "Partition", replica_id: int, wanted: ReplicaFetchPartition) -> ErrorCode:
    error = partition.check_leader(wanted.current_leader_epoch)
    if error is not ErrorCode.none:
        return error
    if partition.leader is None or replica_id not in partition.leader.followers:
        return ErrorCode.unknown_leader_epoch
    log = partition.log
    if wanted.fetch_offset < log.log_start_offset:
        return ErrorCode.offset_out_of_range
    if in_sync.must_fetch_again(
        partition, partition.leader, replica_id, wanted.local_log_start_offset
    ):
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
            # What was read is of the epoch that was asked for; the offsets answered must be too.
            error = partition.check_leader(wanted.current_leader_epoch)
            if error is not ErrorCode.none:
                return answer(partition, error)
    except OffsetOutOfRange:
        return answer(partition, ErrorCode.offset_out_of_range)
    except StorageError as error:
        partition.storage_failed(error)
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
    end = partition.durable_remote_end
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
        head_tiered_epoch=partition.durable_head_tiered_epoch,
        remote_end_offset=-1 if end is None else end.offset,
        remote_end_epoch=-1 if end is None else end.epoch,
        records=records,
    )
