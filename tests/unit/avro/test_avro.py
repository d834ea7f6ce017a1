"""Avro into columns: rows equal what fastavro wrote, for any schema.

Values that are no record are recognized, whatever their bytes.
"""

import contextlib
import datetime as dt
import io
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

import tidemark_avro
from tests.effort import examples
from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.column_types import columns_of
from tidemark_avro.decode import AvroDecoder
from tidemark_avro.schema import Schema, parse_schema

README = Path(tidemark_avro.__file__).with_name("README.md")
UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


def decoded(
    schema: Any, records: Sequence[bytes], columns: StructType | None = None, reader: Any = None
) -> tuple[list[Any], list[str | None]]:
    """Return rows and errors. Other bytes separate the records in the buffer."""
    writer = parse_schema(json.dumps(schema))
    read_by = None if reader is None else parse_schema(json.dumps(reader))
    needed = columns_of(read_by or writer) if columns is None else columns
    return run(AvroDecoder(writer, needed, read_by), records)


def run(decoder: AvroDecoder, records: Sequence[bytes]) -> tuple[list[Any], list[str | None]]:
    # A byte that no record may read precedes and follows each record.
    data = np.frombuffer(b"\xff" + b"\xff".join(records) + b"\xff", dtype=np.uint8)
    lengths = np.array([len(record_) for record_ in records], dtype=np.int64)
    starts = 1 + np.cumsum(lengths + 1) - (lengths + 1)
    rows: list[Any] = []
    errors: list[str | None] = []
    for piece in decoder.decode(data, starts, starts + lengths):
        piece.values.validate(full=True)
        rows += piece.values.to_pylist()
        errors += piece.errors.to_pylist()
    return rows, errors


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def record(*fields: Any) -> dict[str, Any]:
    named = [{"name": f"f{n}", "type": field} for n, field in enumerate(fields)]
    return {"type": "record", "name": "R", "fields": named}


@dataclass(frozen=True)
class AvroCase:
    """A type, with values for fastavro and the expected values of the column."""

    schema: Any
    values: st.SearchStrategy[tuple[Any, Any]]


def same(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return strategy.map(lambda value: (value, value))


_TIMES = st.integers(-(10**15), 10**15)
SINGLE = {
    "boolean": same(st.booleans()),
    "int": same(st.integers(-(2**31), 2**31 - 1)),
    "long": same(st.integers(-(2**63), 2**63 - 1)),
    "float": same(st.floats(width=32, allow_nan=False)),
    "double": same(st.floats(allow_nan=False)),
    "bytes": same(st.binary(max_size=20)),
    "string": same(st.text(max_size=12)),
}
LOGICAL = [
    AvroCase(
        {"type": "int", "logicalType": "date"},
        same(st.dates(min_value=dt.date(1900, 1, 1))),
    ),
    AvroCase(
        {"type": "long", "logicalType": "timestamp-micros"},
        same(_TIMES.map(lambda us: EPOCH + dt.timedelta(microseconds=us))),
    ),
    AvroCase(
        {"type": "long", "logicalType": "timestamp-millis"},
        same(_TIMES.map(lambda us: EPOCH + dt.timedelta(milliseconds=us // 1000))),
    ),
    AvroCase(
        {"type": "long", "logicalType": "local-timestamp-micros"},
        same(_TIMES.map(lambda us: EPOCH.replace(tzinfo=None) + dt.timedelta(microseconds=us))),
    ),
    *(
        AvroCase(
            {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2},
            same(
                st.integers(-(10**precision) + 1, 10**precision - 1).map(
                    lambda n: Decimal(n).scaleb(-2)
                )
            ),
        )
        # 18 digits fit into 64 bits, and 19 do not.
        for precision in (4, 18, 19, 28)
    ),
]
_names = itertools.count()


@st.composite
def cases(draw: st.DrawFn, depth: int = 3) -> AvroCase:
    kinds = ["single", "single", "logical", "enum", "fixed", "nullable"]
    if depth:
        kinds += ["array", "map", "record", "union"]
    match draw(st.sampled_from(kinds)):
        case "logical":
            return draw(st.sampled_from(LOGICAL))
        case "enum":
            schema = {"type": "enum", "name": f"E{next(_names)}", "symbols": ["A", "BB", "CCC"]}
            return AvroCase(schema, same(st.sampled_from(["A", "BB", "CCC"])))
        case "fixed":
            size = draw(st.integers(0, 5))
            schema = {"type": "fixed", "name": f"F{next(_names)}", "size": size + 1}
            return AvroCase(schema, same(st.binary(min_size=size + 1, max_size=size + 1)))
        case "nullable":
            # A union must not contain null twice.
            inner = draw(cases(depth=0).filter(lambda c: "null" not in c.schema))
            absent = st.just((None, None))
            return AvroCase(["null", inner.schema], st.one_of(absent, inner.values))
        case "array":
            inner = draw(cases(depth=depth - 1))
            values = st.lists(inner.values, max_size=4).map(_unzip)
            return AvroCase({"type": "array", "items": inner.schema}, values)
        case "map":
            inner = draw(cases(depth=depth - 1))
            values = st.dictionaries(st.text(max_size=5), inner.values, max_size=4).map(
                lambda pairs: (
                    {k: v for k, (v, _) in pairs.items()},
                    [(k, v) for k, (_, v) in pairs.items()],
                )
            )
            return AvroCase({"type": "map", "values": inner.schema}, values)
        case "record":
            return draw(records(depth - 1))
        case "union":
            return _union(draw(st.sampled_from(["null", "int"])))
        case _:
            name = draw(st.sampled_from(sorted(SINGLE)))
            return AvroCase(name, SINGLE[name])


def _unzip(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [given for given, _ in pairs], [had for _, had in pairs]


def _union(first: str) -> AvroCase:
    """Return a union of a string, a boolean, and null or a number."""
    members = ["string", "boolean"] if first == "null" else ["int", "string", "boolean"]
    branches = [first, *(m for m in members if m != first)]

    def member(name: str) -> st.SearchStrategy[tuple[Any, Any]]:
        if name == "null":
            return st.just((None, None))
        return SINGLE[name].map(
            lambda pair: (pair[0], {item: pair[1] if item == name else None for item in members})
        )

    return AvroCase(branches, st.one_of([member(name) for name in branches]))


@st.composite
def records(draw: st.DrawFn, depth: int = 3) -> AvroCase:
    inner = draw(st.lists(cases(depth=depth), min_size=1, max_size=4))
    fields = [{"name": f"f{n}", "type": item.schema} for n, item in enumerate(inner)]
    schema = {"type": "record", "name": f"R{next(_names)}", "fields": fields}
    values = st.tuples(*(item.values for item in inner)).map(
        lambda pairs: (
            {f"f{n}": given for n, (given, _) in enumerate(pairs)},
            {f"f{n}": had for n, (_, had) in enumerate(pairs)},
        )
    )
    return AvroCase(schema, values)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_rows_equal_the_written_values(data: st.DataObject) -> None:
    case = data.draw(records())
    pairs = data.draw(st.lists(case.values, max_size=5))
    rows, errors = decoded(case.schema, [written(case.schema, value) for value, _ in pairs])
    assert errors == [None] * len(pairs)
    assert rows == [had for _, had in pairs]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_bytes_that_are_no_record_fail_alone(data: st.DataObject) -> None:
    """Damaged records have errors, and the records around them are read."""
    case = data.draw(records())
    good, had = data.draw(case.values)
    sound = written(case.schema, good)
    at = data.draw(st.integers(0, max(0, len(sound) - 1)))
    changed = bytearray(sound)
    if changed:
        changed[at] ^= data.draw(st.integers(1, 255))
    # The record is cut short, longer, changed, and replaced by any bytes.
    bad = [sound[:at], sound + b"\x00", bytes(changed), data.draw(st.binary(max_size=30))]
    rows, errors = decoded(case.schema, [sound, *bad, sound])
    assert (rows[0], rows[-1], errors[0], errors[-1]) == (had, had, None, None)
    if sound:
        assert errors[1] is not None
    assert errors[2] is not None
    # The last two may be records by chance. Each of the four has either a row or an error.
    for row, error in zip(rows[1:-1], errors[1:-1], strict=True):
        assert (row is None) == (error is not None)


_PLAIN = st.recursive(
    st.one_of(
        st.sampled_from([*sorted(SINGLE), ["null", "long"], ["string", "null"]]),
        st.builds(
            lambda: {"type": "enum", "name": f"E{next(_names)}", "symbols": ["A", "BB", "CCC"]}
        ),
        st.builds(lambda n: {"type": "fixed", "name": f"F{next(_names)}", "size": n}, st.just(2)),
    ),
    lambda inner: st.one_of(
        inner.map(lambda kind: {"type": "array", "items": kind}),
        inner.map(lambda kind: {"type": "map", "values": kind}),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: {**record(*kinds), "name": f"R{next(_names)}"}
        ),
    ),
    max_leaves=5,
)


def like_fastavro(value: Any, schema: Any) -> Any:
    """Return a row's value as fastavro does, where maps are dictionaries."""
    if isinstance(schema, list):
        schema = next(item for item in schema if item != "null")
    if value is None or isinstance(schema, str):
        return value
    match schema["type"]:
        case "record":
            return {f["name"]: like_fastavro(value[f["name"]], f["type"]) for f in schema["fields"]}
        case "array":
            return [like_fastavro(item, schema["items"]) for item in value]
        case "map":
            return {key: like_fastavro(item, schema["values"]) for key, item in value}
        case _:
            return value


# Small bytes are likely to be lengths, branches and symbols.
_BYTES = st.lists(st.one_of(st.integers(0, 4), st.integers(0, 255)), max_size=25).map(bytes)


@settings(max_examples=examples(100), deadline=None)
@given(_PLAIN.map(record), st.lists(_BYTES, min_size=1, max_size=40))
def test_accepted_bytes_are_a_record_for_fastavro_too(schema: Any, records: list[bytes]) -> None:
    """The converse is not true: fastavro accepts branches and symbols that do not exist."""
    rows, errors = decoded(schema, records)
    for data, row, error in zip(records, rows, errors, strict=True):
        if error is None:
            stream = io.BytesIO(data)
            value = fastavro.schemaless_reader(stream, fastavro.parse_schema(schema), None)
            assert stream.read() == b""
            # Compare texts, because a NaN does not equal itself.
            assert repr(like_fastavro(row, schema)) == repr(value)


WIDENED = [
    ("int", "long", 7, 7),
    ("int", "float", 7, 7.0),
    ("long", "double", 2**53, float(2**53)),
    ("float", "double", 0.5, 0.5),
    ("string", "bytes", "ü", "ü".encode()),
    ("bytes", "string", "ü".encode(), "ü"),
    ("int", ["null", "long"], 7, 7),
    (["null", "int"], "long", None, None),
    (["null", "int"], "long", 5, 5),
]


@pytest.mark.parametrize(("writer", "reader", "value", "had"), WIDENED)
def test_narrower_types_of_the_writer_are_widened(
    writer: Any, reader: Any, value: Any, had: Any
) -> None:
    records = [written(record(writer), {"f0": value})]
    assert decoded(record(writer), records, reader=record(reader)) == ([{"f0": had}], [None])


NARROWED = [
    ("long", "int"),
    ("double", "float"),
    ("string", "int"),
    ({"type": "array", "items": "int"}, "int"),
]


@pytest.mark.parametrize(("writer", "reader"), NARROWED)
def test_a_type_that_fits_no_column_refuses_the_schema(writer: Any, reader: Any) -> None:
    with pytest.raises(SchemaRefused, match=r"f0: .* in the record's schema does not fit"):
        decoded(record(writer), [], reader=record(reader))


def test_only_records_with_an_unsuitable_union_branch_fail() -> None:
    writer = record(["int", "string"])
    records = [written(writer, {"f0": value}) for value in (1, "a")]
    rows, errors = decoded(writer, records, reader=record("int"))
    assert rows == [{"f0": 1}, None]
    assert errors == [None, "f0: string in the record's schema does not fit int"]


def test_fields_match_by_name_and_alias_and_missing_ones_have_defaults() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    writer = {
        "type": "record",
        "name": "R",
        "fields": [
            # The reader has no such field, so that its values have to be skipped.
            {"name": "gone", "type": {"type": "array", "items": ["null", inner]}},
            {"name": "old", "type": "int"},
            {"name": "kept", "type": "string"},
        ],
    }
    reader = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "kept", "type": ["null", "string"]},
            {"name": "new", "type": "long", "aliases": ["old"]},
            {"name": "none", "type": ["null", "int"], "default": None},
            {"name": "text", "type": "string", "default": "dflt"},
            {"name": "list", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
            {
                "name": "map",
                "type": {"type": "map", "values": "double"},
                "default": {"a": 1, "b": -0.5},
            },
            {"name": "sub", "type": [inner, "null"], "default": {"x": -7}},
            {
                "name": "money",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1},
                # The byte is -1 in two's complement, which is -0.1 with a scale of 1.
                "default": "\u00ff",
            },
            {
                "name": "kind",
                "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]},
                "default": "B",
            },
        ],
    }
    value = {"gone": [None, {"x": 1}, {"x": 2}], "old": 5, "kept": "yes"}
    rows, errors = decoded(writer, [written(writer, value)] * 2, reader=reader)
    assert errors == [None, None]
    assert (
        rows
        == [
            {
                "kept": "yes",
                "new": 5,
                "none": None,
                "text": "dflt",
                "list": [1, 2],
                "map": [("a", 1.0), ("b", -0.5)],
                "sub": {"x": -7},
                "money": Decimal("-0.1"),
                "kind": "B",
            }
        ]
        * 2
    )


def test_value_that_is_not_a_record_has_one_column() -> None:
    assert decoded("string", [b"\x04hi", b"\x02"])[0] == [{"value": "hi"}, None]
    assert decoded(["null", "long"], [b"\x00", b"\x02\x02"])[0] == [{"value": None}, {"value": 1}]


def test_blocks_with_their_sizes_are_read() -> None:
    """The specification allows sizes of blocks, which fastavro never writes."""
    schema = record({"type": "array", "items": "int"})
    assert decoded(schema, [b"\x03\x04\x02\x04\x02\x06\x00"])[0] == [{"f0": [1, 2, 3]}]


def test_the_last_value_of_a_repeated_map_key_counts() -> None:
    """Avro permits repeated keys. A map of Spark must not have them."""
    schema = record({"type": "map", "values": "int"}, {"type": "array", "items": "int"})

    def entry(key: bytes, value: int) -> bytes:
        return bytes([2 * len(key)]) + key + bytes([2 * value])

    twice = b"\x04" + entry(b"k", 1) + entry(b"j", 2)
    repeated = b"\x01\x06" + entry(b"k", 3)  # in a block of its own, with its size
    data = [twice + repeated + b"\x00" + b"\x02\x02\x00", twice + b"\x00\x00", b"\x00\x00", b"\x02"]
    rows, errors = decoded(schema, data)
    assert [row and dict(row["f0"]) for row in rows] == [
        {"k": 3, "j": 2},
        {"k": 1, "j": 2},
        {},
        None,
    ]
    assert [row and len(row["f0"]) for row in rows] == [2, 2, 0, None]
    assert rows[0]["f1"] == [1]
    assert [bool(error) for error in errors] == [False, False, False, True]
    # Keys are also repeated in the maps within a map.
    nested = record({"type": "map", "values": {"type": "map", "values": "string"}})
    inner = b"\x04" + b"\x02a\x02x" + b"\x02a\x02y" + b"\x00"
    value = b"\x04" + b"\x02m" + inner + b"\x02n" + inner + b"\x00"
    assert decoded(nested, [value, value])[0] == 2 * [
        {"f0": [("m", [("a", "y")]), ("n", [("a", "y")])]}
    ]


HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "a length of 2^62": ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "end within"),
    "a length below zero": ("string", b"\x01", "end within"),
    "a varint without an end": ("long", b"\xff" * 40, "more than 64 bits"),
    "eleven bytes of a varint": ("long", b"\x80" * 9 + b"\x02", "more than 64 bits"),
    "2^40 in an int": ("int", b"\x80\x80\x80\x80\x80\x40", "out of range"),
    "a branch below zero": (["null", "int"], b"\x01\x02", "no such branch"),
    "a branch too many": (["null", "int"], b"\x04\x02", "no such branch"),
    "a symbol below zero": (
        {"type": "enum", "name": "E", "symbols": ["A"]},
        b"\x01",
        "no such symbol",
    ),
    "a boolean of 2": ("boolean", b"\x02", "neither 0 nor 1"),
    "half of a character": ("string", b"\x02\xc3", "no UTF-8"),
    "a surrogate": ("string", b"\x06\xed\xa0\x80", "no UTF-8"),
    "2^62 items": (
        {"type": "array", "items": "int"},
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
        "more items",
    ),
    "-2^63 items": ({"type": "array", "items": "int"}, b"\xff" * 9 + b"\x01\x00\x00", "more items"),
    "milliseconds of no time": (
        {"type": "long", "logicalType": "timestamp-millis"},
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        "out of range",
    ),
    "too many digits": (
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0},
        b"\x04\x27\x10",
        "too many digits",
    ),
    "a number of a hundred bytes": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
        b"\xc8\x01" + b"\x01" * 100,
        "too many digits",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_record_is_rejected_with_a_reason(name: str) -> None:
    schema, data, why = HOSTILE[name]
    rows, errors = decoded(record(schema), [data])
    assert rows == [None]
    assert errors[0] is not None
    assert why in errors[0]


def test_a_number_in_more_bytes_than_it_needs_is_read() -> None:
    schema = record({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0})
    for number in (-1, 1, 10**38 - 1, -(10**38) + 1):
        data = number.to_bytes(30, "big", signed=True)
        assert decoded(schema, [b"\x3c" + data])[0] == [{"f0": Decimal(number)}]


def test_few_bytes_that_unpack_to_many_values_are_refused() -> None:
    """A null of a record with many columns takes a byte, also in a small record."""
    wide = {
        "type": "record",
        "name": "W",
        "fields": [{"name": f"c{n}", "type": "int"} for n in range(200)],
    }
    schema = record({"type": "array", "items": ["null", wide]})
    # 200,000 nulls, each of a record with 200 columns, are 40 million values.
    data = b"\x80\xb5\x18" + b"\x00" * 200_000 + b"\x00"
    rows, errors = decoded(schema, [data, b"\x04\x00\x00\x00"])
    assert rows[0] is None
    assert errors == ["f0: the record unpacks to too many values", None]
    assert rows[1] == {"f0": [None, None]}


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


def test_recursive_type_has_no_columns_and_is_skipped_to_a_depth() -> None:
    with pytest.raises(SchemaRefused, match="contains itself"):
        columns_of(parse_schema(json.dumps(LIST)))
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "l", "type": LIST}, {"name": "x", "type": "int"}],
    }
    columns = StructType([StructField("x", IntegerType())])
    # The field has no column, and is skipped to reach the next one.
    short, long = (b"\x02" * depth + b"\x00\x02" for depth in (20, 1_000_000))
    rows, errors = decoded(writer, [short, long], columns)
    assert rows == [{"x": 1}, None]
    assert errors[1] is not None
    assert "nested too deep" in errors[1]


def test_many_records_come_in_pieces_that_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark_avro.decode.ENTRIES_MAX", 100)
    schema = record({"type": "array", "items": "int"})
    writer = parse_schema(json.dumps(schema))
    decoder = AvroDecoder(writer, columns_of(writer))
    records = [written(schema, {"f0": list(range(n))}) for n in range(50)]
    data = np.frombuffer(b"".join(records), dtype=np.uint8)
    ends = np.cumsum([len(record_) for record_ in records])
    pieces = list(decoder.decode(data, ends - [len(record_) for record_ in records], ends))
    assert len(pieces) > 5
    rows = [row for piece in pieces for row in piece.values.to_pylist()]
    assert rows == [{"f0": list(range(n))} for n in range(50)]


def nested(depth: int, kind: str = "int") -> Any:
    for n in range(depth):
        kind = {"type": "record", "name": f"N{n}", "fields": [{"name": "n", "type": kind}]}  # type: ignore[assignment]
    return kind


def doubled(times: int) -> Any:
    """Return a type with 2^times columns: each level uses the one below twice."""
    kind: Any = "int"
    for n in range(times):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"D{n - 1}" if n else "int"}]
        kind = {"type": "record", "name": f"D{n}", "fields": fields}
    return kind


def chained(count: int) -> str:
    """Return a schema of many records, each within the next one by its name.

    The JSON itself is not deep.
    """
    fields = [
        {
            "name": f"f{n}",
            "type": {
                "type": "record",
                "name": f"C{n}",
                "fields": [{"name": "x", "type": f"C{n - 1}" if n else "int"}],
            },
        }
        for n in range(count)
    ]
    return json.dumps(
        {"type": "record", "name": "R", "fields": [*fields, {"name": "y", "type": "int"}]}
    )


def test_chain_of_named_records_is_skipped_to_a_depth() -> None:
    columns = StructType([StructField("y", IntegerType())])
    for count, had in ((50, {"y": 7}), (3_000, None)):
        decoder = AvroDecoder(parse_schema(chained(count)), columns)
        assert run(decoder, [b"\x02" * count + b"\x0e"])[0] == [had]


REFUSED = {
    "no JSON": ("{", "no JSON"),
    "no type": ('{"a": 1}', "no type"),
    "unknown": ('"nope"', "not known"),
    "twice the name": (json.dumps(record(LIST, LIST)), "is taken"),
    "a union in a union": (json.dumps(record([["null"], "int"])), "no union"),
    "null items": (json.dumps(record({"type": "array", "items": "null"})), "take no bytes"),
    "empty items": (
        json.dumps(
            record({"type": "array", "items": {"type": "record", "name": "X", "fields": []}})
        ),
        "take no bytes",
    ),
    "deep": (json.dumps(nested(40)), "nested more than 30 deep"),
    "chained": (chained(40), "nested more than 30 deep"),
    "very deep": ("[" * 100_000, "nested too deep"),
    "unfolds": (json.dumps(doubled(20)), "more than 2000 columns"),
    "case": (
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"A","type":"int"}]}',
        "differ by case",
    ),
    "giant": (" " * 2_000_000, "are the most"),
    "nothing": (json.dumps(record("null")), "no field with values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_without_columns_is_refused(name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(SchemaRefused, match=why):
        columns_of(parse_schema(text))


def test_expanding_schema_is_read_if_few_columns_are_needed() -> None:
    schema: Schema = parse_schema(json.dumps(record(doubled(12), "int")))
    columns = StructType([StructField("f1", IntegerType())])
    # 4,096 values precede the only field that has a column.
    rows, _ = run(AvroDecoder(schema, columns), [b"\x02" * 2**12 + b"\x04"])
    assert rows == [{"f1": 2}]
    assert math.isfinite(rows[0]["f1"])


def test_readme_example_prints_what_it_shows() -> None:
    code, output = re.findall(r"(?s)```(?:python|text)\n(.*?)```", README.read_text("utf-8"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output
