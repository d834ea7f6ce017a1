"""Evolution of a table by schema, and the names of the changes that are refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tidemark_avro.column_types import columns_of
from tidemark_avro.schema import parse_schema
from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.evolution import changes, check_allowed, text, with_changes
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.row_shapes import check_fields, check_table, columns_ddl
from tidemark_pipeline.export.table import Evolution, TableLayout
from tidemark_pipeline.export.upsert import merge

INT, LONG, FLOAT, DOUBLE, TEXT = IntegerType(), LongType(), FloatType(), DoubleType(), StringType()


def of(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def described(table: StructType, target: StructType) -> list[str]:
    return [text(change) for change in changes(table, target)]


def test_columns_are_added_and_widened_at_any_depth() -> None:
    table = of(
        a=INT, s=of(x=FLOAT, gone=TEXT), l=ArrayType(of(y=INT)), m=MapType(TEXT, DecimalType(4, 2))
    )
    target = of(
        a=LONG,
        s=of(x=DOUBLE, new=INT),
        l=ArrayType(of(y=LONG, z=TEXT)),
        m=MapType(TEXT, DecimalType(9, 2)),
        n=TEXT,
    )
    assert described(table, target) == [
        "a is widened from int to bigint",
        "s.x is widened from float to double",
        "s.new int is added",
        "l.element.y is widened from int to bigint",
        "l.element.z string is added",
        "m.value is widened from decimal(4,2) to decimal(9,2)",
        "n string is added",
    ]
    made = with_changes(table, target)
    assert changes(made, target) == []
    assert made["s"].dataType == of(x=DOUBLE, gone=TEXT, new=INT)


REFUSED: list[tuple[DataType, DataType, str]] = [
    (LONG, INT, "cannot be narrowed from bigint to int: let the schema have bigint again"),
    (DOUBLE, FLOAT, "cannot be narrowed"),
    (DecimalType(9, 2), DecimalType(4, 2), "cannot be narrowed"),
    (DecimalType(4, 2), DecimalType(9, 3), r"decimal\(4,2\) cannot become decimal\(9,3\)"),
    (INT, DOUBLE, "int cannot become double: give the field another name"),
    (INT, TEXT, "cannot become string"),
    (TEXT, of(x=INT), "cannot become"),
    (ArrayType(INT), INT, "cannot become"),
    (ArrayType(INT), ArrayType(TEXT), r"a\.element: .*cannot become"),
    (MapType(TEXT, INT), MapType(INT, INT), r"a\.key: .*cannot become"),
]


@pytest.mark.parametrize(("current", "target", "message"), REFUSED)
def test_other_changes_are_refused(current: DataType, target: DataType, message: str) -> None:
    with pytest.raises(ExportError, match=rf"{message}.*evolution=ignore"):
        changes(of(a=current), of(a=target))


def test_renaming_is_refused_with_the_statement_to_run() -> None:
    fields = [{"name": "new", "type": "int", "aliases": ["old"]}]
    schema = parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    target = columns_of(schema)
    with pytest.raises(ExportError, match="RENAME COLUMN old TO new"):
        changes(of(old=INT), target)
    # An alias without such a column is no renaming.
    assert described(of(other=INT), target) == ["new int is added"]
    assert changes(of(old=INT, new=INT), target) == []
    with pytest.raises(ExportError, match="the table calls it A"):
        changes(of(A=INT), of(a=INT))


def test_an_unrequested_change_is_refused_and_reported() -> None:
    found = changes(of(a=INT), of(a=LONG, b=TEXT))
    with pytest.raises(ExportError, match="a is widened from int to bigint; b string is added"):
        check_allowed(found, Evolution.REFUSE)
    check_allowed(found, Evolution.GROW)
    check_allowed([], Evolution.REFUSE)


_SINGLE = st.sampled_from(
    [INT, LONG, FLOAT, DOUBLE, TEXT, BooleanType(), DecimalType(4, 2), DecimalType(9, 2)]
)


def _structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[StructType]:
    return st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(
        lambda fields: of(**fields)
    )


_TYPES = st.recursive(
    _SINGLE,
    lambda inner: st.one_of(
        _structs(inner), inner.map(ArrayType), inner.map(lambda kind: MapType(TEXT, kind))
    ),
    max_leaves=8,
)


@given(_structs(_TYPES), _structs(_TYPES))
def test_grown_table_accepts_both_schemas(table: StructType, target: StructType) -> None:
    """Growing in two steps equals growing at once. Other changes are refused."""
    assert changes(table, table) == []
    try:
        found = changes(table, target)
    except ExportError:
        return
    made = with_changes(table, target)
    assert changes(made, target) == []
    assert made.fieldNames()[: len(table)] == table.fieldNames()
    assert (made == table) == (not found)
    # A job may be killed after it has added some of the columns.
    half = StructType(target.fields[: len(target) // 2])
    assert changes(with_changes(with_changes(table, half), target), target) == []


def test_names_that_columns_cannot_have_are_refused() -> None:
    for fields, message in (
        (of(kafka=INT), "is taken"),
        (of(_deleted=INT), "is taken"),
        (of(a=INT, A=INT), "by case only"),
        (of(a=ArrayType(of(x=INT, X=INT))), r"a\.element\.X"),
        (of(**{"a.b": INT}), "no name"),
        (of(**{"": INT}), "no name"),
        (of(a=of(**{"`": INT})), "no name"),
        (StructType([]), "no fields"),
    ):
        with pytest.raises(ExportError, match=message):
            check_fields(fields)
    odd = of(**{"with space": of(**{"ü-1": INT})})
    check_fields(odd)
    assert columns_ddl(odd).endswith("`with space` struct<`ü-1`: int>")


def test_names_are_quoted_wherever_a_statement_has_them() -> None:
    """Spark does not quote names in the text of a type, where a colon precedes a type."""
    name = "a:bigint>, injected string COMMENT 'by a record', z struct<b"
    fields = of(**{name: of(**{"`": ArrayType(of(**{name: INT}))})})
    quoted = f"`{name}`"
    assert quoting.columns_of(fields) == (f"{quoted} struct<````: array<struct<{quoted}: int>>>")
    assert quoting.path_of(name, "`") == f"{quoted}.````"
    assert quoting.literal("it's \\") == "'it\\'s \\\\'"
    merged = merge("t", "v", TableLayout(columns=""), [name, "`"])
    assert f"INSERT ({quoted}, ````)" in merged
    (added,) = changes(of(id=INT), of(id=INT, s=fields))
    assert quoted in text(added)


def test_existing_table_needs_the_kafka_column() -> None:
    check_table("db.t", of(kafka=of(offset=LONG), a=INT))
    for table in (None, of(a=INT)):
        with pytest.raises(ExportError, match=r"ALTER TABLE db\.t ADD COLUMN kafka struct<`topic`"):
            check_table("db.t", table)
