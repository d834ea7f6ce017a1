"""Programs that the command line builds: the control plane, and MinIO for tests.

MinIO is run as a server, never linked or shipped. Its pseudo-version names the last commit of the
archived project.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tidemark_devcluster.toolchain.build import GoProgram, ensure_program
from tidemark_devcluster.toolchain.cache import read_sources
from tidemark_devcluster.toolchain.errors import ToolchainError
from tidemark_devcluster.toolchain.progress import BuildProgress
from tidemark_devcluster.toolchain.versions import GoVersion, required_go, required_module

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


def ensure_controlplane(*, progress: BuildProgress | None = None) -> Path:
    """Return the path of the control plane, built once. Raises ToolchainError."""
    return ensure_program(controlplane_program(), progress=progress, checkout=checkout())


def ensure_minio(
    *, progress: BuildProgress | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """Return the path of a MinIO server: that of ``TIDEMARK_MINIO``, else built once.

    Raises ToolchainError.
    """
    named = environ.get(MINIO_VARIABLE)
    if not named:
        return ensure_program(MINIO, progress=progress, checkout=checkout())
    path = Path(named)
    if not os.access(path, os.X_OK) or not path.is_file():
        raise ToolchainError(f"{MINIO_VARIABLE} is {named}, which is not an executable file")
    return path


def checkout() -> Path | None:
    """Return the checkout that this code runs from; None if it is installed."""
    root = PACKAGE.parents[1]
    return root if (root / "pyproject.toml").is_file() else None
