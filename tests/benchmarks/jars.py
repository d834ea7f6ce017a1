"""Published jars that a comparison runs, fetched once by Maven into the user's cache."""

import os
import shutil
import subprocess
from pathlib import Path


class JarsMissing(RuntimeError):
    """The jars cannot be had here; the message says what is missing."""


def ensure(pom: Path, name: str, version: str, *definitions: str) -> Path:
    """The folder with what ``pom`` depends on at run time; fetched when it is missing.
    ``definitions``: properties that the file needs, as ``spark.version=4.1.3``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidemark" / f"{name}-{version}"
    if (folder / ".complete").exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise JarsMissing("the comparison needs Java 17 or newer and Maven (mvn) on the PATH")
    print(f"fetching the jars of {name} {version} into {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [maven, "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    subprocess.run([*command, *(f"-D{each}" for each in definitions)], check=True)
    (folder / ".complete").touch()
    return folder
