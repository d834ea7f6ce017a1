"""Quoting of names, texts and types in SQL statements.

Column names come from records, and Spark would read an unquoted name as SQL. Every name in a
statement is quoted here.
"""

from collections.abc import Mapping

from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def identifier(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def path_of(*names: str) -> str:
    """Quote the names of a path, such as that of a nested column."""
    return ".".join(map(identifier, names))


def literal(text: str) -> str:
    """Quote a text. Spark reads escape sequences in it."""
    # The backslash first, or it would escape the escapes of quotes.
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def properties_of(properties: Mapping[str, str]) -> str:
    """Return table properties as literals, such as ``'a'='b', 'c'='d'``."""
    return ", ".join(f"{literal(name)}={literal(value)}" for name, value in properties.items())


def columns_of(fields: StructType) -> str:
    """Write columns as ``CREATE TABLE`` and ``ADD COLUMNS`` have them."""
    return ", ".join(f"{identifier(field.name)} {type_of(field.dataType)}" for field in fields)


def type_of(kind: DataType) -> str:
    """Write a type with quoted names. Spark's ``simpleString`` leaves them unquoted."""
    if isinstance(kind, StructType):
        fields = (f"{identifier(field.name)}: {type_of(field.dataType)}" for field in kind)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_of(kind.keyType)}, {type_of(kind.valueType)}>"
    return kind.simpleString()
