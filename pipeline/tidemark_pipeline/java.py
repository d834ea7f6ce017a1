"""Find Java 17 or newer, which Spark and Apache Kafka need."""

import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_VERSION_MIN = 17


class JavaMissing(RuntimeError):
    """No usable Java; the message says what was found and how to get one."""


def find_java() -> Path:
    """Return the ``java`` that Spark will run: that of JAVA_HOME, else the first on the PATH.

    Raises :class:`JavaMissing` if there is none, or it is too old.
    """
    # The same order as in Spark's own scripts.
    home = os.environ.get("JAVA_HOME")
    name = str(Path(home) / "bin" / "java") if home else "java"
    program = shutil.which(name)
    hint = (
        f"install Java {JAVA_VERSION_MIN} or newer (Debian: openjdk-17-jre-headless) or set "
        "JAVA_HOME"
    )
    if program is None:
        where = (
            f"JAVA_HOME is {home}, where there is no bin/java" if home else "no java on the PATH"
        )
        raise JavaMissing(f"{where}; {hint}")
    # Java prints its version to standard error.
    text = subprocess.run(
        [program, "-version"], capture_output=True, text=True, check=False, timeout=30
    ).stderr
    version = major_version(text)
    # An old Java would fail later, with a class version in a stack trace.
    if version is None or version < JAVA_VERSION_MIN:
        raise JavaMissing(f"{program} is Java {version or 'of an unknown version'}; {hint}")
    return Path(program)


def major_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``; None if it has none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    # Java 8 and older print 1.8.
    return second if first == 1 else first
