"""Schema options of an export, from the command line or an ``Export``.

Usable without Spark, so that invalid options are reported before it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.table import Evolution
from tidemark_pipeline.schemas.registry.access import RegistryAccess

#: Value of ``schema`` that infers the fields of JSON values.
INFER = "infer"
#: Suffixes of schema files, by format.
AVRO, PROTO, DESCRIPTORS = (".avsc",), (".proto",), (".desc", ".protoset", ".binpb", ".pb")
_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """Source of the schema of a topic's values.

    At most one of ``schema``, ``schema_file`` and ``registry`` is set. ``schema``: fields of JSON
    values in Spark's DDL, or :data:`INFER`. ``schema_file``: file with an Avro or Protobuf schema.
    ``registry``: address of a schema registry, with ``registry_options``. ``message``: name of the
    Protobuf message. ``evolution``: reaction to fields that the table lacks.
    """

    schema: str = ""
    schema_file: str = ""
    message: str = ""
    registry: str = ""
    registry_options: Mapping[str, str] = field(default_factory=dict)
    evolution: Evolution = Evolution.REFUSE

    @property
    def has_schema(self) -> bool:
        """Return whether values have a schema at all."""
        return bool(self.schema or self.schema_file or self.registry)

    @property
    def infers(self) -> bool:
        """Return whether fields are inferred from the values."""
        return self.schema.strip().lower() == INFER

    def access(self) -> RegistryAccess | None:
        """Return the access to the registry; None without one. Raises :class:`ExportError`."""
        if not self.registry:
            return None
        return RegistryAccess.of(self.registry, self.registry_options)

    def check(self) -> None:
        """Raise :class:`ExportError` if the options are invalid or contradict each other."""
        # Two sources could give the same value different columns.
        if sum(map(bool, (self.schema, self.schema_file, self.registry))) > 1:
            raise ExportError("give a schema, a file with one, or a registry: one of them")
        if not self.has_schema and (self.message or self.evolution is not Evolution.REFUSE):
            raise ExportError("rows of records as they are have no schema: give one")
        if self.registry_options and not self.registry:
            raise ExportError("the registry's options need its address")
        if self.schema_file:
            check_file(self.schema_file)
        # Opening the access validates the registry's options.
        self.access()


def check_file(name: str) -> Path:
    """Return the path of a schema file.

    Raises :class:`ExportError` if the suffix is unknown, the file is missing, or it exceeds 4 MiB.
    """
    path = Path(name)
    if path.suffix not in AVRO + PROTO + DESCRIPTORS:
        raise ExportError(
            f"{name}: its name says no format: {', '.join(AVRO)} is Avro, {', '.join(PROTO)} and "
            f"{', '.join(DESCRIPTORS)} (protoc --include_imports --descriptor_set_out) Protobuf"
        )
    if not path.is_file():
        raise ExportError(f"{name}: there is no such file")
    # The parsed schema is sent to every worker, so its size is bounded.
    if path.stat().st_size > _BYTES_MAX:
        raise ExportError(f"{name}: a schema has {_BYTES_MAX:,} bytes at most")
    return path
