"""What a table needs before it can hold rows of a schema, and what no table can be made to hold.

A column may be added, and widened where every value that it has keeps its meaning: int to bigint,
float to double, a decimal to more digits of the same scale. That is what Iceberg and Delta do
without touching a file. Everything else would change what is there already, and is refused.

Pure.
"""

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StructField,
    StructType,
)

from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.table import Added, Evolution, Widened
from tidemark_pipeline.schemas.values.bounds import ALIASES
from tidemark_pipeline.schemas.values.names import folded

Change = Added | Widened


def changes(table: StructType, wanted: StructType) -> list[Change]:
    """What makes a table of these columns hold rows of ``wanted``; columns that ``wanted`` has not
    stay. Raises :class:`ExportError` where nothing does."""
    return list(_of_struct((), table, wanted))


def applied(table: StructType, wanted: StructType) -> StructType:
    """The columns with the changes made."""
    made = _applied(table, wanted)
    assert isinstance(made, StructType)
    return made


def check_allowed(found: list[Change], evolution: Evolution) -> None:
    """Raises :class:`ExportError` where there is something to change, and it is not asked for."""
    if found and evolution is Evolution.REFUSE:
        told = "; ".join(map(text, found[:5])) + ("; …" if len(found) > 5 else "")
        raise ExportError(
            f"the table has not what the schema has ({told}): let the table grow (evolution=grow), "
            "or leave out what it has no column for (evolution=ignore)"
        )


def text(change: Change) -> str:
    """For people."""
    path = ".".join(change.path)
    if isinstance(change, Added):
        return f"{path} {quoting.type_of(change.type)} is added"
    before, after = quoting.type_of(change.before), quoting.type_of(change.type)
    return f"{path} is widened from {before} to {after}"


def _of_struct(path: tuple[str, ...], table: StructType, wanted: StructType) -> Iterator[Change]:
    columns = {field.name: field for field in table}
    by_fold = {folded(column.name): column.name for column in table}
    for field in wanted:
        where = (*path, field.name)
        if field.name in columns:
            yield from _of_type(where, columns[field.name].dataType, field.dataType)
        elif (same := by_fold.get(folded(field.name))) is not None:
            raise ExportError(
                f"{'.'.join(where)}: the table calls it {same}, which differs by case "
                "only: rename the column (ALTER TABLE … RENAME COLUMN), or the field"
            )
        else:
            old = next((a for a in field.metadata.get(ALIASES, ()) if a in columns), None)
            if old is not None:
                raise ExportError(
                    f"{'.'.join(where)}: the table calls it {old}, and the schema has renamed it: "
                    f"rename the column (ALTER TABLE … RENAME COLUMN {'.'.join((*path, old))} TO "
                    f"{field.name}), and start again"
                )
            yield Added(where, field.dataType)


def _of_type(path: tuple[str, ...], table: DataType, wanted: DataType) -> Iterator[Change]:
    if isinstance(table, StructType) and isinstance(wanted, StructType):
        yield from _of_struct(path, table, wanted)
    elif isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        yield from _of_type((*path, "element"), table.elementType, wanted.elementType)
    elif isinstance(table, MapType) and isinstance(wanted, MapType):
        if table.keyType != wanted.keyType:
            raise _refused((*path, "key"), table.keyType, wanted.keyType)
        yield from _of_type((*path, "value"), table.valueType, wanted.valueType)
    elif table != wanted:
        if not is_wider(table, wanted):
            raise _refused(path, table, wanted)
        yield Widened(path, table, wanted)


def is_wider(narrow: DataType, wide: DataType) -> bool:
    """Has every value of ``narrow`` the same meaning in ``wide``, and do tables widen it so?"""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    pairs = (IntegerType, LongType), (FloatType, DoubleType)
    return any(isinstance(narrow, a) and isinstance(wide, b) for a, b in pairs)


def _refused(path: tuple[str, ...], table: DataType, wanted: DataType) -> ExportError:
    where, had, wants = ".".join(path), quoting.type_of(table), quoting.type_of(wanted)
    if is_wider(wanted, table):
        why = f"a column cannot be narrowed from {had} to {wants}"
        remedy = f"let the schema have {had} again"
    else:
        why = f"a column of {had} cannot become {wants}"
        remedy = "give the field another name in the schema"
    return ExportError(
        f"{where}: {why}: {remedy}, keep the table's columns as they are (evolution=ignore), or "
        "export into a new table"
    )


def _applied(table: DataType, wanted: DataType) -> DataType:
    if isinstance(table, StructType) and isinstance(wanted, StructType):
        there = {field.name: field for field in wanted}
        fields = [
            StructField(
                field.name,
                _applied(field.dataType, there[field.name].dataType)
                if field.name in there
                else field.dataType,
                field.nullable,
                field.metadata,
            )
            for field in table
        ]
        had = set(table.fieldNames())
        return StructType(fields + [field for field in wanted if field.name not in had])
    if isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_applied(table.elementType, wanted.elementType))
    if isinstance(table, MapType) and isinstance(wanted, MapType):
        return MapType(table.keyType, _applied(table.valueType, wanted.valueType))
    return wanted
