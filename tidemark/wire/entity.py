"""Tidemark's own messages of the control protocol, declared as kio declares Kafka's.

Kafka's schemas come from kio. The few additions (partition states, KIP-950's
``DisableRemoteTopic``) are dataclasses of the same kind, so that one codec reads and writes both.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar, dataclass_transform

from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

T = TypeVar("T")
KafkaType = Literal["int8", "int16", "int32", "int64", "bool", "string", "bytes", "uuid"]
_MISSING: Any = dataclasses.MISSING


def wire(
    kafka_type: KafkaType | None,
    *,
    default: Any = _MISSING,
    tag: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a field of a message's dataclass, in the way of kio's generated classes.

    ``kafka_type``: the field's type on the wire, None for nested messages. ``tag``: number of a
    tagged field (KIP-482), None for a regular one. A ``secret`` field is left out of the message's
    ``repr``.
    """
    metadata: dict[str, object] = {} if kafka_type is None else {"kafka_type": kafka_type}
    if tag is not None:
        metadata["tag"] = tag
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(wire,))
def entity(kind: EntityType, api_key: int, version: int = 0) -> Callable[[type[T]], type[T]]:
    """Make a class a kio entity: a frozen dataclass in a flexible version of ``api_key``."""

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.__type__ = kind
        made.__version__ = i16(version)
        made.__flexible__ = True
        made.__api_key__ = i16(api_key)
        made.__header_schema__ = ResponseHeader if kind is EntityType.response else RequestHeader
        return made  # type: ignore[no-any-return]

    return decorate
