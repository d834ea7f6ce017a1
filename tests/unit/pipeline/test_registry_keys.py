"""Keys with schema ids: which schemas encode equal values as equal bytes."""

import json
from typing import Any

import pytest

from tidemark_avro.column_rules import SchemaRefused
from tidemark_avro.schema import parse_schema
from tidemark_avro.signatures import signature
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.export.upsert import merge
from tidemark_pipeline.schemas.registry.access import RegistryAccess
from tidemark_pipeline.schemas.registry.client import (
    Reference,
    Registered,
    Registry,
    SchemaNotFound,
)
from tidemark_pipeline.schemas.registry.keys import RegistryKeys


def record(*kinds: Any, **more: Any) -> dict[str, Any]:
    fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
    return {"type": "record", "name": "K", "fields": fields, **more}


def of(schema: Any) -> str:
    return signature(parse_schema(json.dumps(schema)))


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
EQUAL: list[tuple[Any, Any]] = [
    ("int", "long"),
    ("string", "bytes"),
    (record("int"), record("long", doc="another", namespace="n")),
    ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
]
DIFFERENT: list[tuple[Any, Any]] = [
    ("int", "string"),
    ("float", "double"),
    (record("int"), record("int", "int")),
    (record(["null", "int"]), record(["int", "null"])),
    (ENUM, {**ENUM, "symbols": ["B", "A"]}),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
    (record(["null", "K"]), record(["null", record("int", name="L")])),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_names_and_documentation_are_not_written(one: Any, other: Any) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_schemas_that_write_other_bytes_differ(one: Any, other: Any) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize("is_cyclic", [False, True])
def test_a_schema_that_unfolds_to_millions_of_types_has_no_signature(is_cyclic: bool) -> None:
    """Each name is used twice by the one before it."""
    schema: Any = record("K" if is_cyclic else "int", name="R0")
    for n in range(1, 40):
        schema = record(schema, f"R{n - 1}", name=f"R{n}")
    with pytest.raises(SchemaRefused, match="more than 5000 types"):
        of(record(schema))


class Versions(Registry):
    """A registry with versions of one subject."""

    found: dict[int, Registered]

    def versions(self, subject: str) -> tuple[int, ...]:
        if not self.found:
            raise SchemaNotFound(subject)
        return tuple(self.found)

    def version(self, reference: Reference) -> Registered:
        return self.found[reference.version]


def keys(**found: Any) -> RegistryKeys:
    registry = Versions(RegistryAccess(urls=("http://r",)))
    registry.found = {
        int(version[1:]): Registered(json.dumps(schema), id=number)
        for version, (number, schema) in found.items()
    }
    made = RegistryKeys(registry, "t-key")
    made.refresh()
    return made


def test_a_topic_without_a_subject_for_keys_compares_bytes() -> None:
    """A key of 8 bytes may look as if it began with a schema id."""
    assert keys().sql("t.key") == "t.key"
    assert merge("a", "b", TableLayout(columns=""), ["key"]).startswith(
        "MERGE INTO a AS t USING b AS s ON t.key = s.key WHEN"
    )


def test_keys_by_schemas_that_write_other_bytes_stay_apart() -> None:
    same = keys(v1=(7, record("int")), v2=(9, record("long", doc="d")))
    # Both versions write the same bytes, so that the id makes no difference.
    assert "IN (" not in same.sql("k")
    other = keys(
        v1=(7, record("string")), v2=(300, record("string", "int")), v3=(9, record("bytes"))
    )
    assert "substring(k, 2, 4) IN (X'0000012C') THEN concat(X'0002', substring(k, 6))" in other.sql(
        "k"
    )
    assert other.sql("k").endswith("ELSE concat(X'0001', substring(k, 6)) END")


def test_new_versions_are_requested() -> None:
    made = keys(v1=(7, "int"))
    assert isinstance(made.registry, Versions)
    made.registry.found[2] = Registered('"string"', id=8)
    made.refresh()
    assert "IN (X'00000007')" in made.sql("k")
