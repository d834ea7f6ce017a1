"""Promises of the documentation name tests that exist, on one page and nowhere else."""

from pathlib import Path

import pytest

from tools.traceability import DOCS, InvalidTraceability, citations, load, render


def test_page_is_current() -> None:
    page = (DOCS / "traceability.md").read_text()
    assert page == render(), "run make pages"


def test_no_page_names_tests_in_its_prose() -> None:
    pages = {
        str(path.relative_to(DOCS)): citations(path.read_text())
        for path in sorted(DOCS.rglob("*.md"))
        if path.name not in ("traceability.md", "development.md")
    }
    named = {page: tests for page, tests in pages.items() if tests}
    assert named == {}, "move these to tools/traceability/PAGE.yaml"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "how-to" / "x.md").write_text("# X\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "def test_a(): ...\nclass TestB:\n    async def test_c(self): ...\n"
    )
    (tmp_path / "promises").mkdir()
    return tmp_path


def _load(root: Path, text: str, name: str = "how-to--x.yaml") -> object:
    (root / "promises" / name).write_text(text)
    return load(root / "promises", root)


def test_promises_of_a_page_are_read(root: Path) -> None:
    text = (
        "- promise: It\n    works.\n  tests: [tests/test_x.py, 'tests/test_x.py::TestB::test_c']\n"
    )
    assert _load(root, text) == {
        "how-to/x.md": [("It works.", ("tests/test_x.py", "tests/test_x.py::TestB::test_c"))]
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{promise: It works., tests: [tests/test_x.py::test_b]}", "tests/test_x.py has no test_b"),
        ("{promise: It works., tests: [tests/test_y.py]}", "tests/test_y.py does not exist"),
        ("{promise: It works., tests: [unit/test_x.py]}", "not a path below tests/"),
        ("{promise: It works., tests: []}", "a list with entries"),
        ("{promise: It works., test: [tests/test_x.py]}", "expected `promise`"),
        ("{promise: It works, tests: [tests/test_x.py]}", "full stop"),
        ("{promise: [", "not valid YAML"),
    ],
)
def test_invalid_promises_are_named_with_their_file(root: Path, entry: str, problem: str) -> None:
    with pytest.raises(InvalidTraceability, match=problem) as raised:
        _load(root, f"- {entry}\n")
    assert str(raised.value).startswith("how-to--x.yaml")


def test_promises_of_a_page_that_does_not_exist_are_refused(root: Path) -> None:
    with pytest.raises(InvalidTraceability, match=r"docs/how-to/y\.md does not exist"):
        _load(root, "[]", "how-to--y.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "`tests/unit/x/test_y.py::test_z`",
        "`unit/x/test_y.py`",
        "`kafka/test_y.py::test_z`",
        "`e2e/test_up.py`",
        "`tests/simulation`",
        "`test_y.py::test_z`",
    ],
)
def test_citations_in_prose_are_found(text: str) -> None:
    assert citations(f"It works ({text}).") == [text]


def test_code_and_commands_are_no_citations() -> None:
    assert citations("`tidemark/tier/metadata/codec.py`, `helm test tidemark`, `make test`") == []
