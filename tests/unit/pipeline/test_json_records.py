"""JSON records: dead letters with their causes, and columns inferred from the others."""

import json
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.effort import examples
from tidemark_avro.column_rules import COLUMNS_MAX, folded
from tidemark_pipeline.export.evolution import changes
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.row_shapes import ANY_FORMAT, check_fields, column_names
from tidemark_pipeline.schemas.json.inference import PlaceBudget, RecordShape, grown, size_of
from tidemark_pipeline.schemas.json.record_check import (
    CAUSE,
    HAS_NEW_FIELDS,
    NEW_MAX,
    SHAPE,
    RecordCheck,
    Summary,
    WorkerRecordCheck,
    merged,
)
from tidemark_pipeline.schemas.json.text import DOES_NOT_FIT, NOT_JSON
from tidemark_pipeline.schemas.value_format import ColumnNames

LONG, DOUBLE, TEXT = LongType(), DoubleType(), StringType()
INJECTION = "a:bigint>, injected string COMMENT 'by a record', z struct<b"


def of(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def cause(
    value: Any, columns: StructType, *, grows: bool = False, names: ColumnNames = ANY_FORMAT
) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    verdict = RecordCheck(columns, names, grows=grows).judge(data)
    return "" if verdict.has_new_fields else verdict.cause


def batch(*values: Any) -> pa.RecordBatch:
    data = [v if isinstance(v, bytes | None) else json.dumps(v).encode() for v in values]
    return pa.RecordBatch.from_arrays([pa.array(data, pa.binary())], names=["value"])


def learned(
    table: StructType, *values: Any, room: int = NEW_MAX, names: ColumnNames = ANY_FORMAT
) -> tuple[StructType, int]:
    """Return the table's columns after a batch that two workers processed."""
    summary = Summary(WorkerRecordCheck(table.json(), names, grows=True))
    half = len(values) // 2
    texts = [
        row[SHAPE]
        for part in (values[:half], values[half:])
        for out in summary(iter([batch(*part)]))
        for row in out.to_pylist()
    ]
    return grown(table, merged(texts), room)


TABLE = of(id=LONG, name=TEXT, inner=of(x=DOUBLE), items=ArrayType(of(y=LONG)))
REFUSED: list[tuple[Any, str]] = [
    ({"a.b": 1}, "cannot have the character '.'"),
    ({"inner": {"a.b": 1}}, "'inner.a.b': a column's name cannot have the character '.'"),
    ({"new": {"a.b": 1}}, "'new.a.b'"),
    ({"items": [{"y": 1}, {"a.b": 1}]}, "'items.element.a.b'"),
    ({"": 1}, "a column needs a name"),
    ({"a`b": 1}, "'`'"),
    ({"a\\b": 1}, "character"),
    ({"a\nb": 1}, "U+000A"),
    ({"\ud800": 1}, "half of a surrogate pair"),
    ({"x" * 256: 1}, "255 characters"),
    ({"kafka": 1}, "the name is reserved"),
    ({"Kafka": 1}, "the name is reserved"),
    ({"_deleted": True}, "the name is reserved"),
    ({"kafka_hour": 1}, "the name is reserved"),
    ({"new": 1, "New": 2}, "differs from it by case only"),
    ({"new": {"x": 1, "X": 2}}, "differs from it by case only"),
    ({f"f{n}": n for n in range(120)}, "it has 120 fields that the table does not have, and 100"),
    ({"new": {f"f{n}": n for n in range(120)}}, "120 fields"),
    (json.loads('{"new":' * 40 + "1" + "}" * 40), "nested at most 30 deep"),
    (b'{"new": 1e400}', "new: a number is beyond a double"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED)
def test_impossible_field_names_make_dead_letters(value: Any, reason: str) -> None:
    """Only a growing table adds the field. Other tables ignore unknown fields."""
    assert reason in cause(value, TABLE, grows=True)
    if "surrogate" not in reason:
        assert cause(value, TABLE) == ""


ALWAYS: list[tuple[Any, str]] = [
    (b"{", NOT_JSON),
    (b"", NOT_JSON),
    (b"{'id': 1}", NOT_JSON),
    (b'{"id": 1} {"id": 2}', NOT_JSON),
    (b'{"id": 01}', NOT_JSON),
    (b'\xef\xbb\xbf{"id": 1}', NOT_JSON),
    (b'{"name": "\xff"}', "not JSON: its text is not UTF-8"),
    (b'{"name": "\\ud800"}', "half of a surrogate pair"),
    (b"[1]", DOES_NOT_FIT),
    (b'[{"id": 1}]', DOES_NOT_FIT),
    (b"7", DOES_NOT_FIT),
    (b'{"a":' * 150 + b"1" + b"}" * 150, "nested more than 100 deep"),
    (b'{"a":' * 100_000, "nested more than 100 deep"),
    (b"[" * 100_000, "nested more than 100 deep"),
    (b'{"id": ' + b"1" * 5_000 + b"}", NOT_JSON),
    ({"Name": "n"}, "'Name': the column name differs from it by case only"),
    ({"name": "n", "NAME": "m"}, "'NAME': the column name"),
    ({"inner": {"X": 1.0}}, "'inner.X': the column x"),
    ({"items": [{"y": 1}, {"Y": 1}]}, "'items.element.Y'"),
    (b'{"inner": {"x": 1e400}}', "inner.x: a number is beyond a double"),
    (b'{"inner": {"x": -1e+999}}', "beyond a double"),
    (b'{"inner": {"x": ' + b"9" * 400 + b"}}", "beyond a double"),
    (b'{"name": 1e400}', "name: a number is beyond a double"),
    (b'{"name": {"in": [1e400]}}', "name: a number is beyond"),
]


@pytest.mark.parametrize(("value", "reason"), ALWAYS)
@pytest.mark.parametrize("grows", [False, True])
def test_dead_letter_prevents_a_silent_loss(value: Any, reason: str, grows: bool) -> None:
    assert reason in cause(value, TABLE, grows=grows)


SOUND: list[Any] = [
    {"id": 1, "name": "n", "inner": {"x": 0.5}, "items": [{"y": 1}, {}]},
    b'\x00\x00\x00\x00\x07{"id": 1}',
    b' {"id": 1}\n',
    {},
    {"id": None, "inner": None, "items": None},
    {"a.b": None, "kafka": [], "x": {"a.b": {}}, "Y": [None, []], "NAME": None},
    {"name": {"any": ["thing", {"a.b": 1, "A.B": 2}]}},
    b'{"name": "\\ud83d\\ude00"}',
    b'{"inner": {"x": 1e308}}',
    b'{"inner": {"x": NaN}}',
    {"name": "[{" * 500},
    {"items": [{"y": n} for n in range(500)]},
]


@pytest.mark.parametrize("value", SOUND)
@pytest.mark.parametrize("grows", [False, True])
def test_sound_records_pass(value: Any, grows: bool) -> None:
    assert cause(value, TABLE, grows=grows) == ""


@pytest.mark.parametrize("end", [b"", b'"', b"\\", b'"}'])
def test_hostile_text_is_checked_in_linear_time(end: bytes) -> None:
    """A pattern that searches for the end of a string repeatedly would take hours."""
    began_s = time.process_time()
    assert cause(b'{"name": [' + b"[" * 101 + b'"' + b'\\"' * 500_000 + end, TABLE)
    assert time.process_time() - began_s < 5


def test_path_in_a_message_is_shortened() -> None:
    """A complete path for each name would take quadratic time."""
    value = json.dumps({"p" * 400_000: {str(n): 1 for n in range(40_000)}}).encode()
    began_s = time.process_time()
    message = cause(value, TABLE, grows=True)
    assert time.process_time() - began_s < 1
    assert "a column's name has at most 255 characters" in message
    assert len(message) < 500


def test_names_that_no_column_can_have_are_not_remembered() -> None:
    """A name with null or an empty object is no field, so the record passes."""
    value = {"new": {"n" * 1_000_000: None, "x": 1}, "m" * 1_000_000: {}}
    assert cause(value, TABLE, grows=True) == ""
    shape = RecordShape()
    shape.add(value, PlaceBudget())
    assert len(json.dumps(shape.to_json())) < 1_000
    assert shape.struct().simpleString() == "struct<new:struct<x:bigint>>"


def test_numbers_are_checked_against_floats_and_times() -> None:
    columns = of(f=FloatType(), t=TimestampType(), m=MapType(TEXT, DOUBLE))
    assert "f: a number is beyond a float" in cause({"f": 1e39}, columns)
    # The largest second that is still in the year 9999.
    assert cause({"f": 1e38, "t": 253_402_300_799}, columns) == ""
    for second in (253_402_300_800, -62_135_596_801, 2**62):
        assert "are not between the years 1 and 9999" in cause({"t": second}, columns)
    assert "m.value" in cause(b'{"m": {"k": 1e400}}', columns)


def test_formats_forbid_further_names() -> None:
    iceberg, delta = (column_names(kind) for kind in (Format.ICEBERG, Format.DELTA))
    for name in ("with space", INJECTION, "a,b", "a;b", "a=b", "f()", "{x}"):
        assert cause({name: 1}, TABLE, grows=True, names=iceberg) == ""
        assert "cannot have the character" in cause({name: 1}, TABLE, grows=True, names=delta)
    assert cause({"dash-x": {"é:1": 1}}, TABLE, grows=True, names=delta) == ""
    assert "reserved" in cause({"_file": 1}, TABLE, grows=True, names=iceberg)
    assert cause({"inner": {"_file": 1}}, TABLE, grows=True, names=iceberg) == ""


def test_names_are_equal_if_java_ignores_their_case() -> None:
    for one, other in (
        ("Name", "nAME"),
        ("\u017f", "S"),
        ("\u212a", "k"),
        ("\u0130", "i"),
        ("\u0131", "I"),
        ("\u0130x", "i\u0307X"),
        ("Σ", "ς"),
    ):
        assert folded(one) == folded(other)
    # Java compares single characters, and ß has no upper case of one character.
    assert folded("ß") != folded("ss")


def test_a_batch_has_a_verdict_on_each_record() -> None:
    checking = WorkerRecordCheck(TABLE.json(), ANY_FORMAT, grows=True)
    given = batch({"id": 1}, None, {"new": 1}, b"{", {"\ud800": 1})
    (out,) = checking(iter([given]))
    assert out.column("value").equals(given.column("value"))
    assert out.column(HAS_NEW_FIELDS).to_pylist() == [False, False, True, False, False]
    found = out.column(CAUSE).to_pylist()
    assert found[:2] == [None, None]
    assert found[2].startswith("new: the table has no such field")
    assert found[3] == NOT_JSON


INFERRED: list[tuple[list[Any], DataType | None]] = [
    ([1, -(2**63)], LONG),
    ([2**63], DecimalType(20, 0)),
    ([12345678901234567890, 1], DecimalType(20, 0)),
    ([10**30], DecimalType(31, 0)),
    ([10**38], TEXT),
    ([1, 0.5], DOUBLE),
    ([0.5, 10**20], DOUBLE),
    ([True, False], BooleanType()),
    ([True, 1], TEXT),
    (["a", 1], TEXT),
    ([None, {}, []], None),
    ([None, 1], LONG),
    ([[1], [0.5], []], ArrayType(DOUBLE)),
    ([[1], 1], TEXT),
    ([{"b": 1}, {"a": "t", "c": None}], of(a=TEXT, b=LONG)),
    ([{"b": 1}, [1]], TEXT),
    ([{}, 1], LONG),
    ([[{"a": 1}, {"b": [True]}]], ArrayType(of(a=LONG, b=ArrayType(BooleanType())))),
]


@pytest.mark.parametrize(("values", "kind"), INFERRED)
def test_types_are_those_on_which_records_agree(values: list[Any], kind: DataType | None) -> None:
    # The order of the records makes no difference.
    for order in (values, values[::-1]):
        found, _ = learned(of(), *({"v": value} for value in order))
        assert found == (of() if kind is None else of(v=kind))


def test_a_batch_adds_the_most_frequent_fields_and_a_bounded_number() -> None:
    often = [{"id": 1, "inner": {"z": True}} for _ in range(5)]
    # Names from data occur once each, and must not crowd out real fields.
    names_are_data = [{f"user-{n}": n} for n in range(300)]
    found, added = learned(TABLE, *names_are_data, *often)
    assert added == NEW_MAX
    assert found["inner"].dataType == of(x=DOUBLE, z=BooleanType())
    assert size_of(found) == size_of(TABLE) + NEW_MAX
    # A column with more fields than there is room for stays out, and others are added.
    found, added = learned(TABLE, {"a": {"x": 1, "y": 1}}, {"b": 1}, {"b": 2}, room=2)
    assert added == 1
    assert found.fieldNames()[-1] == "b"


def test_new_field_is_spelled_as_in_most_records() -> None:
    found, added = learned(TABLE, {"new": 1}, {"New": 1}, {"New": 2})
    assert (added, found.fieldNames()[-1]) == (1, "New")
    assert "differs from it by case only" in cause({"new": 1}, found, grows=True)


def test_refused_records_add_no_columns() -> None:
    wide = {f"f{n}": n for n in range(120)}
    assert learned(TABLE, wide, {"kafka": 1, "new": 1}, {"a.b": 1, "n2": 1}, b"{") == (TABLE, 0)


def test_fields_within_lists_and_maps_are_new_too() -> None:
    table = of(m=MapType(TEXT, of(x=LONG)), l=ArrayType(ArrayType(of(x=LONG))))
    value = {"m": {"k": {"y": 1}, "j": {"x": 1}}, "l": [[{"z": "t"}]]}
    found, added = learned(table, value)
    assert added == 2
    assert found == of(
        m=MapType(TEXT, of(x=LONG, y=LONG)), l=ArrayType(ArrayType(of(x=LONG, z=TEXT)))
    )
    assert cause(value, found, grows=True) == ""


def test_a_full_table_gets_no_more_columns() -> None:
    full = of(**{f"c{n}": LONG for n in range(COLUMNS_MAX)})
    assert learned(full, {"new": 1}, room=COLUMNS_MAX - size_of(full)) == (full, 0)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "A", "b", "a.b", "kafka", INJECTION, "é"]), inner)
    ),
    max_leaves=12,
)


_RECORDS = st.dictionaries(st.sampled_from(["a", "A", "b", "a.b", "kafka"]), _JSON)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(_RECORDS, max_size=6))
def test_any_records_make_columns_that_a_table_can_have(values: list[Any]) -> None:
    table = of(id=LONG)
    # The second round starts with the table that has grown.
    for _ in range(2):
        found, added = learned(table, *values, room=COLUMNS_MAX)
        check_fields(found)
        assert found.fieldNames()[: len(table)] == table.fieldNames()
        assert (found == table) == (added == 0)
        changes(table, found)
        table = found
