"""Convert scanned records to Arrow arrays, one column at a time.

Keys and values are copied once, from the batches into one buffer per column. Nothing is allocated
per record, nor for a column that the query does not read.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark_pipeline.read import columns, scan

#: Most rows of one Arrow batch, as a few KiB may decompress to millions of records.
ROWS_MAX = 64 * 1024
#: Kafka's -1 for none.
_NO_TIMESTAMP_US = -1000
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(
        pa.field(
            "element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        )
    ),
    "tier": pa.string(),
    "tieredEpoch": pa.int32(),
    "leaderEpoch": pa.int32(),
}


@dataclass(frozen=True, slots=True)
class ByteSource:
    """Origin of the bytes and the requested offsets, both ends included.

    Batches without a record of ``since_ms`` or later are skipped. ``columns``: the columns to
    build.
    """

    topic: str
    partition: int
    tier: str
    from_offset: int
    to_offset_inclusive: int
    tiered_epoch: int | None = None
    since_ms: int | None = None
    columns: tuple[str, ...] = columns.NAMES


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one or more batches, at most ROWS_MAX.

    ``table`` has the positions of their parts in ``buffer`` (see :mod:`scan`). The other arrays
    have one value per row.
    """

    buffer: scan.Bytes
    table: scan.Longs
    offsets: scan.Longs
    timestamps_us: scan.Longs
    timestamp_types: scan.Ints
    leader_epochs: scan.Ints

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        """Return the chosen rows."""
        return Rows(
            self.buffer,
            self.table[chosen],
            self.offsets[chosen],
            self.timestamps_us[chosen],
            self.timestamp_types[chosen],
            self.leader_epochs[chosen],
        )


def schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the schema of batches with these columns."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


def to_arrow(rows: Rows, source: ByteSource) -> pa.RecordBatch:
    """Return the columns that ``source`` names."""
    arrays = [_MAKERS[name](rows, source) for name in source.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(source.columns))


def with_columns(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """Return the batch with these columns; those that were not built have no type and no bytes."""
    if len(names) == batch.num_columns:
        return batch
    built = dict(zip(batch.schema.names, batch.columns, strict=True))
    missing = pa.nulls(batch.num_rows)
    return pa.RecordBatch.from_arrays([built.get(name, missing) for name in names], list(names))


def _repeat(name: str, value: object, rows: Rows) -> pa.Array:
    # A slice shares the memory of the cached array, so the column costs nothing per row.
    return _repeated(name, value).slice(0, len(rows.offsets))


@functools.lru_cache(maxsize=64)
def _repeated(name: str, value: object) -> pa.Array:
    """Return a repeated value, cached because a task uses the same value for each batch."""
    return pa.repeat(pa.scalar(value, type=_TYPES[name]), ROWS_MAX)


def _plain(
    name: str, values: scan.Longs | scan.Ints, validity: pa.Buffer | None = None
) -> pa.Array:
    """Return an array that shares the memory of the values."""
    # The arrays of numpy have Arrow's layout already.
    return pa.Array.from_buffers(_TYPES[name], len(values), [validity, pa.py_buffer(values)])


def _timestamps(rows: Rows, _: ByteSource) -> pa.Array:
    none = rows.timestamps_us == _NO_TIMESTAMP_US
    return _plain("timestamp", rows.timestamps_us, _validity(none) if none.any() else None)


_MAKERS: dict[str, Callable[[Rows, ByteSource], pa.Array]] = {
    "key": lambda rows, _: _binary(rows.buffer, rows.table, scan.KEY_START),
    "value": lambda rows, _: _binary(rows.buffer, rows.table, scan.VALUE_START),
    "topic": lambda rows, source: _repeat("topic", source.topic, rows),
    "partition": lambda rows, source: _repeat("partition", source.partition, rows),
    "offset": lambda rows, _: _plain("offset", rows.offsets),
    "timestamp": _timestamps,
    "timestampType": lambda rows, _: _plain("timestampType", rows.timestamp_types),
    "headers": lambda rows, _: _headers(rows.buffer, rows.table),
    "tier": lambda rows, source: _repeat("tier", source.tier, rows),
    "tieredEpoch": lambda rows, source: _repeat("tieredEpoch", source.tiered_epoch, rows),
    "leaderEpoch": lambda rows, _: _plain("leaderEpoch", rows.leader_epochs),
}


def _binary(buffer: scan.Bytes, table: scan.Longs, column: int) -> pa.Array:
    """Return a binary array of pieces: starts in one column, lengths in the next; a negative
    one is null.
    """
    # Offsets of Arrow's binary type are 32 bits, hence the limit on bytes of a batch.
    ends = np.empty(len(table) + 1, dtype=np.int32)
    size, nulls = scan.measure(table, column, ends)
    out = np.empty(size, dtype=np.uint8)
    scan.gather(buffer, table, column, ends, out)
    # Without a null, Arrow needs no bitmap.
    validity = _validity(table[:, column + 1] < 0) if nulls else None
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(table), buffers)


def _validity(nulls: npt.NDArray[np.bool_]) -> pa.Buffer:
    # Arrow's bit is 1 for a valid value, in little-endian bit order.
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _headers(buffer: scan.Bytes, table: scan.Longs) -> pa.Array:
    """Return the Arrow array of the column ``headers``: per row a list of (key, value), or null."""
    counts = table[:, scan.HEADERS_COUNT]
    total = int(counts.sum())
    kind = _TYPES["headers"]
    # Most records have no headers, so nothing has to be scanned for them.
    if total == 0:
        return pa.nulls(len(counts), type=kind)
    # Per header: start and length of its key, start and length of its value.
    spans = np.empty((total, 4), dtype=np.int64)
    scan.scan_headers(buffer, table, spans)
    keys = _text(_binary(buffer, spans, 0))
    values = _binary(buffer, spans, 2)
    structs = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    # Each row's list starts where the one before it ends.
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    # No headers are null rather than an empty list, as in Spark's Kafka source.
    nulls = counts == 0
    validity = _validity(nulls) if nulls.any() else None
    return pa.Array.from_buffers(
        kind, len(counts), [validity, pa.py_buffer(offsets)], children=[structs]
    )


def _text(names: pa.Array) -> pa.Array:
    """Return checked UTF-8; clients may have written other bytes, which are replaced."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [name.decode(errors="replace") for name in names.to_pylist()], type=pa.string()
        )
