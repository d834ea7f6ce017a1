"""Conversions of Avro values to columns.

They follow Avro's schema resolution, which widens numbers, and the logical types.
"""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tidemark_avro import kernel
from tidemark_avro.schema import Schema

_NUMBERS = {"int": 0, "long": 1, "float": 2, "double": 3}
_WIDTHS: dict[type[DataType], int] = {IntegerType: 0, LongType: 1, FloatType: 2, DoubleType: 3}


def conversion(writer: Schema, column_type: DataType) -> int | None:
    """Return the kernel's conversion of a writer's type to a column type, None if none fits.

    The result is one of the kernel's constants. For decimals it is TO_DECIMAL plus the precision.
    """
    if writer.logical == "decimal":
        if isinstance(column_type, DecimalType):
            # Another scale would need rounding, or digits that the value does not have.
            if column_type.scale != writer.scale:
                return None
            return kernel.TO_DECIMAL + column_type.precision
        return kernel.AS_IS if isinstance(column_type, BinaryType) else None
    if writer.kind == "long" and writer.logical:
        # A local timestamp has no time zone, so only TIMESTAMP_NTZ fits. A plain long takes the raw
        # number.
        local = writer.logical.startswith("local-")
        if isinstance(column_type, TimestampNTZType if local else TimestampType):
            return kernel.MILLIS if writer.logical.endswith("millis") else kernel.MICROS
        return kernel.AS_IS if isinstance(column_type, LongType) else None
    if writer.kind == "int" and writer.logical == "date":
        if isinstance(column_type, DateType):
            return kernel.DAYS
        return kernel.AS_IS if isinstance(column_type, IntegerType) else None
    if writer.kind in _NUMBERS:
        # A number only goes to a column that is at least as wide.
        width = _WIDTHS.get(type(column_type))
        if width is None or width < _NUMBERS[writer.kind]:
            return None
        is_integer = _NUMBERS[writer.kind] < 2
        return kernel.TO_DOUBLE if is_integer and width >= 2 else kernel.AS_IS
    # Text is checked for UTF-8. Strings also fit binary columns, where no check is needed.
    if writer.kind in {"string", "bytes"} and isinstance(column_type, StringType):
        return kernel.TEXT
    fits = {
        "boolean": BooleanType,
        "enum": StringType,
        "string": BinaryType,
        "bytes": BinaryType,
        "fixed": BinaryType,
    }.get(writer.kind)
    return kernel.AS_IS if fits is not None and isinstance(column_type, fits) else None
