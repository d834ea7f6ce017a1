"""Argo CD's one binary, built once from its published module.

The module cannot be installed by its name, as it replaces others; so it is copied out of Go's cache
and built where it lies. v3.2.11 is the newest whose module is whole: later ones replace a part that
is published beside none of them.
"""

import json
import os
import shutil
from pathlib import Path

from tests.suites.packages import Missing, command, kept
from tidemark_devcluster.toolchain.build import GoProgram, checkout, ensure_program
from tidemark_devcluster.toolchain.cache import user_cache
from tidemark_devcluster.toolchain.golang import GoVersion, build_environment, find_go
from tidemark_devcluster.toolchain.progress import default_progress

MODULE = "github.com/argoproj/argo-cd/v3"
VERSION = "v3.2.11"
SUM = "h1:3hkR11XCp/nlyM2cWr3qeUSGuZgi3JkFdMpzgL5qOR8="
NEEDS_GO = GoVersion(1, 25, 5)
REDIS_VARIABLE = "TIDEMARK_REDIS"


def sources() -> Path:
    """The module's files: its resource definitions are in ``manifests/crds``. Raises
    :class:`tests.suites.packages.Missing` or ToolchainError."""
    return kept("argo-cd", {"module": f"{MODULE}@{VERSION} {SUM}".encode()}, _download) / "module"


def _download(folder: Path) -> None:
    go = find_go(NEEDS_GO, user_cache(), default_progress())
    environ = build_environment(go, user_cache(), os.environ, checkout())
    wanted = f"{MODULE}@{VERSION}"
    said = command(
        go.executable, "mod", "download", "-json", wanted, folder=folder, environ=environ
    )
    found = json.loads(said)
    if found["Sum"] != SUM:
        raise Missing(f"{wanted} is not what it was: {found['Sum']}")
    shutil.copytree(found["Dir"], folder / "module")
    for path in [folder / "module", *(folder / "module").rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)


def ensure_argocd() -> Path:
    """The binary. Raises as :func:`sources`."""
    program = GoProgram(
        name="argocd",
        version=VERSION,
        needs_go=NEEDS_GO,
        packages=2400,
        package="./cmd",
        folder=sources(),
    )
    return ensure_program(program)


def find_redis() -> Path:
    """A redis-server (or a valkey-server): the one that ``TIDEMARK_REDIS`` names, else the
    machine's. Raises :class:`tests.suites.packages.Missing`."""
    named = os.environ.get(REDIS_VARIABLE)
    found = named or shutil.which("redis-server") or shutil.which("valkey-server")
    if not found:
        raise Missing(
            "Argo CD needs a Redis: install redis-server from your system's packages, or name one "
            f"in {REDIS_VARIABLE}"
        )
    return Path(found)
