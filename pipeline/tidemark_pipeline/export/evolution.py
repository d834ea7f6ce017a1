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

from tidemark_avro.column_rules import ALIASES, folded
from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.table import AddedColumn, Evolution, Widened

Change = AddedColumn | Widened


def changes(table: StructType, schema: StructType) -> list[Change]:
    """Return the changes after which the table's columns hold rows of ``schema``.

    Columns that ``schema`` lacks stay. Raises :class:`ExportError` if no change is sufficient.
    """
    return list(_struct_changes((), table, schema))


def with_changes(table: StructType, schema: StructType) -> StructType:
    """Return the table's columns after the changes."""
    columns = _changed_type(table, schema)
    assert isinstance(columns, StructType)
    return columns


def check_allowed(needed: list[Change], evolution: Evolution) -> None:
    """Raise :class:`ExportError` if there are changes and the evolution refuses them."""
    if needed and evolution is Evolution.REFUSE:
        shown = "; ".join(map(text, needed[:5])) + ("; …" if len(needed) > 5 else "")
        raise ExportError(
            f"the table lacks columns of the schema ({shown}). Add them to the table "
            "(evolution=grow), or ignore fields without a column (evolution=ignore)"
        )


def text(change: Change) -> str:
    """Describe a change in a log line or an error."""
    path = ".".join(change.path)
    if isinstance(change, AddedColumn):
        return f"{path} {quoting.type_of(change.type)} is added"
    before, after = quoting.type_of(change.before), quoting.type_of(change.type)
    return f"{path} is widened from {before} to {after}"


def _struct_changes(
    path: tuple[str, ...], table: StructType, schema: StructType
) -> Iterator[Change]:
    """Yield the changes that a struct of the table needs to hold the schema's fields.

    ``path``: names that lead to the struct. Raises :class:`ExportError` if no change is sufficient.
    """
    columns = {field.name: field for field in table}
    # Spark compares names without case, so a column that differs by case only could not be added.
    by_fold = {folded(column.name): column.name for column in table}
    for field in schema:
        where = (*path, field.name)
        if field.name in columns:
            yield from _type_changes(where, columns[field.name].dataType, field.dataType)
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
            yield AddedColumn(where, field.dataType)


def _type_changes(path: tuple[str, ...], table: DataType, schema: DataType) -> Iterator[Change]:
    if isinstance(table, StructType) and isinstance(schema, StructType):
        yield from _struct_changes(path, table, schema)
    elif isinstance(table, ArrayType) and isinstance(schema, ArrayType):
        yield from _type_changes((*path, "element"), table.elementType, schema.elementType)
    elif isinstance(table, MapType) and isinstance(schema, MapType):
        if table.keyType != schema.keyType:
            raise _incompatible((*path, "key"), table.keyType, schema.keyType)
        yield from _type_changes((*path, "value"), table.valueType, schema.valueType)
    elif table != schema:
        if not is_wider(table, schema):
            raise _incompatible(path, table, schema)
        yield Widened(path, table, schema)


def is_wider(narrow: DataType, wide: DataType) -> bool:
    """Return whether tables can widen ``narrow`` to ``wide`` so that all values keep their
    meaning.
    """
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    pairs = (IntegerType, LongType), (FloatType, DoubleType)
    return any(isinstance(narrow, a) and isinstance(wide, b) for a, b in pairs)


def _incompatible(path: tuple[str, ...], table: DataType, schema: DataType) -> ExportError:
    where, table_type, schema_type = ".".join(path), quoting.type_of(table), quoting.type_of(schema)
    # Distinguish a narrowed field from an unrelated type: the remedies differ.
    if is_wider(schema, table):
        why = f"a column cannot be narrowed from {table_type} to {schema_type}"
        remedy = f"let the schema have {table_type} again"
    else:
        why = f"a column of {table_type} cannot become {schema_type}"
        remedy = "give the field another name in the schema"
    return ExportError(
        f"{where}: {why}: {remedy}, keep the table's columns as they are (evolution=ignore), or "
        "export into a new table"
    )


def _changed_type(table: DataType, schema: DataType) -> DataType:
    """Return a column's type after it was changed to hold values of the schema's type."""
    if isinstance(table, StructType) and isinstance(schema, StructType):
        # Existing columns keep their order and attributes; new ones follow.
        schema_fields = {field.name: field for field in schema}
        fields = [
            StructField(
                field.name,
                _changed_type(field.dataType, schema_fields[field.name].dataType)
                if field.name in schema_fields
                else field.dataType,
                field.nullable,
                field.metadata,
            )
            for field in table
        ]
        table_names = set(table.fieldNames())
        return StructType(fields + [field for field in schema if field.name not in table_names])
    # Elements and map values are widened; keys never change.
    if isinstance(table, ArrayType) and isinstance(schema, ArrayType):
        return ArrayType(_changed_type(table.elementType, schema.elementType))
    if isinstance(table, MapType) and isinstance(schema, MapType):
        return MapType(table.keyType, _changed_type(table.valueType, schema.valueType))
    return schema
