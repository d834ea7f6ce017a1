"""Whether a message can be what it claims, checked before kio's reader sees it.

kio's native reader reserves memory for as many elements as an array claims to have, and a claim of
2^32 ends the whole process ("memory allocation failed" aborts; tried). So the lengths are walked
first: an array must fit into the bytes that are left, and a message may not hold more elements in
all than is reasonable, because each becomes an object much larger than its bytes. Runs of fields of
fixed size are skipped in one step; the bytes of records are never touched.

Two parsers must not read the same bytes as two messages. kio takes a tagged field by its content
and ignores its declared size (KIP-482), readers that do not know it go by the size: here both have
to agree. Where the walk ends is told, so that the caller can hold kio to it.
"""

import dataclasses
import struct
import types
import typing
from functools import cache
from typing import Any

Buffer = bytes | memoryview

_SIZES = {
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4,
    "uint64": 8, "float64": 8, "bool": 1, "uuid": 16, "error_code": 2, "timedelta_i32": 4,
    "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip
_UINT32_MAX = 0xFFFF_FFFF
#: Of Kafka's strings, whose length is 16 bits wide: the compact kind could claim more.
STRING_BYTES_MAX = 0x7FFF
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class TooManyElements(ValueError):
    """A message has more elements than it may have here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """What a message may hold: ``elements`` in all of its arrays together, ``string_bytes`` in each
    string. Our own messages have strings that are longer than Kafka's."""

    elements: int = 2_000_000
    string_bytes: int = _UINT32_MAX


ANY = Bounds()
#: A header has nothing but tagged fields.
_HEADER = Bounds(elements=1024)


class _Fixed:
    """``size`` bytes whatever they hold."""

    __slots__ = ("least", "size")

    def __init__(self, size: int) -> None:
        self.size: int = size
        self.least: int = size

    def skip(self, buffer: Buffer, position: int, _: "_Count") -> int:
        return position + self.size


class _Compact:
    """A string or bytes after their length plus one as a varint."""

    __slots__ = ("_is_string",)
    least = 1

    def __init__(self, *, is_string: bool) -> None:
        self._is_string = is_string

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        length, position = _varint(buffer, position)
        if self._is_string and length - 1 > count.string_bytes_max:
            raise ValueError(f"a string of {length - 1} bytes")
        return position + max(length - 1, 0)


class _Legacy:
    """A string or bytes after their length, -1 for null."""

    __slots__ = ("_prefix", "least")

    def __init__(self, prefix: struct.Struct) -> None:
        self._prefix = prefix
        self.least: int = prefix.size

    def skip(self, buffer: Buffer, position: int, _: "_Count") -> int:
        (length,) = self._prefix.unpack_from(buffer, position)
        return position + self._prefix.size + max(length, 0)  # type: ignore[no-any-return]


class _Array:
    """Elements after their number, which must be able to fit into the bytes that are left. kio
    reads null where the schema allows none, which nobody expects who goes through the elements."""

    __slots__ = ("_element", "_flexible", "_nullable", "least")

    def __init__(self, element: "_Part", *, flexible: bool, nullable: bool) -> None:
        self._element = element
        self._flexible = flexible
        self._nullable = nullable
        self.least: int = 1 if flexible else 4

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        if self._flexible:
            number, position = _varint(buffer, position)
            number -= 1
        else:
            (number,) = _INT32.unpack_from(buffer, position)
            position += 4
        if number <= 0:
            if number < 0 and not self._nullable:
                raise ValueError("an array is null that must not be")
            return position
        element = self._element
        if number * element.least > len(buffer) - position:
            raise ValueError(f"{number} elements in {len(buffer) - position} bytes")
        count.add(number)
        if isinstance(element, _Fixed):
            return position + number * element.size
        for _ in range(number):
            position = element.skip(buffer, position, count)
        return position


class _Nullable:
    """An entity after a byte that is below zero for null (KIP-893)."""

    __slots__ = ("_entity",)
    least = 1

    def __init__(self, entity: "_Part") -> None:
        self._entity = entity

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        if buffer[position] >= 0x80:
            return position + 1
        return self._entity.skip(buffer, position + 1, count)


class _Tags:
    """Tagged fields: all are skipped by their size, which must be that of what is known."""

    __slots__ = ("_known",)
    least = 1

    def __init__(self, known: "dict[int, _Part]") -> None:
        self._known = known

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        number, position = _varint(buffer, position)
        if number > len(buffer) - position:
            raise ValueError(f"{number} tagged fields in {len(buffer) - position} bytes")
        count.add(number)
        for _ in range(number):
            tag, position = _varint(buffer, position)
            size, position = _varint(buffer, position)
            end = position + size
            if tag in self._known and self._known[tag].skip(buffer, position, count) != end:
                raise ValueError(f"tagged field {tag} does not have the {size} bytes it claims")
            position = end
        return position


class _Entity:
    """Its parts one after another."""

    __slots__ = ("_parts", "least")

    def __init__(self, parts: "tuple[_Part, ...]") -> None:
        self._parts = parts
        self.least: int = max(1, sum(part.least for part in parts))

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        for part in self._parts:
            position = part.skip(buffer, position, count)
        return position


_Part = _Fixed | _Compact | _Legacy | _Array | _Nullable | _Tags | _Entity


class _Count:
    """Elements that may still come, and how long a string may be."""

    __slots__ = ("_left", "string_bytes_max")

    def __init__(self, bounds: Bounds) -> None:
        self._left = bounds.elements
        self.string_bytes_max = bounds.string_bytes

    def add(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise TooManyElements("more elements than a message may have")


def end_of_entity(entity_type: Any, buffer: Buffer, offset: int = 0, bounds: Bounds = ANY) -> int:
    """Position behind the entity at ``offset``; ValueError, IndexError or struct.error where there
    cannot be one."""
    return _within(buffer, _entity(entity_type).skip(buffer, offset, _Count(bounds)))


def end_of_tagged_fields(buffer: Buffer, offset: int) -> int:
    """The same for the tagged fields of a header, of which none is known."""
    return _within(buffer, _Tags({}).skip(buffer, offset, _Count(_HEADER)))


def _within(buffer: Buffer, end: int) -> int:
    if end > len(buffer):
        raise ValueError(f"{end - len(buffer)} bytes are missing")
    return end


@cache
def _entity(entity_type: Any) -> _Entity:
    flexible = entity_type.__flexible__
    parts: list[_Part] = []
    known: dict[int, _Part] = {}
    for field in dataclasses.fields(entity_type):
        part = _part(field, flexible=flexible)
        tag = field.metadata.get("tag")
        if tag is not None:
            known[tag] = part
        elif isinstance(part, _Fixed) and parts and isinstance(parts[-1], _Fixed):
            parts[-1] = _Fixed(parts[-1].size + part.size)
        else:
            parts.append(part)
    if flexible:
        parts.append(_Tags(known))
    return _Entity(tuple(parts))


def _part(field: "dataclasses.Field[Any]", *, flexible: bool) -> _Part:
    annotation, nullable = _without_none(field.type)
    if typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)[0]
        element = _nested(inner) or _plain(field, flexible)
        return _Array(element, flexible=flexible, nullable=nullable)
    entity = _nested(annotation)
    if entity is None:
        return _plain(field, flexible)
    return _Nullable(entity) if nullable and "tag" not in field.metadata else entity


def _nested(annotation: Any) -> _Entity | None:
    entity_type: Any = annotation
    return _entity(entity_type) if dataclasses.is_dataclass(annotation) else None


def _plain(field: "dataclasses.Field[Any]", flexible: bool) -> _Part:
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _SIZES:
        return _Fixed(_SIZES[kafka_type])
    if flexible:
        return _Compact(is_string=kafka_type == "string")
    return _Legacy(_INT16 if kafka_type == "string" else _INT32)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if isinstance(annotation, types.UnionType):
        (only,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        return only, True
    return annotation, False


def _varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint of 32 bits: readers differ in what they make of more."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or value > _UINT32_MAX:
        raise ValueError("a varint is longer than 32 bits")
    return value, position + 1
