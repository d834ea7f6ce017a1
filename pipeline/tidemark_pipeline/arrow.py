"""Records that were found become Arrow arrays, a column at a time.

Keys and values are copied once, from where they lie between other bytes into one buffer of a
column; nothing is made for a single record, nor for a column that nobody wants.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark_pipeline import columns, scan

_US_PER_MS = 1000
_NO_TIMESTAMP = -1
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
    """Records of one or more batches: where their parts lie in ``buffer`` (a table of
    :mod:`scan`), and what their batches say of them, an array of the rows' length each."""

    buffer: scan.Bytes
    table: scan.Longs
    offsets: scan.Longs
    timestamps_ms: scan.Longs
    timestamp_types: scan.Longs
    leader_epochs: scan.Longs

    def only(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        """Some of them."""
        return Rows(
            self.buffer,
            self.table[chosen],
            self.offsets[chosen],
            self.timestamps_ms[chosen],
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
    return pa.repeat(pa.scalar(value, type=_TYPES[name]), len(rows.offsets))


def _timestamps(rows: Rows, _: Source) -> pa.Array:
    stamps = rows.timestamps_ms
    none = stamps == _NO_TIMESTAMP
    return pa.array(
        stamps * _US_PER_MS, mask=none if none.any() else None, type=_TYPES["timestamp"]
    )


def _bytes_of(rows: Rows, start: int, length: int) -> pa.Array:
    return _binary(rows.buffer, rows.table[:, start], rows.table[:, length])


_MAKERS: dict[str, Callable[[Rows, Source], pa.Array]] = {
    "key": lambda rows, _: _bytes_of(rows, scan.KEY_START, scan.KEY_LENGTH),
    "value": lambda rows, _: _bytes_of(rows, scan.VALUE_START, scan.VALUE_LENGTH),
    "topic": lambda rows, source: _repeat("topic", source.topic, rows),
    "partition": lambda rows, source: _repeat("partition", source.partition, rows),
    "offset": lambda rows, _: pa.array(rows.offsets, type=pa.int64()),
    "timestamp": _timestamps,
    "timestampType": lambda rows, _: pa.array(rows.timestamp_types.astype(np.int32)),
    "headers": lambda rows, _: _headers(rows.buffer, rows.table),
    "tier": lambda rows, source: _repeat("tier", source.tier, rows),
    "tieredEpoch": lambda rows, source: _repeat("tieredEpoch", source.tiered_epoch, rows),
    "leaderEpoch": lambda rows, _: pa.array(rows.leader_epochs.astype(np.int32)),
}


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
    kind = _TYPES["headers"]
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
