"""Messages advise only what is possible: named fields exist, and immutable ones stay.

``tests/integration/admission/test_remedies.py`` tries the commands.
"""

import ast
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.kubectl_commands import ROOT, strings_of

_FIELD = re.compile(r"\b(?:spec|status)(?:\.[a-zA-Z]\w*)+")
#: Fields of other objects, and functions in expressions of CEL.
_OTHER_FIELDS = {"spec.template", "status.hostIP", "status.podIP"}
_FUNCTIONS = (".all", ".orValue", ".startsWith", ".NAME")
#: Advice to change the name of an existing topic.
_RENAMED = re.compile(r"(?:use|choose|change to|set) another (?:spec\.)?topicName")


def _messages() -> Iterator[tuple[str, str]]:
    for folder in ("operator", "cli", "broker_image"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, text in strings_of(ast.parse(path.read_text(encoding="utf-8"))):
                yield f"{path.relative_to(ROOT)}:{line}", text


def _fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    yield path
    for name, field in (schema.get("properties") or {}).items():
        yield from _fields(field, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from _fields(schema["items"], path)


def test_every_field_that_a_message_names_is_in_a_schema() -> None:
    known = {
        field
        for path in (ROOT / "crds").glob("*.yaml")
        for version in yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
        for field in _fields(version["schema"]["openAPIV3Schema"])
    }
    named = {(where, field) for where, text in _messages() for field in _FIELD.findall(text)}
    assert len(named) > 50
    unknown = {
        (where, field)
        for where, field in named
        if field not in known | _OTHER_FIELDS and not field.endswith(_FUNCTIONS)
    }
    assert unknown == set()


def test_no_message_advises_to_rename_a_topic() -> None:
    assert [where for where, text in _messages() if _RENAMED.search(text)] == []
