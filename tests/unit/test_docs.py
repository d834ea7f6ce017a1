"""Pages name the tests that hold what they say: those that they name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_NAMED = re.compile(
    r"`(?:tests/)?((?:unit|integration|conformance|simulation)/\S+?\.py)(?:::(\w+))?`"
)
_BY_SIMULATION = re.compile(r"\((\d+)\)(?:(?!\(\d+\)).)*?\*[Ss]imulation\*", re.DOTALL)


#: How docs/explanation/engines.md writes the tests against Apache Kafka.
_OF_KAFKA = re.compile(r"`kafka/(\S+?\.py)(?:::(\w+))?`")


def _named() -> list[tuple[str, str]]:
    pages = (page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    named = {named for page in pages for named in _NAMED.findall(page)}
    of_kafka = _OF_KAFKA.findall((ROOT / "docs" / "explanation" / "engines.md").read_text())
    return sorted(named | {(f"integration/kafka_engine/{path}", test) for path, test in of_kafka})


@pytest.mark.parametrize(("path", "test"), _named())
def test_a_test_that_is_named_is_there(path: str, test: str) -> None:
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


def test_invariants_that_are_left_to_the_simulation_are_checked_there() -> None:
    simulation = ROOT / "tests" / "simulation"
    checks = "".join((simulation / name).read_text() for name in ("checks.py", "tables.py"))
    numbers = set(_BY_SIMULATION.findall(PAGE.read_text()))
    assert {"1", "2", "3", "16", "24"} & numbers
    unchecked = {number for number in numbers if f'"{number}"' not in checks}
    assert not unchecked
