"""Object store in a directory that all brokers share (one machine, or a network file system).

Compare-and-set must work between processes. A writer takes an flock on one of a fixed number of
lock files (selected by a hash of the key, so locks do not grow with the objects), compares, writes
a temporary file, fsyncs it, renames it and fsyncs the folder. A crash at any point leaves the old
object or the new one; a lock ends with its process.

The version of an object is the SHA-256 of its bytes. Time stamps and inode numbers repeat when a
file is replaced twice within a tick, and a generation counter in a second file could diverge from
its object in a crash. Equal bodies having equal versions is also how S3's ETag behaves, and heads
have a number that only grows.

The directory itself is never created here: a file system that is not mounted must appear as
unavailable, not as an empty store.

Anyone with write access to a shared tier directory could put a link there, and have a broker read
or write a file that only the broker may access. Each part of a path is therefore opened from the
folder before it, with ``O_NOFOLLOW``. For reads, Linux does that in one call (``openat2``). The
root may itself be reached through a link, because the administrator configured it.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import accumulate
from pathlib import Path

from tidemark.reasons import Reason
from tidemark.tier.stores.objects import (
    OBJECT_BYTES_MAX,
    AlreadyExists,
    DeletesRefused,
    NotInMemory,
    ObjectInfo,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
    StoreUnavailable,
    UnfinishedUpload,
    Version,
    VersionedObject,
    check_key,
    check_prefix,
)

_INTERNAL = ".tidemark-store"
_TEMPORARIES = "tmp"
_LOCKS = 64
_MKDIR_ATTEMPTS = 16
_TEMPORARY_AGE_S = 24 * 3600.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Non-blocking: opening a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Longest key, as in S3.
_KEY_CHARS_MAX = 1024


class DirectoryStore:
    """Objects as files below ``path``, which must exist and be writable."""

    def __init__(self, path: Path) -> None:
        self._root = path
        #: Whether the file system can say what is in memory, None before the first read.
        #: Network file systems cannot, and opening their files may wait for a server.
        self._tells_cached: bool | None = None
        #: Memory into which the event loop reads. The kernel writes to it without page faults.
        self._read_into = memoryview(b"")
        self._drop_old_temporaries()

    def get(self, key: str) -> VersionedObject:
        """Return the whole object."""
        with self._translated(key), self._open(key) as file:
            size = os.fstat(file).st_size
            if size > OBJECT_BYTES_MAX:
                raise ObjectTooLarge(key, self.describe(), size)
            data = _read_fully(file, 0, size)
        return VersionedObject(data, _digest(data))

    def get_range(self, key: str, start: int, end_exclusive: int) -> bytes:
        """Return the bytes of the range, cut off at the file's end."""
        # An empty range is valid for a missing object too, as in S3.
        if end_exclusive <= start:
            return b""
        with self._translated(key), self._open(key) as file:
            return _read_fully(file, start, end_exclusive - start)

    def get_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[bytes]:
        """Return consecutive parts of the object. Each is read into its own memory, not copied."""
        with self._translated(key), self._open(key) as file:
            if self._tells_cached is None:
                self._tells_cached = _tells_cached(file)
            ends = accumulate(sizes, initial=start)
            return [
                _read_fully(file, begin, size) for begin, size in zip(ends, sizes, strict=False)
            ]

    @property
    def has_page_cache(self) -> bool:
        """Whether :meth:`get_cached_parts` may find anything."""
        return bool(self._tells_cached)

    def get_cached_parts(self, key: str, start: int, sizes: Sequence[int]) -> Sequence[bytes]:
        """Return what :meth:`get_parts` does, on the event loop, if the page cache has it.

        Raises NotInMemory otherwise, also for an error, which :meth:`get_parts` reports.
        """
        if not self.has_page_cache:
            raise NotInMemory
        descriptor = _open_at_once(self._root, self._parts(key), _HOW_CACHED)
        if descriptor < 0:
            raise NotInMemory
        try:
            # Another program may have put anything there.
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise NotInMemory
            return self._read_cached(descriptor, start, sizes)
        except OSError as error:
            raise NotInMemory from error
        finally:
            os.close(descriptor)

    def _read_cached(self, descriptor: int, start: int, sizes: Sequence[int]) -> Sequence[bytes]:
        parts = []
        for size in sizes:
            if len(self._read_into) < size:
                self._read_into = memoryview(bytearray(size))
            part = self._read_into[:size]
            # Fewer bytes are in memory, or in the file.
            if os.preadv(descriptor, [part], start, os.RWF_NOWAIT) < size:
                raise NotInMemory
            parts.append(bytes(part))
            start += size
        return parts

    def put(self, key: str, data: bytes) -> None:
        """Write atomically and durably."""
        with self._translated(key):
            self._write(key, lambda temporary: _write_bytes(temporary, data))

    def put_stream(self, key: str, parts: Iterable[bytes]) -> None:
        """Write part by part, atomically and durably as one object."""
        with self._translated(key):
            # No lock: an unconditional write may be overwritten by any other writer anyway.
            self._write(key, lambda temporary: _write_parts(temporary, parts))

    def create(self, key: str, data: bytes) -> Version:
        """Write only if the key has no object."""
        # The lock makes check and write one step among the processes that share the directory.
        with self._translated(key), self._locked(key):
            if self._current_version(key) is not None:
                raise AlreadyExists(f"{key} exists already in {self.describe()}")
            self._write(key, lambda temporary: _write_bytes(temporary, data))
        return _digest(data)

    def replace(self, key: str, data: bytes, expected: Version) -> Version:
        """Write only over the expected version."""
        with self._translated(key), self._locked(key):
            if self._current_version(key) != expected:
                raise PreconditionFailed(
                    f"{key} in {self.describe()} was changed by another writer"
                )
            self._write(key, lambda temporary: _write_bytes(temporary, data))
        return _digest(data)

    def delete(self, key: str) -> None:
        """Delete the file, and folders that become empty."""
        with self._translated(key):
            parts = self._parts(key)
            try:
                with open_folder(self._root, parts[:-1]) as folder:
                    os.unlink(parts[-1], dir_fd=folder)
                    os.fsync(folder)
            except FileNotFoundError:
                # Without its root the store is not mounted, which must not look like success.
                self._require_root()
                return
            self._prune(parts[:-1])

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete one object after another; a refused one does not stop the rest.

        Raises DeletesRefused with the error of each key that is still there.
        """
        refused: dict[str, StoreUnavailable] = {}
        for key in keys:
            try:
                self.delete(key)
            except StoreUnavailable as error:
                refused[key] = error
        # Report all failures at once. The reason of the first one stands for the others.
        if refused:
            first = next(iter(refused.values()))
            raise DeletesRefused(
                self.describe(),
                {key: str(error) for key, error in refused.items()},
                reason=first.reason,
            )

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object below a folder, ordered by key."""
        check_prefix(prefix)
        with self._translated(prefix):
            self._require_root()
            yield from self._walk(tuple(filter(None, prefix.split("/"))))

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield the names of the folders in a folder, ordered."""
        parts = tuple(filter(None, check_prefix(prefix).split("/")))
        with self._translated(prefix):
            self._require_root()
            for name, status in self._children(parts):
                if status is None and (*parts, name) != (_INTERNAL,):
                    yield name

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Yield temporary files, of writers that run or were killed."""
        folder = (_INTERNAL, _TEMPORARIES)
        for name, status in self._children(folder):
            if status is not None:
                yield UnfinishedUpload("", name, status.st_mtime_ns // 1_000_000)

    def abort(self, upload: UnfinishedUpload) -> None:
        """Delete the temporary file."""
        name = upload.upload_id
        if "/" in name:
            raise ValueError(f"{name!r} is no temporary file")
        with (
            self._translated(name),
            suppress(FileNotFoundError),
            open_folder(self._root, (_INTERNAL, _TEMPORARIES)) as folder,
        ):
            os.unlink(name, dir_fd=folder)

    def describe(self) -> str:
        """Return the directory's path, for messages."""
        return f"directory {self._root}"

    def _parts(self, key: str) -> Sequence[str]:
        parts = check_key(key).split("/")
        if parts[0] == _INTERNAL:
            raise ValueError(f"{key!r}: {_INTERNAL} is the store's own folder")
        return parts

    def _open(self, key: str) -> AbstractContextManager[int]:
        return open_file(self._root, self._parts(key))

    def _walk(self, parts: Sequence[str]) -> Iterator[ObjectInfo]:
        """Yield the objects below a folder, in the order of their keys.

        An explicit stack replaces recursion, because other programs may create folders of any
        depth. Folders deeper than the longest key have no objects of a tier and are skipped.
        """
        # Path and remaining children of each open folder, from the outermost to the innermost.
        stack = [(tuple(parts), iter(self._children(parts)))]
        while stack:
            folder, children = stack[-1]
            name, status = next(children, ("", None))
            here = (*folder, name)
            if not name:
                # The folder has no further children: continue with its parent.
                stack.pop()
            elif status is not None:
                # Listed in the order of keys, with the same fields as a listing of S3.
                modified_ms = status.st_mtime_ns // 1_000_000
                yield ObjectInfo("/".join(here), status.st_size, modified_ms)
            # Descend, except into the store's own folder of locks and temporary files.
            elif here != (_INTERNAL,) and len("/".join(here)) < _KEY_CHARS_MAX:
                stack.append((here, iter(self._children(here))))

    def _children(self, parts: Sequence[str]) -> Sequence[tuple[str, os.stat_result | None]]:
        """Return the names in a folder, ordered, with the status of files and None for folders.

        Links and special files are not part of the store. A missing folder counts as empty.
        """
        found: dict[str, os.stat_result | None] = {}
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            open_folder(self._root, parts) as folder,
            os.scandir(folder) as children,
        ):
            for child in children:
                # A file may be deleted between the listing and its stat.
                with suppress(FileNotFoundError):
                    status = child.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        found[child.name] = None
                    elif stat.S_ISREG(status.st_mode):
                        found[child.name] = status
        return sorted(found.items())

    def _current_version(self, key: str) -> Version | None:
        try:
            with self._open(key) as file:
                return _digest(_read_fully(file, 0, os.fstat(file).st_size))
        except FileNotFoundError:
            return None

    # The rename makes a complete, fsynced file visible: readers never see a partial object.
    def _write(self, key: str, fill: Callable[[Path], None]) -> None:
        parts = self._parts(key)
        temporary = self._internal(_TEMPORARIES) / uuid.uuid4().hex
        try:
            fill(temporary)
            self._rename(temporary, parts)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _rename(self, temporary: Path, parts: Sequence[str]) -> None:
        """Rename a complete temporary file to its key, creating the folders that the key needs.

        A concurrent ``delete`` removes folders that become empty, so the folders may disappear
        before the rename. It is then repeated. Raises StoreUnavailable if that happens every time.
        """
        # Folders are never created in an unmounted root, which would hide the data.
        self._require_root()
        for _ in range(_MKDIR_ATTEMPTS):
            with (
                suppress(FileNotFoundError),
                open_folder(self._root, parts[:-1], make=True) as folder,
            ):
                # The folder is fsynced too, or a crash could lose the name of a durable file.
                os.rename(temporary, parts[-1], dst_dir_fd=folder)
                os.fsync(folder)
                return
        raise StoreUnavailable(
            f"{self.describe()}: folder {'/'.join(parts[:-1])} keeps disappearing; is another "
            "program cleaning the tier's directory?",
            reason=Reason.STORE_DIRECTORY_UNSTABLE,
            retriable=True,
        )

    def _prune(self, parts: Sequence[str]) -> None:
        for count in range(len(parts), 0, -1):
            try:
                with open_folder(self._root, parts[: count - 1]) as folder:
                    os.rmdir(parts[count - 1], dir_fd=folder)
            except OSError:
                return

    def _internal(self, name: str) -> Path:
        self._require_root()
        with open_folder(self._root, (_INTERNAL, name), make=True):
            return self._root / _INTERNAL / name

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        # Unrelated keys may share a lock; that costs a wait, never correctness.
        slot = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) % _LOCKS
        path = self._internal("locks") / f"{slot:02d}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _drop_old_temporaries(self) -> None:
        """Delete temporary files of killed writers; a day is longer than any write takes."""
        oldest = time.time() - _TEMPORARY_AGE_S
        with suppress(OSError):
            for child in (self._root / _INTERNAL / _TEMPORARIES).iterdir():
                if child.stat().st_mtime < oldest:
                    child.unlink(missing_ok=True)

    def _require_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnavailable(
                f"{self.describe()} does not exist: mount the file system of the tier (create an "
                "empty directory only for a new tier); it is used without a restart",
                reason=Reason.STORE_DIRECTORY_MISSING,
                retriable=True,
            )

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Translate file system errors of the block to errors of the object store's interface."""
        try:
            yield
        except FileNotFoundError as error:
            self._require_root()
            raise ObjectNotFound(f"no object {key} in {self.describe()}") from error
        except OSError as error:
            # A link or a device in the path: reading it could leave the tier's directory.
            strange = isinstance(error, NotADirectoryError | NotAFile) or error.errno == errno.ELOOP
            if strange and self._root.is_dir():
                raise self._strange(key) from error
            raise self._unavailable(error) from error

    def _strange(self, key: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{key} in {self.describe()} is not a file, or is behind a link: it is neither read "
            "nor written; remove it",
            reason=Reason.STORE_NOT_A_FILE,
            retriable=True,
        )

    def _unavailable(self, error: OSError) -> StoreUnavailable:
        """Return the error for a failed file operation, with advice for its cause."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice, reason = "make room on its file system", Reason.STORE_FULL
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            advice = "give the broker's user write permission on it"
            reason = Reason.STORE_PERMISSION_DENIED
        elif error.errno == errno.ENOTDIR:
            advice, reason = "remove the file in its place", Reason.STORE_INPUT_OUTPUT_ERROR
        else:
            advice, reason = (
                "check the file system that contains it",
                Reason.STORE_INPUT_OUTPUT_ERROR,
            )
        text = f"{self.describe()}: {error.strerror or error}; {advice}"
        return StoreUnavailable(text, reason=reason, retriable=True)


def _digest(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())


def _read_fully(descriptor: int, start: int, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        part = os.pread(descriptor, count, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _tells_cached(descriptor: int) -> bool:
    """Return whether a read of this file can fail instead of waiting (``RWF_NOWAIT``)."""
    if sys.platform != "linux":
        return False
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _write_bytes(path: Path, data: bytes) -> None:
    _write_parts(path, (data,))


def _write_parts(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("xb", buffering=0) as file:
        for part in parts:
            view = memoryview(part)
            while view:
                # Unbuffered writes may be short.
                view = view[file.write(view) :]
        os.fsync(file.fileno())


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
    descriptor = _open_at_once(root, parts)
    # The walk also finds the error of a call that failed, and the way through a link to the root.
    if descriptor < 0:
        with open_folder(root, parts[:-1]) as folder:
            descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(f"{'/'.join(parts)} is no file")
        yield descriptor
    finally:
        os.close(descriptor)


#: Number of ``openat2``, the same on all architectures, and its arguments: the working directory,
#: then flags, mode and RESOLVE_NO_SYMLINKS, or that and RESOLVE_CACHED (Linux 5.12).
_OPENAT2, _AT_FDCWD = 437, -100
_HOW, _HOW_CACHED = (struct.pack("=QQQ", _FILE, 0, resolve) for resolve in (0x04, 0x24))


def _open_at_once(root: Path, parts: Sequence[str], how: bytes = _HOW) -> int:
    """Return a descriptor of a file below ``root``, whose whole path has no link.

    ``how``: with ``_HOW_CACHED`` a path that is not in the kernel's memory is not opened. Negative
    if that failed for any reason, for example on a kernel before 5.6 or another system.
    """
    if _system_call is None:
        return -1
    path = os.fsencode(root.joinpath(*parts))
    return _system_call(_OPENAT2, _AT_FDCWD, path, how, len(how))


def _find_system_call() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).syscall
    found.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    found.restype = ctypes.c_long
    return found


_system_call = _find_system_call()
