"""JSON values that Spark's parser would change.

The parser converts any number to a decimal: ``1e1000000000`` has twelve bytes and keeps a task busy
for hours. So decimals are read as text and converted afterwards, if the text is short and its
exponent has two digits at most. Any other text does not fit. The parser also accepts times of any
year and maps with repeated keys.
"""

import functools
import operator
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TEXT_MAX = 100
_LARGE = "[eE][+-]?0*[1-9][0-9]{2}"
_WHOLE = "^[+-]?[0-9]+([.]0*)?([eE][+]?[0-9]+)?$"
#: Spark's parser accepts any year that these types can hold.
_TIMES = (DateType, TimestampType, TimestampNTZType)
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
#: Session setting: the last value of a repeated key counts.
LAST_WINS = "spark.sql.mapKeyDedupPolicy", "LAST_WIN"


def loosened(kind: DataType) -> DataType:
    """Return the type with text in place of decimals."""
    if isinstance(kind, DecimalType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, loosened(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(loosened(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, loosened(kind.valueType))
    return kind


def is_exact(kind: DataType) -> bool:
    """Return whether Spark's parser reads values of a type unchanged."""
    if isinstance(kind, DecimalType | MapType):
        return False
    if isinstance(kind, StructType):
        return all(is_exact(field.dataType) for field in kind)
    return not isinstance(kind, ArrayType) or is_exact(kind.elementType)


def tightened(column: Column, kind: DataType) -> Column:
    """Return the column's values, parsed as the loosened type, converted to ``kind``.

    Text becomes a decimal, or null if it is none. Each key of a map keeps its last value.
    """
    if isinstance(kind, DecimalType):
        # The bounds keep the conversion of one value short, whatever its exponent.
        short = (f.length(column) <= _TEXT_MAX) & ~column.rlike(_LARGE)
        if kind.scale == 0:  # as for a bigint: refuse a fraction instead of rounding it
            short = short & column.rlike(_WHOLE)
        return f.when(short, column.try_cast(kind))
    if is_exact(kind):
        return column
    if isinstance(kind, StructType):
        fields = [tightened(column[field.name], field.dataType).alias(field.name) for field in kind]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(kind, ArrayType):
        return f.transform(column, _of(tightened, kind.elementType))
    assert isinstance(kind, MapType)
    if not is_exact(kind.valueType):
        of_value = _of(tightened, kind.valueType)
        column = f.transform_values(column, lambda _, value: of_value(value))
    # The parser accepts a repeated key; rebuilding the map applies LAST_WINS.
    return f.map_from_entries(f.map_entries(column))


def misfits(column: Column, kind: DataType) -> Column:
    """Return whether a parsed value has a decimal or a time that the table cannot hold.

    ``column``: values of the loosened type, with decimals as text. ``kind``: type in the table.
    """
    if isinstance(kind, DecimalType):
        return column.isNotNull() & tightened(column, kind).isNull()
    if isinstance(kind, _TIMES):
        # Tables have the years 1 to 9999, and the parser accepts others.
        first, last = (f.lit(moment).cast(kind) for moment in (_FIRST, _LAST))
        return f.coalesce(~column.between(first, last), f.lit(False))
    if isinstance(kind, StructType):
        wrong = [
            misfits(column[field.name], field.dataType) for field in kind if _may_misfit(field)
        ]
        return functools.reduce(operator.or_, wrong, f.lit(False))
    if isinstance(kind, ArrayType) and _may_misfit(kind.elementType):
        return f.coalesce(f.exists(column, _of(misfits, kind.elementType)), f.lit(False))
    if isinstance(kind, MapType) and _may_misfit(kind.valueType):
        values = f.map_values(column)
        return f.coalesce(f.exists(values, _of(misfits, kind.valueType)), f.lit(False))
    return f.lit(False)


def _may_misfit(kind: DataType | StructField) -> bool:
    match kind:
        case StructField():
            return _may_misfit(kind.dataType)
        case StructType():
            return any(_may_misfit(field) for field in kind)
        case ArrayType():
            return _may_misfit(kind.elementType)
        case MapType():
            return _may_misfit(kind.valueType)
    return isinstance(kind, (DecimalType, *_TIMES))


def _of(do: Callable[[Column, DataType], Column], kind: DataType) -> Callable[[Column], Column]:
    return lambda column: do(column, kind)
