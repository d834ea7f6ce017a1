"""Column changes that a table needs to hold rows of a schema.

A column may be added. It may be widened if every value keeps its meaning: int to bigint, float to
double, a decimal to more digits of the same scale. Iceberg and Delta make these changes without
rewriting files. Any other change would alter existing values, and is refused.

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
    """Return the changes after which the table's columns hold rows of ``wanted``.

    Columns that ``wanted`` lacks stay. Raises :class:`ExportError` if no change is sufficient.
    """
    return list(_of_struct((), table, wanted))


def applied(table: StructType, wanted: StructType) -> StructType:
    """Return the table's columns after the changes."""
    made = _applied(table, wanted)
    assert isinstance(made, StructType)
    return made


def check_allowed(found: list[Change], evolution: Evolution) -> None:
    """Raise :class:`ExportError` if there are changes and the evolution refuses them."""
    if found and evolution is Evolution.REFUSE:
        told = "; ".join(map(text, found[:5])) + ("; …" if len(found) > 5 else "")
        raise ExportError(
            f"the table has not what the schema has ({told}): let the table grow (evolution=grow), "
            "or leave out what it has no column for (evolution=ignore)"
        )


def text(change: Change) -> str:
    """Describe a change in a log line or an error."""
    path = ".".join(change.path)
    if isinstance(change, Added):
        return f"{path} {quoting.type_of(change.type)} is added"
    before, after = quoting.type_of(change.before), quoting.type_of(change.type)
    return f"{path} is widened from {before} to {after}"


def _of_struct(path: tuple[str, ...], table: StructType, wanted: StructType) -> Iterator[Change]:
    columns = {field.name: field for field in table}
    # Spark compares names without case, so such a column could not be added.
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
            # An added column would be empty in older rows. Renaming keeps their values.
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
    """Return whether tables can widen ``narrow`` to ``wide`` so that all values keep their
    meaning.
    """
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    pairs = (IntegerType, LongType), (FloatType, DoubleType)
    return any(isinstance(narrow, a) and isinstance(wide, b) for a, b in pairs)


def _refused(path: tuple[str, ...], table: DataType, wanted: DataType) -> ExportError:
    where, had, wants = ".".join(path), quoting.type_of(table), quoting.type_of(wanted)
    # Distinguish a narrowed field from an unrelated type: the remedies differ.
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
        # Existing columns keep their order and attributes; new ones follow.
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
    # Elements and map values are widened; keys never change.
    if isinstance(table, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_applied(table.elementType, wanted.elementType))
    if isinstance(table, MapType) and isinstance(wanted, MapType):
        return MapType(table.keyType, _applied(table.valueType, wanted.valueType))
    return wanted
