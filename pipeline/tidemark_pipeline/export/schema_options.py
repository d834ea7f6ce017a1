"""Which schema a topic's values are said to have, as the command line and an ``Export`` say it.

Without Spark, so that what is wrong is said before it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark_pipeline.export.export_progress import ExportError
from tidemark_pipeline.export.schema_files import check_file
from tidemark_pipeline.export.table import Evolution
from tidemark_pipeline.schemas.registry.access import RegistryAccess

#: Instead of a schema of JSON: that which the values have.
INFER = "infer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """One of these, or none: ``schema``: of values that are JSON, as Spark's DDL has it, or
    :data:`INFER`; ``schema_file``: of values that are Avro or Protobuf; ``registry``: the address
    of a registry that has their schemas, with ``registry_options``. ``message``: which one of a
    Protobuf schema. ``evolution``: what is done where the schema has more than the table."""

    schema: str = ""
    schema_file: str = ""
    message: str = ""
    registry: str = ""
    registry_options: Mapping[str, str] = field(default_factory=dict)
    evolution: Evolution = Evolution.REFUSE

    @property
    def any(self) -> bool:
        """Is there one?"""
        return bool(self.schema or self.schema_file or self.registry)

    @property
    def infers(self) -> bool:
        """Is it that which the values have?"""
        return self.schema.strip().lower() == INFER

    def access(self) -> RegistryAccess | None:
        """To the registry. Raises :class:`ExportError`."""
        if not self.registry:
            return None
        return RegistryAccess.of(self.registry, self.registry_options)

    def check(self) -> None:
        """Raises :class:`ExportError` where it cannot be."""
        if sum(map(bool, (self.schema, self.schema_file, self.registry))) > 1:
            raise ExportError("give a schema, a file with one, or a registry: one of them")
        if not self.any and (self.message or self.evolution is not Evolution.REFUSE):
            raise ExportError("rows of records as they are have no schema: give one")
        if self.registry_options and not self.registry:
            raise ExportError("the registry's options need its address")
        if self.schema_file:
            check_file(self.schema_file)
        self.access()
