"""Disks in memory, under the real file code: what was written, and what of it was synced.

The broker's log room runs as it is; only the calls of ``os`` (and the few that go round it) are
answered here for paths below :data:`ROOT`. Each file knows its bytes and its synced bytes, each
directory its names and its synced names. A power cut leaves of a file what was synced and, by
chance, a part of what was appended since (a torn batch, or an empty file under its final name, are
possible); of a directory the synced names, or all. It may come between any two calls.
"""

import builtins
import errno
import fcntl
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tests.simulation.clockwork import PowerCut

ROOT = "/tidemark-simulation/"
_FIRST_DESCRIPTOR = 1 << 24


class File:
    __slots__ = ("data", "mtime_ns", "synced")

    def __init__(self, mtime_ns: int) -> None:
        self.data = bytearray()
        self.synced: bytes | None = None
        self.mtime_ns = mtime_ns


class Directory:
    __slots__ = ("names", "synced")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.synced: dict[str, File | Directory] = {}


class SimulatedDisk:
    """One machine's disk, found under ``ROOT + name``."""

    def __init__(self, world: Any, name: str) -> None:
        self.world = world
        self.name = name
        #: The folder of the logs is a mount point: it is always there.
        self.root = Directory()
        self.root.names["logs"] = self.root.synced["logs"] = Directory()
        self.dead = False
        #: Changes until the power is cut in the middle of things; None: it is not.
        self.cut_in: int | None = None
        self.on_cut: Any = None
        self.full = False
        self.failing_sync = False
        self.fsyncs = 0

    def changing(self) -> None:
        """Before each call that changes something."""
        if self.dead:
            raise PowerCut
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in < 0:
                self.dead, self.cut_in = True, None
                self.world.after_step.append(self.on_cut)
                raise PowerCut

    def lose_power(self, chance: Any) -> None:
        """Apply a power cut."""
        self._cut(self.root, chance)

    def _cut(self, directory: Directory, chance: Any) -> None:
        # Names that were not synced are lost all together or not at all.
        if directory.names != directory.synced and chance.random() < 0.5:
            directory.names = dict(directory.synced)
        directory.synced = dict(directory.names)
        for entry in directory.names.values():
            if isinstance(entry, Directory):
                self._cut(entry, chance)
            else:
                _tear(entry, chance)


def _tear(file: File, chance: Any) -> None:
    synced, now = file.synced or b"", bytes(file.data)
    # A file that was only appended to keeps its synced part and a piece of the rest. One that was
    # overwritten keeps either content.
    if now == synced:
        left = now
    elif now.startswith(synced):
        kind, more = chance.random(), len(now) - len(synced)
        kept = 0 if kind < 0.6 else more if kind < 0.7 else chance.randrange(more + 1)
        left = now[: len(synced) + kept]
    else:
        left = now if chance.random() < 0.5 else synced
    file.data[:] = left
    file.synced = left


class Disks:
    """All disks, and the calls of ``os`` that reach them while :meth:`mounted` holds."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._disks: dict[str, SimulatedDisk] = {}
        self._open: dict[int, tuple[File | Directory, SimulatedDisk]] = {}
        self._next = _FIRST_DESCRIPTOR

    def add(self, name: str) -> SimulatedDisk:
        """An empty disk of that name, in place of the one that was there."""
        disk = self._disks[name] = SimulatedDisk(self._world, name)
        return disk

    # ------------------------------------------------------------ paths

    def _walk(self, path: str) -> tuple[SimulatedDisk, Directory, str]:
        """(disk, parent directory, last name) of a path."""
        parts = path[len(ROOT) :].split("/")
        disk = self._disks[parts[0]]
        if disk.dead:
            raise PowerCut
        here = disk.root
        for name in parts[1:-1]:
            found = here.names.get(name)
            if not isinstance(found, Directory):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            here = found
        return disk, here, parts[-1] if len(parts) > 1 else ""

    def _entry(self, path: str) -> tuple[SimulatedDisk, "File | Directory"]:
        disk, parent, name = self._walk(path)
        if not name:
            return disk, disk.root
        found = parent.names.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return disk, found

    # ------------------------------------------------------------ calls

    def open(self, path: str, flags: int) -> int:
        disk, parent, name = self._walk(path)
        entry: File | Directory | None = parent.names.get(name) if name else disk.root
        if entry is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            disk.changing()
            if disk.full:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            entry = parent.names[name] = File(self._now_ns())
        elif flags & os.O_TRUNC and isinstance(entry, File):
            disk.changing()
            del entry.data[:]
        self._next += 1
        self._open[self._next] = (entry, disk)
        return self._next

    def _now_ns(self) -> int:
        return self._world.wall_ms() * 1_000_000

    def file(self, descriptor: int) -> tuple[File, SimulatedDisk]:
        return self._open[descriptor]  # type: ignore[return-value]

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def dup(self, descriptor: int) -> int:
        self._next += 1
        self._open[self._next] = self._open[descriptor]
        return self._next

    def pwrite(self, descriptor: int, data: Any, position: int) -> int:
        file, disk = self.file(descriptor)
        disk.changing()
        if disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = len(data)
        held = file.data
        # A write beyond the end leaves zeros between, as in a sparse file.
        if position > len(held):
            held.extend(bytes(position - len(held)))
        held[position : position + size] = data
        file.mtime_ns = self._now_ns()
        return size

    def fsync(self, descriptor: int) -> None:
        entry, disk = self._open[descriptor]
        disk.changing()
        disk.fsyncs += 1
        if disk.failing_sync:
            raise OSError(errno.EIO, "Input/output error")
        if isinstance(entry, Directory):
            entry.synced = dict(entry.names)
        else:
            entry.synced = bytes(entry.data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        file, disk = self.file(descriptor)
        disk.changing()
        if size < len(file.data):
            del file.data[size:]
        else:
            file.data.extend(bytes(size - len(file.data)))

    def rename(self, old: str, new: str) -> None:
        disk, parent, name = self._walk(old)
        _, into, target = self._walk(new)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
        there = into.names.get(target)
        if isinstance(there, Directory) and there.names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        disk.changing()
        into.names[target] = parent.names.pop(name)

    def unlink(self, path: str) -> None:
        disk, parent, name = self._walk(path)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        disk.changing()
        del parent.names[name]

    def mkdir(self, path: str) -> None:
        disk, parent, name = self._walk(path)
        if not name or name in parent.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        disk.changing()
        parent.names[name] = Directory()

    def listdir(self, path: str) -> list[str]:
        _, entry = self._entry(path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return list(entry.names)

    def stat(self, path: str) -> Any:
        _, entry = self._entry(path)
        if isinstance(entry, Directory):
            return SimpleNamespace(st_mode=stat.S_IFDIR | 0o755, st_size=0, st_mtime_ns=0)
        return SimpleNamespace(
            st_mode=stat.S_IFREG | 0o644, st_size=len(entry.data), st_mtime_ns=entry.mtime_ns
        )

    def read(self, path: str) -> bytes:
        _, entry = self._entry(path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return bytes(entry.data)

    def write(self, path: str, data: bytes) -> None:
        descriptor = self.open(path, os.O_CREAT | os.O_TRUNC)
        try:
            self.pwrite(descriptor, data, 0)
        finally:
            self.close(descriptor)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """``os`` and its kin reach these disks for paths below :data:`ROOT`."""
        calls = _calls(self)
        # The functions as they are now, which another simulation in this process may have replaced.
        before = [(module, name, getattr(module, name)) for module, name, _ in calls]
        for module, name, call in calls:
            setattr(module, name, call)
        try:
            yield
        finally:
            for module, name, call in before:
                setattr(module, name, call)


def _calls(disks: Disks) -> list[tuple[Any, str, Any]]:
    """The calls that are answered here, each passing on what is not ours."""
    first = _FIRST_DESCRIPTOR

    def ours(path: Any) -> str | None:
        if isinstance(path, int):
            return None
        text = os.fspath(path)
        return text if isinstance(text, str) and text.startswith(ROOT) else None

    def by_path(real: Any, call: Any) -> Any:
        def answered(path: Any, *args: Any, **more: Any) -> Any:
            text = ours(path)
            return real(path, *args, **more) if text is None else call(text, *args, **more)

        return answered

    def by_descriptor(real: Any, call: Any) -> Any:
        def answered(descriptor: Any, *args: Any) -> Any:
            if isinstance(descriptor, int) and descriptor > first:
                return call(descriptor, *args)
            return real(descriptor, *args)

        return answered

    def pread(descriptor: int, size: int, position: int) -> bytes:
        return bytes(disks.file(descriptor)[0].data[position : position + size])

    def preadv(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        del flags  # all of it is in memory
        read = 0
        for buffer in buffers:
            data = pread(descriptor, len(buffer), position + read)
            buffer[: len(data)] = data
            read += len(data)
        return read

    def fstat(descriptor: int) -> Any:
        file, _ = disks.file(descriptor)
        return SimpleNamespace(
            st_mode=stat.S_IFREG | 0o644, st_size=len(file.data), st_mtime_ns=file.mtime_ns
        )

    def pwritev(descriptor: int, buffers: Any, position: int) -> int:
        return disks.pwrite(descriptor, b"".join(buffers), position)

    def write(descriptor: int, data: Any) -> int:
        return disks.pwrite(descriptor, data, len(disks.file(descriptor)[0].data))

    def rename(old: str, new: Any) -> None:
        disks.rename(old, os.fspath(new))

    def rmtree(path: str, ignore_errors: bool = False) -> None:
        del ignore_errors
        if path.rstrip("/") != path or not _exists(path):
            return
        disks.unlink(path)

    def _exists(path: str) -> bool:
        try:
            disks.stat(path)
        except FileNotFoundError:
            return False
        return True

    def opened(path: str, mode: str = "r", *_: Any, **__: Any) -> Any:
        if "w" in mode:
            return _Written(disks, path)
        data = disks.read(path)
        return _Opened(disks, path, data) if "b" in mode else io.StringIO(data.decode())

    real_open = io.open
    return [
        (os, "open", by_path(os.open, lambda path, flags, mode=0o777: disks.open(path, flags))),
        (os, "dup", by_descriptor(os.dup, disks.dup)),
        (os, "close", by_descriptor(os.close, disks.close)),
        (os, "pread", by_descriptor(os.pread, pread)),
        (os, "preadv", by_descriptor(os.preadv, preadv)),
        (os, "fstat", by_descriptor(os.fstat, fstat)),
        (os, "pwrite", by_descriptor(os.pwrite, disks.pwrite)),
        (os, "pwritev", by_descriptor(os.pwritev, pwritev)),
        (os, "write", by_descriptor(os.write, write)),
        (os, "fsync", by_descriptor(os.fsync, disks.fsync)),
        (os, "fdatasync", by_descriptor(os.fdatasync, disks.fsync)),
        (os, "ftruncate", by_descriptor(os.ftruncate, disks.ftruncate)),
        (os, "posix_fadvise", by_descriptor(os.posix_fadvise, lambda *_: None)),
        (os, "rename", by_path(os.rename, rename)),
        (os, "replace", by_path(os.replace, rename)),
        (os, "unlink", by_path(os.unlink, disks.unlink)),
        (os, "mkdir", by_path(os.mkdir, lambda path, mode=0o777: disks.mkdir(path))),
        (os, "listdir", by_path(os.listdir, disks.listdir)),
        (os, "scandir", by_path(os.scandir, lambda path: _Scan(disks, path))),
        (os, "stat", by_path(os.stat, lambda path, **_: disks.stat(path))),
        (shutil, "rmtree", by_path(shutil.rmtree, rmtree)),
        (fcntl, "flock", by_descriptor(fcntl.flock, lambda *_: None)),
        (io, "open", by_path(real_open, opened)),
        (builtins, "open", by_path(builtins.open, opened)),
    ]


class _Opened(io.BytesIO):
    """A file opened for reading, which also has a descriptor."""

    def __init__(self, disks: Disks, path: str, data: bytes) -> None:
        super().__init__(data)
        self._disks = disks
        self._descriptor = disks.open(path, os.O_RDONLY)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        self._disks.close(self._descriptor)
        super().close()


class _Written(io.BytesIO):
    """A file opened for writing; its bytes are there once it is closed."""

    def __init__(self, disks: Disks, path: str) -> None:
        super().__init__()
        self._disks, self._path = disks, path

    def close(self) -> None:
        if not self.closed:
            self._disks.write(self._path, self.getvalue())
        super().close()


class _Scan:
    """Result of ``os.scandir``, as far as ``Path.glob`` needs it."""

    def __init__(self, disks: Disks, path: str) -> None:
        _, entry = disks._entry(path)
        self._entries = [
            SimpleNamespace(
                name=name,
                path=f"{path}/{name}",
                is_dir=lambda found=found: isinstance(found, Directory),
                is_symlink=lambda: False,
            )
            for name, found in entry.names.items()  # type: ignore[union-attr]
        ]

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)
