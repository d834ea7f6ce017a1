"""Layout of a value: one slot for each column, and the Arrow type that is built from it.

A slot contains entries in order: two words, and whether the value is present. The column's type
defines the words: a number, the position of bytes, or the number of a list's items. The items of
all lists are consecutive in a slot of their own, as in Arrow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, DataType, MapType, StructType


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of single values."""

    slot: int
    type: DataType


@dataclass(frozen=True, slots=True)
class ListOf:
    """List: the slot contains the number of items."""

    slot: int
    item: "Layout"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Map: the slot contains the number of entries."""

    slot: int
    key: Leaf
    value: "Layout"


@dataclass(frozen=True, slots=True)
class StructOf:
    """Struct: the slot contains only whether the value is present."""

    slot: int
    fields: "tuple[tuple[str, Layout], ...]"


Layout = Leaf | ListOf | MapOf | StructOf


class Slots:
    """Allocator of slots.

    ``in_list``: for each slot, whether one record may have several entries.
    """

    def __init__(self) -> None:
        self.in_list: list[bool] = []

    def layout(self, column_type: DataType, *, in_list: bool = False) -> Layout:
        """Return the layout of a type's values."""
        slot = self._next(in_list)
        if isinstance(column_type, StructType):
            fields = ((f.name, self.layout(f.dataType, in_list=in_list)) for f in column_type)
            return StructOf(slot, tuple(fields))
        if isinstance(column_type, ArrayType):
            return ListOf(slot, self.layout(column_type.elementType, in_list=True))
        if isinstance(column_type, MapType):
            # A map's keys and values repeat, even outside a list.
            key = Leaf(self._next(True), column_type.keyType)
            return MapOf(slot, key, self.layout(column_type.valueType, in_list=True))
        return Leaf(slot, column_type)

    def _next(self, in_list: bool) -> int:
        self.in_list.append(in_list)
        return len(self.in_list) - 1


def null_slots(layout: Layout) -> Iterator[int]:
    """Yield the slots that get an entry if the value is null: of a list only its own."""
    # A null list has no items, so the slots of its items get no entry.
    yield layout.slot
    if isinstance(layout, StructOf):
        for _, field in layout.fields:
            yield from null_slots(field)
