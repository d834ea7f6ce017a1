"""Folder of small files that are replaced together, like a kubelet's mount of a Secret.

Keys and certificates belong together: a reader that gets some new and some old files, or reads
after a crash between two of them, has nothing that works. Each version therefore has a folder of
its own, and ``..data`` is a link to the present one that a rename replaces. Each name is a link
into ``..data``. Folders have mode 0700, files 0600.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_PRESENT = "..data"


def write_files(folder: Path, data: Mapping[str, bytes]) -> None:
    """Replace all files of a folder in one atomic step.

    Readers never see a mixture of an old certificate and a new key. The files are symbolic links
    through one link to a versioned directory, like a mounted Kubernetes Secret; renaming that link
    replaces all of them. Blocks while another thread or process writes the folder. Raises
    ``OSError``; then the former files stay.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _locked(folder):
        # The new version is complete and on disk before any link leads to it.
        version = Path(tempfile.mkdtemp(prefix="..version-", dir=folder))
        for name, content in data.items():
            _write(version / name, content)
        _sync(version)
        # The switch: one rename replaces all files.
        _link(folder / _PRESENT, version.name)
        for name in data:
            _link(folder / name, f"{_PRESENT}/{name}")
        _sync(folder)
        # Former versions last, so that a crash leaves at least one complete version.
        _sweep(folder, {*data, _PRESENT, version.name})


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Two writers at once would each delete the other's version as a former one, and leave dead links.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return all files of one version, empty without one. Raises ``OSError``: read again."""
    present = folder / _PRESENT
    if not present.exists():
        return {}
    # `resolve` once, so that all files come from the same version.
    return {path.name: path.read_bytes() for path in sorted(present.resolve().iterdir())}


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(path: Path, target: str) -> None:
    """Create or replace a link in one step."""
    if path.is_symlink() and str(path.readlink()) == target:
        return
    # A rename replaces atomically; symlink_to alone fails if the name exists.
    new = path.with_name(f"..{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(path)


def _sweep(folder: Path, kept: set[str]) -> None:
    """Delete former versions and remains of a crash."""
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
