"""kio's classes for all versions of an Api, so that a handler is written once for all of them.

A handler names a field by the name it has in any version; what the version at hand does not have is
left out. A name that no version has is a mistake and raises, whatever the version.
"""

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

Make = Callable[..., Any]

ZERO = i32Timedelta.parse(datetime.timedelta(0))


class Shapes:
    """Constructors for the entities of one Api's answers in one version."""

    def __init__(
        self,
        api_key: int,
        version: int,
        *,
        replaced: Mapping[str, type[Any]] = MappingProxyType({}),
        own_fields: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> None:
        """``replaced``: classes of ours instead of kio's, by name; ``own_fields``: names of fields
        that only some of ours have."""
        self._module = load_payload_module(api_key, version, EntityType.response)
        self._known = _field_names(api_key)
        self._own_fields = own_fields
        self._replaced = replaced
        self._makers: dict[str, Make] = {}
        self.answer_name = load_response_schema(api_key, version).__name__

    def answer(self, **values: Any) -> Any:
        """The answer itself."""
        return self.of(self.answer_name)(**values)

    def of(self, name: str) -> Make:
        """The constructor of a nested entity, by its class's name in kio."""
        maker = self._makers.get(name)
        if maker is None:
            maker = self._makers[name] = self._maker(name)
        return maker

    def has(self, name: str) -> bool:
        """Whether this version has such an entity."""
        return name in self._replaced or hasattr(self._module, name)

    def _maker(self, name: str) -> Make:
        made: Any = self._replaced.get(name) or getattr(self._module, name)
        fields = frozenset(field.name for field in dataclasses.fields(made))
        known = self._known[name] | self._own_fields.get(name, frozenset())

        def make(**values: Any) -> Any:
            if values.keys() <= fields:
                return made(**values)
            unknown = values.keys() - known
            if unknown:
                raise TypeError(f"{name} has no field {sorted(unknown)} in any version")
            return made(**{key: value for key, value in values.items() if key in fields})

        return make


@cache
def shapes_of(api_key: int, version: int) -> Shapes:
    """The shapes of Kafka's own schema."""
    return Shapes(api_key, version)


@cache
def request_type_of(api_key: int, version: int) -> Any:
    """kio's request class."""
    return load_request_schema(api_key, version)


@cache
def _field_names(api_key: int) -> Mapping[str, frozenset[str]]:
    """Every field that an entity has in some version, by the entity's name."""
    names: dict[str, frozenset[str]] = {}
    for version in schema_name_map[api_key_map[api_key]]:
        module = load_payload_module(api_key, version, EntityType.response)
        for entity in vars(module).values():
            if isinstance(entity, type) and dataclasses.is_dataclass(entity):
                fields = frozenset(field.name for field in dataclasses.fields(entity))
                names[entity.__name__] = names.get(entity.__name__, frozenset()) | fields
    return names


def milliseconds(value: datetime.timedelta) -> int:
    """kio reads durations as timedelta; we count milliseconds."""
    return value // datetime.timedelta(milliseconds=1)


def timestamp(value_ms: int) -> Any:
    """kio writes times from datetime; None stands for -1."""
    if value_ms < 0:
        return None
    seconds, rest_ms = divmod(value_ms, 1000)
    whole = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return whole + datetime.timedelta(milliseconds=rest_ms)
