"""docs/reference/cli.md has every command and option of the program."""

import subprocess
import sys
from pathlib import Path

from tidemark_cli.reference_page import commands, render

ROOT = Path(__file__).parents[3]


def test_page_is_current() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert page == render(), "run make pages"


def test_every_command_has_a_section_and_a_link() -> None:
    page = render()
    names = [name for name, _ in commands()]
    assert {"up", "spark export", "broker kill"} <= set(names)
    for name in names:
        assert f"\n## tidemark {name}\n" in page
        assert f"](#tidemark-{name.replace(' ', '-')})" in page


def test_page_has_choices_defaults_bounds_and_environment() -> None:
    page = render()
    assert "| `--format` | `iceberg`, `delta` | `iceberg` |" in page
    assert "| `--once`, `--continuous` |  | `--once` |" in page
    assert "(at least 1, at most 100)" in page
    assert "environment variable `TIDEMARK_DIR`" in page
    assert (
        "    tidemark spark aggregate TOPIC --by TEXT --value TEXT --output PATH [OPTIONS]" in page
    )


def test_stale_page_fails_the_check(tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text("old")
    program = [sys.executable, "-m", "tidemark_cli.reference_page"]
    assert subprocess.run([*program, "--check", str(page)], check=False).returncode == 1
    assert subprocess.run([*program, str(page)], check=False).returncode == 0
    assert page.read_text() == render()
