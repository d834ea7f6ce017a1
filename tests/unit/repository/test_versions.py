"""docs/reference/versions.md states the versions that the project pins and tests."""

import re
import tomllib
from pathlib import Path

import yaml

from tests import helm
from tidemark_devcluster.toolchain.maven import KAFKA
from tidemark_pipeline.export.formats import PACKAGES, Format
from tidemark_pipeline.java import JAVA_VERSION_MIN

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "versions.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _row(software: str) -> tuple[str, str]:
    """Return the columns *supported* and *tested with* of one row."""
    found = re.search(rf"(?m)^\| {re.escape(software)}[^|]*\| ([^|]+) \| ([^|]+) \|$", PAGE)
    assert found is not None, software
    return found[1], found[2]


def test_python_is_what_the_package_requires() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    supported, tested = _row("Python")
    assert supported == "3.11 or newer"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert tested == ", ".join(workflow["jobs"]["run"]["strategy"]["matrix"]["python"])


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
