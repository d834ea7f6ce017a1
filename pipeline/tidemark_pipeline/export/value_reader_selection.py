"""Selection of an export's value reader, and of the fields with which its table is created."""

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tidemark_avro.column_rules import SchemaRefused
from tidemark_pipeline.export import quoting
from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.json_values import JsonValues, fields_of
from tidemark_pipeline.export.row_shapes import check_fields, value_fields
from tidemark_pipeline.export.schema_inference import inferred, sample
from tidemark_pipeline.export.schema_options import AVRO, PROTO, SchemaOptions, check_file
from tidemark_pipeline.export.schema_values import GivenSchemaValues, RegistryValues
from tidemark_pipeline.export.table import Evolution
from tidemark_pipeline.schemas.protobuf.descriptors import compiled_file
from tidemark_pipeline.schemas.registry.client import Registry
from tidemark_pipeline.schemas.registry.keys import RegistryKeys
from tidemark_pipeline.schemas.schema_cache import Schemas
from tidemark_pipeline.schemas.sources import SchemaSource, SchemaType, columns_of
from tidemark_pipeline.schemas.value_format import ColumnNames, ValueReader

_NEEDS_TABLE = (
    "the table is not there, and evolution=ignore takes the columns that a table has: make it, "
    "with a column kafka and the fields that are wanted, or leave evolution=ignore out"
)


def choose_reader(
    schema_options: SchemaOptions,
    session: SparkSession,
    source: Mapping[str, str],
    table_columns: StructType | None,
    say: Callable[[str], None],
    names: ColumnNames,
) -> ValueReader:
    """Return the reader for the schema's source: a registry, a file, a definition, or a sample.

    ``table_columns``: columns of an existing table, None if there is none. ``names``: names that
    columns of the format may have. Raises :class:`ExportError`.
    """
    if not source.get("topic"):
        raise ExportError("name the topic with the option 'topic'")
    ignores = schema_options.evolution is Evolution.IGNORE
    # With evolution=ignore the values are restricted to the columns of an existing table or of a
    # given schema, so one of them must exist.
    if table_columns is None and ignores and not schema_options.schema:
        raise ExportError(_NEEDS_TABLE)
    access = schema_options.access()
    # Values of a registry's serializer begin with the ID of their schema.
    if access is not None:
        registry = Registry(access)
        return RegistryValues(
            Schemas(registry),
            access.subject_of(source["topic"]),
            reads_latest=not ignores,
            message=schema_options.message,
            has_table=table_columns is not None,
            names=names,
            keys=RegistryKeys(registry, access.key_subject_of(source["topic"])),
        )
    if schema_options.schema_file:
        source_schema = of_file(schema_options.schema_file, schema_options.message)
        try:
            return GivenSchemaValues(source_schema, None if ignores else columns_of(source_schema))
        except SchemaRefused as error:
            raise ExportError(f"{schema_options.schema_file}: {error}") from error
    if not schema_options.infers:
        return JsonValues(fields_of(schema_options.schema, session), names=names)
    grows = schema_options.evolution is Evolution.GROW
    if table_columns is not None:  # the fields inferred first are the table's columns
        return JsonValues(None, grows=grows, names=names)
    # Without a schema and a table, the fields are inferred from a sample of the topic.
    fields = inferred(sample(session, source), names)
    if not len(fields):
        raise ExportError(
            "nothing can be inferred: the sample has no JSON object with a field that can be a "
            "column, or the topic has no records yet: give a schema, as 'id BIGINT, name STRING'"
        )
    say(f"inferred: {quoting.columns_of(fields)}")
    return JsonValues(fields, grows=grows, names=names)


def fields_of_table(
    reader: ValueReader, table_columns: StructType | None, names: ColumnNames
) -> StructType:
    """Return the value fields with which the reader's table is created."""
    fields = reader.schema_columns
    if fields is not None:
        # Check the schema's names before any table is created with them.
        check_fields(fields, names)
        return fields
    if table_columns is None:
        raise ExportError(_NEEDS_TABLE)
    return value_fields(table_columns)


def of_file(name: str, message: str) -> SchemaSource:
    """Read an Avro or Protobuf schema from a file; the name's suffix determines the format.

    ``message``: full name of the Protobuf message, "" if the file has only one. Raises
    :class:`ExportError`.
    """
    path = check_file(name)
    try:
        if path.suffix in AVRO:
            return SchemaSource(SchemaType.AVRO, path.read_text(encoding="utf-8"))
        if path.suffix in PROTO:
            return SchemaSource(
                SchemaType.PROTOBUF, descriptors=compiled_file(path).serialized, message=message
            )
        return SchemaSource(SchemaType.PROTOBUF, descriptors=path.read_bytes(), message=message)
    except UnicodeDecodeError as error:
        raise ExportError(f"{name} is no text") from error
    except SchemaRefused as error:
        raise ExportError(f"{name}: {error}") from error
