"""What a leader answers to consumers: fetches and offset look-ups; and a follower, to fetches, and
to who asks for its own log's offsets.

Consumers see committed data only. Offsets between the log start and the local log start of a
tiered partition lie in the tier: the answer says so and the caller reads there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark_broker.log import (
    NotCached,
    OffsetOutOfRange,
    PartitionLog,
    ReadResult,
    StorageError,
    TimestampOffset,
)
from tidemark_broker.log.max_timestamp import newest
from tidemark_broker.replication.partition import divergence
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.remote import RemoteUnavailable
from tidemark_broker.replication.threads import ThreadsBusy, in_lookup_thread, in_read_thread
from tidemark_broker.replication.types import (
    DiskReadNeed,
    FetchResult,
    OffsetResult,
    RemoteFetchNeed,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
#: So many aborted transactions are looked at on the loop; more of them in a thread.
_ABORTED_MAX = 1_000
#: Look-ups by time that are begun anew because segments went to the tier meanwhile.
_LOOK_UPS_MAX = 5


def epoch_end(log: PartitionLog, epoch: int) -> EpochEnd:
    """Where an epoch ended in this log."""
    return log.epochs.end_offset_for(epoch, log.next_offset)


def diverging_end(log: PartitionLog, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Where the log of who asks for ``offset`` parts from this one (KIP-595), None where it does
    not or where its epoch is not known."""
    if last_fetched_epoch == divergence.UNKNOWN:
        return None
    return divergence.diverging(
        fetch_offset=offset,
        last_fetched_epoch=last_fetched_epoch,
        leaders_end=epoch_end(log, last_fetched_epoch),
    )


def offset_for_leader_epoch(
    partition: Partition, current_leader_epoch: int, epoch: int
) -> tuple[ErrorCode, int, int]:
    """(error, epoch, end offset) of the largest epoch not above ``epoch``."""
    error = partition.check_leader(current_leader_epoch)
    if error is not ErrorCode.none:
        return error, -1, -1
    end = epoch_end(partition.log, epoch)
    return ErrorCode.none, end.epoch, end.end_offset


def empty_answer(partition: Partition) -> FetchResult:
    """An answer without records that still carries the offsets a client learns from."""
    log = partition.log
    return FetchResult(
        error=ErrorCode.none,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
    )


def fetch(
    partition: Partition,
    offset: int,
    *,
    max_bytes: int,
    min_one: bool,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    leader_only: bool = True,
    read_committed: bool = False,
) -> FetchResult:
    """One partition of a consumer's Fetch; reads the page cache, never waits. An error comes
    without offsets (Kafka's ``ReplicaManager.createLogReadResult``).

    With ``min_one`` the first batch comes whole whatever its size. ``remote`` is set where the
    tier holds what was asked for, ``from_disk`` where :func:`read_from_disk` must read it. With
    ``read_committed`` the last stable offset is the end (KIP-98).
    """
    check = partition.check_leader if leader_only else partition.check_replica
    error = check(current_leader_epoch)
    if error is not ErrorCode.none:
        return _not_led(partition, error)
    log = partition.log
    if last_fetched_epoch != divergence.UNKNOWN:
        if epoch_end(log, last_fetched_epoch).end_offset < 0 or offset < log.log_start_offset:
            return FetchResult(error=ErrorCode.offset_out_of_range)
        diverging = diverging_end(log, offset, last_fetched_epoch)
        if diverging is not None:
            return _with(empty_answer(partition), diverging=diverging)
    if not partition.is_leader and not log.local_log_start_offset <= offset <= log.next_offset:
        return _ask_the_leader(partition, offset)
    if not log.log_start_offset <= offset <= log.next_offset:
        return FetchResult(error=ErrorCode.offset_out_of_range)
    if offset < log.local_log_start_offset:
        return _not_here(partition, offset, max_bytes)
    if offset >= readable_end(log, read_committed=read_committed):
        return empty_answer(partition)
    need = DiskReadNeed(offset, max_bytes, min_one, read_committed)
    return _read(partition, empty_answer(partition), need)


def readable_end(log: PartitionLog, *, read_committed: bool) -> int:
    """Exclusive end of what a consumer may read."""
    return log.last_stable_offset if read_committed else log.high_watermark


def _not_led(partition: Partition, error: ErrorCode) -> FetchResult:
    return FetchResult(
        error=error, leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
    )


def _ask_the_leader(partition: Partition, offset: int) -> FetchResult:
    """A follower may not have yet, or not have any more, what the leader has, and does not read
    the tier. (Kafka's answers OFFSET_OUT_OF_RANGE above its end, at which a client that took it for
    the leader begins anew.)"""
    if offset < partition.log_start_offset:
        return FetchResult(error=ErrorCode.offset_out_of_range)
    return _not_led(partition, ErrorCode.not_leader_or_follower)


def _not_here(partition: Partition, offset: int, max_bytes: int) -> FetchResult:
    """What lies below the local log start is in the tier, as far as the log goes down there."""
    if not partition.is_leader:
        return _ask_the_leader(partition, offset)
    if not partition.log.log_start_offset <= offset or not partition.tiering.reads_tier:
        return FetchResult(error=ErrorCode.offset_out_of_range)
    need = RemoteFetchNeed(offset=offset, max_bytes=max_bytes)
    return _with(empty_answer(partition), remote=need)


def _read(partition: Partition, answer: FetchResult, need: DiskReadNeed) -> FetchResult:
    context, log = partition.context, partition.log
    if not context.failures.may_try(partition.tp, context.monotonic()):
        return FetchResult(error=ErrorCode.kafka_storage_error)
    aborted = log.aborted_count(need.offset) if need.read_committed else 0
    if aborted > _ABORTED_MAX:
        return _with(answer, from_disk=need)
    try:
        data, found = _read_with(log, need, log.read_cached, with_aborted=aborted > 0)
    except NotCached:
        return _with(answer, from_disk=need)
    except OffsetOutOfRange:  # retention, in a thread, has just let go of it
        return _not_here(partition, need.offset, need.max_bytes)
    except StorageError as error:
        partition.storage_failed(error)
        return FetchResult(error=ErrorCode.kafka_storage_error)
    return _with(answer, data=data, aborted=found)


class _ReadLog(Protocol):
    def __call__(
        self, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool
    ) -> ReadResult: ...


def _read_with(
    log: PartitionLog, need: DiskReadNeed, read: _ReadLog, *, with_aborted: bool
) -> tuple[bytes, Sequence[AbortedTransaction]]:
    """The records, and the aborted transactions that they may be of."""
    found = read(
        need.offset,
        max_bytes=need.max_bytes,
        up_to_offset=readable_end(log, read_committed=need.read_committed),
        min_one=need.min_one,
    )
    if not found.data or not with_aborted:
        return found.data, ()
    return found.data, log.aborted_transactions(need.offset, found.next_offset)


async def read_from_disk(partition: Partition, fetched: FetchResult) -> FetchResult:
    """``fetched`` with the records that it lacked because they were not in memory. Who leads may be
    another by then: the caller asks once more."""
    need = fetched.from_disk
    if need is None:
        return fetched
    try:
        data, aborted = await in_read_thread(
            _read_with,
            partition.log,
            need,
            partition.log.read,
            with_aborted=need.read_committed,
        )
    except OffsetOutOfRange:  # retention has let go of it meanwhile
        return _not_here(partition, need.offset, need.max_bytes)
    except StorageError as error:
        partition.storage_failed(error)
        return FetchResult(error=ErrorCode.kafka_storage_error)
    return replace(fetched, from_disk=None, data=data, aborted=aborted)


def _with(
    answer: FetchResult,
    *,
    data: bytes = b"",
    diverging: EpochEnd | None = None,
    remote: RemoteFetchNeed | None = None,
    from_disk: DiskReadNeed | None = None,
    aborted: Sequence[AbortedTransaction] = (),
) -> FetchResult:
    return FetchResult(
        error=answer.error,
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
        last_stable_offset=answer.last_stable_offset,
        data=data,
        diverging=diverging,
        remote=remote,
        from_disk=from_disk,
        leader_id=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        aborted=aborted,
    )


async def list_offset(
    partition: Partition,
    timestamp: int,
    *,
    current_leader_epoch: int = -1,
    read_committed: bool = False,
) -> OffsetResult:
    """ListOffsets: a special value below zero, or the first record at or after a time in ms. With
    ``read_committed`` nothing is there from the last stable offset on."""
    error = partition.check_leader(current_leader_epoch)
    if error is not ErrorCode.none:
        return OffsetResult(error=error)
    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        found = await _by_time(partition, timestamp, read_committed=read_committed)
        error = partition.check_leader(current_leader_epoch)  # as it is by now
        return found if error is ErrorCode.none else OffsetResult(error=error)
    return _special(partition, timestamp, read_committed=read_committed)


def replica_offset(
    partition: Partition, timestamp: int, *, current_leader_epoch: int = -1
) -> OffsetResult:
    """A special value of this replica's own log, whoever leads: what Kafka tells the debugging
    replica id (``ReplicaManager.fetchOffset``). The latest offset is the end of the log, beyond the
    high watermark; beside the leader's it is how far a follower lags."""
    error = partition.check_replica(current_leader_epoch)
    if error is not ErrorCode.none:
        return OffsetResult(error=error)
    if timestamp == LATEST:
        return OffsetResult(
            error=ErrorCode.none,
            offset=partition.log.next_offset,
            leader_epoch=partition.leader_epoch,
        )
    return _special(partition, timestamp, read_committed=False)


def _not_beyond(partition: Partition) -> ErrorCode:
    """What to say of offsets from the high watermark on: nothing is there, or, while the high
    watermark lags behind the start of the leader's epoch, that it is not known yet what is
    (Kafka's Partition.fetchOffsetForTimestamp; KIP-207)."""
    leader, log = partition.leader, partition.log
    if leader is not None and log.high_watermark < min(leader.epoch_start_offset, log.next_offset):
        return ErrorCode.offset_not_available
    return ErrorCode.none


def _special(partition: Partition, timestamp: int, *, read_committed: bool) -> OffsetResult:
    log = partition.log
    if timestamp == LATEST:
        error = _not_beyond(partition)
        if error is not ErrorCode.none:
            return OffsetResult(error=error)
        latest = readable_end(log, read_committed=read_committed)
        return OffsetResult(error=error, offset=latest, leader_epoch=partition.leader_epoch)
    if timestamp == EARLIEST:
        return _at(log, log.log_start_offset)
    if timestamp == EARLIEST_LOCAL:
        return _at(log, log.local_log_start_offset)
    if timestamp == LATEST_TIERED:
        end = partition.remote_end
        if end is None or not partition.tiering.reads_tier:
            return OffsetResult(error=ErrorCode.none)
        return OffsetResult(error=ErrorCode.none, offset=end.offset, leader_epoch=end.epoch)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return _earliest_pending_upload(partition)
    return OffsetResult(error=ErrorCode.unsupported_version)


def _earliest_pending_upload(partition: Partition) -> OffsetResult:
    """The first offset that is not in the tier (KIP-1023); -1 where there is no tier, or nothing is
    known of it though the local log begins later than the log."""
    log, end = partition.log, partition.remote_end
    if not partition.tiering.reads_tier:
        return OffsetResult(error=ErrorCode.none)
    if end is not None:
        return _at(log, max(end.offset + 1, log.log_start_offset))
    if log.local_log_start_offset == log.log_start_offset:
        return _at(log, log.log_start_offset)
    return OffsetResult(error=ErrorCode.none)


def _at(log: PartitionLog, offset: int) -> OffsetResult:
    return OffsetResult(
        error=ErrorCode.none, offset=offset, leader_epoch=log.epochs.epoch_for_offset(offset)
    )


async def _by_time(partition: Partition, timestamp: int, *, read_committed: bool) -> OffsetResult:
    log = partition.log
    try:
        for _ in range(_LOOK_UPS_MAX):
            local_start = log.local_log_start_offset
            remote = await _remote_by_time(partition, timestamp)
            if timestamp == MAX_TIMESTAMP:
                found = await in_lookup_thread(_newest, log)
            elif remote is not None:
                return remote  # records that only the tier has come first
            else:
                found = await in_lookup_thread(log.offset_by_timestamp, timestamp)
            if log.local_log_start_offset == local_start:
                break  # otherwise records moved to the tier unseen by both look-ups
        else:
            return OffsetResult(error=ErrorCode.request_timed_out)
        if remote is not None and (found is None or found.timestamp_ms <= remote.timestamp_ms):
            return remote  # of equal timestamps the first one, as within a log
    except StorageError as error:
        partition.storage_failed(error)
        return OffsetResult(error=ErrorCode.kafka_storage_error)
    except (RemoteUnavailable, ThreadsBusy):
        return OffsetResult(error=ErrorCode.request_timed_out)
    if found is None:
        return OffsetResult(error=ErrorCode.none)
    if found.offset >= readable_end(log, read_committed=read_committed):
        return OffsetResult(error=_not_beyond(partition))
    return OffsetResult(
        error=ErrorCode.none,
        offset=max(found.offset, log.log_start_offset),
        timestamp_ms=found.timestamp_ms,
        leader_epoch=found.leader_epoch,
    )


def _newest(log: PartitionLog) -> TimestampOffset | None:
    """Return the first local record with the largest timestamp (blocking)."""
    largest_ms = max(segment.largest_timestamp_ms for segment in log.segments())
    return newest(log.offset_by_timestamp, largest_ms)


async def _remote_by_time(partition: Partition, timestamp: int) -> OffsetResult | None:
    """Query the tier, if it alone has a part of the log. For the largest timestamp Kafka queries
    the local log only, so its answer may be another record or none."""
    log = partition.log
    remote = partition.context.remote
    if (
        remote is None
        or not partition.tiering.reads_tier
        or log.log_start_offset >= log.local_log_start_offset
    ):
        return None
    if timestamp == MAX_TIMESTAMP:
        found = await remote.newest_offset(partition)
    else:
        found = await remote.offset_by_timestamp(partition, timestamp)
    if found is None or found.offset >= log.local_log_start_offset:
        return None
    return OffsetResult(
        error=ErrorCode.none,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=found.leader_epoch,
    )
