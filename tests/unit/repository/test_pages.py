"""The pages of docs/: generated ones are current, links lead somewhere, no page is lost."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark import reason_table
from tidemark.reason_table import TABLE
from tidemark.reasons import Reason
from tidemark.wire import control, deletions, topics, users
from tidemark_operator import pages
from tidemark_operator.kube.errors import Conflict, Forbidden, Invalid, NotFound
from tidemark_operator.reconcile import failures
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.slices.committer import DecisionFailed

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").glob("*.md")])
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: Calls with a reason among their positional arguments.
_POSITION = {
    "condition": 2,
    "SlicesUnusable": 0,
    "UserProblem": 0,
    "_export_summary": 0,
}


@pytest.mark.parametrize("name", pages.pages())
def test_a_generated_page_is_current(name: str) -> None:
    assert (DOCS / "reference" / name).read_text() == pages.pages()[name], "run make pages"


# ---------------------------------------------------------------- links


def _anchors(page: Path) -> set[str]:
    """Return the anchors that the site makes of titles."""
    titles = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    words = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[\s-]+", "-", text) for text in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    # A link within code is an example.
    text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text())
    for link in _LINK.findall(text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_no_drawing_is_cut_off_at_a_semicolon() -> None:
    """A semicolon ends a statement in Mermaid, also within a sentence."""
    for page in PAGES:
        for drawing in re.findall(r"(?ms)^```mermaid\n(.*?)^```", page.read_text()):
            assert ";" not in drawing, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_names_exist(page: Path) -> None:
    tops = "tidemark|operator|broker_image|pipeline|cli|tests|docs|examples|crds|e2e"
    named = re.findall(rf"`((?:{tops})/[\w./-]+)[`:]", page.read_text())
    # Names with placeholders such as NN or PAGE are left out.
    concrete = (path for path in named if not re.search(r"(?<![A-Z])(NN|[A-Z]{4,})(?![A-Z])", path))
    assert not [path for path in concrete if not (ROOT / path).exists()]


# ---------------------------------------------------------------- reasons


def _sources() -> Iterator[Path]:
    """Yield the modules that give reasons."""
    for folder in ("operator/tidemark_operator", "broker_image/tidemark_broker", "tidemark"):
        paths = (ROOT / folder).rglob("*.py")
        yield from sorted(path for path in paths if path.name != "reasons.py")


def test_every_reason_is_explained() -> None:
    assert {reason for entries in TABLE.values() for reason in entries} == set(Reason)


def test_every_reason_is_used() -> None:
    used = set(re.findall(r"\bReason\.([A-Z0-9_]+)", "\n".join(map(Path.read_text, _sources()))))
    assert used == set(Reason.__members__)


def _written_out(path: Path) -> Iterator[str]:
    """Yield the reasons that a module passes as string literals."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        values = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        values += node.args[_POSITION[name] :][:1] if name in _POSITION else []
        for value in values:
            if isinstance(value, ast.Constant) and value.value in set(Reason):
                yield f"{path}:{value.lineno}: {value.value}"


def test_no_reason_is_written_out() -> None:
    assert not [found for path in _sources() for found in _written_out(path)]


@pytest.mark.parametrize("kind", TABLE)
def test_every_reason_has_a_meaning_and_an_exit(kind: str) -> None:
    """Both are sentences, and the page has them in the reason's row."""
    page = pages.conditions_page()
    for reason, entry in TABLE[kind].items():
        assert entry.conditions, reason
        for text in (entry.meaning, entry.action):
            assert re.fullmatch(r"\S.+\.", text), f"{reason}: {text!r}"
        assert f"| `{reason}` | {entry.conditions} | " in page


def test_repeated_failures_are_explained() -> None:
    errors = (
        Conflict(409, ""),
        Forbidden(403, ""),
        Invalid(422, ""),
        NotFound(404, ""),
        InvalidResource(""),
        DecisionFailed(""),
        KeyError(),
    )
    known = set(TABLE["Every kind"])
    assert {failures.reason_of(error) for error in errors} == known


def test_a_reason_is_explained_once_for_each_kind() -> None:
    """A dict would keep only the last of two rows."""
    source = Path(reason_table.__file__).read_text("utf-8")
    for table in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)):
        keys = [ast.unparse(key) for key in table.keys if key is not None]
        assert len(keys) == len(set(keys))


# ---------------------------------------------------------------- control protocol


def test_every_message_of_the_control_protocol_is_described() -> None:
    page = (DOCS / "reference" / "control-protocol.md").read_text()
    rows = re.findall(r"(?m)^\| (\d+) \| (\w+) \|", page)
    requests = {
        (str(cls.__api_key__), name.removesuffix("Request"))
        for module in (control, users, topics, deletions)
        for name, cls in vars(module).items()
        if name.endswith("Request") and hasattr(cls, "__api_key__")
    }
    assert ("10006", "UserStates") in requests
    assert set(rows) == requests
