"""Published jars that are run beside ours: fetched once by Maven, and kept in the user's cache.

A set of jars is a pom that names what is wanted at pinned versions; Maven adds what that needs. It
ends as ``<cache>/jars/<name>/<version>-<key>/``, which appears at once and whole; one process
fetches at a time, and the others wait for it.
"""

import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidemark_cli.toolchain.cache import PRIVATE_DIR, build_key, locked, prune, user_cache
from tidemark_cli.toolchain.errors import ToolchainError
from tidemark_cli.toolchain.progress import BuildProgress, default_progress
from tidemark_pipeline.export.formats import PACKAGES, S3_PACKAGE, Format
from tidemark_pipeline.java import JavaMissing, find_java

POMS = Path(__file__).with_name("poms")
ERROR_LINES = 20


class MavenMissing(ToolchainError):
    """There is no Java or no Maven here; the message says how to get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSet:
    """``version_property``: that of the pom that is set to ``version``. ``jars``: about how many it
    comes to."""

    name: str
    version: str
    version_property: str
    jars: int

    @property
    def pom(self) -> Path:
        """What Maven reads."""
        return POMS / f"{self.name}.xml"

    def key(self) -> str:
        """The key under which it is kept."""
        return build_key([self.name, self.version], {"pom": self.pom.read_bytes()})


KAFKA = JarSet(name="apache-kafka", version="4.3.1", version_property="kafka.version", jars=93)


def table_format(name: Format) -> JarSet:
    """What Spark needs for tables of a format."""
    version = PACKAGES[name].rpartition(":")[2]
    jars = {Format.ICEBERG: 1, Format.DELTA: 8}[name]
    return JarSet(
        name=f"{name}-spark", version=version, version_property=f"{name}.version", jars=jars
    )


def iceberg_aws() -> JarSet:
    """What Iceberg needs for S3."""
    version = S3_PACKAGE.rpartition(":")[2]
    return JarSet(name="iceberg-aws", version=version, version_property="iceberg.version", jars=1)


def spark_kafka(version: str) -> JarSet:
    """Spark's own source of Kafka's topics, for a version of Spark."""
    return JarSet(name="spark-kafka", version=version, version_property="spark.version", jars=4)


def ensure_jars(
    wanted: JarSet, *, progress: BuildProgress | None = None, cache: Path | None = None
) -> Path:
    """The folder of the jars, after fetching them where the cache has them not. Raises
    MavenMissing, and ToolchainError where Maven fails."""
    cache = cache or user_cache()
    key = wanted.key()
    target = cache / "jars" / wanted.name / f"{wanted.version}-{key}"
    if target.is_dir():
        return target
    maven = _maven()
    display = progress or default_progress()
    lock = cache / "locks" / f"{wanted.name}-{key}.lock"
    with display, locked(lock, lambda: display.step(f"waiting: {wanted.name} is being fetched")):
        if target.is_dir():  # by the process that held the lock
            return target
        display.step(f"fetching the jars of {wanted.name} {wanted.version}")
        target.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as temporary:
            fetched = Path(temporary) / "jars"
            _run(_command(maven, wanted, fetched), wanted, display)
            fetched.rename(target)
        prune(target.parent)
    return target


def java() -> Path:
    """The program that runs them. Raises MavenMissing."""
    try:
        return find_java()
    except JavaMissing as error:
        raise MavenMissing(str(error)) from error


def _maven() -> str:
    hint = "install it (Debian: apt install maven), and put it on the PATH"
    java()
    found = shutil.which("mvn")
    if found is None:
        raise MavenMissing(f"no Maven (mvn) on the PATH, which fetches published jars; {hint}")
    return found


def _command(maven: str, wanted: JarSet, folder: Path) -> list[str]:
    return [
        *(maven, "--batch-mode", "--strict-checksums", "--file", str(wanted.pom)),
        *("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"),
        f"-D{wanted.version_property}={wanted.version}",
    ]


def _run(command: list[str], wanted: JarSet, progress: BuildProgress) -> None:
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "MAVEN_OPTS": os.environ.get("MAVEN_OPTS", "-Xmx256m")},
        text=True,
        errors="replace",
    ) as process:
        try:
            said = follow(process.stdout or (), wanted.jars, progress.advance)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise ToolchainError(
            f"fetching the jars of {wanted.name} failed (mvn ended with status "
            f"{process.returncode}). If it could not reach Maven Central, check the network and "
            "the mirrors in ~/.m2/settings.xml. It said:\n" + "\n".join(said)
        )


def follow(lines: Iterable[str], jars: int, advance: Callable[[str, float], None]) -> deque[str]:
    """Tell ``advance`` how many jars Maven has downloaded, of about ``jars``; returns its last
    errors."""
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
