"""Decoder of the records of one batch, in plain Python.

It is for places where a single batch matters: ListOffsets by time, checks of a producer's batch,
and tools. It accepts what Kafka's ``DefaultRecord`` and ``DefaultRecordBatch`` accept, and so does
the decoder of the Spark source (``tests/unit/pipeline/test_two_decoders.py``):

- Any negative length is null, except that of a header's name, which is an error.
- A header name that is not UTF-8 is read with replacement characters.
- A record's length must be the total size of its fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.records.batch import (
    CREATE_TIME,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    parse_header,
)
from tidemark.records.codecs import UNPACKED_BYTES_MAX, UnpackedTooLarge, decompress
from tidemark.records.varint import VarintError, read_varint, read_varlong

#: Length, attributes, timestamp and offset delta, two lengths of nothing, no headers.
RECORD_BYTES_MIN = 7
#: Timestamp and offset delta of most first records.
_FIRST_DELTAS = b"\0\0"


@dataclass(slots=True)
class UnpackLimits:
    """Remaining bytes that may be unpacked, and records that may be read, of a batch or a whole
    lookup.
    """

    bytes_left: int
    records_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecord:
    """One record with its absolute offset and timestamp (ms, or -1)."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def decode_records(
    batch: Buffer, *, limit_bytes: int = UNPACKED_BYTES_MAX
) -> Iterator[DecodedRecord]:
    """Yield every record of the batch at the buffer's start, in order.

    The caller checks the CRC. ``limit_bytes``: limit for the decompressed records. Raises
    :class:`CorruptBatch` if lengths or counts do not match, UnpackedTooLarge.
    """
    header = parse_header(batch)
    if header.size_bytes > len(batch):
        raise CorruptBatch(f"a batch of {header.size_bytes} bytes, {len(batch)} are there")
    if not header.count:
        return
    payload = decompress(
        header.codec, bytes(batch[HEADER_BYTES : header.size_bytes]), limit_bytes=limit_bytes
    )
    # A batch that claims more records than its bytes can contain is refused before the first one.
    _check_count(header, payload)
    # Records are decoded one by one, so a reader that stops early does no more work.
    position = 0
    for _ in range(header.count):
        try:
            record, position = _read_record(payload, position, header)
        except (VarintError, IndexError) as error:
            raise _unreadable(header, error) from error
        yield record
    _check_end(header, payload, position)


def decode_timestamps(batch: Buffer, limits: UnpackLimits) -> Iterator[tuple[int, int]]:
    """Yield (offset, timestamp in ms or -1) of every record of the batch, in order.

    The batch is at the buffer's start. Keys, values and headers are skipped. ``limits`` are reduced
    by what is decompressed. Raises as :func:`decode_records`, :class:`CorruptBatch` for an offset
    outside of the batch, and :class:`UnpackedTooLarge` beyond ``limits``.
    """
    header = parse_header(batch)
    payload = _unpacked(header, batch, limits)
    position = 0
    for _ in range(header.count):
        try:
            size, position = read_varint(payload, position)
            # Behind the record's attributes byte.
            delta, behind = read_varlong(payload, position + 1)
            offset_delta, behind = read_varint(payload, behind)
        except VarintError as error:
            raise _unreadable(header, error) from error
        position += size
        # The record's size is a claim of the producer, so its fields must end within it.
        if behind > position or position > len(payload):
            raise CorruptBatch(f"a record of {size} bytes ends outside its batch")
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise CorruptBatch(
                f"a record with offset delta {offset_delta} in the batch at offset "
                f"{header.base_offset}, whose last one is {header.last_offset_delta}"
            )
        yield header.base_offset + offset_delta, _timestamp(header, delta)
    _check_end(header, payload, position)


def scan_records(batch: Buffer, limits: UnpackLimits) -> Iterator[tuple[int, bool]]:
    """Yield (timestamp in ms or -1, whether it has a key) of every record of a producer's batch.

    Validates the batch as the broker must before it appends it: the fields of each record fill its
    length, and the offset deltas are 0, 1, 2, ... without a gap. Raises as
    :func:`decode_timestamps`.
    """
    header = parse_header(batch)
    return scan_unpacked(header, _unpacked(header, batch, limits))


def scan_unpacked(header: BatchHeader, payload: bytes) -> Iterator[tuple[int, bool]]:
    """Yield what :func:`scan_records` does, of the decompressed records of a batch."""
    position, end_of_all = 0, len(payload)
    # With LogAppendTime all records have the batch's timestamp.
    own_times = header.timestamp_type is CREATE_TIME
    first_ms = header.base_timestamp
    for number in range(header.count):
        try:
            size, position = read_varint(payload, position)
            end = position + size
            if end > end_of_all:
                raise CorruptBatch(f"a record of {size} bytes ends outside its batch")
            # The attributes byte is skipped: record batches of version 2 do not use it.
            if payload[position + 1 : position + 3] == _FIRST_DELTAS:
                timestamp_delta, offset_delta, behind = 0, 0, position + 3
            else:
                timestamp_delta, behind = read_varlong(payload, position + 1)
                offset_delta, behind = read_varint(payload, behind)
            # Key and value are skipped by their lengths. A negative length is null.
            key_bytes, behind = read_varint(payload, behind)
            if key_bytes > 0:
                behind += key_bytes
            value_bytes, behind = read_varint(payload, behind)
            if value_bytes > 0:
                behind += value_bytes
            if behind + 1 == end and not payload[behind]:  # no headers, as most records
                behind = end
            else:
                behind = _behind_headers(payload, behind)
        except VarintError as error:
            raise _unreadable(header, error) from error
        # Fields that end elsewhere would let two readers see different records.
        if behind != end:
            raise CorruptBatch(f"a record of {size} bytes holds fields of {behind - position}")
        # A broker computes a record's offset from its number, so a gap would give wrong offsets.
        if offset_delta != number:
            raise CorruptBatch(f"record {number} of the batch has offset delta {offset_delta}")
        yield (
            _int64(first_ms + timestamp_delta) if own_times else header.max_timestamp,
            key_bytes >= 0,
        )
        position = end
    _check_end(header, payload, position)


def _unpacked(header: BatchHeader, batch: Buffer, limits: UnpackLimits) -> bytes:
    """Return the decompressed records of a batch, and reduce ``limits`` by them.

    Raises :class:`UnpackedTooLarge` beyond the limits, CorruptBatch.
    """
    # The count is checked before anything is unpacked: it is a claim of the producer.
    if header.count > limits.records_left:
        raise UnpackedTooLarge(
            f"a batch of {header.count} records unpacks to more than {limits.records_left}"
        )
    if limits.bytes_left <= 0:
        raise UnpackedTooLarge("enough was unpacked already")
    limits.records_left -= header.count
    payload = decompress(
        header.codec, bytes(batch[HEADER_BYTES : header.size_bytes]), limit_bytes=limits.bytes_left
    )
    limits.bytes_left -= len(payload)
    _check_count(header, payload)
    return payload


def _behind_headers(payload: bytes, position: int) -> int:
    """Return the position behind the headers of a record, without reading them."""
    count, position = read_varint(payload, position)
    if count < 0 or count > len(payload) - position:
        raise CorruptBatch(f"{count} headers in {len(payload) - position} bytes")
    for _ in range(count):
        name_bytes, position = read_varint(payload, position)
        if name_bytes < 0:
            raise CorruptBatch("a header without a name")
        value_bytes, position = read_varint(payload, position + name_bytes)
        position += max(value_bytes, 0)
    return position


def _check_end(header: BatchHeader, payload: bytes, position: int) -> None:
    if position != len(payload):
        raise CorruptBatch(
            f"{len(payload) - position} bytes behind the last record "
            f"of the batch at offset {header.base_offset}"
        )


def _unreadable(header: BatchHeader, error: Exception) -> CorruptBatch:
    return CorruptBatch(
        f"a record of the batch at offset {header.base_offset} cannot be read: {error}"
    )


def _check_count(header: BatchHeader, payload: bytes) -> None:
    if not 0 <= header.count * RECORD_BYTES_MIN <= len(payload):
        raise CorruptBatch(f"{header.count} records in {len(payload)} bytes")


def _offset(header: BatchHeader, delta: int) -> int:
    return _int64(header.base_offset + delta)


def _timestamp(header: BatchHeader, delta: int) -> int:
    if header.timestamp_type is LOG_APPEND_TIME:
        return header.max_timestamp
    return _int64(header.base_timestamp + delta)


def _int64(value: int) -> int:
    """Wrap a sum to 64 bits, as Java does."""
    return (value + 2**63) % 2**64 - 2**63


def _read_record(payload: bytes, position: int, header: BatchHeader) -> tuple[DecodedRecord, int]:
    """Return the record at ``position`` of the decompressed records, and the position behind it.

    Raises VarintError, IndexError or CorruptBatch if the record cannot be read.
    """
    size, position = read_varint(payload, position)
    end = position + size
    if size < 1 or end > len(payload):
        raise CorruptBatch(f"a record of {size} bytes ends outside its batch")
    # Behind the length is the attributes byte, which has no meaning in version 2.
    timestamp_delta, position = read_varlong(payload, position + 1)
    offset_delta, position = read_varint(payload, position)
    key, position = _read_bytes(payload, position)
    value, position = _read_bytes(payload, position)
    headers, position = _read_headers(payload, position)
    # Behind a record's fields there is nothing, so that two readers see the same record.
    if position != end:
        raise CorruptBatch(f"a record of {size} bytes holds fields of {size - end + position}")
    record = DecodedRecord(
        offset=_offset(header, offset_delta),
        timestamp_ms=_timestamp(header, timestamp_delta),
        key=key,
        value=value,
        headers=headers,
    )
    return record, end


def _read_headers(
    payload: bytes, position: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Return the (name, value) headers of a record, and the position behind them.

    A value may be None.
    """
    count, position = read_varint(payload, position)
    # A header takes at least one byte, which bounds the work for a wrong count.
    if count < 0 or count > len(payload) - position:
        raise CorruptBatch(f"{count} headers in {len(payload) - position} bytes")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(payload, position)
        if name is None:
            raise CorruptBatch("a header without a name")
        value, position = _read_bytes(payload, position)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _read_bytes(payload: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(payload, position)
    if size < 0:
        return None, position
    if position + size > len(payload):
        raise CorruptBatch(f"a field of {size} bytes ends outside its batch")
    return payload[position : position + size], position + size
