"""Cache of built programs: location, keys, and the lock that admits one builder at a time.

The key covers everything under this project's control that determines a program's bytes: name,
version, build flags, sources and platform. It excludes Go's patch version, so that a Go update on
the machine costs no rebuild.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark_devcluster.toolchain.progress import BuildProgress

APPLICATION = "tidemark"
KEY_CHARS = 16
BUILDS_KEPT = 3
PRIVATE_DIR = 0o700


def cache_root(environ: Mapping[str, str], home: Path, system: str) -> Path:
    """Return the user's cache folder for this application, by the conventions of the system; pure.

    An absolute ``XDG_CACHE_HOME`` takes precedence (the specification ignores relative ones).
    Otherwise it is ``~/Library/Caches`` on macOS and ``~/.cache`` elsewhere.
    """
    named = environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        return Path(named) / APPLICATION
    if system == "darwin":
        return home / "Library" / "Caches" / APPLICATION
    return home / ".cache" / APPLICATION


def user_cache() -> Path:
    """Return the cache folder of the current user."""
    return cache_root(os.environ, Path.home(), sys.platform)


def numba_environment() -> dict[str, str]:
    """Return the variable that makes numba store compiled decoders in the user's cache.

    Its own default is beside the sources, where ``tidemark cache`` would not list them.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR") or str(user_cache() / "numba")
    return {"NUMBA_CACHE_DIR": folder}


def platform_tag() -> str:
    """Return system and processor, e.g. ``linux-x86_64``."""
    return f"{sys.platform}-{platform.machine().lower()}"


def build_key(parts: Sequence[str], sources: Mapping[str, bytes]) -> str:
    """Return a digest that identifies a build by its inputs.

    ``parts``: texts such as flags and platform. ``sources``: file contents by name. Each item is
    preceded by its length, so that different inputs never concatenate to the same bytes.
    """
    digest = hashlib.sha256()

    def add(data: bytes) -> None:
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)

    for part in parts:
        add(part.encode())
    for name in sorted(sources):
        add(name.encode())
        add(sources[name])
    return digest.hexdigest()[:KEY_CHARS]


def read_sources(folder: Path) -> dict[str, bytes]:
    """Return the files that a Go module's build reads, by their path in it."""
    paths = [folder / "go.mod", folder / "go.sum", *folder.rglob("*.go")]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an exclusive lock on a file; ``on_wait`` is called once if another process holds it.

    The kernel releases the lock when its holder dies, so a killed build blocks no other.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_cached(target: Path) -> bool:
    """Return whether a build is cached; if so, mark it as used for :func:`prune`."""
    if not target.exists():
        return False
    with contextlib.suppress(OSError):  # a cache in an image may be read-only
        os.utime(target.parent)
    return True


def make_once(
    target: Path,
    make: "Callable[[Path, BuildProgress], Path]",
    *,
    builds: Path,
    lock: Path,
    waiting: str,
    progress: "BuildProgress | None" = None,
) -> None:
    """Make a file or folder of the cache, unless another process that held the lock has made it.

    ``make``: makes it in an empty folder and returns its path. ``builds``: folder of all its
    versions, of which old ones are removed. ``waiting``: text while another process holds the lock.
    """
    # The display is imported only here: most commands find everything in the cache.
    from tidemark_devcluster.toolchain.progress import default_progress

    display = progress or default_progress()
    with display, locked(lock, lambda: display.step(waiting)):
        if is_cached(target):
            return
        target.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIR)
        # A folder on the same file system, so that the final rename is atomic.
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as temporary:
            make(Path(temporary), display).replace(target)
        prune(builds)


def prune(folder: Path, *, keep: int = BUILDS_KEPT) -> None:
    """Remove all builds in ``folder`` except the ``keep`` most recently used."""
    builds = sorted(
        (path for path in folder.iterdir() if path.is_dir()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for build in builds[keep:]:
        shutil.rmtree(build, ignore_errors=True)
