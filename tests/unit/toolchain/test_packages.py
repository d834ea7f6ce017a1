"""Spark is installed where it is missing and can be; else the message says how."""

import sys
from pathlib import Path

import pytest

from tidemark_cli.toolchain import packages
from tidemark_cli.toolchain.errors import ToolchainError


def test_what_is_there_is_not_installed_again() -> None:
    said: list[str] = []
    packages.ensure_spark(said.append)
    assert said == []


@pytest.mark.parametrize("lacking", ["checkout", "virtual environment"])
def test_without_a_place_to_install_into_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    monkeypatch.setattr(packages, "MODULES", ("no_such_module_of_spark",))
    if lacking == "checkout":
        monkeypatch.setattr(packages, "REQUIREMENTS", Path("/nowhere/spark.txt"))
    else:
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(ToolchainError, match=r"pip install 'WHEEL\[pipeline\]'"):
        packages.ensure_spark(print)


def test_the_set_that_is_installed_is_in_the_checkout() -> None:
    assert "pyspark==" in packages.REQUIREMENTS.read_text(encoding="utf-8")
