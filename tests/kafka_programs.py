"""Apache Kafka's own programs, run as its scripts run them."""

import subprocess
from pathlib import Path

import pytest

from tests import apache_kafka

_TIMEOUT_S = 90
#: For programs that end after a second or two: what is compiled well, or collected side by side,
#: is done for nothing then, and costs half of their time.
JAVA = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def kafka_jars() -> Path:
    """The folder of the published jars; the test is skipped where there is no Java, or no Maven."""
    try:
        return apache_kafka.jars()
    except apache_kafka.MavenMissing as error:
        pytest.skip(str(error))


class ProgramFailed(Exception):
    """With all that it said."""


def java(
    jars: Path, program: str, *arguments: str, stdin: str = "", flags: tuple[str, ...] = ()
) -> str:
    """Run one of them; its output. Raises :class:`ProgramFailed` unless it ends well."""
    done = subprocess.run(
        [*JAVA, *flags, "-cp", f"{jars}/*", program, *arguments],
        check=False,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise ProgramFailed(done.stdout + done.stderr)
    return done.stdout
