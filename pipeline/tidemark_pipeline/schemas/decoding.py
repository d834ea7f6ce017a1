"""Decoding of record batches in Spark's Python workers.

Each record gets its value's columns, or the reason why it has none. All input is sent along with
the batch. Workers query no other service, so a batch that is read twice (a worker died, memory was
short) has the same result.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.decoder_results import Bytes, Longs, reasons
from tidemark_pipeline.schemas.registry import wire
from tidemark_pipeline.schemas.sources import Decoder, SchemaSource, SchemaType, decoder_of
from tidemark_pipeline.schemas.value_format import ERROR, NO_VALUE, PARSED

#: Column with the id of a record's schema if that schema is not known yet.
UNKNOWN = "_unknown"
_NO_FRAME = "no schema id: the value does not begin with a zero byte and four bytes of id"
_NO_MESSAGE = "the value does not say which message of its schema it is"


def output_schema(given: StructType, columns: StructType) -> StructType:
    """Return the schema of the decoded frame for a frame of ``given``."""
    schema = StructType([*given.fields])
    return schema.add(PARSED, columns).add(ERROR, "string").add(UNKNOWN, "long")


@dataclass(frozen=True, slots=True)
class Decoding:
    """Instructions to decode values into ``columns`` (a schema as Spark's JSON).

    With a ``source`` all values have that schema. Otherwise each value starts with its schema's id,
    and ``known`` contains the schemas, or the reason why there is none. ``reader``: the schema that
    the table was created with.
    """

    columns: str
    source: SchemaSource | None = None
    known: Mapping[int, SchemaSource | str] = field(default_factory=dict)
    reader: SchemaSource | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kind = to_arrow_type(StructType.fromJson(json.loads(self.columns)))
        for batch in batches:
            if batch.num_rows:
                yield from _DecodedBatch(self, batch, kind).read()


@dataclass(slots=True)
class _DecodedBatch:
    """Decoding of one Arrow batch.

    ``kind``: Arrow type of the decoded columns.
    """

    decoding: Decoding
    batch: pa.RecordBatch
    kind: pa.DataType

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the batch's records in pieces, in any order, each with its columns or a reason.

        The reason says why the value cannot be decoded.
        """
        # Records without a value skip the decoders and have one reason in all formats.
        values = self.batch.column(self.batch.schema.get_field_index("value"))
        absent = values.is_null().to_numpy(zero_copy_only=False)
        data, starts, ends = _places(values)
        if absent.any():
            yield from self._failed(np.flatnonzero(absent), NO_VALUE)
        present = np.flatnonzero(~absent)
        # One schema for all records: no ids to read.
        source = self.decoding.source
        if source is not None:
            decoder = decoder_of(source, self.decoding.columns, self.decoding.reader)
            yield from self._decoded(present, decoder, data, starts, ends)
            return
        # Records are grouped by schema, as a decoder reads many records of one schema at a time.
        ids = wire.ids_of(data, starts, ends)
        for number in np.unique(ids[present]).tolist():
            rows = present[ids[present] == number]
            if number == wire.UNFRAMED:
                yield from self._failed(rows, _NO_FRAME)
            else:
                yield from self._of_schema(number, rows, data, starts, ends)

    def _of_schema(
        self, number: int, rows: Longs, data: Bytes, starts: Longs, ends: Longs
    ) -> Iterator[pa.RecordBatch]:
        """Yield the decoded records in ``rows``, whose values carry the schema ID ``number``.

        ``data``, ``starts`` and ``ends``: the bytes of all values of the batch.
        """
        source = self.decoding.known.get(number)
        # The driver queries the registry for unknown IDs and decodes the batch again.
        if source is None:
            yield from self._failed(rows, f"schema {number} is not known yet", number)
            return
        if isinstance(source, str):
            yield from self._failed(rows, f"schema {number}: {source}")
            return
        starts = starts + wire.HEADER_BYTES
        paths: Sequence[tuple[int, ...] | None] = [()]
        which = np.zeros(len(rows), dtype=np.int64)
        # A Protobuf schema may have several messages, so its ID is followed by the path of the
        # record's message. ``which`` is each record's index in ``paths``.
        if source.kind is SchemaType.PROTOBUF:
            paths, which, behind = wire.messages(data, starts[rows], ends[rows])
            starts[rows] = behind
        for place, indexes in enumerate(paths):
            of_message = rows[which == place]
            if indexes is None:
                yield from self._failed(of_message, _NO_MESSAGE)
                continue
            # A schema that does not fit the columns makes dead letters of its own records only.
            try:
                decoder = decoder_of(source, self.decoding.columns, self.decoding.reader, indexes)
            except SchemaRefused as error:
                yield from self._failed(of_message, f"schema {number}: {error}")
                continue
            yield from self._decoded(of_message, decoder, data, starts, ends)

    def _decoded(
        self, rows: Longs, decoder: Decoder, data: Bytes, starts: Longs, ends: Longs
    ) -> Iterator[pa.RecordBatch]:
        first = 0
        for piece in decoder.decode(data, starts[rows], ends[rows]):
            count = len(piece.errors)
            of_piece = rows[first : first + count]
            yield self._with(of_piece, piece.values, piece.errors, pa.nulls(count, pa.int64()))
            first += count

    def _failed(
        self, rows: Longs, why: str, unknown: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        if len(rows):
            yield self._with(
                rows,
                pa.nulls(len(rows), self.kind),
                reasons(len(rows), dict.fromkeys(range(len(rows)), why)),
                pa.array([unknown] * len(rows), pa.int64()),
            )

    def _with(
        self, rows: Longs, parsed: pa.Array, errors: pa.Array, unknown: pa.Array
    ) -> pa.RecordBatch:
        is_complete = len(rows) == self.batch.num_rows
        given = self.batch if is_complete else self.batch.take(pa.array(rows))
        arrays = [*given.columns, parsed, errors, unknown]
        return pa.RecordBatch.from_arrays(
            arrays, names=[*self.batch.schema.names, PARSED, ERROR, UNKNOWN]
        )


def _places(values: pa.Array) -> tuple[Bytes, Longs, Longs]:
    """Return the bytes of all values, and the start and the end of each value in them."""
    _, offsets, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    # A sliced array shares the buffers of the whole one, so its offset is added.
    ends = np.frombuffer(offsets, dtype=width)[values.offset : values.offset + len(values) + 1]
    places = ends.astype(np.int64)
    view = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, np.uint8)
    return view, places[:-1].copy(), places[1:].copy()
