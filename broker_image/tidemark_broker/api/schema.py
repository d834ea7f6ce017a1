"""Kafka's messages for all versions of an Api, so that one handler serves all of them.

A handler reads one class of a request and builds one class of an answer. They have the fields of
every supported version, like Kafka's generated ``*RequestData`` and ``*ResponseData``. Requests are
kio's of the newest version, plus fields that Kafka has dropped since. Answers are plain
dataclasses: a number of kio's own types costs 4 us to create, and an answer has thousands. This
module binds kio's schema of each version to these classes. A request has the defaults of fields
that its version lacks. Of an answer, the fields of its version are written.
"""

import dataclasses
import datetime
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import GenericAlias, MappingProxyType
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.static.primitive import i32Timedelta

from tidemark.wire.codec import default_of, without_none

Field = dataclasses.Field[Any]

ZERO = i32Timedelta.parse(datetime.timedelta(0))
#: ``*_authorized_operations`` of an answer whose request did not request them (KIP-430).
NOT_ASKED = -(2**31)
_ENTITY_META = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")


@dataclasses.dataclass(slots=True, kw_only=True)
class ThrottledAnswer:
    """Answer with the time for which a quota mutes its connection (KIP-219)."""

    throttle_time: datetime.timedelta = ZERO


@cache
def request_type(message: Any, api_key: int, version: int) -> Any:
    """Return the class as which a request of ``version`` is read."""
    return _readable(message, load_request_schema(api_key, version))


@cache
def answer_type(message: Any, api_key: int, version: int) -> Any:
    """Return the entity as which ``message`` is written in ``version``.

    A tagged field that ``message`` lacks is never written. Raises ``TypeError`` for any other
    missing field.
    """
    return _writable(message, load_response_schema(api_key, version))


@cache
def _readable(message: Any, kafka: Any) -> Any:
    # Missing fields become class attributes, so reading them costs no space per request.
    present = {field.name for field in dataclasses.fields(kafka)}
    missing_fields = {
        name: default_of(field) for name, field in _fields(message).items() if name not in present
    }
    fields = [
        (field.name, _bound_type(message, field, _readable), field.default, field.metadata)
        for field in dataclasses.fields(kafka)
    ]
    return _twin(kafka, fields, missing_fields)


@cache
def _writable(message: Any, kafka: Any) -> Any:
    """Return the entity as which ``message`` is written where kio's schema class is ``kafka``.

    It has the fields of that version, with those of nested entities replaced in the same way.
    Raises ``TypeError`` if ``message`` lacks a field.
    """
    own = _fields(message)
    fields = []
    for field in dataclasses.fields(kafka):
        if field.name in own:
            bound = _bound_type(message, field, _writable)
            # Our default counts only for fields whose entity was replaced.
            default = field.default if bound == field.type else own[field.name].default
            fields.append((field.name, bound, default, field.metadata))
        elif "tag" not in field.metadata:
            raise TypeError(f"{message.__qualname__} has no field {field.name}: {kafka}")
    # Tagged fields of our own (KIP-950) exist only in flexible versions.
    if kafka.__flexible__:
        fields += [(f.name, f.type, f.default, f.metadata) for f in own.values() if f.metadata]
    return _twin(kafka, fields)


def _twin(
    kafka: Any,
    fields: Iterable[tuple[str, Any, Any, Mapping[Any, Any]]],
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return a dataclass with the given fields and the metadata of kio's entity ``kafka``.

    A field is a tuple of name, type, default and kio's metadata. ``constants`` become class
    attributes. A subclass is not possible, because kio's entities have slots and fixed fields.
    """
    # The codec and the framing find an entity's version in these class attributes.
    return dataclasses.make_dataclass(
        kafka.__name__,
        [
            (name, kind, dataclasses.field(default=default, metadata=metadata))
            for name, kind, default, metadata in fields
        ],
        frozen=True,
        slots=True,
        kw_only=True,
        namespace={name: getattr(kafka, name) for name in _ENTITY_META} | dict(constants),
    )


def _fields(message: Any) -> dict[str, Field]:
    return {field.name: field for field in dataclasses.fields(message)}


def _bound_type(message: Any, field: Field, bind: Callable[[Any, Any], Any]) -> Any:
    """Return the type of kio's ``field``, with its entity bound to that of ``message``."""
    own = _fields(message).get(field.name)
    own_entity, kafka_entity = None if own is None else entity_in(own.type), entity_in(field.type)
    if own_entity is None or kafka_entity is None:
        return field.type
    return _replaced(field.type, bind(own_entity, kafka_entity))


def entity_in(annotation: Any) -> Any:
    """Return the dataclass in ``X``, ``tuple[X, ...]`` or an optional of them; None without one."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    found = map(entity_in, typing.get_args(annotation))
    return next((entity for entity in found if entity is not None), None)


def _replaced(annotation: Any, entity: Any) -> Any:
    kind, nullable = without_none(annotation)
    replaced: Any = entity if dataclasses.is_dataclass(kind) else GenericAlias(tuple, (entity, ...))
    return replaced | None if nullable else replaced


def milliseconds(value: datetime.timedelta) -> int:
    """Return kio's duration in milliseconds."""
    return value // datetime.timedelta(milliseconds=1)


def timestamp(value_ms: int) -> datetime.datetime | None:
    """Return the time for the codec, which writes None as -1."""
    if value_ms < 0:
        return None
    return datetime.datetime.fromtimestamp(value_ms / 1000, tz=datetime.UTC)
