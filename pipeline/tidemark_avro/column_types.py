"""Spark columns of an Avro schema.

They equal those of Spark's own Avro reader, with two exceptions. The branches of a union of several
types are named by type instead of position, so that an added branch moves none. A value that is not
a record is in a column ``value``.
"""

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark_avro.column_rules import ALIASES, COLUMNS_MAX, DEPTH_MAX, SchemaRefused, folded
from tidemark_avro.schema import Schema

#: Column of a value that is not a record.
VALUE = "value"
_SIMPLE: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: dict[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")


def columns_of(schema: Schema) -> StructType:
    """Return the columns of a value with this schema. Raises :class:`SchemaRefused`.

    A value that is not a record is in one column, ``value``.
    """
    maker = _AvroTypeMaker()
    if schema.kind == "record":
        column_type = maker.type_of(schema, "", 0)
        assert isinstance(column_type, StructType)
        return column_type
    # A value of another type becomes the only column. A nullable record has the record's columns.
    column_type = maker.type_of(schema, VALUE, 1)
    if (
        isinstance(column_type, StructType)
        and schema.kind == "union"
        and len(present_branches(schema)) == 1
    ):
        return column_type
    return StructType([StructField(VALUE, column_type)])


def member_names(union: Schema) -> dict[int, str]:
    """Return the column names of a union's branches by position, without null."""
    present = [
        (place, branch) for place, branch in enumerate(union.branches) if branch.kind != "null"
    ]
    short = [branch.short_name for _, branch in present]
    # The short name is used unless two branches share it.
    return {
        place: branch.short_name
        if short.count(branch.short_name) == 1
        else branch.name.replace(".", "_")
        for place, branch in present
    }


class _AvroTypeMaker:
    """Conversion of one schema, which counts the columns."""

    def __init__(self) -> None:
        self.columns = 0

    def type_of(self, schema: Schema, where: str, depth: int) -> DataType:
        """Return the Spark type of an Avro type.

        ``where``: path of the type, for messages. Raises :class:`SchemaRefused` if no column can
        have it.
        """
        self.columns += 1
        # A small schema may expand to a huge number of columns.
        if self.columns > COLUMNS_MAX:
            raise SchemaRefused(f"the schema comes to more than {COLUMNS_MAX} columns")
        # Spark's types cannot refer to themselves.
        if schema.recursive:
            raise SchemaRefused(
                f"{where or 'the schema'}: the type {schema.name} contains itself, and the columns "
                "of a table cannot: make the table with the columns that are wanted, and export "
                "with evolution=ignore"
            )
        if depth > DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema is nested more than {DEPTH_MAX} deep")
        if schema.logical == "decimal":
            return DecimalType(schema.precision, schema.scale)
        if schema.logical:
            return _LOGICAL[schema.logical]
        if schema.kind in _SIMPLE:
            return _SIMPLE[schema.kind]
        if schema.kind == "union":
            return self._union(schema, where, depth)
        if schema.kind == "record":
            fields = ((field.name, field.schema, field.aliases) for field in schema.fields)
            return self._struct(fields, where, depth)
        if schema.items is None:
            raise SchemaRefused(f"{where or 'the schema'}: null alone has no column")
        if schema.kind == "array":
            return ArrayType(self.type_of(schema.items, f"{where}.element", depth + 1))
        return MapType(StringType(), self.type_of(schema.items, f"{where}.value", depth + 1))

    def _union(self, schema: Schema, where: str, depth: int) -> DataType:
        present = present_branches(schema)
        # A union of null and one type is a nullable column.
        if len(present) == 1:
            return self.type_of(present[0], where, depth)
        # Numbers of one kind share the wider column, as in Spark's own reader.
        kinds = {branch.kind if not branch.logical else "" for branch in present}
        for among, wider in _WIDER:
            if present and kinds <= among:
                return _SIMPLE[wider]
        names = member_names(schema)
        members = ((names[n], schema.branches[n], ()) for n in sorted(names))
        return self._struct(members, where, depth)

    def _struct(
        self, fields: Iterable[tuple[str, Schema, tuple[str, ...]]], where: str, depth: int
    ) -> StructType:
        """Return a struct type of the fields that can have values.

        ``fields``: (name, schema, aliases). Raises :class:`SchemaRefused`.
        """
        columns: dict[str, StructField] = {}
        for name, schema, aliases in fields:
            path = f"{where}.{name}" if where else name
            if schema.kind == "null" or (schema.kind == "union" and not present_branches(schema)):
                continue  # A column that could only contain null.
            # Tables compare names without regard to case.
            if folded(name) in columns:
                raise SchemaRefused(f"{path}: two fields differ by case only")
            column_type = self.type_of(schema, path, depth + 1)
            metadata = {ALIASES: list(aliases)} if aliases else None
            columns[folded(name)] = StructField(name, column_type, metadata=metadata)
        if not columns:
            raise SchemaRefused(f"{where or 'the schema'}: there is no field with values")
        return StructType(list(columns.values()))


def present_branches(union: Schema) -> list[Schema]:
    return [branch for branch in union.branches if branch.kind != "null"]
