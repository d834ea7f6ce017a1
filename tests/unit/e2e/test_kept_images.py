"""An image is built again after any change of its inputs, and a killed build's mounts are found."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.pods.buildah import files_of, fingerprint, mounts_below
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


def test_ignored_files_do_not_count(context: Path) -> None:
    (context / ".dockerignore").write_text("# all\n*\n!program\n!names\n**/__pycache__\n")
    found = {str(path.relative_to(context)) for path in files_of(context)}
    assert found == {"program/main.py", "names"}


def test_ignore_file_of_the_checkout_is_understood() -> None:
    """Every file that a Dockerfile copies counts."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    excluded = {line for line in lines if line and not line.startswith(("#", "!"))}
    assert excluded == {"*", "**/__pycache__"}
    found = {str(path.relative_to(ROOT)) for path in files_of(ROOT)}
    assert {"requirements/spark.txt", "tidemark/__init__.py", "pipeline/passwd"} <= found


def _chmod(context: Path) -> None:
    (context / "program/main.py").chmod(0o755)


def _rename(context: Path) -> None:
    (context / "names").rename(context / "others")


def _write(context: Path) -> None:
    (context / "names").write_text("n@mes")


def _base(context: Path) -> None:
    os.utime(context.parent / "base.tar", ns=(1, 1))


def _dockerfile(context: Path) -> None:
    (context.parent / "Dockerfile").write_text("FROM another")


@pytest.mark.parametrize("change", [_chmod, _rename, _write, _base, _dockerfile])
def test_any_change_is_another_image(tmp_path: Path, change: Callable[[Path], None]) -> None:
    context, dockerfile, base = (tmp_path / name for name in ("it", "Dockerfile", "base.tar"))
    (context / "program").mkdir(parents=True)
    for path in (context / "program/main.py", context / "names", dockerfile, base):
        path.write_text("as it was")
    before = fingerprint(dockerfile, context, (base, tmp_path / "java"))
    # Without a change, the fingerprint is the same.
    assert fingerprint(dockerfile, context, (base, tmp_path / "java")) == before
    change(context)
    assert fingerprint(dockerfile, context, (base, tmp_path / "java")) != before


def test_mounts_below_a_folder_are_removed_from_the_last_to_the_first() -> None:
    where = ("/", "/a b/store", "/a b/store/1/merged", "/a b/storeroom")
    # The kernel writes a space in a path as an octal escape.
    lines = [f"29 1 0:26 / {path} rw - tmpfs none rw".replace("a b", r"a\040b") for path in where]
    found = mounts_below(Path("/a b/store"), "\n".join(lines))
    assert found == [Path("/a b/store/1/merged"), Path("/a b/store")]
