"""Build a Go program once and store it: key, lock, build, rename.

A program is a module of this project or the main package of a published module at a pinned version.
The result is ``<cache>/bin/<name>/<version>-<key>/<name>``, which appears atomically. One process
builds at a time; others wait for it.

MinIO is run as a server, never linked or shipped. Its pseudo-version names the last commit of the
archived project.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.cache import (
    build_key,
    is_cached,
    make_once,
    platform_tag,
    read_sources,
    user_cache,
)
from tidemark_devcluster.toolchain.golang import (
    Go,
    GoVersion,
    build_environment,
    find_go,
    required_go,
    required_module,
)
from tidemark_devcluster.toolchain.progress import BuildProgress, run_reporting

logger = logging.getLogger(__name__)

ERROR_LINES = 30
# Debug information is a sixth of the compiler's work, and these programs are not debugged here.
COMMON_FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """Go program to build.

    ``folder`` is its module. Without one, ``package`` is a published main package, installed at
    ``version``. ``packages`` is the approximate number of packages that a cold build compiles.
    """

    name: str
    version: str
    needs_go: GoVersion
    packages: int
    tags: tuple[str, ...] = ()
    linker_flags: tuple[str, ...] = ("-s", "-w")
    package: str = "."
    folder: Path | None = None
    sources: Mapping[str, bytes] = field(default_factory=dict)

    def flags(self) -> list[str]:
        """Return the flags that determine the program's bytes."""
        chosen = list(COMMON_FLAGS)
        if self.tags:
            chosen.append(f"-tags={','.join(self.tags)}")
        return [*chosen, f"-ldflags={' '.join(self.linker_flags)}"]

    def key(self, platform: str) -> str:
        """Return the key under which a build for ``platform`` is stored."""
        parts = [self.name, self.version, self.package, platform, *self.flags()]
        return build_key(parts, self.sources)


def ensure_program(program: GoProgram, *, cache: Path | None = None) -> Path:
    """Return the path of a Go program; build it first if it is not in the cache.

    Raises ToolchainError.
    """
    cache = cache or user_cache()
    key = program.key(platform_tag())
    versions = cache / "bin" / program.name
    target = versions / f"{program.version}-{key}" / program.name

    # Go is searched, or installed, only if there is something to build.
    def build(temporary: Path, display: BuildProgress) -> Path:
        go = find_go(program.needs_go, cache, display)
        environ = build_environment(go, cache, os.environ, checkout())
        display.note(
            f"{program.name} is built once from source. Go's build cache and modules are stored in "
            f"{environ['GOCACHE']} and {environ['GOMODCACHE']} (2 to 3 GB, safe to delete)"
        )
        display.step(f"building {program.name} {program.version} with Go {go.version}")
        logger.info("building %s with %s, cache %s", program.name, go.executable, cache)
        return _build(program, go, environ, temporary, display)

    # Without the display and the lock, which a cached program does not need.
    if not is_cached(target):
        make_once(
            target,
            build,
            builds=versions,
            lock=cache / "locks" / f"{program.name}-{key}.lock",
            waiting=f"waiting: another process builds {program.name}",
        )
    return target


def _build(
    program: GoProgram, go: Go, environ: dict[str, str], temporary: Path, progress: BuildProgress
) -> Path:
    """Build a Go program in a temporary folder and return its path there.

    Raises ToolchainError.
    """
    # A module of this project is built, a published one is installed.
    if program.folder is not None:
        built = temporary / program.name
        command = ["build", "-v", *program.flags(), "-o", str(built), program.package]
        folder = program.folder
    else:
        built = temporary / program.package.rpartition("/")[2]
        command = ["install", "-v", *program.flags(), f"{program.package}@{program.version}"]
        folder, environ = temporary, {**environ, "GOBIN": str(temporary)}
    # Go names each package that it compiles.
    run_reporting(
        [str(go.executable), *command],
        lambda lines: follow(lines, program.packages, progress.advance),
        action=f"building {program.name}",
        advice="If a module could not be downloaded, check GOPROXY and the network.",
        environ=environ,
        folder=folder,
    )
    return built


def follow(
    lines: Iterable[str], packages: int, advance: Callable[[str, float], None]
) -> deque[str]:
    """Read the output of ``go build -v``, report the progress, and return the last error lines.

    ``packages``: approximate number of packages of the build. ``advance`` receives a text and the
    fraction from 0 to 1. Go prints each module that it downloads ("go: downloading …") and each
    package that it compiles (only its path).
    """
    last: deque[str] = deque(maxlen=ERROR_LINES)
    downloads = compiled = 0
    for raw in lines:
        line = raw.rstrip()
        # Every line is a download, a package, or part of an error.
        if line.startswith("go: downloading "):
            downloads += 1
        elif " " not in line:
            compiled += 1
        else:
            last.append(line)
        # The number of packages is known only approximately.
        fraction = min(1.0, compiled / packages)
        text = f"{compiled} packages" if compiled else f"{downloads} modules downloaded"
        advance(text, fraction)
    return last


PACKAGE = Path(__file__).resolve().parents[1]
CONTROLPLANE_MODULE = PACKAGE / "controlplane" / "go"
CONTROLPLANE_PACKAGES = 2300
CONTROLPLANE_TAGS = ("selinux", "notest", "grpcnotrace")
MINIO_VARIABLE = "TIDEMARK_MINIO"
MINIO_PACKAGES = 1300


def controlplane_program(folder: Path = CONTROLPLANE_MODULE) -> GoProgram:
    """Return the description of the control plane's build, from the Go module in ``folder``.

    The version is that of the Kubernetes module it requires.
    """
    sources = read_sources(folder)
    go_mod = sources["go.mod"].decode()
    version = required_module(go_mod, "k8s.io/kubernetes")
    return GoProgram(
        name="tidemark-controlplane",
        version=version,
        needs_go=required_go(go_mod),
        packages=CONTROLPLANE_PACKAGES,
        tags=CONTROLPLANE_TAGS,
        linker_flags=("-s", "-w", *version_flags(version)),
        folder=folder,
        sources=sources,
    )


def version_flags(version: str) -> tuple[str, ...]:
    """Return linker flags that set the version of Kubernetes' programs (``v1.36.3``)."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    path = "k8s.io/component-base/version"
    return tuple(f"-X={path}.{name}={value}" for name, value in values.items())


MINIO = GoProgram(
    name="minio",
    version="v0.0.0-20260212201848-7aac2a2c5b7c",
    needs_go=GoVersion(1, 24, 0),
    packages=MINIO_PACKAGES,
    tags=("kqueue",),
    package="github.com/minio/minio",
)


def ensure_controlplane() -> Path:
    """Return the path of the control plane, built once. Raises ToolchainError."""
    return ensure_program(controlplane_program())


def ensure_minio(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a MinIO server: that of ``TIDEMARK_MINIO``, else built once.

    Raises ToolchainError.
    """
    named = environ.get(MINIO_VARIABLE)
    if not named:
        return ensure_program(MINIO)
    path = Path(named)
    if not os.access(path, os.X_OK) or not path.is_file():
        raise ToolchainError(f"{MINIO_VARIABLE} is {named}, which is not an executable file")
    return path


def checkout() -> Path | None:
    """Return the checkout that this code runs from; None if it is installed."""
    root = PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() else None
