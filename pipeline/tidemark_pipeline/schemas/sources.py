"""A schema as it was given or registered, with its columns and its decoder.

The schema is sent to the workers with each batch, so it is as small as its text. Workers build the
decoder and cache it for the next batch.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from pyspark.sql.types import StructType

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.decoder_results import Bytes, Longs, Piece
from tidemark_avro.schema import Schema, names_of, parse_schema

_CACHED_MAX = 256


class SchemaType(StrEnum):
    """Formats that have schemas, as registries call them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Source text or descriptors of one schema.

    ``text``: an Avro schema. ``named``: the schemas that it references, each after those that it
    references itself. ``descriptors``: a Protobuf descriptor set, with the schema's own file last.
    ``message``: full name of the Protobuf message, "" if each record names it.
    """

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
        """Approximate memory that a cache needs for the schema."""
        return len(self.text) + sum(map(len, self.named)) + len(self.descriptors)


class Decoder(Protocol):
    """Decoder of one schema into the columns of a table."""

    def decode(self, data: Bytes, starts: Longs, ends: Longs) -> Iterator[Piece]:
        """Yield all records ``data[starts[i]:ends[i]]`` in pieces.

        Never raises for a record's content.
        """


def columns_of(source: SchemaSource) -> StructType:
    """Return the columns of the schema's records. Raises :class:`SchemaRefused`."""
    if source.kind is SchemaType.AVRO:
        from tidemark_avro import column_types

        return column_types.columns_of(_schema(source))
    from tidemark_pipeline.schemas.protobuf import types as protobuf_types
    from tidemark_pipeline.schemas.protobuf.descriptors import Messages, by_name

    return protobuf_types.columns_of(by_name(Messages(source.descriptors), source.message))


@functools.lru_cache(_CACHED_MAX)
def decoder_of(
    source: SchemaSource,
    columns: str,
    reader: SchemaSource | None = None,
    indexes: tuple[int, ...] = (),
) -> Decoder:
    """Return a decoder of values with the schema ``source`` into columns.

    ``columns``: the table's columns, as Spark's JSON. ``reader``: the schema whose aliases and
    defaults apply, or whose message the records must have. ``indexes``: path of the message in a
    Protobuf file. Raises :class:`SchemaRefused`.
    """
    table_columns = StructType.fromJson(json.loads(columns))
    if source.kind is SchemaType.AVRO:
        from tidemark_avro.decode import AvroDecoder

        reader_schema = None
        # Only Avro has aliases and defaults in the reader's schema.
        if reader is not None and reader.kind is SchemaType.AVRO:
            reader_schema = _schema(reader)
        return AvroDecoder(_schema(source), table_columns, reader_schema)
    from tidemark_pipeline.schemas.protobuf.decode import ProtobufDecoder
    from tidemark_pipeline.schemas.protobuf.descriptors import Messages, by_indexes, by_name

    messages = Messages(source.descriptors)
    if not indexes:
        return ProtobufDecoder(by_name(messages, source.message), table_columns)
    message = by_indexes(messages, indexes)
    # The table has the columns of one message. Records of another one would fill wrong columns.
    table_message = reader.message if reader is not None else ""
    if table_message and message.full_name != table_message:
        raise SchemaRefused(
            f"it is a message {message.full_name}, and the table is of {table_message}"
        )
    return ProtobufDecoder(message, table_columns)


@functools.lru_cache(_CACHED_MAX)
def _schema(source: SchemaSource) -> Schema:
    named: dict[str, Schema] = {}
    # A later schema may reference the names of earlier ones.
    for text in source.named:
        named.update(names_of(parse_schema(text, named)))
    return parse_schema(source.text, named)
