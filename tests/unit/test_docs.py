"""Tests that pages name exist, and the invariants of the architecture are traced to their tests."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
TRACED = ROOT / "tools" / "traceability" / "explanation--architecture.yaml"
_NAMED = re.compile(
    r"`(?:tests/)?((?:unit|integration|conformance|simulation)/\S+?\.py)(?:::(\w+))?`"
)
_NUMBERED = re.compile(r"\((\d+)\) ")


def _named() -> list[tuple[str, str]]:
    pages = (page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    return sorted({named for page in pages for named in _NAMED.findall(page)})


@pytest.mark.parametrize(("path", "test"), _named())
def test_named_tests_exist(path: str, test: str) -> None:
    file = ROOT / "tests" / path
    assert file.is_file()
    assert f"def {test}(" in file.read_text() if test else True


def test_the_first_page_leads_to_every_other_one() -> None:
    first = (ROOT / "docs" / "index.md").read_text()
    docs = ROOT / "docs"
    sections = ("get-started", "how-to", "reference", "explanation")
    pages = [
        str(page.relative_to(docs)) for name in sections for page in (docs / name).glob("*.md")
    ]
    assert not [page for page in pages if f"]({page})" not in first]


def _invariants() -> dict[str, list[str]]:
    """Return the tests of each invariant by its number."""
    entries = yaml.safe_load(TRACED.read_text())
    numbered = ((_NUMBERED.match(entry["promise"]), entry["tests"]) for entry in entries)
    return {match[1]: tests for match, tests in numbered if match}


def test_each_invariant_of_the_page_is_traced_to_tests() -> None:
    numbers = re.findall(r"(?m)^- \((\d+)\) ", ARCHITECTURE.read_text())
    assert len(numbers) > 25
    assert sorted(numbers) == sorted(_invariants())
    assert all(_invariants().values())


def test_invariants_traced_to_the_simulation_are_checked_there() -> None:
    modules = ("tests/simulation/checks.py", "tests/simulation/tables.py")
    checks = "".join((ROOT / module).read_text() for module in modules)
    simulated = {number for number, tests in _invariants().items() if {*modules} & {*tests}}
    assert {"1", "2", "3", "16", "24", "26"} <= simulated
    assert not {number for number in simulated if f'"{number}"' not in checks}
