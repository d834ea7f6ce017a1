"""Small files written as a whole: temporary name, fsync, rename, fsync of the directory."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemark_broker.log.errors import StorageError, storage_errors

logger = logging.getLogger(__name__)

#: Suffix of files that a crash may leave; opening a directory removes them.
TEMPORARY_SUFFIX = ".tmp"


def replace_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` durably. A crash leaves the old file or the new one."""
    with prepared(path, data) as put_in_place:
        put_in_place()


@contextmanager
def prepared(path: Path, data: bytes) -> Iterator[Callable[[], None]]:
    """Write ``data`` to a temporary file; yield a function that renames it to ``path`` durably.

    If the block does not call the function, ``path`` is unchanged and the temporary file is
    removed: on a full disk other writes need its space.
    """
    # The thread's id keeps two writers of one path from sharing a temporary file.
    temporary = path.with_name(f"{path.name}.{threading.get_ident()}{TEMPORARY_SUFFIX}")
    done = False

    def put_in_place() -> None:
        nonlocal done
        with storage_errors(f"{path} cannot be written"):
            temporary.replace(path)
            done = True
            sync_directory(path.parent)

    try:
        with storage_errors(f"{path} cannot be written"):
            put(temporary, data)
        yield put_in_place
    finally:
        if not done:
            with suppress(OSError):
                temporary.unlink()


def put(path: Path, data: bytes) -> None:
    """Write and sync a new file. A crash may leave it torn. Raises ``OSError``."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_at(path: Path, data: bytes, position: int) -> None:
    """Write index entries at byte ``position`` of a file, and drop whatever followed there.

    Raises ``OSError``.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Cut first: a shorter write over longer remains would leave stale entries.
        os.ftruncate(descriptor, position)
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written
    finally:
        os.close(descriptor)


def probe_room(directory: Path, size_bytes: int) -> None:
    """Write ``size_bytes`` into a new file, durably, and remove it. Blocks.

    Raises :class:`StorageError`.
    """
    path = directory / f"room.{threading.get_ident()}{TEMPORARY_SUFFIX}"
    with storage_errors(f"{directory} has no room for {size_bytes} bytes"):
        try:
            put(path, bytes(size_bytes))
        finally:
            path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Sync a file by name: any descriptor of a file syncs everything that was written to it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make names that were created, renamed or removed in ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_files(paths: list[Path], suffix: str) -> list[Path]:
    """Rename a segment's files to ``<name><suffix>`` before their removal; return the new paths.

    The first path is the log file. If it cannot be renamed, nothing is (:class:`StorageError`). The
    other files have no meaning without it. They are skipped if they are missing or cannot be
    renamed.
    """
    renamed = []
    for path in paths:
        target = path.with_name(path.name + suffix)
        try:
            path.rename(target)
        except FileNotFoundError:
            continue
        except OSError as error:
            # The log file decides; without it a crash recovery ignores the others.
            if path is paths[0]:
                raise StorageError(f"{path} cannot be removed: {error.strerror}") from error
            logger.warning("%s cannot be removed: %s", path, error.strerror)
            continue
        renamed.append(target)
    return renamed


def remove_files(paths: list[Path]) -> None:
    """Remove files that were renamed."""
    with storage_errors("segment files cannot be removed"):
        for path in paths:
            path.unlink(missing_ok=True)
