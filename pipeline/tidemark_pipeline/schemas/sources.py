"""A schema as it was given or registered: what columns it comes to, and what reads its records.

It travels to the workers with a batch, and is as small as its text: what is made of it is made
there, and kept for the next batch.
"""

import functools
import json
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql.types import StructType

from tidemark_pipeline.schemas.avro.schema import Schema, names_of, parse_schema
from tidemark_pipeline.schemas.values.decoder_results import Decoder
from tidemark_pipeline.schemas.values.schema_errors import SchemaRefused

_KEPT = 256


class SchemaType(StrEnum):
    """Formats that have schemas, as registries call them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """``text``: of an Avro schema; ``named``: those that it refers to, each behind what it refers
    to itself. ``descriptors``: a Protobuf set, the file that is meant last; ``message``: the full
    name of the one that is meant, "" where records say it."""

    kind: SchemaType
    text: str = ""
    named: tuple[str, ...] = ()
    descriptors: bytes = b""
    message: str = ""

    def is_same_schema(self, other: "SchemaSource") -> bool:
        """Return whether both have the same schema, whatever their messages."""
        return replace(self, message="") == replace(other, message="")

    @property
    def size_bytes(self) -> int:
        """About what it takes to keep it."""
        return len(self.text) + sum(map(len, self.named)) + len(self.descriptors)


def columns_of(source: SchemaSource) -> StructType:
    """The columns of its records. Raises :class:`SchemaRefused`."""
    if source.kind is SchemaType.AVRO:
        from tidemark_pipeline.schemas.avro import types

        return types.columns_of(_schema(source))
    from tidemark_pipeline.schemas.protobuf import types as protobuf_types
    from tidemark_pipeline.schemas.protobuf.descriptors import Messages, by_name

    return protobuf_types.columns_of(by_name(Messages(source.descriptors), source.message))


@functools.lru_cache(_KEPT)
def decoder_of(
    source: SchemaSource,
    columns: str,
    reader: SchemaSource | None = None,
    indexes: tuple[int, ...] = (),
) -> Decoder:
    """Of records into columns (Spark's JSON of them). ``reader``: whose aliases and defaults hold,
    or whose message it must be; ``indexes``: which message of a set. Raises
    :class:`SchemaRefused`."""
    wanted = StructType.fromJson(json.loads(columns))
    if source.kind is SchemaType.AVRO:
        from tidemark_pipeline.schemas.avro.decode import AvroDecoder as OfAvro

        read_by = None
        if reader is not None and reader.kind is SchemaType.AVRO:
            read_by = _schema(reader)
        return OfAvro(_schema(source), wanted, read_by)
    from tidemark_pipeline.schemas.protobuf.decode import ProtobufDecoder as OfProtobuf
    from tidemark_pipeline.schemas.protobuf.descriptors import Messages, by_indexes, by_name

    messages = Messages(source.descriptors)
    if not indexes:
        return OfProtobuf(by_name(messages, source.message), wanted)
    found = by_indexes(messages, indexes)
    meant = reader.message if reader is not None else ""
    if meant and found.full_name != meant:
        raise SchemaRefused(f"it is a message {found.full_name}, and the table is of {meant}")
    return OfProtobuf(found, wanted)


@functools.lru_cache(_KEPT)
def _schema(source: SchemaSource) -> Schema:
    named: dict[str, Schema] = {}
    for text in source.named:
        named.update(names_of(parse_schema(text, named)))
    return parse_schema(source.text, named)
