"""Private folders for temporary files, which are removed even if their process is killed.

A process that is killed removes nothing, and some files are keys. So each process that
creates a folder also removes those that killed processes of the same user have left. A folder has a
file that its process holds locked. The kernel releases the lock when the process ends, so neither a
reused process id nor a paused process is mistaken for an end.

Other users can create any name in a shared temporary directory. Only folders of this user with a
lock file of this user are removed, and links are not followed. The lock file contains the folder's
name, so that a copy or a renamed folder stays.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

logger = logging.getLogger(__name__)

_PREFIX = "tidemark-"
_LOCK = ".tidemark-lock"
_NAME_BYTES_MAX = 255
#: Names of a temporary directory that are examined, and folders that are removed, by one process.
_EXAMINED_MAX, _REMOVED_MAX = 10_000, 100
#: Temporary directories that this process has examined.
_swept: set[Path] = set()


class ScratchFolder:
    """Folder in the temporary directory that only this user can open. Thread-safe.

    It is created by :meth:`create`, or when a ``with`` block is entered, whose end removes it.
    """

    def __init__(self, kind: str) -> None:
        """Choose the name. ``kind``: purpose of the folder, a part of its name."""
        self.path = Path(tempfile.gettempdir()) / f"{_PREFIX}{kind}-{secrets.token_hex(4)}"
        self._mutex = threading.Lock()
        self._lock: int | None = None

    def create(self) -> Path:
        """Create the folder, if that was not done, and return it. Raises ``OSError``."""
        with self._mutex:
            if self._lock is None:
                _sweep(self.path.parent)
                self.path.mkdir(mode=0o700)
                self._lock = _locked(self.path)
        return self.path

    def remove(self) -> None:
        """Remove the folder with all files, as far as possible."""
        with self._mutex:
            lock, self._lock = self._lock, None
            if lock is None:
                return
            with contextlib.suppress(OSError), _opened(self.path, os.O_DIRECTORY) as folder:
                _remove(self.path, folder)
            os.close(lock)

    def __enter__(self) -> Path:
        return self.create()

    def __exit__(self, *_: object) -> None:
        self.remove()


def _locked(folder: Path) -> int:
    """Create the lock file of a new folder; return its descriptor, which holds the lock."""
    new = folder / f"{_LOCK}.new"
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    # Without locks, as on some network file systems, the folder is not marked and never swept.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, os.fsencode(folder.name))
        # Renamed once it is locked: another process must not find it unlocked in between.
        new.rename(folder / _LOCK)
    return descriptor


def _sweep(directory: Path) -> None:
    """Remove folders of killed processes of this user, once for each process and directory."""
    if directory in _swept:
        return
    _swept.add(directory)
    removed = 0
    # What cannot be read or removed stays for another process.
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, _EXAMINED_MAX):
            if entry.name.startswith(_PREFIX) and _is_removed(directory, entry.name):
                removed += 1
                logger.info("%s of a killed process is removed", entry.path)
            if removed == _REMOVED_MAX:
                break


def _is_removed(directory: Path, name: str) -> bool:
    """Remove a folder if its process has ended; return whether it was removed."""
    try:
        with _opened(directory / name, os.O_DIRECTORY) as folder:
            if not _is_mine(folder, stat.S_ISDIR):
                return False
            with _opened(_LOCK, os.O_RDWR, at=folder) as lock:
                if not _is_mine(lock, stat.S_ISREG):
                    return False
                # Refused while the process holds it.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.read(lock, _NAME_BYTES_MAX) != os.fsencode(name):
                    return False
                _remove(directory / name, folder)
    # It is in use, another process removes it, or it is no such folder.
    except OSError:
        return False
    return True


def _remove(path: Path, folder: int) -> None:
    """Remove a folder. ``folder``: its descriptor. Raises ``OSError``.

    The lock file is last, so that what a child process adds meanwhile is still marked.
    """
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif name != _LOCK:
            os.unlink(name, dir_fd=folder)
    if os.listdir(folder) == [_LOCK]:
        os.unlink(_LOCK, dir_fd=folder)
    path.rmdir()


def _is_mine(descriptor: int, is_kind: Callable[[int], bool]) -> bool:
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and is_kind(status.st_mode)


@contextlib.contextmanager
def _opened(path: str | Path, flags: int, *, at: int | None = None) -> Iterator[int]:
    """Open a file or a folder, but no link. Raises ``OSError``."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
