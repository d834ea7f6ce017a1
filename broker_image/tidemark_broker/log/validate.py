"""Pure checks of batch headers before an append, for leaders and for followers.

A leader rejects what Kafka's ``LogValidator``, ``UnifiedLog`` and ``ProduceRequest`` reject, with
their error codes, as far as the header shows it. Most records are not parsed (see
:mod:`tidemark_broker.log.batch_inspection`). Clients retry CORRUPT_MESSAGE, so it is used only for
damage that can happen in transit.
"""

import struct
from collections.abc import Iterator, Sequence

from tidemark.logfiles.leader_epochs import UNKNOWN_EPOCH
from tidemark.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    iter_headers,
    read_header,
)
from tidemark.records.codecs import Codec, most_unpacked
from tidemark.records.decode import RECORD_BYTES_MIN
from tidemark_broker.log.batch_inspection import BatchContents, RecordsInDoubt
from tidemark_broker.log.batch_walk import BatchAt
from tidemark_broker.log.config import LogConfig
from tidemark_broker.log.errors import (
    BatchTooLarge,
    CorruptRecords,
    InvalidRecords,
    NoBatch,
    OffsetOutOfRange,
    RecordError,
    RecordTooLarge,
    UnsupportedCompression,
)
from tidemark_broker.log.producer_entry import AppendOrigin, ProducerBatch, producer_batch
from tidemark_broker.log.timestamps import check_timestamps

_MAGIC_POSITION = 16
_LENGTH = struct.Struct(">i")
#: Minimum length of a batch in the oldest message format.
_LENGTH_MIN = 14
_CODECS = frozenset(Codec)


def check_leader_batch(
    data: Buffer,
    config: LogConfig,
    now_ms: int,
    contents: BatchContents | None,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    reads: bool = False,
) -> BatchHeader:
    """Check a client's batch in the order of Kafka's checks; return its header.

    ``contents``: its records, None if they were not read. :class:`RecordsInDoubt` means that they
    must be read first, because the header does not suffice or ``reads`` is set. Any other error is
    the client's answer.
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
        raise RecordsInDoubt
    if contents is not None:
        _check_keys(contents, config)
    check_timestamps(header, config, now_ms, contents)
    if header.size_bytes > config.segment_bytes:
        raise BatchTooLarge(
            f"a batch of {header.size_bytes} bytes is above segment.bytes={config.segment_bytes}"
        )
    return header


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
