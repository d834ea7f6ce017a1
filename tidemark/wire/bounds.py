"""Check of a message's lengths before kio's reader parses it.

kio's native reader reserves memory for as many elements as an array claims to have, and a claim of
2^32 ends the whole process ("memory allocation failed" aborts). The lengths are therefore walked
first: an array must fit into the remaining bytes, and a message has a limit on its elements,
because each becomes an object much larger than its bytes. Runs of fields of fixed size are skipped
in one step; the bytes of records are never touched.

Two parsers must not read the same bytes as two different messages. kio reads a tagged field by its
content and ignores its declared size (KIP-482), while readers that do not know the field use the
size: here both must agree. The walk returns where it ended, so that the caller can compare kio's
end.
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
#: Longest string of Kafka, whose length has 16 bits: the compact form could claim more.
STRING_BYTES_MAX = 0x7FFF
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class TooManyElements(ValueError):
    """A message has more elements than its bounds allow."""


@dataclasses.dataclass(frozen=True, slots=True)
class MessageBounds:
    """Limits of a message.

    ``elements``: in all of its arrays together. ``string_bytes``: in each string; Tidemark's own
    messages have longer strings than Kafka's.
    """

    elements: int = 2_000_000
    string_bytes: int = _UINT32_MAX


ANY = MessageBounds()
#: A header has nothing but tagged fields.
_HEADER = MessageBounds(elements=1024)


class _Fixed:
    """Field of ``size`` bytes, whatever they contain."""

    __slots__ = ("least", "size")

    def __init__(self, size: int) -> None:
        self.size: int = size
        self.least: int = size

    def skip(self, buffer: Buffer, position: int, _: "_Count") -> int:
        return position + self.size


class _Compact:
    """String or bytes after their length plus one as a varint."""

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
    """String or bytes after their length, -1 for null."""

    __slots__ = ("_prefix", "least")

    def __init__(self, prefix: struct.Struct) -> None:
        self._prefix = prefix
        self.least: int = prefix.size

    def skip(self, buffer: Buffer, position: int, _: "_Count") -> int:
        (length,) = self._prefix.unpack_from(buffer, position)
        return position + self._prefix.size + max(length, 0)  # type: ignore[no-any-return]


class _Array:
    """Elements after their number, which must fit into the remaining bytes.

    kio returns null even where the schema allows none; code that iterates over the elements does
    not expect that, so it is refused here.
    """

    __slots__ = ("_element", "_flexible", "_nullable", "least")

    def __init__(self, element: "_Part", *, flexible: bool, nullable: bool) -> None:
        self._element = element
        self._flexible = flexible
        self._nullable = nullable
        self.least: int = 1 if flexible else 4

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        """Return the position behind the array at ``position``, after checking its lengths.

        ``count``: receives the number of elements, to limit their total in a message. Raises
        ValueError for impossible lengths, struct.error or IndexError at the end of the buffer.
        """
        # Compact arrays have their length plus one as a varint, older ones a signed 32-bit length.
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
        # Checked before anything is counted or walked: a claim cannot exceed the bytes that follow.
        if number * element.least > len(buffer) - position:
            raise ValueError(f"{number} elements in {len(buffer) - position} bytes")
        # Counted before the elements are walked: nested arrays multiply.
        count.add(number)
        # Elements of fixed size need no walk.
        if isinstance(element, _Fixed):
            return position + number * element.size
        for _ in range(number):
            position = element.skip(buffer, position, count)
        return position


class _Nullable:
    """Entity after a byte that is negative for null (KIP-893)."""

    __slots__ = ("_entity",)
    least = 1

    def __init__(self, entity: "_Part") -> None:
        self._entity = entity

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        if buffer[position] >= 0x80:
            return position + 1
        return self._entity.skip(buffer, position + 1, count)


class _Tags:
    """Tagged fields, skipped by their size, which must match that of known fields."""

    __slots__ = ("_known",)
    least = 1

    def __init__(self, known: "dict[int, _Part]") -> None:
        self._known = known

    def skip(self, buffer: Buffer, position: int, count: "_Count") -> int:
        """Return the position behind the tagged fields, after checking their lengths."""
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
    """Parts of an entity, one after another."""

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
    """Remaining elements, and the maximum length of a string."""

    __slots__ = ("_left", "string_bytes_max")

    def __init__(self, bounds: MessageBounds) -> None:
        self._left = bounds.elements
        self.string_bytes_max = bounds.string_bytes

    def add(self, number: int) -> None:
        self._left -= number
        if self._left < 0:
            raise TooManyElements("more elements than a message may have")


def end_of_entity(
    entity_type: Any, buffer: Buffer, offset: int = 0, bounds: MessageBounds = ANY
) -> int:
    """Return the position behind the entity at ``offset``.

    Raises ValueError, IndexError or struct.error if there cannot be one.
    """
    return _within(buffer, _entity(entity_type).skip(buffer, offset, _Count(bounds)))


def end_of_tagged_fields(buffer: Buffer, offset: int) -> int:
    """Return the position behind the tagged fields of a header, of which none is known.

    Raises as :func:`end_of_entity`.
    """
    return _within(buffer, _Tags({}).skip(buffer, offset, _Count(_HEADER)))


def _within(buffer: Buffer, end: int) -> int:
    if end > len(buffer):
        raise ValueError(f"{end - len(buffer)} bytes are missing")
    return end


@cache
def _entity(entity_type: Any) -> _Entity:
    """Return the layout of an entity, from kio's (or our own) dataclass of the message."""
    flexible = entity_type.__flexible__
    parts: list[_Part] = []
    known: dict[int, _Part] = {}
    for field in dataclasses.fields(entity_type):
        part = _part(field, flexible=flexible)
        tag = field.metadata.get("tag")
        if tag is not None:
            known[tag] = part
        # Adjacent fields of fixed size become one part, which is skipped in one step.
        elif isinstance(part, _Fixed) and parts and isinstance(parts[-1], _Fixed):
            parts[-1] = _Fixed(parts[-1].size + part.size)
        else:
            # Tagged fields (KIP-482) follow all others in flexible versions.
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
    """Return an unsigned varint of at most 32 bits, and the position behind it.

    Longer ones raise ValueError, because readers interpret them differently.
    """
    # Nearly all lengths take one byte.
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
