"""Appends: a client's batches are checked and stamped, a leader's batches are taken unchanged.

All functions run on the loop thread. A roll does little there: it creates one empty file and leaves
the rest to the next flush.
"""

from collections.abc import Iterable, Sequence

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    parse_header,
    read_header,
    restamp,
    set_log_append_time,
    set_max_timestamp,
)
from tidemark.records.control import EndMarker, build_end_marker
from tidemark.records.rewriting import Gap
from tidemark_broker.log.batch_walk import BatchAt
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import CorruptRecords, InvalidRecords
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_entry import (
    NO_SEQUENCE,
    AppendOrigin,
    BatchMetadata,
    ProducerBatch,
    producer_batch,
)
from tidemark_broker.log.producer_states import VerificationGuard
from tidemark_broker.log.segment import Segment, wall_clock_ms
from tidemark_broker.log.truncation import replace_segments
from tidemark_broker.log.types import AppendInfo
from tidemark_broker.log.validation import (
    BatchContents,
    check_follower_batches,
    check_leader_batch,
    check_plain_batch,
    one_batch,
    runs_for_segments,
)

#: Batches up to this size are copied as a whole.
_COPIED_BYTES = 4096


def append_as_leader(
    log: PartitionLog,
    data: Buffer,
    *,
    leader_epoch: int,
    now_ms: int,
    contents: BatchContents | None = None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    guard: VerificationGuard | None = None,
    reads: bool = False,
    commits: bool = False,
) -> AppendInfo:
    """Check one batch of a client and append it, with offsets and the leader epoch set.

    A retry of a stored batch is not appended again; the result describes the first append.
    ``contents``: the batch's records, if they were read (:func:`batch_contents`).
    With ``reads`` the records of every batch with a valid header are checked. Those of a small one
    are read here; for others :class:`RecordsInDoubt` is raised, unless there are ``contents``.
    ``commits``: the batch is committed by this append, because no other replica is waited for.

    ``guard``: proof that the transaction coordinator has confirmed, since
    :func:`begin_verification`, that the partition is part of the producer's transaction (KIP-890).
    Without it only a transaction that is already open here continues.
    """
    config = log.config
    header = check_plain_batch(data, config, now_ms) if reads and contents is None else None
    if header is None:
        data = one_batch(data)
        header, contents = check_leader_batch(data, config, now_ms, contents, origin, reads=reads)
        # Reading the records revealed their true largest timestamp; the header's may differ.
        if contents is not None and not contents.unread:
            data, header = _corrected(data, header, contents.largest_ms)
    with log.lock:
        log.check_usable()
        # A stale leader must not append below a newer epoch: followers would reject the batch.
        if leader_epoch < log.epochs.latest_epoch:
            raise ValueError(f"leader epoch {leader_epoch} < {log.epochs.latest_epoch}")
        base_offset = log.bounds.end
        # Write base offset, leader epoch and maybe the append time into the batch header.
        buffers, stamp = _stamped(data, header, base_offset, leader_epoch, now_ms, config)
        batch = BatchAt(
            0,
            header.size_bytes,
            base_offset,
            base_offset + header.last_offset_delta,
            leader_epoch,
            header.max_timestamp if stamp == NO_TIMESTAMP else stamp,
        )
        produced: Sequence[ProducerBatch] = ()
        # A producer that continues its last sequence needs no full check (the common case).
        known_entry = None
        if header.producer_id > NO_PRODUCER_ID:
            known_entry = log.producers.entry_in_sequence(header)
            if known_entry is None:
                produced = (_produced(header, batch),)
                duplicate = log.producers.check(produced[0], origin, guard)
                if duplicate is not None:
                    # A retry of a stored batch: answer as for the first append.
                    return _appended_before(duplicate)
        # Update the producer's state after the append: a failed write must leave it unchanged.
        rolled = _append(log, buffers, (batch,), now_ms, produced, commits=commits)
        if known_entry is not None:
            log.producers.note_in_sequence(known_entry, header, batch)
    return AppendInfo(
        base_offset=base_offset,
        last_offset=batch.last_offset,
        max_timestamp_ms=batch.max_timestamp,
        log_append_time_ms=stamp,
        size_bytes=batch.size_bytes,
        rolled=rolled,
    )


def append_marker(
    log: PartitionLog,
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    transaction_version: int,
    leader_epoch: int,
    now_ms: int,
) -> AppendInfo:
    """Append the marker that commits or aborts a producer's transaction, as leader (KIP-98).

    ``transaction_version``: version of the transaction protocol (KIP-890), which decides which
    producer epochs are valid. Raises :class:`InvalidProducerEpoch` or
    :class:`TransactionCoordinatorFenced` for a marker that was superseded.
    """
    if producer_id <= NO_PRODUCER_ID:
        raise InvalidRecords(f"producer id {producer_id} of a transaction marker is not valid")
    # A control batch with one record, as Kafka's EndTransactionMarker.
    data = bytearray(
        build_end_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
    )
    with log.lock:
        log.check_usable()
        # A stale leader must not append below a newer epoch.
        if leader_epoch < log.epochs.latest_epoch:
            raise ValueError(f"leader epoch {leader_epoch} < {log.epochs.latest_epoch}")
        offset = log.bounds.end
        # The offset is known only under the lock, so the marker is stamped here.
        restamp(data, 0, offset, leader_epoch)
        produced = ProducerBatch(
            producer_id,
            producer_epoch,
            NO_SEQUENCE,
            offset,
            offset,
            now_ms,
            is_transactional=True,
            marker=marker,
        )
        # Superseded markers are rejected before anything is written (KIP-890).
        log.producers.check_marker(produced, transaction_version)
        batch = BatchAt(0, len(data), offset, offset, leader_epoch, now_ms)
        rolled = _append(log, [data], [batch], now_ms, [produced])
    return AppendInfo(
        base_offset=offset,
        last_offset=offset,
        max_timestamp_ms=now_ms,
        log_append_time_ms=NO_TIMESTAMP,
        size_bytes=len(data),
        rolled=rolled,
    )


def begin_verification(
    log: PartitionLog, data: Buffer, now_ms: int, *, supports_epoch_bump: bool
) -> VerificationGuard | None:
    """Issue a guard for a client's transactional batch that the coordinator must confirm (KIP-890).

    None if no confirmation is needed. :func:`append_as_leader` takes the result as ``guard``.
    """
    try:
        header = read_header(data)
    except CorruptBatch:
        return None  # the append rejects the batch with the reason
    # Only transactional data batches need the coordinator's confirmation.
    batch = producer_batch(header, b"") if not header.is_control else None
    if batch is None or not batch.is_transactional:
        return None
    with log.lock:
        return log.producers.begin_verification(
            batch, now_ms, supports_epoch_bump=supports_epoch_bump
        )


def begin_verification_of(
    log: PartitionLog, producer_id: int, producer_epoch: int, now_ms: int
) -> VerificationGuard | None:
    """Issue a guard for group offsets that a coordinator writes in a producer's transaction."""
    batch = ProducerBatch(
        producer_id, producer_epoch, NO_SEQUENCE, -1, -1, now_ms, is_transactional=True
    )
    with log.lock:
        return log.producers.begin_verification(batch, now_ms, supports_epoch_bump=False)


def append_as_follower(log: PartitionLog, data: Buffer, *, now_ms: int | None = None) -> AppendInfo:
    """Append batches that were fetched from the leader, with its offsets and leader epochs.

    ``now_ms`` None: the present time. Raises CorruptRecords if the batches are damaged or do not
    continue the log.
    """
    batches, produced = check_follower_batches(data, log.epochs.latest_epoch)
    if not batches:
        raise CorruptRecords("nothing to append")
    now_ms = wall_clock_ms() if now_ms is None else now_ms
    with log.lock:
        log.check_usable()
        # A compacted batch may start below the log end; see _continuing.
        data, batches = _continuing(log, data, batches)
        _check_continues(log, batches[0])
        # One fetch may span segments: split it, so that followers keep the size limit too.
        segment_bytes, rolled = log.config.effective_segment_bytes, False
        room = segment_bytes - log.segments.active.size_bytes
        end_position = batches[-1].end_position
        # Nearly always everything fits into the active segment, as it was received.
        if end_position <= room and end_position == len(data):
            rolled = _append(log, [data], batches, now_ms, produced)
            return _as_appended(batches, rolled=rolled)
        view = memoryview(data)
        for first, last in runs_for_segments(batches, room, segment_bytes):
            run = batches[first:last]
            start = run[0].position
            buffers: list[Buffer] = [view[start : run[-1].end_position]]
            # Positions are relative to the bytes of the run, which is written as one piece.
            run = [batch._replace(position=batch.position - start) for batch in run]
            end = run[-1].last_offset
            known = [item for item in produced if run[0].base_offset <= item.last_offset <= end]
            rolled |= _append(log, buffers, run, now_ms, known)
    return _as_appended(batches, rolled=rolled)


def _as_appended(batches: Sequence[BatchAt], *, rolled: bool) -> AppendInfo:
    """Return the result of a follower's append."""
    return AppendInfo(
        base_offset=batches[0].base_offset,
        last_offset=batches[-1].last_offset,
        max_timestamp_ms=max(batch.max_timestamp for batch in batches),
        log_append_time_ms=NO_TIMESTAMP,
        size_bytes=batches[-1].end_position,
        rolled=rolled,
    )


def roll(log: PartitionLog, now_ms: int) -> bool:
    """Start a new segment at the log end; return False if the active one is empty."""
    with log.lock:
        log.check_usable()
        if not log.segments.active.size_bytes:
            return False
        log.start_segment(log.bounds.end, now_ms)
        return True


def _produced(header: BatchHeader, batch: BatchAt) -> ProducerBatch:
    return ProducerBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp,
        header.is_transactional,
    )


def _appended_before(duplicate: BatchMetadata) -> AppendInfo:
    return AppendInfo(
        base_offset=duplicate.base_offset,
        last_offset=duplicate.last_offset,
        max_timestamp_ms=duplicate.timestamp_ms,
        log_append_time_ms=duplicate.timestamp_ms,
        size_bytes=0,
        rolled=False,
    )


def _stamped(
    data: Buffer,
    header: BatchHeader,
    base_offset: int,
    leader_epoch: int,
    now_ms: int,
    config: LogConfig,
) -> tuple[list[Buffer], int]:
    """Return the batch with offset, leader epoch and maybe append time set, as buffers to write.

    The second value is the time of the append with LogAppendTime, otherwise -1. ``data`` stays
    unchanged.
    """
    # LogAppendTime changes a field under the CRC, so the batch is copied as a whole.
    if config.message_timestamp_type is LOG_APPEND_TIME:
        copy = bytearray(data)
        set_log_append_time(copy, 0, header, now_ms)
        restamp(copy, 0, base_offset, leader_epoch)
        return [copy], now_ms
    # Offset and epoch are outside the CRC. A small batch is copied, and written as one buffer.
    if len(data) <= _COPIED_BYTES:
        copy = bytearray(data)
        restamp(copy, 0, base_offset, leader_epoch)
        return [copy], NO_TIMESTAMP
    # Of others only the header is copied, the records are not.
    head = bytearray(data[:HEADER_BYTES])
    restamp(head, 0, base_offset, leader_epoch)
    return [head, memoryview(data)[HEADER_BYTES:]], NO_TIMESTAMP


def _continuing(
    log: PartitionLog, data: Buffer, batches: list[BatchAt]
) -> tuple[Buffer, list[BatchAt]]:
    """Replace the empty front of a compacted batch, so that it continues the log.

    Return the changed data and batches. The leader's compaction may have removed records from the
    first batch, which then may start below this log's end. This log has had those offsets in a
    batch that ended at the log end, so all remaining records are below it. Only the empty offset
    range up to the batch's end is missing, and an empty batch takes its place.
    """
    first, end = batches[0], log.bounds.end
    # The first batch does not span the log end: nothing to replace.
    if not (log.segments.size_bytes and first.base_offset < end <= first.last_offset):
        return data, batches
    header = parse_header(data)
    if header.producer_id > NO_PRODUCER_ID or header.count > header.last_offset_delta:
        return data, batches  # not the result of a compaction: the caller rejects it
    # An empty batch from the log end on, then the other batches at their new positions.
    gap = Gap(end, first.last_offset, first.leader_epoch).batch()
    shift = len(gap) - first.end_position
    rest = [batch._replace(position=batch.position + shift) for batch in batches[1:]]
    front = BatchAt(0, len(gap), end, first.last_offset, first.leader_epoch, NO_TIMESTAMP)
    return gap + bytes(memoryview(data)[first.end_position :]), [front, *rest]


def _check_continues(log: PartitionLog, first: BatchAt) -> None:
    """Check that ``first`` starts at the log end.

    An empty log whose start is within the leader's first batch starts at that batch instead.
    """
    end, base_offset = log.bounds.end, first.base_offset
    if base_offset == end:
        return
    if log.segments.size_bytes or not base_offset < end <= first.last_offset:
        raise CorruptRecords(f"offset {base_offset} does not continue the log, which ends at {end}")
    # The empty segment is named after its base offset, so it is replaced.
    remove_files(replace_segments(log, base_offset))
    log.bounds = log.bounds.begun_at(base_offset)


def _append(
    log: PartitionLog,
    buffers: Sequence[Buffer],
    batches: Sequence[BatchAt],
    now_ms: int,
    produced: Iterable[ProducerBatch],
    *,
    commits: bool = False,
) -> bool:
    """Write one run of batches into the active segment, after a roll if one is due.

    ``buffers``: the bytes of ``batches``, whose positions are relative to them. ``produced``: the
    idempotent producers' batches among them. Return whether the log was rolled.
    """
    last = batches[-1]
    rolled = _roll_if_due(log, batches[0], last, now_ms)
    active = log.segments.active
    assert batches[0].base_offset == active.next_offset, (batches[0], active.next_offset)
    if not active.size_bytes:
        active.first_append_ms = now_ms
    active.append(buffers, batches, log.config.index_interval_bytes)
    active.modified_ms = now_ms
    # Producers change only after the bytes are in the file.
    for item in produced:
        aborted = log.producers.note(item)
        if aborted is not None:
            active.aborted.append(aborted)
            log.has_aborted = True
    # From here readers see the batches.
    log.bounds = log.bounds.appended(active.next_offset, commits=commits)
    if commits:
        log.producers.on_high_watermark(active.next_offset)
    if last.leader_epoch != log.epochs.latest_epoch:
        # New epochs are added in memory. The next flush writes them to their file; until then a
        # recovery reads them from the batches.
        for batch in batches:
            if batch.leader_epoch > log.epochs.latest_epoch and batch.leader_epoch != UNKNOWN_EPOCH:
                log.epochs = log.epochs.assign(batch.leader_epoch, batch.base_offset)
    return rolled


def _roll_if_due(log: PartitionLog, first: BatchAt, last: BatchAt, now_ms: int) -> bool:
    """Roll the active segment if the batches do not fit, or if it is too old; return whether.

    ``first`` and ``last``: first and last batch of the run to append.
    """
    active, config = log.segments.active, log.config
    if not active.size_bytes:
        return False
    if (
        active.size_bytes > config.effective_segment_bytes - last.end_position
        or _age_of(active, last.max_timestamp, now_ms) > config.effective_segment_ms
        or not active.has_room_for(last.last_offset, config.segment_index_bytes)
    ):
        log.start_segment(first.base_offset, now_ms)
        return True
    return False


def _age_of(active: Segment, timestamp_ms: int, now_ms: int) -> int:
    """Return the segment's age by its records' timestamps, so that all replicas roll at the same
    offset. Without timestamps the wall clock decides.
    """
    if active.first_timestamp_ms >= 0 and timestamp_ms >= 0:
        return timestamp_ms - active.first_timestamp_ms
    return now_ms - active.created_ms


def _corrected(data: Buffer, header: BatchHeader, largest_ms: int) -> tuple[Buffer, BatchHeader]:
    """Return the batch with the largest timestamp of its records in the header."""
    if header.max_timestamp == largest_ms:
        return data, header
    copy = bytearray(data)
    set_max_timestamp(copy, 0, header, largest_ms)
    return copy, header._replace(max_timestamp=largest_ms)
