"""Apicurio Registry (Apache-2.0), which answers as Confluent's does, in the user's cache; fetched
by Maven when it is missing. It keeps its schemas in memory."""

import contextlib
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.suites.packages import unpack

#: The newest that runs on Java 17.
VERSION = "3.0.9"
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_PATH = "/apis/ccompat/v7"
_START_S = 300.0
_MEMORY = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ApicurioMissing(RuntimeError):
    """Apicurio is not available here; the message says what is missing."""


def ensure_apicurio() -> Path:
    """Its jar, beside which its libraries lie."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidemark" / "apicurio" / VERSION
    jar = folder / f"apicurio-registry-app-{VERSION}-runner.jar"
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None or shutil.which("java") is None:
        raise ApicurioMissing("Apicurio Registry needs Java 17 and Maven (mvn) on the PATH")
    print(f"fetching Apicurio Registry {VERSION} (109 MB) into {folder}", flush=True)
    # Unpacked beside the final folder and renamed, so that the cache has no half of it.
    part = folder.with_name(f".part-{os.getpid()}")
    part.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            maven,
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={_ARTIFACT}",
            f"-DoutputDirectory={part}",
        ],
        check=True,
        timeout=600,
    )
    archive = next(part.glob("*.tar.gz"))
    unpack(archive, part)
    archive.unlink()
    try:
        part.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(part)
    return jar


@contextlib.contextmanager
def running(port: int, log: Path) -> Iterator[str]:
    """One on the loopback; its address. Raises :class:`ApicurioMissing`."""
    jar = ensure_apicurio()
    environment = {
        **os.environ,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        # Versions and subjects can be deleted, as tests do.
        "APICURIO_REST_DELETION_ARTIFACT_ENABLED": "true",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["java", *_MEMORY, "-jar", str(jar)],
            stdout=output,
            stderr=output,
            env=environment,
            cwd=jar.parent,
        )
    try:
        url = f"http://127.0.0.1:{port}{_PATH}"
        _wait(process, f"{url}/subjects", log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"Apicurio Registry did not start:\n{log.read_text()[-2000:]}")
