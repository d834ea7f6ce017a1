"""Protobuf into columns: rows equal what the library serializes."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from tests.effort import examples
from tidemark_avro.column_rules import SchemaRefused
from tidemark_pipeline.schemas.protobuf.decode import ProtobufDecoder
from tidemark_pipeline.schemas.protobuf.descriptors import (
    Messages,
    by_indexes,
    by_name,
    compiled,
)
from tidemark_pipeline.schemas.protobuf.types import columns_of

ALL = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
enum Colour { NONE = 0; RED = 7; }
message Order {
  message Line { string name = 1; double price = 2; repeated int32 sizes = 3; }
  int32 i32 = 1; sint64 i64 = 2; uint32 u32 = 3; fixed64 u64 = 4;
  float single = 5; double twice = 6; bool yes = 7; string text = 8; bytes data = 9;
  Colour colour = 10;
  optional int32 perhaps = 11;
  Line line = 12;
  repeated Line lines = 13;
  map<string, Line> by_name = 14;
  map<int32, string> by_number = 15;
  google.protobuf.Timestamp at = 16;
  google.protobuf.Struct free = 17;
  google.protobuf.Int64Value wrapped = 18;
  oneof either { string left = 19; Line right = 20; }
  repeated Colour colours = 21;
  repeated google.protobuf.Timestamp times = 22;
}
message Other { int32 x = 1; message Inner { int64 y = 1; } }
"""


@pytest.fixture(scope="module")
def shop() -> Messages:
    return compiled(ALL)


def decoded(
    decoder: ProtobufDecoder, records: Sequence[bytes]
) -> tuple[list[Any], list[str | None], int]:
    data = np.frombuffer(b"".join(records), dtype=np.uint8)
    lengths = np.array([len(record) for record in records], dtype=np.int64)
    ends = np.cumsum(lengths)
    rows: list[Any] = []
    errors: list[str | None] = []
    pieces = 0
    for piece in decoder.decode(data, ends - lengths, ends):
        piece.values.validate(full=True)
        rows += piece.values.to_pylist()
        errors += piece.errors.to_pylist()
        pieces += 1
    return rows, errors, pieces


_LINE = st.fixed_dictionaries(
    {
        "name": st.text(max_size=5),
        "price": st.floats(allow_nan=False),
        "sizes": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    }
)
_ORDER = st.fixed_dictionaries(
    {},
    optional={
        "i32": st.integers(-(2**31), 2**31 - 1),
        "i64": st.integers(-(2**63), 2**63 - 1),
        "u32": st.integers(0, 2**32 - 1),
        "u64": st.integers(0, 2**64 - 1),
        "single": st.floats(width=32, allow_nan=False),
        "twice": st.floats(allow_nan=False),
        "yes": st.booleans(),
        "text": st.text(max_size=8),
        "data": st.binary(max_size=8),
        "colour": st.sampled_from([0, 7, 9]),
        "perhaps": st.integers(-5, 5),
        "line": _LINE,
        "lines": st.lists(_LINE, max_size=3),
        "by_name": st.dictionaries(st.text(max_size=3), _LINE, max_size=2),
        "by_number": st.dictionaries(st.integers(0, 9), st.text(max_size=3), max_size=2),
        "at": st.integers(-(10**9), 10**10),
        "wrapped": st.integers(-(2**63), 2**63 - 1),
        "either": st.one_of(st.text(max_size=3), _LINE),
        "colours": st.lists(st.sampled_from([0, 7, 9]), max_size=3),
    },
)
_COLOURS = {0: "NONE", 7: "RED", 9: "9"}


def _fill_line(line: Any, value: dict[str, Any]) -> None:
    line.SetInParent()
    line.name, line.price = value["name"], value["price"]
    line.sizes.extend(value["sizes"])


def message_of(shop: Messages, value: dict[str, Any]) -> bytes:  # noqa: PLR0912
    message: Any = GetMessageClass(by_name(shop, "shop.Order"))()
    for name, item in value.items():
        match name:
            case "line":
                _fill_line(message.line, item)
            case "lines":
                for line in item:
                    _fill_line(message.lines.add(), line)
            case "by_name":
                for key, line in item.items():
                    _fill_line(message.by_name[key], line)
            case "by_number":
                message.by_number.update(item)
            case "at":
                message.at.seconds = item
            case "wrapped":
                message.wrapped.value = item
            case "either":
                if isinstance(item, str):
                    message.left = item
                else:
                    _fill_line(message.right, item)
            case "colours":
                message.colours.extend(item)
            case _:
                setattr(message, name, item)
    return bytes(message.SerializeToString())


def row_of(value: dict[str, Any]) -> dict[str, Any]:
    at, either = value.get("at"), value.get("either")
    return {
        "i32": value.get("i32", 0),
        "i64": value.get("i64", 0),
        "u32": value.get("u32", 0),
        "u64": Decimal(value.get("u64", 0)),
        "single": value.get("single", 0.0),
        "twice": value.get("twice", 0.0),
        "yes": value.get("yes", False),
        "text": value.get("text", ""),
        "data": value.get("data", b""),
        "colour": _COLOURS[value.get("colour", 0)],
        "perhaps": value.get("perhaps"),
        "line": value.get("line"),
        "lines": value.get("lines", []),
        "by_name": sorted(value.get("by_name", {}).items()),
        "by_number": sorted(value.get("by_number", {}).items()),
        "at": None if at is None else dt.datetime.fromtimestamp(at, dt.UTC),
        "free": None,
        "wrapped": value.get("wrapped"),
        "left": either if isinstance(either, str) else None,
        "right": either if isinstance(either, dict) else None,
        "colours": [_COLOURS[colour] for colour in value.get("colours", [])],
        "times": [],
    }


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_ORDER, max_size=5))
def test_rows_equal_the_written_values(shop: Messages, values: list[dict[str, Any]]) -> None:
    message = by_name(shop, "shop.Order")
    records = [message_of(shop, value) for value in values]
    rows, errors, _ = decoded(ProtobufDecoder(message, columns_of(message)), records)
    assert errors == [None] * len(values)
    # The entries of a map have no defined order.
    for row in rows:
        row["by_name"].sort()
        row["by_number"].sort()
    assert rows == [row_of(value) for value in values]


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_row_or_a_reason(shop: Messages, data: bytes) -> None:
    message = by_name(shop, "shop.Order")
    good = message_of(shop, {"i32": 1})
    rows, errors, _ = decoded(ProtobufDecoder(message, columns_of(message)), [good, data, good])
    assert [row["i32"] for row in (rows[0], rows[2])] == [1, 1]
    assert errors[0] is errors[2] is None
    assert (rows[1] is None) == (errors[1] is not None)


def test_recursive_well_known_types_become_json(shop: Messages) -> None:
    message = by_name(shop, "shop.Order")
    order: Any = GetMessageClass(message)()
    json_format.ParseDict({"free": {"a": [1, {"b": None}]}}, order)
    rows, _, _ = decoded(ProtobufDecoder(message, columns_of(message)), [order.SerializeToString()])
    assert rows[0]["free"] == '{"a": [1.0, {"b": null}]}'


def test_message_that_cannot_be_a_row_fails_alone(shop: Messages) -> None:
    """A time outside the supported years fails. Many empty messages do not."""
    message = by_name(shop, "shop.Order")
    order: Any = GetMessageClass(message)()
    order.at.seconds = 10**12
    # An empty line takes two bytes, and has a row in the list of lines.
    bomb = b"\x6a\x00" * 300_000
    good = message_of(shop, {"text": "a"})
    decoder = ProtobufDecoder(message, columns_of(message))
    rows, errors, _ = decoded(decoder, [good, order.SerializeToString(), bomb, good])
    assert [row is None for row in rows] == [False, True, False, False]
    assert errors[1] == "at: a timestamp is not between the years 1 and 9999"


def test_too_deeply_nested_message_is_refused(shop: Messages) -> None:
    """Only a well-known type can nest that deep, because recursive types have no columns."""
    value = b"\x08\x00"  # a null
    for _ in range(500):
        # Each round wraps the value in a list, and the list in another value.
        listed = b"\x0a" + _varint(len(value)) + value
        value = b"\x32" + _varint(len(listed)) + listed
    entry = b"\x0a\x01a\x12" + _varint(len(value)) + value
    free = b"\x0a" + _varint(len(entry)) + entry
    message = by_name(shop, "shop.Order")
    data = b"\x8a\x01" + _varint(len(free)) + free
    rows, errors, _ = decoded(ProtobufDecoder(message, columns_of(message)), [data])
    assert rows == [None]
    assert errors[0] is not None
    assert "no message" in errors[0]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def test_many_small_messages_within_one_are_bounded() -> None:
    fields = "\n".join(f"optional int32 c{n} = {n + 1};" for n in range(200))
    text = f'syntax = "proto3"; message W {{ {fields} }} message R {{ repeated W w = 1; }}'
    message = by_name(compiled(text), "R")
    decoder = ProtobufDecoder(message, columns_of(message))
    rows, errors, _ = decoded(decoder, [b"\x0a\x00" * 100_000, b"\x0a\x00"])
    assert errors == ["the message unpacks to too many values", None]
    assert len(rows[1]["w"]) == 1


def test_messages_are_found_by_name_and_by_indexes(shop: Messages) -> None:
    assert by_indexes(shop, [0]).full_name == "shop.Order"
    assert by_indexes(shop, [0, 0]).full_name == "shop.Order.Line"
    assert by_indexes(shop, [1, 0]).full_name == "shop.Other.Inner"
    for indexes in ([2], [0, 5], [-1]):
        with pytest.raises(SchemaRefused, match="no message"):
            by_indexes(shop, indexes)
    with pytest.raises(SchemaRefused, match=r"of shop\.Order, shop\.Other"):
        by_name(shop)
    with pytest.raises(SchemaRefused, match="no message nope"):
        by_name(shop, "nope")


def test_missing_columns_are_null_and_wider_ones_are_filled(shop: Messages) -> None:
    message = by_name(shop, "shop.Other")
    columns = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": "x", "type": "long", "nullable": True, "metadata": {}},
                {"name": "z", "type": "string", "nullable": True, "metadata": {}},
            ],
        }
    )
    assert decoded(ProtobufDecoder(message, columns), [b"\x08\x05"])[0] == [{"x": 5, "z": None}]


REFUSED = {
    "no proto": ("what is this", "protoc refuses it"),
    "missing import": (
        'syntax = "proto3"; import "no.proto"; message M { int32 x = 1; }',
        "no.proto",
    ),
    "recursive": ('syntax = "proto3"; message M { M m = 1; int32 x = 2; }', "contains itself"),
    "circle": (
        'syntax = "proto3"; message A { B b = 1; } message B { A a = 1; }',
        "name the message",
    ),
    "empty": ('syntax = "proto3"; message M {}', "has no fields"),
    "giant": ("//" + " " * 2_000_000, "more than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_without_columns_is_refused(name: str) -> None:
    text, why = REFUSED[name]
    with pytest.raises(SchemaRefused, match=why):
        columns_of(by_name(compiled(text)))


def test_only_given_files_are_imported() -> None:
    text = 'syntax = "proto3"; import "a/b.proto"; message M { B b = 1; }'
    other = 'syntax = "proto3"; message B { int32 x = 1; }'
    message = by_name(compiled(text, {"a/b.proto": other}))
    assert columns_of(message).simpleString() == "struct<b:struct<x:int>>"
    for bad in ("/etc/b.proto", "../b.proto"):
        with pytest.raises(SchemaRefused, match="imports"):
            compiled(text, {bad: other})


def test_unreadable_descriptors_are_refused() -> None:
    for data in (b"", b"\xff\xff", b"\x0a\x00"):
        with pytest.raises(SchemaRefused):
            by_name(Messages(data))
