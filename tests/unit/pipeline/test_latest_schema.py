"""A subject's latest schema that no table can have. Any producer may register one."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidemark_pipeline.errors import ExportError
from tidemark_pipeline.export.schema_values import RegistryValues
from tidemark_pipeline.schemas.registry.access import RegistryAccess
from tidemark_pipeline.schemas.registry.client import Registry
from tidemark_pipeline.schemas.schema_cache import Schemas
from tidemark_pipeline.schemas.sources import SchemaSource, SchemaType


def avro(*fields: tuple[str, Any]) -> SchemaSource:
    named = [{"name": name, "type": kind} for name, kind in fields]
    return SchemaSource(
        SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": named})
    )


class KnownSchemas(Schemas):
    """Schemas of a registry by their ids, the last of which is the latest."""

    def __init__(self, *known: SchemaSource) -> None:
        super().__init__(Registry(RegistryAccess(urls=("http://r",))))
        self.given = list(known)

    def learn(self, ids: Sequence[int]) -> Mapping[int, SchemaSource | str]:
        return dict(enumerate(self.given))

    def latest(self, subject: str, message: str = "") -> SchemaSource:
        return self.given[-1]


SOUND = avro(("x", "int"))
ITSELF = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
REFUSED = [
    (avro(("x", "int"), ("kafka", "int")), "kafka, which is taken"),
    (avro(("x", "int"), ("X", "int")), "differ by case only"),
    (avro(("x", "int"), ("n", ITSELF)), "contains itself"),
    (avro(("x", "int"), ("a.b", "int")), "cannot have the character"),
]


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
def test_unusable_latest_schema_makes_dead_letters(
    refused: SchemaSource, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    schemas = KnownSchemas(SOUND)
    reading = RegistryValues(schemas, "t-value", reads_latest=True)
    schemas.given.append(refused)
    with caplog.at_level(logging.WARNING):
        reading._read_latest_schema()
    assert reason in caplog.text
    assert reading.schema_columns is not None
    assert reading.schema_columns.fieldNames() == ["x"]
    known = reading._known_schemas([1])
    assert known[0] == SOUND
    assert reason in str(known[1])
    # The next sound schema counts again.
    schemas.given.append(avro(("x", "int"), ("y", "int")))
    reading._read_latest_schema()
    assert reading.schema_columns.fieldNames() == ["x", "y"]


@pytest.mark.parametrize(("refused", "reason"), REFUSED)
def test_start_with_an_unusable_schema_needs_a_table(refused: SchemaSource, reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        RegistryValues(KnownSchemas(refused), "t-value", reads_latest=True)
    reading = RegistryValues(KnownSchemas(refused), "t-value", reads_latest=True, has_table=True)
    assert reading.schema_columns is None
    assert reason in str(reading._known_schemas([0])[0])
