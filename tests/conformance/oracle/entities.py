"""Kafka requests made from plain values, in any version: kio's classes say what a version has.

A part is a mapping, an array a tuple, a duration an int (milliseconds). What is another thing on
each side (an id of a topic, a node) is a function of :class:`Here`.
"""

import dataclasses
import datetime
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.index import load_request_schema
from kio.serial._implicit_defaults import get_implicit_default  # kio's defaults are not public
from kio.static.primitive import i32Timedelta, i64Timedelta

from tests.conformance.oracle.sides import SideWorld

_DURATIONS = {"timedelta_i32": i32Timedelta, "timedelta_i64": i64Timedelta}


@dataclass(frozen=True, slots=True)
class Here:
    """Context of a request: its side and its case."""

    world: SideWorld
    case: str


Fields = Mapping[str, Any]
Told = Callable[[Here], Any]


def id_of(topic: str) -> Told:
    """Return the topic's id on this side, or an unused id if the topic does not exist there."""
    return lambda here: here.world.id_of(topic)


def node(here: Here) -> int:
    """Node id of the broker that receives the request."""
    return here.world.node_id


def own(here: Here) -> str:
    """A name that no other case has."""
    return "oracle-" + "".join(item if item.isalnum() else "-" for item in here.case)


def in_partition(topic: str, **values: object) -> Fields:
    """Partition 0 of a topic, under all the names that Kafka has for one."""
    part = {"partition": 0, "partition_index": 0, "index": 0, **values}
    return {
        "topic": topic, "name": topic, "topic_id": id_of(topic), "partitions": (part,),
        "partition_data": (part,),
    }  # fmt: skip


def numbered(topic: str, *partitions: int) -> Fields:
    """The same where partitions are numbers."""
    return {
        "topic": topic, "name": topic, "topic_id": id_of(topic), "partitions": partitions,
        "partition_indexes": partitions,
    }  # fmt: skip


def request(api_key: int, version: int, fields: Fields, here: Here) -> Any:
    """kio's entity; what the version does not have is left out, and what is not named is as in
    Kafka's generated classes."""
    return _filled(load_request_schema(api_key, version), fields, here)


def _filled(kind: Any, fields: Fields, here: Here) -> Any:
    # Fields that the version does not have are dropped, and null only where the schema allows it.
    changed = {
        field.name: _value(field, fields[field.name], here)
        for field in dataclasses.fields(kind)
        if field.name in fields and (fields[field.name] is not None or _is_nullable(field.type))
    }
    return dataclasses.replace(blank(kind), **changed)


def _is_nullable(kind: Any) -> bool:
    return type(None) in typing.get_args(kind)


def _value(field: Any, value: Any, here: Here) -> Any:
    if callable(value):
        value = value(here)
    if isinstance(value, tuple):
        part = part_type(field.type)
        return tuple(_element(part, item, here) for item in value)
    if isinstance(value, Mapping):
        return _filled(_struct(field.type), value, here)
    # kio gives durations types of their own, which differ in width.
    duration = _DURATIONS.get(field.metadata.get("kafka_type"))
    return value if duration is None else to_duration(duration, value)


def _struct(kind: Any) -> Any:
    """The class of a part that may be null."""
    return next(
        (
            get_argument
            for get_argument in typing.get_args(kind)
            if dataclasses.is_dataclass(get_argument)
        ),
        kind,
    )


def _element(part: Any, value: Any, here: Here) -> Any:
    if callable(value):
        value = value(here)
    return value if part is None else _filled(part, value, here)


def to_duration(kind: Any, milliseconds: int) -> Any:
    """Return the value that kio has for a duration."""
    return kind.parse(datetime.timedelta(milliseconds=milliseconds))


def part_type(kind: Any) -> Any:
    """The class of an array's parts; None where they are no parts."""
    # The part may be inside a union with None as well.
    for get_argument in (kind, *typing.get_args(kind)):
        found = [one for one in typing.get_args(get_argument) if dataclasses.is_dataclass(one)]
        if found:
            return found[0]
    return None


@cache
def blank(kind: Any) -> Any:
    """An entity whose arrays are empty and whose fields are as Kafka's generated classes begin."""
    values = {}
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING:
            values[field.name] = _blank_value(field.type)
    return kind(**values)


def _blank_value(kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return blank(kind)
    if typing.get_origin(kind) is tuple:
        return ()
    if _is_nullable(kind):
        return None
    return False if kind is bool else get_implicit_default(kind)
