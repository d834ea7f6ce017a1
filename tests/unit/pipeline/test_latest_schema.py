"""A subject's latest schema that no table can have: any producer may register one."""

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


class Known(Schemas):
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


@pytest.mark.parametrize(("refused", "said"), REFUSED)
def test_its_records_are_dead_letters_and_the_table_keeps_its_columns(
    refused: SchemaSource, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    schemas = Known(SOUND)
    reading = RegistryValues(schemas, "t-value", reads_latest=True)
    schemas.given.append(refused)
    with caplog.at_level(logging.WARNING):
        reading._read_latest_schema()
    assert said in caplog.text
    assert reading.schema_columns is not None
    assert reading.schema_columns.fieldNames() == ["x"]
    known = reading._known_schemas([1])
    assert known[0] == SOUND
    assert said in str(known[1])
    # The next sound one counts again.
    schemas.given.append(avro(("x", "int"), ("y", "int")))
    reading._read_latest_schema()
    assert reading.schema_columns.fieldNames() == ["x", "y"]


@pytest.mark.parametrize(("refused", "said"), REFUSED)
def test_a_job_that_starts_needs_a_table_for_it(refused: SchemaSource, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        RegistryValues(Known(refused), "t-value", reads_latest=True)
    reading = RegistryValues(Known(refused), "t-value", reads_latest=True, has_table=True)
    assert reading.schema_columns is None
    assert said in str(reading._known_schemas([0])[0])
