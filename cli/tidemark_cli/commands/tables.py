"""What the commands that work on tables have in common: where tables are, and the jars of their
format."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from tidemark_cli.commands.common import fail
from tidemark_cli.toolchain.maven import (
    JarSet,
    MavenMissing,
    ensure_jars,
    iceberg_aws,
    table_format,
)
from tidemark_pipeline.export.formats import S3_PACKAGE, Format, packages

PAIR = "as NAME=VALUE."

FormatOption = Annotated[Format, typer.Option("--format", help="Format of the table.")]
WarehouseOption = Annotated[
    str, typer.Option(help="Location of tables: a folder, or a URI that Hadoop supports.")
]
CatalogOption = Annotated[
    list[str] | None, typer.Option(help=f"Property of Iceberg's catalog, {PAIR}")
]
ConfOption = Annotated[list[str] | None, typer.Option(help=f"Setting of Spark, {PAIR}")]
JarOption = Annotated[
    list[Path] | None, typer.Option(help="Jars to use. The format's own jar is then not fetched.")
]
CoresOption = Annotated[int, typer.Option(min=1, help="Number of cores.")]
LogOption = Annotated[Path, typer.Option(help="File for Spark's log.")]


def pairs(texts: Sequence[str] | None, name: str) -> dict[str, str]:
    """Of ``name=value``; ends where one is not so."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"{name} {text!r}: write name=value")
        found[key] = value
    return found


def place(warehouse: str) -> str:
    """A folder of this machine by its whole path, a URI as it is."""
    return warehouse if not warehouse or ":/" in warehouse else str(Path(warehouse).resolve())


def check_jars(given: Sequence[Path] | None) -> list[str]:
    """Their whole paths; ends where there is none such."""
    for each in given or ():
        if not each.is_file():
            fail(f"--jar {each}: there is no such file")
    return [str(each.resolve()) for each in given or ()]


def with_jars(settings: Mapping[str, str], more: Sequence[str]) -> dict[str, str]:
    """Spark's configuration with these beside the jars that it names."""
    there = settings.get("spark.jars")
    both = [*([there] if there else []), *more]
    return {**settings, **({"spark.jars": ",".join(both)} if both else {})}


def jars(
    given: Sequence[str], kind: Format, catalog: Mapping[str, str], conf: Mapping[str, str]
) -> list[str]:
    """Those that are named; else the format's, from the cache or by Maven. None where there is no
    Maven, or the configuration says what Spark is to fetch: then Spark does. Raises
    ToolchainError."""
    if given or conf.keys() & {"spark.jars", "spark.jars.packages"}:
        return list(given)
    sets: list[JarSet] = [table_format(kind)]
    if S3_PACKAGE in packages(kind, catalog):
        sets.append(iceberg_aws())
    try:
        return [str(jar) for each in sets for jar in sorted(ensure_jars(each).glob("*.jar"))]
    except MavenMissing:
        return []
