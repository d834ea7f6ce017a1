"""Checks of batches before an append, for leaders and for followers.

A leader rejects what Kafka's ``LogValidator``, ``UnifiedLog`` and ``ProduceRequest`` reject, with
their error codes, as far as the header shows it. Clients retry CORRUPT_MESSAGE, so it is used only
for damage that can happen in transit.

Kafka's ``LogValidator`` reads the records of every batch. This broker passes them through unread,
since reading all of them would halve its throughput. It reads the records of a batch in three
cases. The header's timestamps cannot be right (:func:`check_timestamps`). The topic is compacted,
which requires keys. Or the records may be *poison*: unreadable, though the CRC is correct, so that
every consumer would stop there silently. A client produces poison always or never. So the first
batches of a connection are read, all batches of few records, and a sample of the others, selected
by CRC. Reading is done in a thread, unless the records are few.
``tests/benchmarks/record_inspection.py`` measures the cost.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.records.batch import (
    CRC_COVERS_FROM,
    CREATE_TIME,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    TimestampType,
    check_crc,
    codec_of,
    compute_crc,
    iter_headers,
    read_header,
)
from tidemark.records.codecs import Codec, UnpackedTooLarge, most_unpacked
from tidemark.records.decode import RECORD_BYTES_MIN, UnpackLimits, scan_records, scan_unpacked
from tidemark_broker.log.batch_walk import BatchAt
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import (
    BatchTooLarge,
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    NoBatch,
    OffsetOutOfRange,
    RecordError,
    RecordTooLarge,
    UnsupportedCompression,
)
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch, producer_batch

#: Bytes that a broker unpacks of one batch, or for one look-up, at most: a few KiB may unpack to
#: gigabytes.
UNPACKED_BYTES_MAX = 16 * 1024 * 1024
#: Records that are examined within that limit: about a quarter of a second's work.
RECORDS_MAX = 250_000
#: Batches of a connection that are always read.
FIRST_BATCHES = 8
#: Limits below which an uncompressed batch is always read, on the loop.
FEW_RECORDS = 8
FEW_BYTES = 16 * 1024
#: Sampling rate: one of this number of other batches is read.
ONE_IN = 64
#: Records without a key that are reported at most.
KEYLESS_MAX = 100
_CRC_AND_COUNT = struct.Struct(">17xI36xi")


class RecordsInDoubt(Exception):
    """The records must be read first: repeat the append with :func:`batch_contents`.

    Not raised with ``reads`` for a batch that :func:`is_quickly_read`, which is read at once.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """Smallest and largest timestamp (ms, -1 for none) with the numbers of their records.

    ``keyless`` has the numbers of the first records without a key. ``unread`` is the reason why the
    records were not read.
    """

    smallest_ms: int = NO_TIMESTAMP
    largest_ms: int = NO_TIMESTAMP
    smallest_at: int = 0
    largest_at: int = 0
    keyless: tuple[int, ...] = ()
    unread: str = ""


def unpack_limits() -> UnpackLimits:
    """Return new limits for one batch that is appended, or one look-up by time."""
    return UnpackLimits(UNPACKED_BYTES_MAX, RECORDS_MAX)


def is_sampled(data: Buffer, *, is_early: bool) -> bool:
    """Return whether a batch is read on suspicion, though that takes time.

    ``is_early``: it is one of the first of its connection.
    """
    if len(data) < HEADER_BYTES:
        return False
    crc, _ = _CRC_AND_COUNT.unpack_from(data)
    return is_early or crc % ONE_IN == 0


def is_quickly_read(data: Buffer) -> bool:
    """Return whether the batch is small enough to be read on the loop."""
    if not HEADER_BYTES <= len(data) <= FEW_BYTES:
        return False
    _, count = _CRC_AND_COUNT.unpack_from(data)
    return count <= FEW_RECORDS and not codec_of(data)


def batch_contents(data: Buffer) -> BatchContents:
    """Read the records of a batch whose CRC is correct; return their timestamps and missing keys.

    It may take a quarter of a second: call it in a thread unless :func:`is_quickly_read`. Raises
    :class:`InvalidRecords` if the records cannot be decoded. If they would unpack to too much,
    ``unread`` of the result has the reason.
    """
    smallest = largest = NO_TIMESTAMP
    smallest_at = largest_at = 0
    keyless: list[int] = []
    try:
        for number, (timestamp_ms, has_key) in enumerate(scan_records(data, unpack_limits())):
            # Compacted topics reject records without a key; the answer names the first ones.
            if not has_key and len(keyless) < KEYLESS_MAX:
                keyless.append(number)
            if timestamp_ms == NO_TIMESTAMP:
                continue
            if smallest == NO_TIMESTAMP or timestamp_ms < smallest:
                smallest, smallest_at = timestamp_ms, number
            if timestamp_ms > largest:
                largest, largest_at = timestamp_ms, number
    # An oversized batch is not an error here: the caller knows whether the records must be read.
    except UnpackedTooLarge as error:
        return BatchContents(unread=str(error))
    except CorruptBatch as error:
        raise InvalidRecords(f"the records cannot be read: {error}") from error
    return BatchContents(
        smallest_ms=smallest,
        largest_ms=largest,
        smallest_at=smallest_at,
        largest_at=largest_at,
        keyless=tuple(keyless),
    )


_MAGIC_POSITION = 16
_LENGTH = struct.Struct(">i")
#: Minimum length of a batch in the oldest message format.
_LENGTH_MIN = 14
_CODECS = frozenset(Codec)


def check_plain_batch(data: Buffer, config: LogConfig, now_ms: int) -> BatchHeader | None:
    """Return the header of a valid plain batch, None if :func:`check_leader_batch` must decide.

    Plain means few records, no compression, no transaction, CreateTime, and a topic that is not
    compacted: what clients without linger mostly send. One pass over header and records takes a
    third of the time of the full check.
    """
    if len(data) > FEW_BYTES or config.message_timestamp_type is not CREATE_TIME or config.compacts:
        return None
    try:
        header = read_header(data)
        size = header.length + LENGTH_OVERHEAD
        # No attributes: neither compressed, transactional, control, nor with another time.
        if (
            header.attributes
            or header.base_offset
            or size != len(data)
            or size > config.max_message_bytes
            or size > config.segment_bytes
            or header.count > FEW_RECORDS
            or header.last_offset_delta != header.count - 1
            or (header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0)
            or header.crc != compute_crc(data, CRC_COVERS_FROM, size)
        ):
            return None
        times = [ms for ms, _ in scan_unpacked(header, bytes(data[HEADER_BYTES:]))]
    except CorruptBatch:
        return None
    # The header has the records' largest timestamp, and the topic accepts all of them.
    if not times or max(times) != header.max_timestamp:
        return None
    earliest_ms = max(0, now_ms - config.message_timestamp_before_max_ms)
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    return header if earliest_ms <= min(times) and header.max_timestamp <= latest_ms else None


def check_leader_batch(
    data: Buffer,
    config: LogConfig,
    now_ms: int,
    contents: BatchContents | None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    reads: bool = False,
) -> tuple[BatchHeader, BatchContents | None]:
    """Check a client's batch in the order of Kafka's checks; return its header and records.

    ``contents``: the records, None if they were not read. With ``reads`` a small batch is read
    here. :class:`RecordsInDoubt` means that a larger one must be read first, because the header
    does not suffice or ``reads`` is set. Any other error is the client's answer.
    """
    try:
        header = read_header(data)
        if header.base_offset != 0:
            raise InvalidRecords(f"the base offset is {header.base_offset}, a client's is 0")
        # The size comes before the CRC, as in Kafka: an oversized batch is not read as a whole.
        if header.size_bytes > config.max_message_bytes:
            raise RecordTooLarge(
                f"a batch of {header.size_bytes} bytes is above "
                f"max.message.bytes={config.max_message_bytes}"
            )
        check_crc(data, 0, header)
    except CorruptBatch as error:
        raise CorruptRecords(str(error)) from error
    _check_count(header)
    _check_producer(header, origin)
    # Reading comes last: only a batch that the header cannot reject is worth unpacking.
    if contents is None and reads:
        if not is_quickly_read(data):
            raise RecordsInDoubt
        contents = batch_contents(data)
    if contents is not None:
        _check_keys(contents, config)
    check_timestamps(header, config, now_ms, contents)
    if header.size_bytes > config.segment_bytes:
        raise BatchTooLarge(
            f"a batch of {header.size_bytes} bytes is above segment.bytes={config.segment_bytes}"
        )
    return header, contents


def one_batch(data: Buffer) -> Buffer:
    """Return the bytes of the one batch that a produce request has for a partition.

    Trailing bytes that are no batch are dropped (Kafka's ``ProduceRequest.validateRecords`` and
    ``UnifiedLog.trimInvalidBytes``). Raises NoBatch for none, several, or an old message format.
    """
    size = _next_batch(data, 0)
    if size is None:
        raise NoBatch("a produce request carries one whole record batch per partition")
    # Kafka 4 does not accept the older formats either (KIP-724).
    if data[_MAGIC_POSITION] != MAGIC:
        raise NoBatch(
            f"message format {data[_MAGIC_POSITION]} is not accepted: use a client of Kafka 0.11 "
            "or newer (record batches of version 2)"
        )
    if size == len(data):
        return data
    if _next_batch(data, size) is not None:
        raise NoBatch("a produce request carries exactly one record batch per partition")
    return data[:size]


def _next_batch(data: Buffer, position: int) -> int | None:
    """Return the size of the batch at ``position``, or None if it is incomplete.

    It follows Kafka's ``ByteBufferLogInputStream``. Raises :class:`CorruptRecords` for an
    impossible header.
    """
    left = len(data) - position
    if left < LENGTH_OVERHEAD:
        return None
    (length,) = _LENGTH.unpack_from(data, position + 8)
    # The oldest format decides, as in Kafka: the magic byte has not been read yet.
    if length < _LENGTH_MIN:
        raise CorruptRecords(f"a batch of {length} bytes is shorter than any")
    if left <= _MAGIC_POSITION:
        return None
    if not 0 <= data[position + _MAGIC_POSITION] <= MAGIC:
        raise CorruptRecords(f"magic {data[position + _MAGIC_POSITION]} does not exist")
    size: int = length + LENGTH_OVERHEAD
    return size if size <= left else None


def _check_keys(contents: BatchContents, config: LogConfig) -> None:
    """Reject records without keys on a compacted topic, since they cannot be compacted."""
    if not config.compacts:
        return
    if contents.unread:
        raise RecordTooLarge(f"a compacted topic takes records with keys, and {contents.unread}")
    if contents.keyless:
        message = "a compacted topic does not take a record without a key"
        raise InvalidRecords(
            f"{message}, as record {contents.keyless[0]} of the batch is",
            tuple(RecordError(number, message) for number in contents.keyless),
        )


def _check_producer(header: BatchHeader, origin: AppendOrigin) -> None:
    if header.is_control:
        raise InvalidRecords("clients may not write control records")
    if header.producer_id <= NO_PRODUCER_ID:
        if header.is_transactional:
            raise InvalidRecords("transactional records need a producer id")
        return
    if header.base_sequence < 0 and origin is AppendOrigin.CLIENT:
        raise InvalidRecords(
            f"sequence number {header.base_sequence} of the producer {header.producer_id}"
        )


def _check_count(header: BatchHeader) -> None:
    """Check that a batch can contain as many records as its header says.

    Otherwise every consumer would fail on the batch.
    """
    # Only a compacted log may have fewer records than offsets, never a client's batch.
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise InvalidRecords(
            f"{header.count} records, but the last offset delta is {header.last_offset_delta}"
        )
    if header.codec not in _CODECS:
        raise UnsupportedCompression(f"compression type {header.codec} does not exist")
    packed = header.size_bytes - HEADER_BYTES
    if not packed or header.count * RECORD_BYTES_MIN > most_unpacked(header.codec, packed):
        raise InvalidRecords(f"{header.count} records do not fit into {packed} bytes")


def check_follower_batches(
    data: Buffer, latest_epoch: int
) -> tuple[list[BatchAt], list[ProducerBatch]]:
    """Check batches fetched from the leader: CRCs, contiguous offsets, epochs that do not fall.

    ``latest_epoch``: latest leader epoch of the log. Return the batches, with positions within
    ``data``, and the idempotent producers' batches among them. A partial batch at the end, which
    older brokers send, is left out. Raises CorruptRecords.
    """
    batches: list[BatchAt] = []
    produced: list[ProducerBatch] = []
    try:
        for position, header in iter_headers(data):
            check_crc(data, position, header)
            # The producers' state is derived from the same bytes, so followers need no other
            # source.
            if header.producer_id > NO_PRODUCER_ID:
                batch = memoryview(data)[position : position + header.size_bytes]
                known = producer_batch(header, batch)
                if known is not None:
                    produced.append(known)
            batches.append(
                BatchAt(
                    position,
                    header.size_bytes,
                    header.base_offset,
                    header.last_offset,
                    header.partition_leader_epoch,
                    header.max_timestamp,
                )
            )
    except CorruptBatch as error:
        raise CorruptRecords(str(error)) from error
    if not batches and len(data):
        raise CorruptRecords(f"no whole record batch in {len(data)} bytes")
    _check_continuity(batches, latest_epoch)
    return batches, produced


def _check_continuity(batches: Sequence[BatchAt], latest_epoch: int) -> None:
    """Check that offsets are contiguous and leader epochs do not fall. Raises CorruptRecords."""
    expected = batches[0].base_offset if batches else 0
    for batch in batches:
        if batch.base_offset != expected:
            raise CorruptRecords(
                f"offset {batch.base_offset} follows, {expected} would continue the log"
            )
        # Epochs never fall within a log; -1 is a batch of a format without epochs.
        if batch.leader_epoch != UNKNOWN_EPOCH and batch.leader_epoch < latest_epoch:
            raise CorruptRecords(
                f"leader epoch {batch.leader_epoch} at offset {batch.base_offset} "
                f"behind epoch {latest_epoch}"
            )
        latest_epoch = max(latest_epoch, batch.leader_epoch)
        expected = batch.last_offset + 1


def check_read_range(offset: int, local_start: int, end: int) -> None:
    """Raise :class:`OffsetOutOfRange` unless ``local_start <= offset <= end``."""
    if not local_start <= offset <= end:
        raise OffsetOutOfRange(f"offset {offset} is not within {local_start} to {end}")


def runs_for_segments(
    batches: Sequence[BatchAt], room_bytes: int, segment_bytes: int
) -> Iterator[tuple[int, int]]:
    """Split a follower's append into runs of batches that each fit into a segment.

    Yield the index of each run's first batch, and of the batch after its last one. ``room_bytes``:
    space left in the active segment, which the first run may fill. A batch larger than a segment is
    a run of its own.
    """
    first, used = 0, 0
    # The append rolls before the first batch, so a whole segment is free.
    if batches and batches[0].size_bytes > room_bytes:
        room_bytes = segment_bytes
    for number, batch in enumerate(batches):
        if number > first and used + batch.size_bytes > room_bytes:
            yield first, number
            first, used, room_bytes = number, 0, segment_bytes
        used += batch.size_bytes
    if batches:
        yield first, len(batches)


def check_timestamps(
    header: BatchHeader, config: LogConfig, now_ms: int, contents: BatchContents | None
) -> None:
    """Check a client batch's timestamps against the topic's ``message.timestamp.*`` settings.

    ``contents``: the records' timestamps, None if they were not read. Raises
    :class:`InvalidTimestamp`, :class:`RecordsInDoubt` if only the records can decide, or
    :class:`RecordTooLarge` if the header is wrong and the records are too large to be read.
    """
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        message = "a client may not set the timestamp type LogAppendTime"
        raise InvalidTimestamp(message, (RecordError(0, message),))
    # The broker overwrites the timestamps, so the client's do not matter.
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    if contents is not None and not contents.unread:
        _check_times(contents, config, now_ms)
    elif not _is_plausible(header, config, now_ms):
        if contents is None:
            raise RecordsInDoubt
        raise RecordTooLarge(
            f"the batch's header has no plausible timestamps, and {contents.unread}: configure "
            "the client to set timestamps, or to send smaller batches"
        )


def _is_plausible(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    first, largest = header.base_timestamp, header.max_timestamp
    return (
        0 <= first <= largest
        and now_ms - first <= config.message_timestamp_before_max_ms
        and largest - now_ms <= config.message_timestamp_after_max_ms
        and not (config.deletes and 0 <= config.retention_ms < now_ms - largest)
    )


def _check_times(contents: BatchContents, config: LogConfig, now_ms: int) -> None:
    """Check the smallest and the largest timestamp of a batch's records."""
    smallest_ms, largest_ms = contents.smallest_ms, contents.largest_ms
    # Records without timestamps are allowed, as in Kafka.
    if smallest_ms == NO_TIMESTAMP:
        return
    if now_ms - smallest_ms > config.message_timestamp_before_max_ms:
        raise _invalid(
            contents.smallest_at,
            f"timestamp {smallest_ms} is older than message.timestamp.before.max.ms="
            f"{config.message_timestamp_before_max_ms} allows",
        )
    if largest_ms - now_ms > config.message_timestamp_after_max_ms:
        raise _invalid(
            contents.largest_at,
            f"timestamp {largest_ms} is further ahead than message.timestamp.after.max.ms="
            f"{config.message_timestamp_after_max_ms} allows",
        )


def _invalid(batch_index: int, message: str) -> InvalidTimestamp:
    return InvalidTimestamp(message, (RecordError(batch_index, message),))
