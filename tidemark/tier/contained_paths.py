"""Files below a folder, opened without following links.

Anyone with write access to a shared tier directory could put a link there, and have a broker read
or write a file that only the broker may access. Each part of a path is therefore opened from the
folder before it, with ``O_NOFOLLOW``. The root may itself be reached through a link, because the
administrator configured it.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class NotAFile(OSError):
    """The path is not a file, but a folder, a link, a pipe or a device."""


@contextmanager
def open_folder(root: Path, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder below ``root``, opened part by part without following links.

    ``parts``: names of the nested folders, outermost first. ``make``: create missing folders,
    durably, but never the root. The descriptor is closed afterwards. Raises ``OSError``
    (``NotADirectoryError`` for a link).
    """
    descriptor = os.open(root, _FOLDER)
    try:
        # Open each folder relative to the one before, so that a link cannot lead elsewhere.
        for part in parts:
            below = _next_folder(descriptor, part, make=make)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _next_folder(above: int, part: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, dir_fd=above)
            os.fsync(above)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=above)


@contextmanager
def open_file(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of a file below ``root``, for reading. Raises ``OSError``."""
    with open_folder(root, parts[:-1]) as folder:
        # Non-blocking: opening a pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(parts[-1], flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(f"{'/'.join(parts)} is no file")
        yield descriptor
    finally:
        os.close(descriptor)
