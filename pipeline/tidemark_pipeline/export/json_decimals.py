"""Decimals of JSON, which Spark's parser makes of any number that it meets: ``1e1000000000`` is
twelve bytes, and keeps a task busy for hours.

So they are read as the text that they are, and made decimals of behind it, where the text is short
and its exponent has two digits at most. What is none then does not fit, as text does not.
"""

import functools
import operator
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

_TEXT_MAX = 100
_LARGE = "[eE][+-]?0*[1-9][0-9]{2}"


def loosened(kind: DataType) -> DataType:
    """The type with text where it has decimals."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, loosened(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(loosened(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, loosened(kind.valueType))
    return kind


def tightened(column: Column, kind: DataType) -> Column:
    """Values of the loosened type, with their decimals; null what is none."""
    if isinstance(kind, DecimalType):
        short = (f.length(column) <= _TEXT_MAX) & ~column.rlike(_LARGE)
        return f.when(short, column.try_cast(kind))
    if loosened(kind) == kind:
        return column
    if isinstance(kind, StructType):
        fields = [tightened(column[each.name], each.dataType).alias(each.name) for each in kind]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(kind, ArrayType):
        return f.transform(column, _of(tightened, kind.elementType))
    assert isinstance(kind, MapType)
    of_value = _of(tightened, kind.valueType)
    return f.transform_values(column, lambda _, value: of_value(value))


def misfits(column: Column, kind: DataType) -> Column:
    """Whether the loosened value has text that is no such decimal."""
    if isinstance(kind, DecimalType):
        return column.isNotNull() & tightened(column, kind).isNull()
    if loosened(kind) == kind:
        return f.lit(False)
    if isinstance(kind, StructType):
        wrong = [misfits(column[each.name], each.dataType) for each in kind]
        return functools.reduce(operator.or_, wrong)
    if isinstance(kind, ArrayType):
        return f.coalesce(f.exists(column, _of(misfits, kind.elementType)), f.lit(False))
    assert isinstance(kind, MapType)
    values = f.map_values(column)
    return f.coalesce(f.exists(values, _of(misfits, kind.valueType)), f.lit(False))


def _of(do: Callable[[Column, DataType], Column], kind: DataType) -> Callable[[Column], Column]:
    return lambda column: do(column, kind)
