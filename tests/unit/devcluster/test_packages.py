"""Spark is installed if it is missing and can be. Otherwise the message names the command."""

import sys
from pathlib import Path

import pytest

from tidemark_devcluster.toolchain import ToolchainError, packages


def test_installed_spark_is_not_installed_again() -> None:
    messages: list[str] = []
    packages.ensure_spark(messages.append)
    assert messages == []


@pytest.mark.parametrize("missing", ["checkout", "virtual environment"])
def test_without_a_place_to_install_into_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr(packages, "MODULES", ("no_such_module_of_spark",))
    if missing == "checkout":
        monkeypatch.setattr(packages, "REQUIREMENTS", Path("/nowhere/spark.txt"))
    else:
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(ToolchainError, match=r"pip install 'WHEEL\[pipeline\]'"):
        packages.ensure_spark(print)


def test_the_set_that_is_installed_is_in_the_checkout() -> None:
    assert "pyspark==" in packages.REQUIREMENTS.read_text(encoding="utf-8")
