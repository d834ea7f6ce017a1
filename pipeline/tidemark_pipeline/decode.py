"""Record batches to Arrow, checked and in bulk.

One row per data record: control batches and records outside the wanted offsets give none, and no
batch is passed on unless its CRC holds. The bytes of a segment, of a fetched tail and of a test
all go through :func:`decode`: one decoder for every tier.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    check_crc,
    iter_headers,
)
from tidemark.records.codecs import decompress
from tidemark.records.committed import AbortedProducers, committed
from tidemark.records.decode import RECORD_BYTES_MIN
from tidemark_pipeline import scan
from tidemark_pipeline.errors import CorruptData

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
                )
            ),
        ),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("tier", pa.string()),
    ]
)
LOG_APPEND_TIME = 1
_NO_TIMESTAMP = -1
#: Of one Arrow batch: a few KiB may unpack to millions of records.
ROWS_MAX = 64 * 1024
_US_PER_MS = 1000
_LATEST_MS = (2**63 - 1) // _US_PER_MS


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes come from and which offsets of them are wanted, both ends included."""

    topic: str
    partition: int
    tier: str
    from_offset: int
    to_offset_inclusive: int


def decode(
    data: bytes, source: Source, aborted: Iterable[tuple[int, int]] = ()
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the record batches in ``data`` that hold wanted records, in order, without
    those of ``aborted`` transactions (producer id, first offset).

    ``data`` begins at a batch; what is left of a partial batch at its end is not looked at.
    Raises :class:`CorruptData` where a checksum or a record's structure does not hold.
    """
    yield from decode_batches(data, _headers_of(data, source, aborted), source)


def _headers_of(
    data: bytes, source: Source, aborted: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, BatchHeader]]:
    try:
        yield from committed(data, iter_headers(data), AbortedProducers(aborted))
    except CorruptBatch as error:
        raise CorruptData(
            f"{source.topic}-{source.partition}, among the offsets {source.from_offset} to "
            f"{source.to_offset_inclusive} ({source.tier}): {error}"
        ) from error


def decode_batches(
    data: bytes, batches: Iterable[tuple[int, BatchHeader]], source: Source
) -> Iterator[pa.RecordBatch]:
    """:func:`decode` where the batches in ``data`` are known already, by position."""
    for position, header in batches:
        if header.base_offset > source.to_offset_inclusive:
            return
        if header.last_offset < source.from_offset:
            continue
        yield from _decode_batch(data, position, header, source)


def _decode_batch(
    data: bytes, position: int, header: BatchHeader, source: Source
) -> Iterator[pa.RecordBatch]:
    try:
        check_crc(data, position, header)
        if header.is_control or header.count == 0:
            return
        payload = data[position + HEADER_BYTES : position + header.size_bytes]
        raw = decompress(header.codec, payload)
    except ValueError as error:
        raise _corrupt(source, header, str(error)) from error
    if not 0 < header.count * RECORD_BYTES_MIN <= len(raw):
        raise _corrupt(source, header, f"{header.count} records in {len(raw)} bytes")
    buffer = np.frombuffer(raw, dtype=np.uint8)
    for scanned in _tables(buffer, header, source):
        table = scanned
        offsets = header.base_offset + table[:, scan.OFFSET_DELTA]
        chosen = (offsets >= source.from_offset) & (offsets <= source.to_offset_inclusive)
        if not chosen.all():
            table, offsets = table[chosen], offsets[chosen]
        if len(offsets):
            yield _arrow(buffer, table, offsets, header, source)


def _tables(buffer: scan.Bytes, header: BatchHeader, source: Source) -> Iterator[scan.Longs]:
    """All records of a batch, so many at a time."""
    position = 0
    for first in range(0, header.count, ROWS_MAX):
        rows = min(ROWS_MAX, header.count - first)
        table = np.empty((rows, scan.COLUMNS), dtype=np.int64)
        position = scan.scan_records(buffer, position, rows, table)
        if position == scan.BROKEN:
            raise _corrupt(source, header, "its records cannot be read")
        if first + rows == header.count and position != len(buffer):
            raise _corrupt(source, header, "there are bytes behind its last record")
        yield table


def _arrow(
    buffer: scan.Bytes,
    table: scan.Longs,
    offsets: scan.Longs,
    header: BatchHeader,
    source: Source,
) -> pa.RecordBatch:
    rows = len(offsets)
    if header.timestamp_type == LOG_APPEND_TIME:
        timestamps = np.full(rows, header.max_timestamp, dtype=np.int64)
    else:
        timestamps = header.base_timestamp + table[:, scan.TIMESTAMP_DELTA]
    if timestamps.max() > _LATEST_MS or timestamps.min() < -_LATEST_MS:
        raise _corrupt(source, header, "a timestamp is beyond what microseconds can tell")
    columns = [
        _binary(buffer, table[:, scan.KEY_START], table[:, scan.KEY_LENGTH]),
        _binary(buffer, table[:, scan.VALUE_START], table[:, scan.VALUE_LENGTH]),
        _headers(buffer, table),
        _repeat(source.topic, rows, pa.string()),
        _repeat(source.partition, rows, pa.int32()),
        pa.array(offsets, type=pa.int64()),
        pa.array(
            timestamps * _US_PER_MS,
            mask=timestamps == _NO_TIMESTAMP,
            type=pa.timestamp("us", tz="UTC"),
        ),
        _repeat(int(header.timestamp_type), rows, pa.int32()),
        _repeat(source.tier, rows, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _repeat(value: object, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=kind), rows)


def _binary(buffer: scan.Bytes, starts: scan.Longs, lengths: scan.Longs) -> pa.Array:
    """A binary array of the pieces; a negative length is null."""
    rows = len(starts)
    sizes = np.maximum(lengths, 0)
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    scan.gather(buffer, np.ascontiguousarray(starts), sizes, offsets, out)
    nulls = lengths < 0
    validity = _validity(nulls) if nulls.any() else None
    return pa.Array.from_buffers(
        pa.binary(),
        rows,
        [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)],
    )


def _validity(nulls: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _headers(buffer: scan.Bytes, table: scan.Longs) -> pa.Array:
    counts = np.ascontiguousarray(table[:, scan.HEADERS_COUNT])
    total = int(counts.sum())
    kind = SCHEMA.field("headers").type
    if total == 0:
        return pa.nulls(len(counts), type=kind)
    spans = np.empty((total, 4), dtype=np.int64)
    scan.scan_headers(buffer, np.ascontiguousarray(table[:, scan.HEADERS_START]), counts, spans)
    keys = _text(_binary(buffer, spans[:, 0], spans[:, 1]))
    values = _binary(buffer, spans[:, 2], spans[:, 3])
    structs = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    nulls = counts == 0
    validity = _validity(nulls) if nulls.any() else None
    return pa.Array.from_buffers(
        kind, len(counts), [validity, pa.py_buffer(offsets)], children=[structs]
    )


def _text(names: pa.Array) -> pa.Array:
    """UTF-8, checked; a client may have written anything."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [name.decode(errors="replace") for name in names.to_pylist()], type=pa.string()
        )


def _corrupt(source: Source, header: BatchHeader, reason: str) -> CorruptData:
    return CorruptData(
        f"{source.topic}-{source.partition}, offsets {header.base_offset} to {header.last_offset} "
        f"({source.tier}): {reason}"
    )
