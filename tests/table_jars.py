"""The jars of the table formats, in the user's cache; fetched by Maven where they are missing."""

from pathlib import Path

from tidemark_devcluster.toolchain.maven import (
    MavenMissing,
    ensure_jars,
    iceberg_cloud,
    table_format,
)
from tidemark_pipeline.export.formats import DELTA_SETTINGS, Format

__all__ = ["MavenMissing", "jars", "settings"]


def jars(*formats: Format) -> list[Path]:
    """Return the jars of the formats, and Iceberg's for S3. Raises MavenMissing."""
    sets = [table_format(format_) for format_ in formats]
    if Format.ICEBERG in formats:
        sets.append(iceberg_cloud("aws"))
    folders = [ensure_jars(set_) for set_ in sets]
    return [jar for folder in folders for jar in sorted(folder.glob("*.jar"))]


def settings(*formats: Format) -> dict[str, str]:
    """Return the settings of a session with the formats."""
    found = {"spark.jars": ",".join(map(str, jars(*formats)))}
    return found | (DELTA_SETTINGS if Format.DELTA in formats else {})
