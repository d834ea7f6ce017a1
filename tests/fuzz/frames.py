"""Bytes of Kafka's and our own messages, made from their schemas: true ones, and such as lie.

Written beside kio's writer, because that cannot lie: any array, any text and any tagged field may
claim another length than it has. What is drawn comes from one ``random.Random``, so that Hypothesis
can shrink it and the fuzzer repeat it.
"""

import dataclasses
import random
import struct
import types
import typing
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from kio.index import load_entity_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tidemark.wire import control, deletions, topics, users
from tidemark_broker.api.cluster import api_versions
from tidemark_broker.api.serving.dispatcher import APIS
from tidemark_broker.groups.core import consumer_records
from tidemark_broker.groups.core import records as group_records
from tidemark_broker.replication.following import wire
from tidemark_broker.transactions import wire as transactions
from tidemark_broker.transactions.core import records as transaction_records

_FIXED = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint8": ">B", "uint16": ">H",
    "uint32": ">I", "uint64": ">Q", "float64": ">d", "bool": ">?", "error_code": ">h",
    "timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q",
}  # fmt: skip
_ERROR_CODES = [int(code.value) for code in ErrorCode]
_LENGTHS = (-2, -1, 0, 1, 2, 5, 127, 128, 1000, 2**28, 2**31 - 1, 2**32 - 2)
_SPLICES = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x10", b"\x7f" * 4)


def requests() -> list[Any]:
    """Every request that a broker or the controller reads, in every version."""
    apis = (*APIS, api_versions.api_of({}))
    return [
        *(api.request_type(v) for api in apis for v in api.served),
        *_own("Request"),
    ]


def responses() -> list[Any]:
    """Every answer that a follower, the controller, Spark or a tool reads."""
    apis = (*APIS, api_versions.api_of({}))
    return [
        *(load_response_schema(api.key, version) for api in apis for version in api.served),
        *_own("Response"),
    ]


def answers() -> list[Any]:
    """Every answer that a broker writes, with its own classes."""
    apis = (*APIS, api_versions.api_of({}))
    return [api.answer_type(version) for api in apis for version in api.served]


def stored() -> list[Any]:
    """Every part of a record that a coordinator stores, and what consumers send each other."""
    modules = (consumer_records, group_records, transaction_records)
    protocol = [
        load_entity_schema(f"consumer_protocol_{name}", version, EntityType.data)
        for name in ("assignment", "subscription")
        for version in range(4)
    ]
    return [*_entities(modules, ""), *protocol]


def _own(suffix: str) -> Iterator[Any]:
    return _entities((control, deletions, topics, transactions, users, wire), suffix)


def _entities(modules: Iterable[ModuleType], suffix: str) -> Iterator[Any]:
    for module in modules:
        for name, item in sorted(vars(module).items()):
            is_entity = isinstance(item, type) and dataclasses.is_dataclass(item)
            if is_entity and hasattr(item, "__flexible__") and name.endswith(suffix):
                yield item


def write(rng: random.Random, entity_type: Any, lies: float = 0.0) -> bytes:
    """One message; each length is a lie with the chance ``lies``."""
    return _FrameWriter(rng, lies).entity(entity_type)


def spoil(rng: random.Random, data: bytes) -> bytes:
    """``data`` with some bytes changed, cut out, put in, or the end gone."""
    out = bytearray(data)
    # Few changes, as a message with many is rejected at its first field.
    for _ in range(rng.randint(0, 3)):
        at = rng.randint(0, len(out))
        kind = rng.randint(0, 3)
        if kind == 0 and at < len(out):
            out[at] = rng.randint(0, 255)
        elif kind == 1:
            del out[at : at + rng.randint(1, 4)]
        elif kind == 2:
            out[at:at] = rng.choice(_SPLICES)
        elif rng.random() < 0.3:
            del out[at:]
    return bytes(out)


def elements_of(value: Any) -> int:
    """Count the elements of all arrays in a message."""
    if isinstance(value, tuple):
        return len(value) + sum(map(elements_of, value))
    if dataclasses.is_dataclass(value):
        return sum(elements_of(getattr(value, f.name)) for f in dataclasses.fields(value))
    return 0


class _FrameWriter:
    def __init__(self, rng: random.Random, lies: float) -> None:
        self._rng = rng
        self._lies = lies

    def entity(self, entity_type: Any) -> bytes:
        flexible = entity_type.__flexible__
        out, tagged = bytearray(), []
        for field in dataclasses.fields(entity_type):
            # Tagged fields are optional in any message of a flexible version (KIP-482).
            tag = field.metadata.get("tag")
            if tag is None:
                out += self._field(field, flexible, nullable=True)
            elif self._rng.random() < 0.5:
                tagged.append((tag, self._field(field, flexible, nullable=False)))
        if not flexible:
            return bytes(out)
        # An unknown tag has to be skipped.
        if self._rng.random() < 0.2:
            tagged.append((77, self._rng.randbytes(self._rng.randint(0, 9))))
        out += _uvarint(len(tagged))
        for tag, content in tagged:
            out += _uvarint(tag) + self._tag_size(content) + content
        return bytes(out)

    def _tag_size(self, content: bytes) -> bytes:
        if self._rng.random() >= self._lies:
            return _uvarint(len(content))
        return _uvarint(max(0, len(content) + self._rng.choice((-2, -1, 1, 2, 7, 30))))

    def _field(self, field: Any, flexible: bool, *, nullable: bool) -> bytes:
        annotation, may_be_null = _without_none(field.type)
        nullable = nullable and may_be_null
        # Arrays, then plain fields, then structures, which may be null in a way of their own.
        if typing.get_origin(annotation) is tuple:
            inner = typing.get_args(annotation)[0]
            if nullable and self._rng.random() < 0.2:
                return self._length(-1, flexible, ">i")
            number = self._rng.randint(0, 3)
            return self._length(number, flexible, ">i") + b"".join(
                self.entity(inner)
                if dataclasses.is_dataclass(inner)
                else self._plain(field.metadata["kafka_type"], flexible, nullable=False)
                for _ in range(number)
            )
        if not dataclasses.is_dataclass(annotation):
            return self._plain(field.metadata["kafka_type"], flexible, nullable=nullable)
        if nullable and self._rng.random() < 0.3:
            return b"\xff"
        return (b"\x01" if nullable else b"") + self.entity(annotation)

    def _plain(self, kafka_type: str, flexible: bool, *, nullable: bool) -> bytes:
        rng = self._rng
        if kafka_type == "uuid":
            return rng.randbytes(16)
        if kafka_type in _FIXED:
            return struct.pack(_FIXED[kafka_type], self._number(kafka_type))
        prefix = ">h" if kafka_type == "string" else ">i"
        if nullable and rng.random() < 0.3:
            return self._length(-1, flexible, prefix)
        text = bytes(rng.choices(b"abcxyz", k=rng.randint(0, 6)))
        # Lengths of two bytes, and pieces that are not copied.
        if rng.random() < 0.05:
            text = "é".encode() * rng.choice((62, 63, 64, 100, 4096 if prefix == ">i" else 50))
        return self._length(len(text), flexible, prefix) + text

    def _number(self, kafka_type: str) -> int:
        if kafka_type == "error_code":
            return self._rng.choice(_ERROR_CODES)
        if kafka_type == "bool":
            return self._rng.choice((0, 1))
        number = self._rng.randint(0, 100)
        if self._rng.random() < 0.7 or not kafka_type.startswith(("int", "uint")):
            return number
        # The least and the greatest number, and one that is not small.
        bits = 8 * struct.calcsize(_FIXED[kafka_type])
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kafka_type[0] == "i" else (0, 2**bits)
        return self._rng.choice((low, high - 1, high // 3))

    def _length(self, length: int, flexible: bool, prefix: str) -> bytes:
        if self._rng.random() < self._lies:
            length = self._rng.choice(_LENGTHS)
        if flexible:
            return _uvarint(max(0, length + 1))
        # A string's length has 16 bits, others have 32.
        bits = 15 if prefix == ">h" else 31
        return struct.pack(prefix, min(length, 2**bits - 1))


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if isinstance(annotation, types.UnionType):
        (only,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
        return only, True
    return annotation, False


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
