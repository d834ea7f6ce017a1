"""kcat from the PATH, else from Debian's packages unpacked into the user's cache (nothing
installed)."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = ("kcat", "librdkafka1", "libyajl2")


@dataclass(frozen=True, slots=True)
class Kcat:
    """The program and the folder of its libraries ("" for an installed one)."""

    program: str
    libraries: str

    @property
    def environment(self) -> dict[str, str]:
        """To run it in."""
        own = {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}
        return {**os.environ, **own}

    def run(self, *arguments: str, stdin: bytes = b"", timeout_s: float = 60) -> bytes:
        """Run it; its standard output. Raises CalledProcessError with what it said."""
        return subprocess.run(
            [self.program, *arguments],
            input=stdin,
            capture_output=True,
            check=True,
            timeout=timeout_s,
            env=self.environment,
        ).stdout


def ensure_kcat() -> Kcat:
    """kcat, fetched with apt on the first use where the machine has none."""
    installed = shutil.which("kcat")
    if installed:
        return Kcat(installed, "")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemark" / "kcat"
    root = cache / "root"
    if not (cache / ".complete").exists():
        _fetch(cache, root)
        (cache / ".complete").touch()
    return Kcat(str(root / "usr/bin/kcat"), str(next((root / "usr/lib").glob("*-linux-gnu"))))


def _fetch(cache: Path, root: Path) -> None:
    # A private cache and list folder let apt-get download without root and without a lock.
    for folder in ("lists/partial", "archives/partial", "root"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    options = [
        *("-o", f"Dir::State::Lists={cache / 'lists'}"),
        *("-o", f"Dir::Cache={cache}"),
        *("-o", "Debug::NoLocking=1"),
    ]
    for command in (["update"], ["download", *_PACKAGES]):
        subprocess.run(["apt-get", "-qq", *options, *command], cwd=cache, check=True, timeout=300)
    for archive in cache.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
