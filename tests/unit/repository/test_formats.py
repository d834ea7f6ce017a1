"""docs/reference/formats.md states the version of each format, and the versions that read it."""

import ast
import re
from pathlib import Path

import pytest

from tidemark.wire import control

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "formats.md"
PACKAGES = (
    "tidemark",
    "operator/tidemark_operator",
    "broker_image/tidemark_broker",
    "pipeline/tidemark_avro",
    "pipeline/tidemark_pipeline",
)
_ROW = re.compile(r"(?m)^\| [^|]+ \| `([^`]+)` `(\w+)` \| ([^|]+) \| ([^|]+) \|")
ROWS = {
    (path, name): (written, read) for path, name, written, read in _ROW.findall(PAGE.read_text())
}


def _constants() -> dict[tuple[str, str], str]:
    """Return the module constants that are versions of written formats."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
                    continue
                for target in node.targets:
                    if isinstance(target, ast.Name) and re.search(r"(^|_)VERSION$", target.id):
                        where = str(path.relative_to(ROOT)), target.id
                        found[where] = str(node.value.value)
    return found


CONSTANTS = _constants()


def test_every_format_is_in_the_table() -> None:
    assert set(ROWS) == set(CONSTANTS)


@pytest.mark.parametrize("where", CONSTANTS, ids="::".join)
def test_table_states_the_written_versions(where: tuple[str, str]) -> None:
    written, read = ROWS[where]
    assert written == CONSTANTS[where], (
        "a format has changed: say in docs/reference/formats.md who reads what"
    )
    assert written in read.split(", ")


def test_every_message_of_the_control_protocol_is_of_version_0() -> None:
    versions = {
        int(cls.__version__) for cls in vars(control).values() if hasattr(cls, "__version__")
    }
    assert versions == {0}
