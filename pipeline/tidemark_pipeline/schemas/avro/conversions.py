"""Which columns a value of Avro's fits, and what becomes of it on the way: as Avro's schema
resolution widens it, and as its logical type says."""

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

from tidemark_pipeline.schemas.avro import kernel
from tidemark_pipeline.schemas.avro.schema import Schema

_NUMBERS = {"int": 0, "long": 1, "float": 2, "double": 3}
_WIDTHS: dict[type[DataType], int] = {IntegerType: 0, LongType: 1, FloatType: 2, DoubleType: 3}


def conversion(writer: Schema, wanted: DataType) -> int | None:
    """How a value goes into a column of a type; None where it does not."""
    if writer.logical == "decimal":
        if isinstance(wanted, DecimalType):
            if wanted.scale != writer.scale:
                return None
            return kernel.TO_DECIMAL + wanted.precision
        return kernel.AS_IS if isinstance(wanted, BinaryType) else None
    if writer.kind == "long" and writer.logical:
        local = writer.logical.startswith("local-")
        if isinstance(wanted, TimestampNTZType if local else TimestampType):
            return kernel.MILLIS if writer.logical.endswith("millis") else kernel.MICROS
        return kernel.AS_IS if isinstance(wanted, LongType) else None
    if writer.kind == "int" and writer.logical == "date":
        if isinstance(wanted, DateType):
            return kernel.DAYS
        return kernel.AS_IS if isinstance(wanted, IntegerType) else None
    if writer.kind in _NUMBERS:
        width = _WIDTHS.get(type(wanted))
        if width is None or width < _NUMBERS[writer.kind]:
            return None
        whole = _NUMBERS[writer.kind] < 2
        return kernel.TO_DOUBLE if whole and width >= 2 else kernel.AS_IS
    if writer.kind in {"string", "bytes"} and isinstance(wanted, StringType):
        return kernel.TEXT
    fits = {
        "boolean": BooleanType,
        "enum": StringType,
        "string": BinaryType,
        "bytes": BinaryType,
        "fixed": BinaryType,
    }.get(writer.kind)
    return kernel.AS_IS if fits is not None and isinstance(wanted, fits) else None
