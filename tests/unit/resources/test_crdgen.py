"""The generated CRDs: fresh, deterministic, structural, bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark_operator.resources import crdgen
from tidemark_operator.resources.kinds import KINDS
from tidemark_operator.resources.schema import ResourceKind

CRDS = Path(__file__).parents[3] / "crds"

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _nodes(schema[name], f"{path}[{name}]")


def test_generated_files_are_up_to_date() -> None:
    assert crdgen.main(["--check", str(CRDS)]) == 0, "make crds"


@each_kind
def test_file_is_yaml_of_the_definition(kind: ResourceKind) -> None:
    text = (CRDS / crdgen.file_name(kind)).read_text(encoding="utf-8")
    assert yaml.safe_load(text) == crdgen.custom_resource_definition(kind)


@each_kind
def test_schema_is_structural(kind: ResourceKind) -> None:
    for path, node in _nodes(crdgen.structural_schema(kind)):
        # A structural schema has a type at every node. The generator resolves these keywords.
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not {"$ref", "$defs", "anyOf", "allOf", "oneOf", "title", "const"} & node.keys(), (
            path
        )
        assert isinstance(node.get("additionalProperties", {}), dict), path


@each_kind
def test_lists_maps_and_strings_have_limits(kind: ResourceKind) -> None:
    """Without limits the API server's cost estimate refuses the CRD, and etcd the object."""
    for path, node in _nodes(crdgen.structural_schema(kind)):
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        # A topic id of 22 characters is bounded by its pattern.
        bounded = {"maxLength", "enum", "format"} & node.keys() or "{22}$" in node.get(
            "pattern", ""
        )
        if node.get("type") == "string" and path not in (".apiVersion", ".kind"):
            assert bounded, path


@each_kind
def test_only_status_has_a_default(kind: ResourceKind) -> None:
    """A default of the spec would be persisted in every object."""
    defaults = {p for p, node in _nodes(crdgen.structural_schema(kind)) if "default" in node}
    assert defaults == ({".status"} if kind.has_status else set())


@each_kind
def test_default_status_can_be_read(kind: ResourceKind) -> None:
    if kind.has_status:
        schema = crdgen.structural_schema(kind)["properties"]["status"]
        model = kind.model.model_fields["status"].annotation
        assert model is not None
        (condition,) = model.model_validate(schema["default"]).conditions
        assert (condition.status, condition.reason) == ("Unknown", "Pending")


@each_kind
def test_rules_have_messages_and_paths_that_exist(kind: ResourceKind) -> None:
    for path, node in _nodes(crdgen.structural_schema(kind)):
        for rule in node.get("x-kubernetes-validations", []):
            assert rule["message"], path
            assert len(rule["message"]) <= 2048
            assert "\n" not in rule["message"]
            # Resolve fieldPath in the schema, since the API server rejects unknown paths.
            target = node
            for step in rule.get("fieldPath", "").split(".")[1:]:
                target = target["properties"][step]


def test_transition_messages_begin_with_their_token() -> None:
    """Kafka clients and the operator recognize these tokens."""
    text = {kind.kind: crdgen.render(kind) for kind in KINDS}
    assert "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: " in text["Topic"]
    assert "STALE_CONTROLLER_EPOCH: " in text["PartitionSlice"]
    assert "STALE_CONTROLLER_EPOCH: " in text["Cluster"]


def test_a_union_of_two_types_is_refused() -> None:
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(ValueError, match="no structural schema"):
        crdgen._structural(union, {})
