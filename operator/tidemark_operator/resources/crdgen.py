"""Generate ``crds/*.yaml`` from the models.

    python -m tidemark_operator.resources.crdgen [--check] FOLDER

pydantic's JSON schema becomes a *structural* schema as the API server requires it: references are
inlined, ``X or null`` becomes ``X``, titles and Python defaults are dropped, constraints of nested
unions are merged. The result depends on the models only, byte for byte.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tidemark.generated import command
from tidemark_operator.resources.kinds import KINDS
from tidemark_operator.resources.names import GROUP, VERSION
from tidemark_operator.resources.schema import VALIDATIONS, PrinterColumn, ResourceKind

Schema = dict[str, Any]

_HEADER = "# Generated from the models by tidemark_operator.resources.crdgen. Do not edit.\n"
#: Keys of pydantic's schema that do not exist in a structural schema.
_DROPPED = frozenset({"$defs", "title", "additionalProperties", "default", "const"})
_ORDER = ("description", "type", "format", "enum", "required", "properties", "items")


def structural_schema(kind: ResourceKind) -> Schema:
    """Return the ``openAPIV3Schema`` of a kind."""
    raw = kind.model.model_json_schema(by_alias=True, mode="validation")
    schema = _structural(raw, raw.get("$defs", {}))
    properties = schema["properties"]
    # The API server defines these fields itself and rejects any other schema for them.
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    return schema


def _structural(raw: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    node = _resolved(raw, definitions)
    schema = {key: value for key, value in node.items() if key not in _DROPPED}
    if "properties" in schema:
        schema["properties"] = {
            name: _property(value, definitions) for name, value in schema["properties"].items()
        }
    if "items" in schema:
        schema["items"] = _structural(schema["items"], definitions)
    values = node.get("additionalProperties")
    if isinstance(values, dict):
        schema["additionalProperties"] = _structural(values, definitions)
    return _ordered(schema)


def _property(raw: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return a property's schema; only the status keeps its default, which is for the API
    server.
    """
    schema = _structural(raw, definitions)
    if isinstance(raw.get("default"), dict):
        schema["default"] = raw["default"]
    return schema


def _resolved(raw: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Return a node of a JSON schema without ``$ref`` and ``anyOf``, as CRDs require.

    Keys next to a reference override those of its target; CEL rules of both are kept.
    """
    beside = {key: value for key, value in raw.items() if key not in ("$ref", "anyOf")}
    if "$ref" in raw:
        target = definitions[raw["$ref"].rpartition("/")[2]]
        return _overlaid(_resolved(target, definitions), beside)
    if "anyOf" in raw:
        # The null branch is how pydantic expresses an optional field.
        branches = [branch for branch in raw["anyOf"] if branch.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"a union of {len(branches)} types has no structural schema: {raw}")
        return _overlaid(_resolved(branches[0], definitions), beside)
    return beside


def _overlaid(inner: Schema, outer: Schema) -> Schema:
    merged = {**inner, **outer}
    rules = [*inner.get(VALIDATIONS, ()), *outer.get(VALIDATIONS, ())]
    if rules:
        merged[VALIDATIONS] = rules
    return merged


def _ordered(schema: Schema) -> Schema:
    first = {key: schema[key] for key in _ORDER if key in schema}
    # A fixed order keeps generated files stable.
    rest = {key: schema[key] for key in sorted(schema) if key not in first}
    if "description" in first:
        first["description"] = " ".join(first["description"].split())
    return {**first, **rest}


def custom_resource_definition(kind: ResourceKind) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        # With the subresource, a status write cannot change the spec, and the other way round.
        **_subresources(kind),
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": structural_schema(kind)},
    }
    names: Schema = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        "categories": [kind.category],
    }
    # All kinds are namespaced: one operator manages one namespace.
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def _subresources(kind: ResourceKind) -> Schema:
    scale: Schema = {}
    if kind.scale is not None:
        scale["scale"] = {
            "specReplicasPath": kind.scale.spec_path,
            "statusReplicasPath": kind.scale.status_path,
            "labelSelectorPath": kind.scale.selector_path,
        }
    return {"subresources": {"status": {}, **scale}} if kind.has_status else {}


def _column(column: PrinterColumn) -> Schema:
    entry: Schema = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.json_path,
        "description": column.description,
    }
    if column.priority:
        entry["priority"] = column.priority
    return entry


class _Dumper(yaml.SafeDumper):
    """YAML with lists indented under their key, and without anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Repeat equal parts: an anchor would depend on object identity."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists, as kubectl's users expect."""
        del indentless
        super().increase_indent(flow, indentless=False)


def render(kind: ResourceKind) -> str:
    """Return the content of the CRD's file."""
    body = yaml.dump(
        custom_resource_definition(kind),
        Dumper=_Dumper,
        sort_keys=False,
        width=100,
        allow_unicode=True,
    )
    return _HEADER + body


def file_name(kind: ResourceKind) -> str:
    """Return the file's name, such as ``tidemark.dev_topics.yaml``."""
    return f"{GROUP}_{kind.plural}.yaml"


def render_all() -> dict[str, str]:
    """Return the contents of all kinds' files by name."""
    return {file_name(kind): render(kind) for kind in KINDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if ``--check`` finds a difference."""
    return command(
        lambda folder: {folder / name: text for name, text in render_all().items()},
        "make crds",
        arguments,
        owned="*.yaml",
    )


if __name__ == "__main__":
    sys.exit(main())
