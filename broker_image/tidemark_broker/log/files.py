"""File operations of a log: durable replacement, fsync, reads at a position, the page cache.

A small file is written as a whole: temporary name, fsync, rename, fsync of the directory.
:func:`check_cached` tells the loop whether a read would wait for the disk. A read with
``RWF_NOWAIT`` (Linux 4.14) fails if a page is not in memory. A few bytes of a range represent the
whole: pages that were written or read together are usually evicted together. A file system without
support counts as uncached.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.lock_order import LockRank, turn_of
from tidemark_broker.log.errors import StorageError, storage_errors

logger = logging.getLogger(__name__)

#: Suffix of files that a crash may leave; opening a directory removes them.
TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Yield a descriptor of ``path``, which is closed at the end. Raises ``OSError``."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of ``data`` at byte ``position``. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


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
    """Write and sync a new file. A crash may leave it incomplete. Raises ``OSError``."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_at(descriptor, data, 0)
        os.fsync(descriptor)


def put_at(path: Path, data: bytes, position: int) -> None:
    """Write index entries at byte ``position`` of a file, and drop whatever followed there.

    Raises ``OSError``.
    """
    with opened(path, os.O_WRONLY | os.O_CREAT) as descriptor:
        # Cut first: a shorter write over longer remains would leave stale entries.
        os.ftruncate(descriptor, position)
        write_at(descriptor, data, position)


def probe_room(directory: Path, size_bytes: int) -> None:
    """Write ``size_bytes`` into a new file, durably, and remove it. Blocks.

    Raises :class:`StorageError`.
    """
    path = directory / f"room.{threading.get_ident()}{TEMPORARY_SUFFIX}"
    with storage_errors(f"cannot write {size_bytes} bytes in {directory}"):
        try:
            put(path, bytes(size_bytes))
        finally:
            path.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Sync a file by name: any descriptor of a file syncs everything that was written to it."""
    with opened(path) as descriptor:
        os.fdatasync(descriptor)


def sync_directory(path: Path) -> None:
    """Make names that were created, renamed or removed in ``path`` durable."""
    with opened(path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


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


#: Distance of the probed bytes: the kernel's default read-ahead.
_STEP_BYTES = 128 * 1024
_UNABLE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
#: Destination of the probed bytes, which are ignored.
_NOWHERE = [bytearray(1)]


class NotCached(Exception):
    """The requested bytes are likely not in memory: repeat the read in a thread."""


def check_cached(descriptor: int, start: int, end: int) -> None:
    """Raise :class:`NotCached` if reading ``[start, end)`` would likely wait for the disk."""
    try:
        # From the end: the newest pages are the likeliest to be cached, older ones to be missing.
        for position in range(end - 1, start - 1, -_STEP_BYTES):
            os.preadv(descriptor, _NOWHERE, position, os.RWF_NOWAIT)
    except BlockingIOError as error:
        raise NotCached from error
    except OSError as error:
        if error.errno in _UNABLE:
            raise NotCached from error
        raise StorageError(f"the log cannot be read: {error.strerror}") from error


def forget_cached_pages(directory: Path) -> None:
    """Have the kernel drop cached pages of the logs (blocking).

    After a failed fsync the kernel may cache pages as clean that are not on the disk, so a check of
    cached data would prove nothing. Dirty pages stay.
    """
    with storage_errors(f"{directory} cannot be read"):
        for path in directory.glob(f"*{names.LOG_SUFFIX}"):
            with opened(path) as descriptor:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def pread(descriptor: int, size: int, position: int) -> bytes:
    """Call ``os.pread`` and raise :class:`StorageError` on failure.

    Short only at the file's end.
    """
    # No context manager: a Fetch may read several headers, and each would cost more than its read.
    try:
        return os.pread(descriptor, size, position)
    except OSError as error:
        raise StorageError(f"the log cannot be read: {error.strerror}") from error


def pread_exactly(descriptor: int, size: int, position: int) -> bytes:
    """Read exactly ``size`` bytes.

    Fewer mean that the file differs from the log's bookkeeping, a :class:`StorageError`.
    """
    data = pread(descriptor, size, position)
    if len(data) != size:
        raise StorageError(f"{len(data)} of {size} bytes could be read at byte {position}")
    return data


class SharedWork:
    """Run ``work``, which blocks, never twice at a time.

    A caller may wait for the current run to end, as for a lock of that ``rank``.
    """

    def __init__(self, work: Callable[[], None], rank: LockRank) -> None:
        self._work = work
        self._turn = turn_of(rank)
        self._changed = threading.Condition()
        self._requests = 0
        self._done = 0
        self._running = False

    def run(self) -> None:
        """Run the work, or wait for a run by another thread that began after this request. Blocks.

        On return a run that started after this call has succeeded. An exception is raised in the
        thread that ran it; the others retry.
        """
        with self._turn:
            with self._changed:
                self._requests += 1
                request = self._requests
                # A run that is already in progress may have missed this caller's changes: wait for
                # the next.
                self._changed.wait_for(lambda: self._done >= request or not self._running)
                # Another thread's run, which began after this request, has succeeded.
                if self._done >= request:
                    return
                self._running, covers = True, self._requests
            # ``covers``: number of requests that this run satisfies; after a failure none.
            try:
                self._work()
            except BaseException:
                covers = 0
                raise
            finally:
                with self._changed:
                    self._running = False
                    self._done = max(self._done, covers)
                    self._changed.notify_all()
