"""docs/reference/versions.md states the versions that the project pins and tests."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests import helm
from tidemark_devcluster.toolchain.maven import KAFKA
from tidemark_pipeline.export.formats import PACKAGES, Format
from tidemark_pipeline.java import JAVA_VERSION_MIN
from tools.interpreters import check_sources, complaint, notice, versions_tested

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _row(software: str) -> tuple[str, str]:
    """Return the columns *supported* and *tested with* of one row."""
    found = re.search(rf"(?m)^\| {re.escape(software)}[^|]*\| ([^|]+) \| ([^|]+) \|$", PAGE)
    assert found is not None, software
    return found[1], found[2]


def test_python_is_what_the_package_requires() -> None:
    tested = versions_tested()
    oldest, newest = tested[0], tested[-1]
    assert PROJECT["requires-python"] == f">={oldest}"
    assert _row("Python") == (f"{oldest} or newer", ", ".join(tested))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["run"]["strategy"]["matrix"]["python"] == list(tested)
    assert f"CPython {oldest} to {newest}" in (ROOT / "README.md").read_text()
    # `make lint` checks types for the oldest version and for the newest.
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert checked["python_version"] == oldest
    assert f"mypy --python-version {newest}\n" in (ROOT / "Makefile").read_text()


def test_newer_python_is_announced_as_untested() -> None:
    newest = tuple(int(part) for part in versions_tested()[-1].split("."))
    assert notice((newest[0], newest[1])) is None
    text = notice((newest[0], newest[1] + 1))
    assert text is not None
    assert text.startswith(
        f"Python {newest[0]}.{newest[1] + 1} is not tested: tests run with 3.11,"
    )
    assert text.endswith(
        f"make PYTHON=python{versions_tested()[-1]} VENV=.venv-{versions_tested()[-1]}"
    )


@pytest.mark.parametrize(
    ("implementation", "has_gil", "found"),
    [("pypy", True, "this is pypy"), ("cpython", False, "this is a free-threaded Python")],
)
def test_python_without_wheels_is_refused(implementation: str, has_gil: bool, found: str) -> None:
    text = complaint(implementation, has_gil=has_gil)
    assert text is not None
    assert found in text
    assert complaint("cpython", has_gil=True) is None


def test_missing_interpreter_is_named_and_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_sources("3.99")
    assert capsys.readouterr().out == (
        "python3.99 is not installed: its check of the sources is skipped\n"
    )


def test_kubernetes_and_helm_are_those_of_charts_and_tests() -> None:
    supported, tested = _row("Kubernetes")
    for chart in ("tidemark", "tidemark-base"):
        required = yaml.safe_load((ROOT / "charts" / chart / "Chart.yaml").read_text())
        assert required["kubeVersion"] == f">={supported.split()[0]}.0-0"
    modules = (ROOT / "cli/tidemark_devcluster/controlplane/go/go.mod").read_text()
    assert f"k8s.io/kubernetes v{tested}." in modules
    assert helm.HELM.version.startswith(f"v{_row('Helm')[1]}.")


def test_spark_java_and_table_formats_are_the_pinned_ones() -> None:
    supported, tested = _row("Spark")
    assert f"pyspark=={tested}" in PROJECT["optional-dependencies"]["pipeline"]
    assert tested.startswith(f"{supported}.")
    assert _row("Java")[0] == f"{JAVA_VERSION_MIN} or newer"
    assert PACKAGES[Format.ICEBERG].endswith(f"-{supported}_2.13:{_row('Apache Iceberg')[1]}")
    assert PACKAGES[Format.DELTA].endswith(f"-spark_{supported}_2.13:{_row('Delta Lake')[1]}")


def test_apache_kafka_is_the_one_that_tests_run() -> None:
    assert _row("Apache Kafka as the") == ("4.0 or newer, KRaft mode", KAFKA.version)
