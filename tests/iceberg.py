"""Apache Iceberg's jar for Spark, in the user's cache; fetched by Maven when it is missing."""

import os
import shutil
import subprocess
from pathlib import Path

from tidemark_pipeline.export.iceberg import PACKAGE


class IcebergMissing(RuntimeError):
    """The jar cannot be had here; the message says what is missing."""


def ensure_iceberg() -> Path:
    """The jar."""
    _, name, version = PACKAGE.split(":")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidemark" / "iceberg"
    jar = folder / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise IcebergMissing("Iceberg needs Java 17 or newer and Maven (mvn) on the PATH")
    print(f"fetching {jar.name} into {folder}", flush=True)
    part = folder / f".part-{os.getpid()}"
    part.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            maven,
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={PACKAGE}",
            f"-DoutputDirectory={part}",
        ],
        check=True,
        timeout=600,
    )
    (part / jar.name).replace(jar)
    part.rmdir()
    return jar
