"""The entities of a Metadata answer with KIP-950's two fields per topic.

KIP-950 adds ``tiered_epoch`` and ``tiered_state`` to TopicMetadata. Here they are tagged fields in
the flexible versions (9 and above), so that stock clients skip them; the tags lie far above Kafka's
own, as a later Kafka may number its own from 0. kio's classes are closed, so twins are made of them
that differ in these fields only.
"""

import dataclasses
from functools import cache
from types import GenericAlias
from typing import Any

from kio.index import load_payload_module
from kio.static.constants import EntityType
from kio.static.primitive import i8, i32

from tidemark_broker.api.schema import Shapes

KEY = 3
FIRST_FLEXIBLE_VERSION = 9
TIERED_EPOCH_TAG = 10_000
TIERED_STATE_TAG = 10_001
_OWN_FIELDS = {"MetadataResponseTopic": frozenset({"tiered_epoch", "tiered_state"})}


@cache
def metadata_shapes(api_key: int, version: int) -> Shapes:
    """Shapes of a Metadata answer; with the tagged fields where the version can carry them."""
    if version < FIRST_FLEXIBLE_VERSION:
        return Shapes(api_key, version, own_fields=_OWN_FIELDS)
    twins = (answer_type(version), topic_type(version))
    replaced = {twin.__name__: twin for twin in twins}
    return Shapes(api_key, version, replaced=replaced, own_fields=_OWN_FIELDS)


@cache
def topic_type(version: int) -> Any:
    """MetadataResponseTopic with ``tiered_epoch`` (int32, -1: never tiered) and ``tiered_state``
    (int8, :class:`tidemark.tiering.TieringState`)."""
    kafka = _kafka(version).MetadataResponseTopic
    own = (
        ("tiered_epoch", i32, _tagged("int32", TIERED_EPOCH_TAG, i32(-1))),
        ("tiered_state", i8, _tagged("int8", TIERED_STATE_TAG, i8(0))),
    )
    return _twin(kafka, {}, own)


@cache
def answer_type(version: int) -> Any:
    """MetadataResponse whose topics are :func:`topic_type`."""
    topics: Any = GenericAlias(tuple, (topic_type(version), ...))
    return _twin(_kafka(version).MetadataResponse, {"topics": topics}, ())


def _kafka(version: int) -> Any:
    return load_payload_module(KEY, version, EntityType.response)


def _tagged(kafka_type: str, tag: int, default: object) -> Any:
    return dataclasses.field(metadata={"kafka_type": kafka_type, "tag": tag}, default=default)


def _twin(kafka: Any, types: dict[str, Any], own: tuple[tuple[str, Any, Any], ...]) -> Any:
    fields = [
        (
            field.name,
            types.get(field.name, field.type),
            dataclasses.field(metadata=field.metadata, default=field.default),
        )
        for field in dataclasses.fields(kafka)
    ]
    meta = {name: value for name, value in vars(kafka).items() if name in _ENTITY_META}
    return dataclasses.make_dataclass(
        kafka.__name__, [*fields, *own], frozen=True, slots=True, kw_only=True, namespace=meta
    )


_ENTITY_META = ("__type__", "__version__", "__flexible__", "__api_key__", "__header_schema__")
