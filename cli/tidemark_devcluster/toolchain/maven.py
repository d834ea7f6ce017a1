"""Published jars, downloaded once by Maven into the user's cache.

A set of jars is a pom with pinned versions; Maven adds their dependencies. The result is
``<cache>/jars/<name>/<version>-<key>/``, which appears atomically. One process downloads at a time;
others wait for it.
"""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.cache import build_key, is_cached, make_once, user_cache
from tidemark_devcluster.toolchain.progress import BuildProgress, run_reporting
from tidemark_pipeline.export.formats import CLOUD_PACKAGES, PACKAGES, Format
from tidemark_pipeline.java import JavaMissing, find_java

POMS = Path(__file__).with_name("poms")
ERROR_LINES = 20


class MavenMissing(ToolchainError):
    """Java or Maven is missing; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """Set of jars that a pom defines.

    ``version_property``: property of the pom that is set to ``version``. ``jars``: approximate
    number of jars. ``folder``: location of the pom.
    """

    name: str
    version: str
    version_property: str
    jars: int
    folder: Path = POMS

    @property
    def pom(self) -> Path:
        """Return the path of the pom."""
        return self.folder / f"{self.name}.xml"

    def key(self) -> str:
        """Return the key under which the jars are stored."""
        return build_key([self.name, self.version], {"pom": self.pom.read_bytes()})


KAFKA = JarSet(name="apache-kafka", version="4.3.1", version_property="kafka.version", jars=93)


def table_format(name: Format) -> JarSet:
    """Return the jars that Spark needs for tables of a format."""
    version = PACKAGES[name].rpartition(":")[2]
    jars = {Format.ICEBERG: 1, Format.DELTA: 8}[name]
    return JarSet(
        name=f"{name}-spark", version=version, version_property=f"{name}.version", jars=jars
    )


def iceberg_cloud(cloud: str) -> JarSet:
    """Return the jars that Iceberg needs for a cloud of :data:`CLOUD_PACKAGES`."""
    version = CLOUD_PACKAGES[cloud].rpartition(":")[2]
    return JarSet(
        name=f"iceberg-{cloud}", version=version, version_property="iceberg.version", jars=1
    )


def spark_kafka(version: str) -> JarSet:
    """Return Spark's own Kafka source for a version of Spark."""
    return JarSet(name="spark-kafka", version=version, version_property="spark.version", jars=4)


def ensure_jars(
    jar_set: JarSet, *, progress: BuildProgress | None = None, cache: Path | None = None
) -> Path:
    """Return the folder with a set of jars; download them with Maven if they are not cached.

    Raises MavenMissing, and ToolchainError if Maven fails.
    """
    cache = cache or user_cache()
    key = jar_set.key()
    target = cache / "jars" / jar_set.name / f"{jar_set.version}-{key}"
    if is_cached(target):
        return target
    # Maven is searched before the lock is awaited: without it the command fails at once.
    maven = _maven()

    def download(temporary: Path, display: BuildProgress) -> Path:
        display.step(f"downloading the jars of {jar_set.name} {jar_set.version}")
        fetched = temporary / "jars"
        # Maven names each jar that it downloads.
        run_reporting(
            _command(maven, jar_set, fetched),
            lambda lines: follow(lines, jar_set.jars, display.advance),
            action=f"downloading the jars of {jar_set.name}",
            advice="If Maven Central is unreachable, check the network and the mirrors in "
            "~/.m2/settings.xml.",
            environ={**os.environ, "MAVEN_OPTS": os.environ.get("MAVEN_OPTS", "-Xmx256m")},
        )
        return fetched

    # One process downloads, others wait for it.
    make_once(
        target,
        download,
        builds=target.parent,
        lock=cache / "locks" / f"{jar_set.name}-{key}.lock",
        waiting=f"waiting: another process downloads {jar_set.name}",
        progress=progress,
    )
    return target


def java() -> Path:
    """Return the Java program. Raises MavenMissing."""
    try:
        return find_java()
    except JavaMissing as error:
        raise MavenMissing(str(error)) from error


def _maven() -> str:
    hint = "install it (Debian: apt install maven) and put it on the PATH"
    java()
    program = shutil.which("mvn")
    if program is None:
        raise MavenMissing(f"Maven (mvn) is needed to download jars and is not on the PATH; {hint}")
    return program


def _command(maven: str, jar_set: JarSet, folder: Path) -> list[str]:
    return [
        *(maven, "--batch-mode", "--strict-checksums", "--file", str(jar_set.pom)),
        *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
        f"-D{jar_set.version_property}={jar_set.version}",
    ]


def follow(lines: Iterable[str], jars: int, advance: Callable[[str, float], None]) -> deque[str]:
    """Report the number of downloaded jars to ``advance``; return Maven's last errors."""
    last: deque[str] = deque(maxlen=ERROR_LINES)
    fetched = 0
    for raw in lines:
        line = raw.rstrip()
        if "Downloaded from" in line and ".jar" in line:
            fetched += 1
            advance(f"{fetched} jars", min(1.0, fetched / jars))
        elif line.startswith("[ERROR]"):
            last.append(line)
    return last
