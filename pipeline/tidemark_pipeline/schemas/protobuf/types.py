"""Spark columns of a Protobuf message.

Unsigned numbers become a type that contains all their values. An enum becomes its name. A field
with presence (``optional``, a message, a branch of a ``oneof``, all of proto2) is null if it is not
set; other fields have their default. Timestamps and wrappers of Google's well-known types become
plain values. ``Struct``, ``Value`` and ``ListValue`` contain themselves, so they become JSON.
"""

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    TimestampType,
)

from tidemark_avro.column_rules import COLUMNS_MAX, DEPTH_MAX, SchemaRefused, folded

TIMESTAMP = "google.protobuf.Timestamp"
JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
WRAPPERS = tuple(
    f"google.protobuf.{wrapped}Value"
    for wrapped in (
        "Double",
        "Float",
        "Int64",
        "UInt64",
        "Int32",
        "UInt32",
        "Bool",
        "String",
        "Bytes",
    )
)
UNSIGNED_64 = DecimalType(20, 0)
SIMPLE: dict[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: UNSIGNED_64,
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}


def columns_of(message: Descriptor) -> StructType:
    """Return the columns of a message. Raises :class:`SchemaRefused`."""
    return _ProtobufTypeMaker().struct(message, "", ())


def is_map(field: FieldDescriptor) -> bool:
    """Return whether Protobuf generated the field's message from ``map<K, V>``."""
    message = field.message_type
    return message is not None and message.GetOptions().map_entry


class _ProtobufTypeMaker:
    """Conversion of one message type, which counts the columns."""

    def __init__(self) -> None:
        self.columns = 0

    def struct(self, message: Descriptor, where: str, within: tuple[str, ...]) -> StructType:
        """Return the struct type of a message's fields.

        ``where``: path of the message, for errors. ``within``: full names of the enclosing
        messages. Raises :class:`SchemaRefused`.
        """
        # A recursive message would need infinitely many columns.
        if message.full_name in within:
            raise SchemaRefused(
                f"{where}: the message {message.full_name} contains itself, and the columns of a "
                "table cannot: make the table with the columns that are wanted, and export with "
                "evolution=ignore"
            )
        if len(within) > DEPTH_MAX:
            raise SchemaRefused(f"{where}: the schema is nested more than {DEPTH_MAX} deep")
        columns: dict[str, StructField] = {}
        for field in message.fields:
            path = f"{where}.{field.name}" if where else field.name
            if folded(field.name) in columns:
                raise SchemaRefused(f"{path}: two fields differ by case only")
            column_type = self._field(field, path, (*within, message.full_name))
            # A message without fields has no column, as Parquet has no empty struct.
            if column_type is not None:
                columns[folded(field.name)] = StructField(field.name, column_type)
        if not columns and not within:
            raise SchemaRefused(f"the message {message.full_name} has no fields")
        return StructType(list(columns.values()))

    def _field(self, field: FieldDescriptor, path: str, within: tuple[str, ...]) -> DataType | None:
        self.columns += 1
        if self.columns > COLUMNS_MAX:
            raise SchemaRefused(f"the schema comes to more than {COLUMNS_MAX} columns")
        if is_map(field):
            entry = field.message_type.fields_by_name
            key = self._single(entry["key"], f"{path}.key", within)
            value = self._single(entry["value"], f"{path}.value", within)
            return None if key is None or value is None else MapType(key, value)
        value_type = self._single(field, path, within)
        if value_type is None or not field.is_repeated:
            return value_type
        return ArrayType(value_type)

    def _single(
        self, field: FieldDescriptor, path: str, within: tuple[str, ...]
    ) -> DataType | None:
        """Return the column type of a field's single value, None for a message without fields."""
        message = field.message_type
        if message is None:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return BinaryType()
            return SIMPLE[field.cpp_type]
        # Well-known types become plain values instead of structs.
        if message.full_name == TIMESTAMP:
            return TimestampType()
        if message.full_name in JSON:
            return StringType()
        if message.full_name in WRAPPERS:
            return self._single(message.fields_by_name["value"], path, within)
        struct = self.struct(message, path, within)
        return struct if len(struct) else None
