"""Inference of JSON columns from the records themselves.

A :class:`RecordShape` records the kinds of values at one place, and can be merged with shapes of
other records. A column has the type on which all records agree: bigint, double, decimal, boolean,
string, list or struct. If they disagree, it is a string. A field that is always null or empty has
no type and is left out.

Pure: workers build shapes, and the driver merges them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tidemark_avro.column_rules import DEPTH_MAX, folded
from tidemark_pipeline.schemas.json.text import RecordRefused
from tidemark_pipeline.schemas.value_format import NAME_LENGTH_MAX, ColumnNames

#: Places in all merged shapes; further ones are not recorded.
PLACES_MAX = 5_000
#: Characters of a field's path in a message. Full paths of all fields would together grow with the
#: square of the record's length.
PATH_LENGTH_MAX = 300
_LONG_LEAST, _LONG_END = -(2**63), 2**63
_DIGITS_OF_LONG, _DIGITS_MAX = 20, 38
ELEMENT, VALUE = "element", "value"


class ObservedValues(IntFlag):
    """Kinds of values at one place."""

    BOOLEAN = 1
    LONG = 2
    DECIMAL = 4
    DOUBLE = 8
    TEXT = 16
    LIST = 32
    OBJECT = 64


@dataclass(slots=True)
class PlaceBudget:
    """Number of places that may still be recorded."""

    left: int = PLACES_MAX


@dataclass(slots=True)
class RecordShape:
    """Values seen at one place.

    ``count``: their number. ``digits``: digits of the largest whole number beyond a bigint.
    """

    count: int = 0
    seen: ObservedValues = field(default_factory=lambda: ObservedValues(0))
    digits: int = 0
    fields: dict[str, "RecordShape"] = field(default_factory=dict)
    item: "RecordShape | None" = None

    def add(self, value: Any, places: PlaceBudget) -> None:
        """Add one value, as :func:`~tidemark_pipeline.schemas.json.text.parse_object` returns it.

        ``places``: budget of nested fields that may still be recorded.
        """
        self.count += 1
        kind = type(value)
        if kind is bool:
            self.seen |= ObservedValues.BOOLEAN
        elif kind is int:
            self._add_integer(value)
        elif kind is float:
            self.seen |= ObservedValues.DOUBLE
        elif kind is str:
            self.seen |= ObservedValues.TEXT
        elif kind is list:
            self.seen |= ObservedValues.LIST
            self.item = self.item or RecordShape()
            for item in value:
                self.item.add(item, places)
        elif kind is dict:
            self.seen |= ObservedValues.OBJECT
            for name, item in value.items():
                # No column can have a longer name. Records with such a name pass if its value is
                # null or empty, and thousands of such names would fill the driver's memory.
                inner = self._field(name, places) if len(name) <= NAME_LENGTH_MAX else None
                if inner is not None:
                    inner.add(item, places)

    def merge(self, other: "RecordShape", places: PlaceBudget) -> None:
        """Add the values that another shape has seen."""
        self.count += other.count
        self.seen |= other.seen
        self.digits = max(self.digits, other.digits)
        if other.item is not None:
            self.item = self.item or RecordShape()
            self.item.merge(other.item, places)
        for name, other_field in other.fields.items():
            inner = self._field(name, places)
            if inner is not None:
                inner.merge(other_field, places)

    def _field(self, name: str, places: PlaceBudget) -> "RecordShape | None":
        shape = self.fields.get(name)
        if shape is None and places.left > 0:
            places.left -= 1
            shape = self.fields[name] = RecordShape()
        return shape

    def _add_integer(self, value: int) -> None:
        if _LONG_LEAST <= value < _LONG_END:
            self.seen |= ObservedValues.LONG
            return
        digits = len(str(abs(value)))
        # A decimal has 38 digits at most. A double would silently drop digits, a string keeps them.
        self.seen |= ObservedValues.DECIMAL if digits <= _DIGITS_MAX else ObservedValues.TEXT
        self.digits = max(self.digits, min(digits, _DIGITS_MAX))

    @property
    def is_typed(self) -> bool:
        """Return whether a value other than null, empty lists and empty objects was seen."""
        return (
            bool(self.seen & ~(ObservedValues.LIST | ObservedValues.OBJECT))
            or (self.item is not None and self.item.is_typed)
            or any(inner.is_typed for inner in self.fields.values())
        )

    def type(self) -> DataType | None:
        """Return the Spark type that fits all values seen; None if none of them determines one."""
        seen = self.seen
        # Lists and objects without typed content have no column, as it could contain only null.
        if not self.is_typed:
            return None
        if seen == ObservedValues.LIST and self.item is not None:
            element = self.item.type()
            return None if element is None else ArrayType(element)
        if seen == ObservedValues.OBJECT:
            return self.struct()
        if seen == ObservedValues.BOOLEAN:
            return BooleanType()
        # Any mix with text, boolean, list or object becomes a string.
        if seen & ~(ObservedValues.LONG | ObservedValues.DECIMAL | ObservedValues.DOUBLE):
            return StringType()
        # Decimals have scale 0 here and cannot contain fractions.
        if seen & ObservedValues.DOUBLE:
            return DoubleType()
        if seen & ObservedValues.DECIMAL:
            return DecimalType(max(self.digits, _DIGITS_OF_LONG), 0)
        return LongType()

    def struct(self) -> StructType:
        """Return the fields that have types, ordered by name."""
        # Sorted, so that the order of columns does not depend on the order of records.
        columns = ((name, inner.type()) for name, inner in sorted(self.distinct().items()))
        return StructType([StructField(name, kind) for name, kind in columns if kind is not None])

    def distinct(self) -> dict[str, "RecordShape"]:
        """Return the typed fields, with the most frequent of names that differ by case only."""
        chosen: dict[str, str] = {}
        typed = [name for name, inner in self.fields.items() if inner.is_typed]
        # Ties are broken by name, so that a retried batch makes the same choice.
        for name in sorted(typed, key=lambda name: (-self.fields[name].count, name)):
            chosen.setdefault(folded(name), name)
        return {name: self.fields[name] for name in chosen.values()}

    def to_json(self) -> list[Any]:
        """Return the shape as a value for :mod:`json`; :meth:`of_json` is the inverse."""
        fields = {name: inner.to_json() for name, inner in self.fields.items()}
        item = None if self.item is None else self.item.to_json()
        return [self.count, int(self.seen), self.digits, fields, item]

    @classmethod
    def of_json(cls, given: list[Any]) -> "RecordShape":
        """Read a shape that :meth:`to_json` wrote."""
        count, seen, digits, fields, item = given
        return cls(
            count,
            ObservedValues(seen),
            digits,
            {name: cls.of_json(inner) for name, inner in fields.items()},
            None if item is None else cls.of_json(item),
        )


def new_fields(value: Any, where: str, names: ColumnNames, depth: int) -> int:
    """Return the number of columns that a new field's value needs, 0 if it determines no type.

    ``where``: path of the field. ``depth``: its nesting depth. Raises :class:`RecordRefused` if a
    table cannot have these columns.
    """
    if isinstance(value, dict):
        by_fold: dict[str, str] = {}
        size = 0
        for name, item in value.items():
            inner = f"{where}.{name}"[:PATH_LENGTH_MAX]
            if count := new_fields(item, inner, names, depth + 1):
                checked_name(name, inner, names, by_fold, is_top_level=False)
                size += count
        return size
    if isinstance(value, list):
        # Items of a list share their columns, so the largest item is a lower bound of their number.
        items = (new_fields(item, f"{where}.{ELEMENT}", names, depth + 1) for item in value)
        return max(items, default=0)
    if isinstance(value, float) and math.isinf(value):
        raise RecordRefused(f"{where}: a number is beyond a double")
    if value is not None and depth > DEPTH_MAX:
        raise RecordRefused(f"{where[:100]}…: columns are nested at most {DEPTH_MAX} deep")
    return 0 if value is None else 1


def checked_name(
    name: str, where: str, names: ColumnNames, by_fold: dict[str, str], *, is_top_level: bool
) -> None:
    """Add a name to ``by_fold``.

    Raises :class:`RecordRefused` if no column can have the name, or if ``by_fold`` has it in
    another case.
    """
    objection = names.objection(name, is_top_level=is_top_level)
    if objection:
        raise RecordRefused(f"{where!r}: {objection}")
    other = by_fold.setdefault(folded(name), name)
    if other != name:
        raise RecordRefused(f"{where!r}: {other} differs from it by case only")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A new column with its nested columns, which is added as a whole."""

    count: int
    path: tuple[str, ...]
    type: DataType

    @property
    def size(self) -> int:
        return _size(self.type)


def grown(table: StructType, shape: RecordShape, room: int) -> tuple[StructType, int]:
    """Return the table's columns with up to ``room`` new ones, and the number of new columns.

    ``shape``: shape of the values' parts that have no column
    (:func:`~tidemark_pipeline.schemas.json.record_check.unknown_parts`). The most frequent new
    columns come first. An existing column keeps its type.
    """
    added: dict[tuple[str, ...], list[StructField]] = {}
    count = 0
    # A column that does not fit is skipped, so that a smaller one may take its room.
    for unit in sorted(_units(table, shape, ()), key=lambda unit: (-unit.count, unit.path)):
        if unit.size <= room - count:
            count += unit.size
            added.setdefault(unit.path[:-1], []).append(StructField(unit.path[-1], unit.type))
    columns = _with(table, added, ())
    assert isinstance(columns, StructType)
    return columns, count


def _units(kind: DataType, shape: RecordShape, path: tuple[str, ...]) -> Iterator[_Unit]:
    if isinstance(kind, StructType):
        columns = {column.name: column.dataType for column in kind}
        taken = {folded(name) for name in columns}
        for name, inner in shape.distinct().items():
            if name in columns:
                yield from _units(columns[name], inner, (*path, name))
            elif folded(name) not in taken and (column_type := inner.type()) is not None:
                yield _Unit(inner.count, (*path, name), column_type)
    elif isinstance(kind, ArrayType) and shape.item is not None:
        yield from _units(kind.elementType, shape.item, (*path, ELEMENT))
    elif isinstance(kind, MapType) and shape.item is not None:
        yield from _units(kind.valueType, shape.item, (*path, VALUE))


def _with(
    kind: DataType, added: dict[tuple[str, ...], list[StructField]], path: tuple[str, ...]
) -> DataType:
    """Return a type with new fields added to its structs.

    ``added``: new fields by the path of their struct. ``path``: that of ``kind``.
    """
    if isinstance(kind, StructType):
        fields = [
            StructField(column.name, _with(column.dataType, added, (*path, column.name)))
            for column in kind
        ]
        # New columns are appended, as tables keep the positions of their columns.
        return StructType(fields + sorted(added.get(path, ()), key=lambda column: column.name))
    if isinstance(kind, ArrayType):
        return ArrayType(_with(kind.elementType, added, (*path, ELEMENT)))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with(kind.valueType, added, (*path, VALUE)))
    return kind


def _size(kind: DataType) -> int:
    if isinstance(kind, StructType):
        return 1 + sum(_size(column.dataType) for column in kind)
    if isinstance(kind, ArrayType):
        return _size(kind.elementType)
    return _size(kind.valueType) if isinstance(kind, MapType) else 1


def size_of(fields: StructType) -> int:
    """Count the columns, including nested ones."""
    return sum(_size(column.dataType) for column in fields)
