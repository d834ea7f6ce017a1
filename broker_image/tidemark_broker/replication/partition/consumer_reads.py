"""Consumer reads: fetches and offset look-ups on the leader, and fetches on a follower (KIP-392).

A replica also answers offset queries about its own log. Consumers see committed data only. Offsets
between the log start and the local log start of a tiered partition are in the tier; the result says
so and the caller reads there. A follower permits it only while it receives the leader's log start,
below which no record may be read any more.
"""

from collections.abc import Callable, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark_broker.log import (
    NotCached,
    OffsetOutOfRange,
    PartitionLog,
    ReadResult,
    StorageError,
    TimestampOffset,
    reading,
)
from tidemark_broker.log.reading import offset_of_max_timestamp
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
#: Aborted transactions that are searched on the loop; a longer search is done in a thread.
_ABORTED_MAX = 1_000
#: Attempts of a look-up by time that restarts because segments were moved to the tier meanwhile.
_LOOK_UPS_MAX = 5


def epoch_end(log: PartitionLog, epoch: int) -> EpochEnd:
    """Return the end of an epoch in this log."""
    return log.epochs.end_offset_for(epoch, log.next_offset)


def diverging_end(log: PartitionLog, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
    """Return where the log of a client that fetches at ``offset`` diverges from this one (KIP-595).

    None if it does not, or if the client's epoch is unknown.
    """
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
    """Return error, epoch and end offset of the largest epoch not above ``epoch``."""
    error = partition.check_leader(current_leader_epoch)
    if error is not ErrorCode.none:
        return error, -1, -1
    end = epoch_end(partition.log, epoch)
    return ErrorCode.none, end.epoch, end.end_offset


def empty_answer(partition: Partition) -> FetchResult:
    """Return a result without records that still has the offsets for the client."""
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
    remote_on_follower: bool = False,
    read_committed: bool = False,
    for_socket: bool = False,
) -> FetchResult:
    """Fetch one partition for a consumer from the page cache, without waiting for a disk.

    The result says where else to read: ``remote`` is set if only the tier has the requested offset,
    ``from_disk`` if :func:`read_from_disk` must read it in a thread. A result with an error has no
    offsets (Kafka's ``ReplicaManager.createLogReadResult``).

    With ``min_one`` the first batch is returned whatever its size. ``leader_only``: False permits
    followers to serve the fetch (KIP-392), and ``remote_on_follower`` to read the tier for it. With
    ``read_committed`` the records end at the last stable offset (KIP-98). Epochs of -1 are unknown
    and not checked. ``for_socket``: only the kernel reads the records (:meth:`Segment.mapped`).
    """
    check = partition.check_leader if leader_only else partition.check_replica
    error = check(current_leader_epoch)
    if error is not ErrorCode.none:
        return _not_led(partition, error)
    log = partition.log
    # A client that names its last epoch is notified of a divergence before it gets data (KIP-595).
    if last_fetched_epoch != divergence.UNKNOWN:
        if epoch_end(log, last_fetched_epoch).end_offset < 0 or offset < log.log_start_offset:
            return FetchResult(error=ErrorCode.offset_out_of_range)
        diverging = diverging_end(log, offset, last_fetched_epoch)
        if diverging is not None:
            return empty_answer(partition)._replace(diverging=diverging)
    if not log.log_start_offset <= offset <= log.next_offset:
        return out_of_range(partition)
    # Local retention has deleted the local copy, but the tier may have the records (KIP-405).
    if offset < log.local_log_start_offset:
        # An outdated follower could serve records whose deletion was acknowledged.
        if not partition.is_leader and not (remote_on_follower and partition.has_leader_contact):
            return to_leader(partition)
        return _not_here(partition, offset, max_bytes)
    # The consumer is at the end of the committed data: the caller waits for more.
    if offset >= readable_end(log, read_committed=read_committed):
        return empty_answer(partition)
    # A partition whose disk fails is retried after a pause, not with every fetch.
    context = partition.context
    if not context.failures.may_try(partition.tp, context.monotonic()):
        return FetchResult(error=ErrorCode.kafka_storage_error)
    answer = empty_answer(partition)
    need = DiskReadNeed(offset, max_bytes, min_one, read_committed)
    try:
        read = partial(reading.read_cached, for_socket=for_socket)
        data, aborted = _read(log, need, read, aborted_max=_ABORTED_MAX)
        return answer._replace(data=data, aborted=aborted)
    except NotCached:
        return answer._replace(from_disk=need)
    except OffsetOutOfRange:  # retention, in a thread, has just deleted the segment
        return _deleted_meanwhile(partition, offset, max_bytes)
    except StorageError as failure:
        partition.storage_failed(failure)
        return FetchResult(error=ErrorCode.kafka_storage_error)


def readable_end(log: PartitionLog, *, read_committed: bool) -> int:
    """Return the exclusive end of the records that a consumer may read."""
    return log.last_stable_offset if read_committed else log.high_watermark


def _not_led(partition: Partition, error: ErrorCode) -> FetchResult:
    return FetchResult(
        error=error, leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
    )


def redirection(partition: Partition, node: int) -> FetchResult:
    """Return a result that names ``node`` as the preferred read replica (KIP-392).

    It has the offsets of the partition, which the consumer needs for its lag.
    """
    return empty_answer(partition)._replace(preferred_read_replica=node)


def to_leader(partition: Partition) -> FetchResult:
    """Redirect a consumer from this follower to the leader, which decides about the offset.

    The leader is the preferred read replica then (KIP-392), which every client understands that was
    redirected here. Errors are not understood by all: at NOT_LEADER_OR_FOLLOWER franz-go and
    kafkajs stay on the follower while the leader does not change, and at OFFSET_OUT_OF_RANGE
    kafkajs resets its position.
    """
    if partition.leader_id < 0:
        return _not_led(partition, ErrorCode.not_leader_or_follower)
    return redirection(partition, partition.leader_id)


def out_of_range(partition: Partition) -> FetchResult:
    """Return the result for an offset that the log does not have."""
    # A follower cannot know whether an offset outside its log is invalid, so the leader decides.
    if not partition.is_leader:
        return to_leader(partition)
    return FetchResult(error=ErrorCode.offset_out_of_range)


def _not_here(partition: Partition, offset: int, max_bytes: int) -> FetchResult:
    """Return the result for an offset below the local log start: a tier read, if the log still
    contains it.
    """
    if not partition.log.log_start_offset <= offset or not partition.tiering.reads_tier:
        return out_of_range(partition)
    need = RemoteFetchNeed(offset=offset, max_bytes=max_bytes)
    return empty_answer(partition)._replace(remote=need)


def _deleted_meanwhile(partition: Partition, offset: int, max_bytes: int) -> FetchResult:
    # The client's next request to the follower decides whether it reads the tier.
    if not partition.is_leader:
        return empty_answer(partition)
    return _not_here(partition, offset, max_bytes)


def _read(
    log: PartitionLog,
    need: DiskReadNeed,
    read: Callable[..., ReadResult],
    *,
    aborted_max: int | None = None,
) -> tuple[bytes | memoryview, Sequence[AbortedTxn]]:
    """Return records, and the aborted transactions that they may be part of.

    ``read``: :func:`reading.read`, which blocks, or :func:`reading.read_cached`. Raises
    :class:`NotCached` if more than ``aborted_max`` transactions must be searched.
    """

    # Called again if its records' segment is removed meanwhile: the stable end may have moved.
    def found() -> ReadResult:
        return read(
            log,
            need.offset,
            max_bytes=need.max_bytes,
            up_to_offset=readable_end(log, read_committed=need.read_committed),
            min_one=need.min_one,
        )

    if not need.read_committed:
        return found().data, ()
    # A long search for aborted transactions would block the loop.
    if aborted_max is not None and reading.aborted_count(log, need.offset) > aborted_max:
        raise NotCached
    records, aborted = reading.with_aborted(log, need.offset, found)
    return records.data, aborted


async def read_from_disk(partition: Partition, fetched: FetchResult) -> FetchResult:
    """Return a result of :func:`fetch` with the records that were not in the page cache.

    They are read in a thread. The leader may have changed by then: the caller checks again.
    """
    need = fetched.from_disk
    if need is None:
        return fetched
    try:
        data, aborted = await in_read_thread(_read, partition.log, need, reading.read)
    except OffsetOutOfRange:  # retention has deleted the segment meanwhile
        return _deleted_meanwhile(partition, need.offset, need.max_bytes)
    except StorageError as error:
        partition.storage_failed(error)
        return FetchResult(error=ErrorCode.kafka_storage_error)
    return fetched._replace(from_disk=None, data=data, aborted=aborted)


async def list_offset(
    partition: Partition,
    timestamp: int,
    *,
    current_leader_epoch: int = -1,
    read_committed: bool = False,
) -> OffsetResult:
    """Answer ListOffsets for a consumer on the leader.

    ``timestamp``: milliseconds, for the first record at or after that time, or one of the special
    values below zero, for example EARLIEST. With ``read_committed`` records from the last stable
    offset on do not count.
    """
    error = partition.check_leader(current_leader_epoch)
    if error is not ErrorCode.none:
        return OffsetResult(error=error)
    if timestamp >= 0 or timestamp == MAX_TIMESTAMP:
        found = await _by_time(partition, timestamp, read_committed=read_committed)
        error = partition.check_leader(current_leader_epoch)  # the role may have changed
        return found if error is ErrorCode.none else OffsetResult(error=error)
    return _special(partition, timestamp, read_committed=read_committed)


def replica_offset(
    partition: Partition, timestamp: int, *, current_leader_epoch: int = -1
) -> OffsetResult:
    """Return a special offset of this replica's own log, leader or not.

    It is Kafka's ``ReplicaManager.fetchOffset`` for the debugging replica id. The latest offset is
    the log end, beyond the high watermark. Compared to the leader's it shows a follower's lag.
    """
    error = partition.check_replica(current_leader_epoch)
    if error is not ErrorCode.none:
        return OffsetResult(error=error)
    # The log end may exceed the high watermark, so clients do not get this answer.
    if timestamp == LATEST:
        return OffsetResult(
            error=ErrorCode.none,
            offset=partition.log.next_offset,
            leader_epoch=partition.leader_epoch,
        )
    return _special(partition, timestamp, read_committed=False)


def _not_beyond(partition: Partition) -> ErrorCode:
    """Return the error for offsets from the high watermark: none, or OFFSET_NOT_AVAILABLE while the
    high watermark is below the start of the leader's epoch (KIP-207; Kafka's
    ``Partition.fetchOffsetForTimestamp``).
    """
    leader, log = partition.leader, partition.log
    if leader is not None and log.high_watermark < min(leader.epoch_start_offset, log.next_offset):
        return ErrorCode.offset_not_available
    return ErrorCode.none


def _special(partition: Partition, timestamp: int, *, read_committed: bool) -> OffsetResult:
    """Return the offset for a special timestamp such as LATEST or EARLIEST, without a look-up.

    The offset is -1 if the partition has none, UNSUPPORTED_VERSION the error for unknown values.
    """
    log = partition.log
    # Consumers see the committed end, which a new leader may not know yet (KIP-207).
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
    # Kafka answers -1 if nothing was copied (KIP-405).
    if timestamp == LATEST_TIERED:
        end = partition.remote_end
        if end is None or not partition.tiering.reads_tier:
            return OffsetResult(error=ErrorCode.none)
        return OffsetResult(error=ErrorCode.none, offset=end.offset, leader_epoch=end.epoch)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return _earliest_pending_upload(partition)
    return OffsetResult(error=ErrorCode.unsupported_version)


def _earliest_pending_upload(partition: Partition) -> OffsetResult:
    """Return the first offset that is not copied to the tier yet (KIP-1023).

    It is -1 for a topic without a tier. It is also -1 while the tier's end is unknown and only the
    tier has the beginning of the log.
    """
    log, end = partition.log, partition.remote_end
    # Without a tier nothing is pending.
    if not partition.tiering.reads_tier:
        return OffsetResult(error=ErrorCode.none)
    if end is not None:
        return _at(log, max(end.offset + 1, log.log_start_offset))
    # Nothing was deleted locally, so nothing can be in the tier alone.
    if log.local_log_start_offset == log.log_start_offset:
        return _at(log, log.log_start_offset)
    return OffsetResult(error=ErrorCode.none)


def _at(log: PartitionLog, offset: int) -> OffsetResult:
    return OffsetResult(
        error=ErrorCode.none, offset=offset, leader_epoch=log.epochs.epoch_for_offset(offset)
    )


async def _by_time(partition: Partition, timestamp: int, *, read_committed: bool) -> OffsetResult:
    """Return the first committed record at or after a time, or the one with the largest timestamp.

    The tier is queried first, because its records are older, then the local log. Segments may move
    to the tier between both queries; then both are repeated, at most _LOOK_UPS_MAX times.
    """
    log = partition.log
    try:
        for _ in range(_LOOK_UPS_MAX):
            local_start = log.local_log_start_offset
            remote = await _remote_by_time(partition, timestamp)
            if timestamp == MAX_TIMESTAMP:
                found = await in_lookup_thread(_newest, log)
            elif remote is not None:
                return remote  # records that only the tier has are older
            else:
                found = await in_lookup_thread(reading.offset_by_timestamp, log, timestamp)
            # Otherwise local retention has deleted segments between both look-ups, whose records
            # neither of them has seen.
            if log.local_log_start_offset == local_start:
                break
        else:
            return OffsetResult(error=ErrorCode.request_timed_out)
        if remote is not None and (found is None or found.timestamp_ms <= remote.timestamp_ms):
            return remote  # of equal timestamps the first record, as within a log
    except StorageError as error:
        partition.storage_failed(error)
        return OffsetResult(error=ErrorCode.kafka_storage_error)
    except (RemoteUnavailable, ThreadsBusy):
        return OffsetResult(error=ErrorCode.request_timed_out)
    if found is None:
        return OffsetResult(error=ErrorCode.none)
    # The record exists but is not committed, so the client must not see its offset.
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
    largest_ms = max(segment.largest_timestamp_ms for segment in log.segment_infos())
    return offset_of_max_timestamp(partial(reading.offset_by_timestamp, log), largest_ms)


async def _remote_by_time(partition: Partition, timestamp: int) -> OffsetResult | None:
    """Look up a time in the tier, if a part of the log exists only there.

    Return None if the tier need not be queried or has no matching record below the local log. With
    MAX_TIMESTAMP Kafka queries only the local log, so its answer may be another record or none.
    """
    log = partition.log
    remote = partition.context.remote
    if (
        remote is None
        or not partition.tiering.reads_tier
        or log.log_start_offset >= log.local_log_start_offset
    ):
        return None
    # Offset and timestamp are those of a record, so the result can be compared to the local one.
    if timestamp == MAX_TIMESTAMP:
        found = await remote.newest_offset(partition)
    else:
        found = await remote.offset_by_timestamp(partition, timestamp)
    # The tier overlaps the local log, which has the more recent answer.
    if found is None or found.offset >= log.local_log_start_offset:
        return None
    return OffsetResult(
        error=ErrorCode.none,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        leader_epoch=found.leader_epoch,
    )
