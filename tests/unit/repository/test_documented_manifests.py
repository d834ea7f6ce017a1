"""Complete manifests in documentation have the fields that the resource definitions require."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kubectl_commands import ROOT

_BLOCK = re.compile(r"^( *)```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def _schemas() -> dict[str, dict[str, Any]]:
    found = {}
    for path in (ROOT / "crds").glob("*.yaml"):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]
        found[spec["names"]["kind"]] = spec["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the manifests of Tidemark's kinds, with the page of each."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for indent, text in _BLOCK.findall(path.read_text(encoding="utf-8")):
            lines = [line.removeprefix(indent) for line in text.splitlines(keepends=True)]
            for document in yaml.safe_load_all("".join(lines)):
                # Other blocks are parts of manifests, values of charts, or of other projects.
                is_ours = isinstance(document, dict) and str(
                    document.get("apiVersion", "")
                ).startswith("tidemark.dev/")
                if is_ours and "spec" in document:
                    yield f"{path.relative_to(ROOT)}: {document['kind']}", document


def problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the required fields that are missing, and the fields that do not exist."""
    if isinstance(value, list):
        for item in value:
            yield from problems(item, schema.get("items", {}), f"{path}[]")
    if not isinstance(value, dict):
        return
    fields = schema.get("properties")
    yield from (
        f"{path}.{name} is missing" for name in set(schema.get("required", ())) - set(value)
    )
    for name, item in value.items():
        if fields is not None and name not in fields:
            yield f"{path}.{name} does not exist"
        yield from problems(item, (fields or {}).get(name, {}), f"{path}.{name}")


MANIFESTS = list(_manifests())


def test_there_are_manifests_of_most_kinds() -> None:
    assert len({document["kind"] for _, document in MANIFESTS}) >= 5


@pytest.mark.parametrize(("where", "document"), MANIFESTS)
def test_a_manifest_has_the_fields_of_its_kind(where: str, document: dict[str, Any]) -> None:
    spec = _schemas()[document["kind"]]["properties"]["spec"]
    assert list(problems(document["spec"], spec)) == [], where


def test_a_missing_and_an_unknown_field_are_found() -> None:
    spec = _schemas()["Topic"]["properties"]["spec"]
    found = list(problems({"partitions": 1, "clusterRef": {}, "colour": "red"}, spec))
    assert {".colour does not exist", ".replicationFactor is missing"} <= set(found)
