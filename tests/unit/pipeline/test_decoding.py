"""Batches in a worker: each record becomes a row or a reason, by its schema."""

import json
import struct
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tidemark_avro.decoder_results import REASON_LENGTH_MAX
from tidemark_pipeline.schemas.decoding import UNKNOWN, Decoding
from tidemark_pipeline.schemas.protobuf.descriptors import compiled
from tidemark_pipeline.schemas.sources import SchemaSource, SchemaType, columns_of
from tidemark_pipeline.schemas.value_format import ERROR, NO_VALUE, PARSED


def avro(*fields: tuple[str, Any]) -> SchemaSource:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return SchemaSource(
        SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": named})
    )


INT, TEXT = avro(("x", "int")), avro(("x", "string"))
COLUMNS = columns_of(INT).json()


def framed(number: int, data: bytes) -> bytes:
    return b"\x00" + struct.pack(">i", number) + data


def run(decoding: Decoding, values: list[bytes | None]) -> dict[int, tuple[Any, Any, Any]]:
    """Return the results by offset, since batches come per schema.

    The values follow another one that is not decoded.
    """
    # A slice starts within the Arrow buffers, which the decoder has to respect.
    column = pa.array([b"before", *values], pa.binary()).slice(1)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(len(values)), pa.int64()), column], names=["offset", "value"]
    )
    found = {}
    for out in decoding(iter([batch, batch.slice(0, 0)])):
        out.validate(full=True)
        for row in out.to_pylist():
            assert row["value"] == values[row["offset"]]
            assert row["offset"] not in found
            found[row["offset"]] = (row[PARSED], row[ERROR], row[UNKNOWN])
    assert sorted(found) == list(range(len(values)))
    return found


def test_values_of_one_schema() -> None:
    found = run(Decoding(COLUMNS, INT), [b"\x02", None, b"", b"\x04"])
    assert found[0] == ({"x": 1}, None, None)
    assert found[1] == (None, NO_VALUE, None)
    assert found[2][0] is None
    assert "end within" in found[2][1]
    assert found[3] == ({"x": 2}, None, None)
    assert set(run(Decoding(COLUMNS, INT), [None, None]).values()) == {(None, NO_VALUE, None)}


def test_each_value_names_its_schema() -> None:
    wide = avro(("y", "string"), ("x", "int"))
    known: dict[int, SchemaSource | str] = {1: INT, 2: wide, 3: "no such thing", 4: TEXT}
    values = [
        framed(1, b"\x02"), framed(2, b"\x02a\x04"), framed(1, b"\x06"), framed(3, b""),
        framed(4, b"\x02a"), framed(99, b"\x02"), b"\x01\x00\x00\x00\x01\x02", b"\x00\x00\x00",
        None, framed(-1, b""),
    ]  # fmt: skip
    found = run(Decoding(COLUMNS, known=known), values)
    assert [found[n][0] for n in range(3)] == [{"x": 1}, {"x": 2}, {"x": 3}]
    assert found[3][1] == "schema 3: no such thing"
    assert found[4][1] == "schema 4: x: string in the record's schema does not fit int"
    assert found[5] == (None, "schema 99 is not known yet", 99)
    for place in (6, 7, 9):
        assert found[place][1].startswith("no schema id")
    assert found[8][1] == NO_VALUE
    assert [found[n][2] for n in range(10) if n != 5] == [None] * 9


def test_a_protobuf_message_is_named_by_its_index() -> None:
    text = 'syntax = "proto3"; package p; message A { int32 x = 1; message B { int32 x = 1; } }'
    source = SchemaSource(SchemaType.PROTOBUF, descriptors=compiled(text).serialized)
    values = [
        framed(1, b"\x00\x08\x05"),  # the first one in short
        framed(1, b"\x02\x00\x08\x06"),
        framed(1, b"\x04\x00\x00\x08\x07"),
        framed(1, b"\x02\x02\x08\x07"),  # there is no second
        framed(1, b""),
        framed(1, b"\xff\xff\xff\xff\xff\xff"),
        framed(1, b"\x01"),  # a number of indexes below zero
        framed(1, b"\xc8\x01" + b"\x00" * 200),
    ]
    found = run(Decoding(COLUMNS, known={1: source}), values)
    assert [found[n][0] for n in range(3)] == [{"x": 5}, {"x": 6}, {"x": 7}]
    assert "has no message [1]" in found[3][1]
    assert [found[n][1] for n in range(4, 8)] == [
        "the value does not say which message of its schema it is"
    ] * 4
    reader = SchemaSource(SchemaType.PROTOBUF, descriptors=source.descriptors, message="p.A")
    found = run(Decoding(COLUMNS, known={1: source}, reader=reader), values[:3])
    assert [found[n][0] for n in range(3)] == [{"x": 5}, {"x": 6}, None]
    assert "it is a message p.A.B, and the table is of p.A" in found[2][1]


def test_types_of_other_schemas_are_known() -> None:
    inner = '{"type": "record", "name": "n.I", "fields": [{"name": "x", "type": "int"}]}'
    text = '{"type": "record", "name": "n.O", "fields": [{"name": "i", "type": "n.I"}]}'
    source = SchemaSource(SchemaType.AVRO, text, (inner,))
    columns = columns_of(source)
    assert columns.simpleString() == "struct<i:struct<x:int>>"
    assert run(Decoding(columns.json(), source), [b"\x02"])[0][0] == {"i": {"x": 1}}


def test_length_of_a_reason_is_limited() -> None:
    found = run(Decoding(COLUMNS, known={1: "x" * 10_000}), [framed(1, b"")])
    assert len(found[0][1]) == REASON_LENGTH_MAX


def test_a_schema_that_fits_no_column_ends_the_batch_with_an_error() -> None:
    """The schema was checked before anything was read: only a change of the table causes this."""
    with pytest.raises(ValueError, match="does not fit int"):
        run(Decoding(COLUMNS, TEXT), [b"\x02a"])


def test_columns_are_serialized_as_spark_json() -> None:
    assert StructType.fromJson(json.loads(COLUMNS)).simpleString() == "struct<x:int>"
