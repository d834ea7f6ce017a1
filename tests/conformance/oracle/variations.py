"""One field of a good request after another made something else: below and above what it may be,
empty, null, unknown, illegal, twice. What is tried depends on the kind of the field alone."""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kio.static.primitive import i32Timedelta, i64Timedelta

from tests.conformance.oracle.entities import part_type, to_duration
from tests.conformance.oracle.sides import NOBODY

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_STRINGS = {
    "empty": "", "unknown": "nope", "with a blank": "a b", "dots": "..", "too long": "x" * 300
}  # fmt: skip
_DURATIONS = {"timedelta_i32": i32Timedelta, "timedelta_i64": i64Timedelta}
_TWICE = object()


@dataclass(frozen=True, slots=True)
class Variation:
    """``path``: the fields' names from the request down, through the first part of each array."""

    path: tuple[str, ...]
    what: str
    value: Any

    @property
    def name(self) -> str:
        """Name of the case."""
        return f"{'.'.join(self.path)} {self.what}"

    def of(self, entity: Any) -> Any:
        """The request with it."""
        return _changed(entity, self.path, self.value)


def variations(entity: Any, fixed: frozenset[str] = frozenset()) -> Iterator[Variation]:
    """Return the variations of each field that is not ``fixed``, by name."""
    for field in dataclasses.fields(entity):
        if field.name in fixed:
            continue
        value = getattr(entity, field.name)
        for what, other in _others(field, value):
            yield Variation((field.name,), what, other)
        # Only the first part of an array is varied, and the others stay valid.
        for below in _parts(value):
            for inner in variations(below, fixed):
                yield Variation((field.name, *inner.path), inner.what, inner.value)


def _parts(value: Any) -> tuple[Any, ...]:
    first = value[:1] if isinstance(value, tuple) else (value,)
    return tuple(item for item in first if dataclasses.is_dataclass(item))


def _others(field: Any, value: Any) -> Iterator[tuple[str, Any]]:
    if value is not None and type(None) in typing.get_args(field.type):
        yield "null", None
    if isinstance(value, tuple):
        yield from _arrays(field, value)
    for what, other in _values(field.metadata.get("kafka_type"), field, value):
        if other != value and not isinstance(value, tuple):
            yield what, other


def _arrays(field: Any, value: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if not value:
        return
    # Element types with fields of their own are varied inside. Plain elements get a bad one added.
    yield "empty", ()
    yield "twice", _TWICE
    if part_type(field.type) is None:
        for what, other in _values(field.metadata.get("kafka_type"), field, value[0]):
            yield f"with {what}", (*value, other)


def _values(kind: Any, field: Any, value: Any) -> Iterator[tuple[str, Any]]:
    if kind in _BITS:
        # Values around the special ones of the protocol, and the largest of the type.
        most = 2 ** (_BITS[kind] - 1) - 1
        for number in (-2, -1, 0, 1, most):
            yield ("largest" if number == most else str(number)), number
    elif kind == "string":
        yield from _STRINGS.items()
    elif kind == "uuid":
        yield from (("zero", None), ("nobody's", NOBODY))
    elif kind in ("bytes", "records"):
        yield from (("empty", b""), ("noise", b"\x00\x07noise"))
    elif kind == "bool":
        yield str(not value).lower(), not value
    elif kind in _DURATIONS:
        for number in (-1, 0):
            yield str(number), to_duration(_DURATIONS[kind], number)


def _changed(entity: Any, path: tuple[str, ...], new: Any) -> Any:
    name, *below = path
    value = getattr(entity, name)
    if not below:
        return dataclasses.replace(entity, **{name: value * 2 if new is _TWICE else new})
    if isinstance(value, tuple):
        # Descend into the first part, as :func:`variations` did.
        inner = (_changed(value[0], tuple(below), new), *value[1:])
        return dataclasses.replace(entity, **{name: inner})
    return dataclasses.replace(entity, **{name: _changed(value, tuple(below), new)})
