"""Where the parts of a value go: a slot for each column, and what becomes of it in Arrow.

A slot takes one entry after the other: two words and whether it is there. What they mean is the
column's affair: a number, where bytes lie, how many items a list has. Lists have their items behind
one another in a slot of the items' own, as Arrow has them.
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
    """The slot has how many items there are."""

    slot: int
    item: "Layout"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Likewise."""

    slot: int
    key: Leaf
    value: "Layout"


@dataclass(frozen=True, slots=True)
class StructOf:
    """The slot has only whether it is there."""

    slot: int
    fields: "tuple[tuple[str, Layout], ...]"


Layout = Leaf | ListOf | MapOf | StructOf


class Slots:
    """Gives them out. ``in_list``: of each, whether a value may have several entries in it."""

    def __init__(self) -> None:
        self.in_list: list[bool] = []

    def layout(self, wanted: DataType, *, in_list: bool = False) -> Layout:
        """For values of a type."""
        slot = self._next(in_list)
        if isinstance(wanted, StructType):
            fields = ((f.name, self.layout(f.dataType, in_list=in_list)) for f in wanted)
            return StructOf(slot, tuple(fields))
        if isinstance(wanted, ArrayType):
            return ListOf(slot, self.layout(wanted.elementType, in_list=True))
        if isinstance(wanted, MapType):
            key = Leaf(self._next(True), wanted.keyType)
            return MapOf(slot, key, self.layout(wanted.valueType, in_list=True))
        return Leaf(slot, wanted)

    def _next(self, in_list: bool) -> int:
        self.in_list.append(in_list)
        return len(self.in_list) - 1


def null_slots(layout: Layout) -> Iterator[int]:
    """Those that get an entry where the value is null: of a list only its own."""
    yield layout.slot
    if isinstance(layout, StructOf):
        for _, field in layout.fields:
            yield from null_slots(field)
