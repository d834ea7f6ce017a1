"""An image is built again as soon as anything that it is made of has changed."""

from pathlib import Path

import pytest

from e2e.pods.buildah import files_of
from e2e.pods.images import ROOT


@pytest.fixture
def context(tmp_path: Path) -> Path:
    for name in ("program/main.py", "program/__pycache__/main.pyc", "tests/test_it.py", "names"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_all_of_a_folder_counts_but_compiled_code(context: Path) -> None:
    found = {str(path.relative_to(context)) for path in files_of(context)}
    assert found == {"program/main.py", "tests/test_it.py", "names"}


def test_what_a_build_is_not_given_does_not_count(context: Path) -> None:
    (context / ".dockerignore").write_text("# all\n*\n!program\n!names\n**/__pycache__\n")
    found = {str(path.relative_to(context)) for path in files_of(context)}
    assert found == {"program/main.py", "names"}


def test_the_checkouts_own_list_is_of_that_kind() -> None:
    """Whatever a Dockerfile copies is among what counts."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    said = {line for line in lines if line and not line.startswith(("#", "!"))}
    assert said == {"*", "**/__pycache__"}
    found = {str(path.relative_to(ROOT)) for path in files_of(ROOT)}
    assert {"requirements/spark.txt", "tidemark/__init__.py", "pipeline/passwd"} <= found
