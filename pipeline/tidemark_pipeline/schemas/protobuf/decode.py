"""Decode Protobuf messages into Arrow, a column at a time.

Google's library parses each message in C and limits its depth. The fields of all messages are then
read column by column. If that fails, or yields too many values, the messages are read one by one,
so that only the faulty ones fail.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.decoder_results import Bytes, Longs, Piece, reasons
from tidemark_pipeline.schemas.protobuf.types import JSON, SIMPLE, TIMESTAMP, WRAPPERS, is_map

#: Limits of decoded values: of several messages, and of one, as a base and for each byte.
ENTRIES_MAX = 4_000_000
ENTRIES_LEAST, ENTRIES_PER_BYTE = 65_536, 16
#: Messages that are parsed at once.
_MESSAGES_MAX = 4_096
_BYTES_MAX = 16 * 1024 * 1024
_US = 1_000_000
_FIRST_S = int(dt.datetime(1, 1, 1, tzinfo=dt.UTC).timestamp())
_END_S = int(dt.datetime(9999, 12, 31, tzinfo=dt.UTC).timestamp()) + 86_400


#: Errors of reading the fields of a parsed message. Its depth is bounded, and so is Python's stack.
_UNREADABLE = (
    *(ValueError, TypeError, OverflowError, RecursionError),
    *(pa.ArrowException, json_format.Error),
)


class _TooMany(ValueError):
    """The messages have more values than their bytes allow."""


class ProtobufDecoder:
    """Decoder of one message type into the columns of a table."""

    def __init__(self, message: Descriptor, columns: StructType) -> None:
        """Build the readers of all columns.

        Raises SchemaRefused if a field does not fit its column.
        """
        self._parse: Callable[[bytes], Message] = GetMessageClass(message).FromString
        self._reader = _struct(message, columns, "", to_arrow_type(columns))

    def decode(self, data: Bytes, starts: Longs, ends: Longs) -> Iterator[Piece]:
        """Yield the columns of all messages ``data[starts[i]:ends[i]]``, in order and in pieces.

        A message that cannot be decoded has a null row and an error in its piece.
        """
        view = data.tobytes()
        # Cumulative message sizes: ``behind[i]`` is the size of the messages 0 to i.
        behind = np.cumsum(ends - starts)
        first = 0
        while first < len(starts):
            # A group is limited in messages and bytes, as its parsed messages are in memory
            # together.
            before = int(behind[first - 1]) if first else 0
            fits = int(np.searchsorted(behind, before + _BYTES_MAX, side="right"))
            last = max(first + 1, min(first + _MESSAGES_MAX, fits))
            places = list(zip(starts[first:last].tolist(), ends[first:last].tolist(), strict=True))
            group, errors = self._parsed(view, places)
            yield from self._columns(group, errors, int(behind[last - 1]) - before)
            first = last

    def _parsed(
        self, view: bytes, places: list[tuple[int, int]]
    ) -> tuple[list[Message | None], dict[int, str]]:
        """Parse the messages at ``places`` (start, end).

        Returns the messages, None for an invalid one, and the error texts by index in ``places``.
        """
        parse = self._parse
        try:
            return [parse(view[start:end]) for start, end in places], {}
        except DecodeError:
            pass
        # At least one message is invalid: parse again to find which ones.
        group: list[Message | None] = []
        errors: dict[int, str] = {}
        for start, end in places:
            try:
                group.append(parse(view[start:end]))
            except DecodeError as error:
                errors[len(group)] = f"no message: {error}"
                group.append(None)
        return group, errors

    def _columns(
        self, group: list[Message | None], errors: Mapping[int, str], size: int
    ) -> Iterator[Piece]:
        budget = _Budget(ENTRIES_MAX + ENTRIES_PER_BYTE * size)
        try:
            yield Piece(self._reader(group, budget), reasons(len(group), errors))
        except _UNREADABLE:
            # A column fails as a whole, so each message is decoded alone to find the faulty ones.
            for place, message in enumerate(group):
                yield self._alone(message, errors.get(place, ""))

    def _alone(self, message: Message | None, error: str) -> Piece:
        if message is not None:
            most = ENTRIES_LEAST + ENTRIES_PER_BYTE * message.ByteSize()
            try:
                return Piece(self._reader([message], _Budget(most)), reasons(1, {}))
            except _TooMany:
                error = "the message unpacks to too many values"
            except _UNREADABLE as found:
                error = str(found)
        return Piece(self._reader([None], _Budget(ENTRIES_LEAST)), reasons(1, {0: error}))


@dataclass(slots=True)
class _Budget:
    """Number of values that the messages of a group may still expand to."""

    left: int

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _TooMany


#: Reader of a column: values, some of them None, to an array of the same length.
_Read = Callable[[Sequence[Any], _Budget], pa.Array]


def _struct(message: Descriptor, columns: StructType, path: str, arrow_type: pa.DataType) -> _Read:
    """Return the reader that turns Protobuf messages into a struct column.

    ``path``: name of the column in error texts. Raises SchemaRefused if a field does not fit its
    column.
    """
    # Readers are built once for each column, as they run for each record.
    fields = {field.name: field for field in message.fields}
    readers: list[tuple[Callable[[Any], Any] | None, _Read | None]] = []
    for column in columns:
        where = f"{path}.{column.name}" if path else column.name
        # A column that the message does not have is null in every row.
        field = fields.get(column.name)
        if field is None:
            readers.append((None, None))
        else:
            kind = arrow_type.field(column.name).type
            readers.append((_getter(field), _field(field, column.dataType, where, kind)))

    def read(messages: Sequence[Any], budget: _Budget) -> pa.Array:
        """Return the messages, None for a null row, as an Arrow struct array of the same length."""
        # The budget bounds the values that a small input may expand to. Rows count even without
        # fields, so that a list of empty messages is limited as well.
        budget.take(len(messages) * (len(readers) + 1))
        absent = [message is None for message in messages]
        some = any(absent)
        arrays = []
        for (get, into), field in zip(readers, arrow_type, strict=True):
            if get is None or into is None:
                arrays.append(pa.nulls(len(messages), field.type))
                continue
            # This loop runs for each value, so the test for None is omitted if no message is None.
            values = (
                [None if message is None else get(message) for message in messages]
                if some
                else list(map(get, messages))
            )
            arrays.append(into(values, budget))
        mask = pa.array(absent) if some else None
        return pa.StructArray.from_arrays(arrays, fields=list(arrow_type), mask=mask)

    return read


def _getter(field: FieldDescriptor) -> Callable[[Any], Any]:
    name = field.name
    # Repeated fields and proto3 fields without presence are never unset.
    if field.is_repeated or not field.has_presence:
        return attrgetter(name)

    def get(message: Any) -> Any:
        return getattr(message, name) if message.HasField(name) else None

    return get


def _field(
    field: FieldDescriptor, column_type: DataType, path: str, arrow_type: pa.DataType
) -> _Read:
    """Return the reader of a field: a map, a repeated field or a single value.

    ``path``: name of the column in error texts. Raises SchemaRefused if the field does not fit the
    column.
    """
    # Protobuf encodes a map as repeated entry messages with the fields ``key`` and ``value``.
    if is_map(field) and isinstance(column_type, MapType):
        entry = field.message_type.fields_by_name
        keys = _single(entry["key"], column_type.keyType, f"{path}.key", arrow_type.key_type)
        values = _single(
            entry["value"], column_type.valueType, f"{path}.value", arrow_type.item_type
        )
        return _map(keys, values, arrow_type)
    if field.is_repeated and not is_map(field) and isinstance(column_type, ArrayType):
        item = _single(field, column_type.elementType, f"{path}.element", arrow_type.value_type)
        return _list(item, arrow_type)
    if field.is_repeated:
        raise SchemaRefused(f"{path}: several values do not fit {column_type.simpleString()}")
    return _single(field, column_type, path, arrow_type)


def _single(
    field: FieldDescriptor, column_type: DataType, path: str, arrow_type: pa.DataType
) -> _Read:
    """Return the reader of a field with one value: a scalar, a well-known type or a message.

    Raises SchemaRefused if the field does not fit the column.
    """
    message = field.message_type
    if message is None:
        return _scalar(field, column_type, path, arrow_type)
    name = message.full_name
    # Well-known types become single values, unless the table has a struct for them.
    if name == TIMESTAMP and isinstance(column_type, TimestampType):
        return _mapped(lambda value: _micros(value, path), arrow_type)
    if name in JSON and isinstance(column_type, StringType):
        return _mapped(lambda value: json_format.MessageToJson(value, indent=None), arrow_type)
    if name in WRAPPERS and not isinstance(column_type, StructType):
        inner = _scalar(message.fields_by_name["value"], column_type, path, arrow_type)
        get = attrgetter("value")
        return lambda values, budget: inner([v if v is None else get(v) for v in values], budget)
    if isinstance(column_type, StructType):
        return _struct(message, column_type, path, arrow_type)
    raise SchemaRefused(f"{path}: the message {name} does not fit {column_type.simpleString()}")


def _scalar(
    field: FieldDescriptor, column_type: DataType, path: str, arrow_type: pa.DataType
) -> _Read:
    """Return the reader of a scalar or enum field.

    Raises SchemaRefused if the column is of another type, or narrower than the field.
    """
    is_bytes = field.type == FieldDescriptor.TYPE_BYTES
    own: DataType = BinaryType() if is_bytes else SIMPLE[field.cpp_type]
    # A column may be wider than the field, as after an evolution of the schema.
    wider = (IntegerType, LongType), (FloatType, DoubleType)
    if own != column_type and not any(
        isinstance(own, narrow) and isinstance(column_type, wide) for narrow, wide in wider
    ):
        raise SchemaRefused(
            f"{path}: {own.simpleString()} in the record's schema does not fit "
            f"{column_type.simpleString()}"
        )
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # An open enum (proto3) may have a number without a name, which is kept as text.
        return _mapped(lambda number: names.get(number, str(number)), arrow_type)
    return lambda values, _: pa.array(values, arrow_type)


def _mapped(change: Callable[[Any], Any], arrow_type: pa.DataType) -> _Read:
    return lambda values, _: pa.array([v if v is None else change(v) for v in values], arrow_type)


def _micros(value: Any, path: str) -> int:
    seconds, nanos = value.seconds, value.nanos
    if not (_FIRST_S <= seconds < _END_S and 0 <= nanos < 1_000 * _US):
        raise ValueError(f"{path}: a timestamp is not between the years 1 and 9999")
    return int(seconds) * _US + int(nanos) // 1_000


def _list(item: _Read, arrow_type: pa.DataType) -> _Read:
    def read(values: Sequence[Any], budget: _Budget) -> pa.Array:
        offsets, flat = _flat(values, budget)
        return _with_offsets(values, offsets, [item(flat, budget)], arrow_type)

    return read


def _map(keys: _Read, items: _Read, arrow_type: pa.DataType) -> _Read:
    pair = pa.struct([arrow_type.key_field, arrow_type.item_field])

    def read(values: Sequence[Any], budget: _Budget) -> pa.Array:
        offsets, flat = _flat([v if v is None else list(v.items()) for v in values], budget)
        pairs = [keys([k for k, _ in flat], budget), items([v for _, v in flat], budget)]
        # No validity buffer: an entry itself is never null.
        entries = pa.Array.from_buffers(pair, len(flat), [None], children=pairs)
        return _with_offsets(values, offsets, [entries], arrow_type)

    return read


def _flat(values: Sequence[Any], budget: _Budget) -> tuple[list[int], list[Any]]:
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + (0 if value is None else len(value)))
    budget.take(offsets[-1])
    return offsets, list(chain.from_iterable(value for value in values if value is not None))


def _with_offsets(
    values: Sequence[Any], offsets: list[int], children: list[pa.Array], arrow_type: pa.DataType
) -> pa.Array:
    bits = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    lengths = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(arrow_type, len(values), [bits, lengths], children=children)
