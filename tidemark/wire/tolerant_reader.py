"""Reader of entities with tagged fields that kio's schema does not know.

KIP-482 lets any peer add tagged fields to any flexible version, and a reader skips unknown tags.
kio's reader refuses them, and :func:`read_entity` is used then: the same dataclasses, kio's own
field readers, and unknown tags skipped by their length. The lengths have been checked before
(:mod:`tidemark.wire.bounds`).
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from kio._kio_native import get_field_reader  # kio's own readers have no public name
from kio.serial.readers import (
    read_compact_array_length,
    read_int8,
    read_legacy_array_length,
    read_unsigned_varint,
)

Buffer = bytes | memoryview
Reader = Callable[[Any, int], tuple[Any, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Readers of one entity type: (name, reader) of its fields in order, and of known tags."""

    fields: tuple[tuple[str, Reader], ...]
    tags: dict[int, tuple[str, Reader]]
    defaults: dict[str, Any]


def read_entity(entity_type: Any, buffer: Buffer, offset: int) -> tuple[Any, int]:
    """Return (entity, size in bytes) of the entity at ``offset``; unknown tags are skipped."""
    plan = _plan_of(entity_type)
    position = offset
    values: dict[str, Any] = {}
    for name, reader in plan.fields:
        values[name], size = reader(buffer, position)
        position += size
    if entity_type.__flexible__:
        position = _read_tags(plan, buffer, position, values)
    return entity_type(**(plan.defaults | values)), position - offset


def _read_tags(plan: _Plan, buffer: Buffer, position: int, values: dict[str, Any]) -> int:
    """Read the tagged fields that are known into ``values``; return the position behind all."""
    count, size = read_unsigned_varint(buffer, position)
    position += size
    for _ in range(count):
        tag, size = read_unsigned_varint(buffer, position)
        position += size
        length, size = read_unsigned_varint(buffer, position)
        position += size
        if tag in plan.tags:
            name, reader = plan.tags[tag]
            values[name], _ = reader(buffer, position)
        # Advance by the declared length, which is also that of a known field.
        position += length
    return position


@cache
def _plan_of(entity_type: Any) -> _Plan:
    """Return how to read an entity: regular fields in order, tagged fields by tag, and defaults."""
    plain: list[tuple[str, Reader]] = []
    tags: dict[int, tuple[str, Reader]] = {}
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(entity_type):
        tag = field.metadata.get("tag")
        reader = _reader_of(entity_type, field, is_tag=tag is not None)
        if tag is None:
            plain.append((field.name, reader))
            continue
        tags[tag] = (field.name, reader)
        if field.default is dataclasses.MISSING:
            defaults[field.name] = _implicit_default(field)
    return _Plan(tuple(plain), tags, defaults)


def _implicit_default(field: "dataclasses.Field[Any]") -> Any:
    # kio's defaults have no public name.
    from kio.serial._implicit_defaults import get_tagged_field_default

    return get_tagged_field_default(field)


def _reader_of(entity_type: Any, field: "dataclasses.Field[Any]", *, is_tag: bool) -> Reader:
    nested, is_array, nullable = _nested_type(field.type)
    if nested is None:
        is_header = entity_type.__name__ == "RequestHeader"
        return get_field_reader(entity_type, field, is_header, is_tag)
    if is_array:
        return _array_reader(nested, flexible=entity_type.__flexible__)
    return _nullable_reader(nested) if nullable and not is_tag else _entity_reader(nested)


def _nested_type(annotation: Any) -> tuple[Any | None, bool, bool]:
    """Return (entity type or None, whether it is an array of it, whether null is allowed)."""
    nullable = False
    if isinstance(annotation, types.UnionType):
        members = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        nullable = True
        annotation = members[0]
    is_array = typing.get_origin(annotation) is tuple
    inner = typing.get_args(annotation)[0] if is_array else annotation
    return (inner if dataclasses.is_dataclass(inner) else None), is_array, nullable


def _entity_reader(nested: Any) -> Reader:
    def read(buffer: Buffer, offset: int) -> tuple[Any, int]:
        return read_entity(nested, buffer, offset)

    return read


def _nullable_reader(nested: Any) -> Reader:
    """Return a reader for an optional entity (KIP-893): one byte, -1 for null, before the
    entity.
    """

    def read(buffer: Buffer, offset: int) -> tuple[Any, int]:
        marker, size = read_int8(buffer, offset)
        if marker < 0:
            return None, size
        value, length = read_entity(nested, buffer, offset + size)
        return value, size + length

    return read


def _array_reader(nested: Any, *, flexible: bool) -> Reader:
    """Return a reader of arrays of nested messages, for a flexible or an older version.

    The reader returns the elements (None for a null array), and the bytes that it has read.
    """
    # Compact arrays have a varint length, older ones an int32.
    length_reader: Any = read_compact_array_length if flexible else read_legacy_array_length

    def read(buffer: Buffer, offset: int) -> tuple[Any, int]:
        count, size = length_reader(buffer, offset)
        if count is None or count < 0:
            return None, size
        position = offset + size
        items = []
        for _ in range(count):
            item, size = read_entity(nested, buffer, position)
            items.append(item)
            position += size
        return tuple(items), position - offset

    return read
