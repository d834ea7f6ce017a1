"""Dead code in the sources, by vulture, in `make lint`.

Vulture reports what is used by name only. The fields of Kafka's answers and of the custom resources
are taken from their classes, and the functions of commands from the table of commands, so that a
new one needs no entry here. `pyproject.toml` lists the other exceptions, with the reason.
"""

import dataclasses
import importlib
import pkgutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel
from vulture import Vulture

import tidemark_broker.api
import tidemark_operator.resources
from tidemark_cli.main import Commands

ROOT = Path(__file__).parents[1]
WRITTEN_OUT = (tidemark_broker.api, tidemark_operator.resources)


def fields_written_out() -> set[str]:
    """Names of the fields of every dataclass and model in those packages."""
    return {
        name
        for package in WRITTEN_OUT
        for module in _modules(package)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        for name in _fields(kind)
    }


def commands() -> set[str]:
    """Names of the functions that ``tidemark`` imports when a command is invoked."""
    return {row.target.split(":")[1] for row in Commands.rows.values()}


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def _fields(kind: type) -> list[str]:
    if issubclass(kind, BaseModel):
        return list(kind.model_fields)
    if not dataclasses.is_dataclass(kind):
        return []
    return [field.name for field in dataclasses.fields(kind)]


def main() -> int:
    """1 where something is unused, a line for each."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["vulture"]
    vulture = Vulture(
        ignore_names=sorted({*options["ignore_names"], *fields_written_out(), *commands()})
    )
    # Tests are left out, so that code which only tests use counts as dead.
    vulture.scavenge([str(ROOT / path) for path in options["paths"]])
    unused = vulture.get_unused_code()
    for item in unused:
        print(item.get_report())
    return 1 if unused else 0


if __name__ == "__main__":
    sys.exit(main())
