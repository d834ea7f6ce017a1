"""Records that were found become Arrow arrays, a column at a time.

Keys and values are copied once, from where they lie between other bytes into one buffer of a
column; nothing is made for a single record, nor for a column that nobody wants.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark_pipeline import columns, scan

#: Of one Arrow batch: a few KiB may unpack to millions of records.
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
class Source:
    """Where bytes come from and which offsets of them are wanted, both ends included. Whole batches
    without a record of ``since_ms`` or later are passed over. ``columns``: those that are made."""

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
    """Records of one or more batches, at most ROWS_MAX: where their parts lie in ``buffer`` (a
    table of :mod:`scan`), and what their batches say of them, an array of the rows' length each."""

    buffer: scan.Bytes
    table: scan.Longs
    offsets: scan.Longs
    timestamps_us: scan.Longs
    timestamp_types: scan.Ints
    leader_epochs: scan.Ints

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        """Some of them."""
        return Rows(
            self.buffer,
            self.table[chosen],
            self.offsets[chosen],
            self.timestamps_us[chosen],
            self.timestamp_types[chosen],
            self.leader_epochs[chosen],
        )


def schema(names: tuple[str, ...]) -> pa.Schema:
    """Of the batches that have these columns."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


def to_arrow(rows: Rows, source: Source) -> pa.RecordBatch:
    """The columns that ``source`` names."""
    made = [_MAKERS[name](rows, source) for name in source.columns]
    return pa.RecordBatch.from_arrays(made, schema=schema(source.columns))


def _repeat(name: str, value: object, rows: Rows) -> pa.Array:
    return _repeated(name, value).slice(0, len(rows.offsets))


@functools.lru_cache(maxsize=64)
def _repeated(name: str, value: object) -> pa.Array:
    """As often as a batch may need it; what a task says again and again."""
    return pa.repeat(pa.scalar(value, type=_TYPES[name]), ROWS_MAX)


def _plain(
    name: str, values: scan.Longs | scan.Ints, validity: pa.Buffer | None = None
) -> pa.Array:
    """The values as they lie in memory."""
    return pa.Array.from_buffers(_TYPES[name], len(values), [validity, pa.py_buffer(values)])


def _timestamps(rows: Rows, _: Source) -> pa.Array:
    none = rows.timestamps_us == _NO_TIMESTAMP_US
    return _plain("timestamp", rows.timestamps_us, _validity(none) if none.any() else None)


_MAKERS: dict[str, Callable[[Rows, Source], pa.Array]] = {
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
    """A binary array of the pieces whose starts are in a column, and whose lengths are in the next;
    a negative length is null."""
    ends = np.empty(len(table) + 1, dtype=np.int32)
    size, nulls = scan.measure(table, column, ends)
    out = np.empty(size, dtype=np.uint8)
    scan.gather(buffer, table, column, ends, out)
    validity = _validity(table[:, column + 1] < 0) if nulls else None
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(table), buffers)


def _validity(nulls: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _headers(buffer: scan.Bytes, table: scan.Longs) -> pa.Array:
    counts = table[:, scan.HEADERS_COUNT]
    total = int(counts.sum())
    kind = _TYPES["headers"]
    if total == 0:
        return pa.nulls(len(counts), type=kind)
    spans = np.empty((total, 4), dtype=np.int64)
    scan.scan_headers(buffer, table, spans)
    keys = _text(_binary(buffer, spans, 0))
    values = _binary(buffer, spans, 2)
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
