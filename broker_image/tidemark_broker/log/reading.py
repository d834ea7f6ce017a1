"""Log reads and look-ups by time: on the loop for data in memory, in a thread for data on disk.

A thread pins the segment it reads (a copy of its figures, a descriptor of its own) under the log's
lock, then reads without the lock. So appends never wait for a read, and no file is closed during
one. If the segment is cut, removed or replaced meanwhile, the thread retries.

A look-up by time (ListOffsets) uses the time index and the offset index of a segment, then decodes
one batch. A client wrote that batch and the header by which it was selected. If the records do not
match the header, the look-up continues after it. There is a limit on what one look-up unpacks and
skips. Beyond it, and for unreadable records, the headers are trusted, and the result may be a
little too early but never too late. So no client's data prevents the look-ups of others.

The record with the largest timestamp (ListOffsets -3) is found by look-ups by time. A segment knows
the largest timestamp in its file. That record may be deleted: the log start may be within the
segment, or another segment may serve the part that contains it. Then the largest remaining
timestamp is found by bisection, with one look-up per step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Protocol, TypeVar

from tidemark.logfiles.offset_index import IndexFormatError
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import HEADER_BYTES, CorruptBatch, TimestampType, parse_header
from tidemark.records.decode import UnpackLimits, decode_timestamps
from tidemark_broker.log.batch_walk import BatchAt, walk_batches
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.files import NotCached
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.segment import Segment
from tidemark_broker.log.transaction_index import TransactionIndex, aborted_between
from tidemark_broker.log.types import ReadResult, TimestampOffset
from tidemark_broker.log.validation import check_read_range, unpack_limits

#: Bound of the consecutive empty segments that one read skips.
_EMPTY_BATCHES_MAX = 100


def read_cached(
    log: PartitionLog,
    offset: int,
    *,
    max_bytes: int,
    up_to_offset: int,
    min_one: bool,
    for_socket: bool = False,
) -> ReadResult:
    """Read whole batches on the loop thread; the parameters are those of :func:`read`.

    ``for_socket``: only the kernel reads the data (:meth:`Segment.mapped`).

    Raises :class:`NotCached` where :func:`read` would likely wait for the disk.
    """
    with log.lock:
        if _is_at_end(log, offset, up_to_offset):
            return ReadResult(b"", offset)
        result = log.segments.read_cached(
            offset, max_bytes, up_to_offset, min_one=min_one, for_socket=for_socket
        )
        # One empty batch: read() skips it, which may need the disk.
        if len(result.data) == HEADER_BYTES and result.next_offset < min(
            up_to_offset, log.bounds.end
        ):
            raise NotCached
        return result


def read(
    log: PartitionLog, offset: int, *, max_bytes: int, up_to_offset: int, min_one: bool
) -> ReadResult:
    """Read whole batches of one segment, from the one that contains ``offset``. Blocks.

    Only batches that end below ``up_to_offset`` (exclusive) are returned, at most ``max_bytes`` of
    them. With ``min_one`` the first one is returned even if it is larger.

    A single empty batch is the end of a compacted segment. The read then includes what follows,
    because some clients take an answer without a record for the log end and stop there.
    """
    result = _read_segment(log, offset, max_bytes, up_to_offset, min_one)
    pieces = [result.data]
    while len(result.data) == HEADER_BYTES and len(pieces) < _EMPTY_BATCHES_MAX:
        result = _read_segment(log, result.next_offset, max_bytes, up_to_offset, min_one)
        pieces.append(result.data)
    return ReadResult(b"".join(pieces), result.next_offset)


def _read_segment(
    log: PartitionLog, offset: int, max_bytes: int, up_to: int, min_one: bool
) -> ReadResult:
    """Read whole batches of the segment that contains ``offset``. Blocks.

    It retries if the segment is cut, removed or replaced meanwhile.
    """
    while True:
        with log.lock:
            if _is_at_end(log, offset, up_to):
                return ReadResult(b"", offset)
            segment = log.segments.items[log.segments.number_of(offset)]
            # The hint is the position of a recent read's end; it is valid only for these
            # truncations.
            start, truncations = log.segments.read_hint(offset), log.truncations
            pinned = segment.pinned()
        with _released(pinned):
            try:
                result, end = _read(pinned, offset, start, max_bytes, up_to, min_one)
            except LogError:
                # The bytes changed under the read: the error says nothing about the log, so retry.
                if _has_changed(log, segment, truncations):
                    continue
                raise
            with log.lock:
                if _was_replaced(log, segment):
                    continue  # the pinned files may have been swapped halfway through
                if not _has_changed(log, segment, truncations):
                    # Adopt position and descriptor only if they still describe the segment.
                    log.segments.remember_read_end(segment, result.next_offset, end)
                    log.segments.keep_open(segment, pinned)
        log.segments.trim()
        return result


def with_aborted(
    log: PartitionLog, offset: int, read: Callable[[], ReadResult]
) -> tuple[ReadResult, list[AbortedTxn]]:
    """Return the records that ``read`` finds from ``offset``, and the aborted transactions of them.

    Blocks. Retention or compaction, in another thread, may remove a segment after its records were
    read, and with it the entries of its aborted transactions. Then the records are read again.
    """
    while True:
        with log.lock:
            # A read continues beyond its first segment only where batches are empty.
            first = log.segments.number_of(offset)
            segments = log.segments.items[first : first + _EMPTY_BATCHES_MAX]
            has_aborted, truncations = log.has_aborted, log.truncations
        found = read()
        # Most logs never had an aborted transaction: neither before the read nor during it.
        if not has_aborted and not log.has_aborted:
            return found, []
        aborted = aborted_transactions(log, offset, found.next_offset)
        searched = takewhile(lambda segment: segment.base_offset < found.next_offset, segments)  # noqa: B023
        if not any(_has_changed(log, segment, truncations) for segment in searched):
            return found, aborted


def aborted_count(log: PartitionLog, start: int) -> int:
    """Return an upper bound of the entries that :func:`aborted_transactions` examines."""
    with log.lock:
        return sum(map(len, _indexes_from(log, start)))


def aborted_transactions(log: PartitionLog, start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with records in [start, end), in the order of their markers.
    Blocks.

    The list is complete if ``end`` is not above the last stable offset. The search is repeated if
    the log is cut or compacted meanwhile.
    """
    while True:
        with log.lock:
            indexes, truncations = _indexes_from(log, start), log.truncations
        try:
            found = aborted_between(indexes, start, end)
        except LogError:
            # An index may have been deleted or cut during the search.
            if _has_all(log, indexes, truncations):
                raise
            continue
        if _has_all(log, indexes, truncations):
            return found


def _has_all(log: PartitionLog, indexes: list[TransactionIndex], truncations: int) -> bool:
    """Return whether nothing was cut, removed or compacted since the indexes were looked up."""
    with log.lock:
        there = {id(item.aborted) for item in log.segments.items}
        return truncations == log.truncations and all(id(index) in there for index in indexes)


def _indexes_from(log: PartitionLog, start: int) -> list[TransactionIndex]:
    """Return the non-empty transaction indexes from the segment of ``start``."""
    if not log.has_aborted:
        return []
    items = log.segments.items
    return [item.aborted for item in items[log.segments.number_of(start) :] if len(item.aborted)]


def offset_by_timestamp(log: PartitionLog, timestamp_ms: int) -> TimestampOffset | None:
    """Return the first local record with a timestamp >= ``timestamp_ms``, or None. Blocks.

    The search is repeated if the log is cut or compacted meanwhile.
    """
    searched_to, limits = -1, unpack_limits()
    while True:
        with log.lock:
            log.check_usable()
            start, truncations = log.bounds.local_start, log.truncations
            # Segments before ``searched_to`` were searched without a match.
            segment = _first_segment(log, timestamp_ms, max(start, searched_to))
            if segment is None:
                return None
            pinned = segment.pinned()
        with _released(pinned):
            try:
                pinned.load()
                found = pinned.with_good_index(
                    lambda: first_at_or_after(pinned, timestamp_ms, start, limits)  # noqa: B023
                )
            except LogError:
                if _has_changed(log, segment, truncations):
                    continue
                raise
        # A compacted segment replaced this one: search it, the answer may be outdated.
        if _was_replaced(log, segment):
            continue
        if found is not None:
            return found
        # The largest timestamp may be of a record below the log start; try the next segment.
        searched_to = pinned.next_offset


def _is_at_end(log: PartitionLog, offset: int, up_to: int) -> bool:
    log.check_usable()
    bounds = log.bounds
    check_read_range(offset, bounds.local_start, bounds.end)
    return offset >= min(up_to, bounds.end)


def _has_changed(log: PartitionLog, segment: Segment, truncations: int) -> bool:
    """Return whether the log was cut, or the segment removed or replaced, since the read began."""
    with log.lock:
        gone = segment.base_offset < log.segments.items[0].base_offset
        cut = log.closed or truncations != log.truncations
        return gone or cut or _was_replaced(log, segment)


def _was_replaced(log: PartitionLog, segment: Segment) -> bool:
    """Return whether a compacted segment replaced this one."""
    with log.lock:
        return not log.closed and log.segments.has_replaced(segment)


def _first_segment(log: PartitionLog, timestamp_ms: int, offset: int) -> Segment | None:
    for segment in log.segments.items[log.segments.number_of(offset) :]:
        if segment.largest_timestamp_ms >= timestamp_ms and segment.next_offset > offset:
            return segment
    return None


@contextmanager
def _released(pinned: Segment) -> Iterator[None]:
    try:
        yield
    finally:
        pinned.unload()


def _read(
    segment: Segment, offset: int, start: int | None, max_bytes: int, up_to: int, min_one: bool
) -> tuple[ReadResult, int]:
    """Read whole batches of a pinned segment. Return the result and the file position after it.

    ``start``: position of the batch that starts with ``offset``, None if it must be searched.
    ``up_to``: exclusive end of the offsets to return.
    """
    segment.load()

    def extent() -> tuple[int, int, int]:
        position, first_offset = start, offset
        if position is None:
            first = segment.find(offset)
            position, first_offset = first.position, first.base_offset
        end, next_offset = segment.end_of_read(
            position, first_offset, max_bytes, up_to, min_one=min_one
        )
        return position, end, next_offset

    # A damaged index is rebuilt once; damaged records fail again.
    begin, end, next_offset = segment.with_good_index(extent)
    return ReadResult(segment.bytes_of(begin, end), next_offset), end


def first_at_or_after(
    segment: Segment, timestamp_ms: int, start_offset: int, limits: UnpackLimits
) -> TimestampOffset | None:
    """Return a segment's first record from ``start_offset`` at or after a time, or None.

    The segment must be loaded. ``limits`` bounds the work; each batch that is passed counts as a
    record. When it is exhausted, the result is the start of the batch reached so far, which is not
    after the requested record.
    """
    assert segment.descriptor is not None
    position = _position_for(segment, timestamp_ms, start_offset)
    for batch in walk_batches(segment.descriptor, position, segment.size_bytes):
        # Headers come from clients: a walk without a limit could be made arbitrarily long.
        limits.records_left -= 1
        if limits.records_left < 0:
            return _batch_start(batch, start_offset)
        if batch.max_timestamp < timestamp_ms or batch.last_offset < start_offset:
            continue
        found = _first_in_batch(segment, batch, timestamp_ms, start_offset, limits)
        if found is not None:
            return found
    return None


def _batch_start(batch: BatchAt, start_offset: int) -> TimestampOffset:
    """Return the start of a batch: the requested record is not before it."""
    offset = max(batch.base_offset, start_offset)
    return TimestampOffset(offset, batch.max_timestamp, batch.leader_epoch)


def _position_for(segment: Segment, timestamp_ms: int, start_offset: int) -> int:
    """Return the position to walk from; every record before it is older or below
    ``start_offset``.
    """
    try:
        # Entries strictly below: the offset of an equal one need not be the first of that time.
        indexed = segment.read_times().lookup(timestamp_ms - 1).offset
    except (IndexFormatError, OSError):
        indexed = segment.base_offset
    offset = max(indexed, start_offset, segment.base_offset)
    # An entry of records that were appended since the segment was pinned.
    if offset >= segment.next_offset:
        return segment.size_bytes
    return segment.find(offset).position


def _first_in_batch(
    segment: Segment,
    batch: BatchAt,
    timestamp_ms: int,
    start_offset: int,
    limits: UnpackLimits,
) -> TimestampOffset | None:
    """Return the batch's first record from ``start_offset`` at or after a time, or None.

    If the records cannot be unpacked, the result is the start of the batch.
    """
    data = segment.bytes_of(batch.position, batch.end_position)
    header = parse_header(data)
    # LogAppendTime gives all records of the batch the header's timestamp.
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _batch_start(batch, start_offset)
    try:
        for offset, record_ms in decode_timestamps(data, limits):
            if offset >= start_offset and record_ms >= timestamp_ms:
                return TimestampOffset(offset, record_ms, batch.leader_epoch)
    except CorruptBatch:
        # The record is in this batch: a read from the batch's start returns it, or the error.
        return _batch_start(batch, start_offset)
    return None


class _Dated(Protocol):
    @property
    def timestamp_ms(self) -> int:
        """Timestamp of the record in ms."""


_Found = TypeVar("_Found", bound=_Dated)


def offset_of_max_timestamp(find: Callable[[int], _Found | None], largest_ms: int) -> _Found | None:
    """Return the first record with the largest timestamp, None if no record has one.

    ``find`` returns the first record at or after a time in milliseconds, or None. ``largest_ms`` is
    an upper bound of the timestamps: the record that had it may be deleted.
    """
    if largest_ms < 0:
        return None
    found = find(largest_ms) or find(0)
    if found is None:
        return None
    # Bisection: a record at or after ``low_ms`` is known, none exists at or after ``none_ms``.
    # If the first look-up has found a record with the upper bound itself, the loop does not run.
    low_ms, none_ms = found.timestamp_ms, largest_ms
    while low_ms + 1 < none_ms:
        middle_ms = (low_ms + none_ms) // 2
        newer = find(middle_ms)
        if newer is None:
            none_ms = middle_ms
        else:
            # A look-up that reached its limit returns a batch, which may be older than requested.
            found, low_ms = newer, max(middle_ms, newer.timestamp_ms)
    return found
