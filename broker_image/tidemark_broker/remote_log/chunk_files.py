"""Chunks of remote segments in files of a directory, the level below the cache in memory.

Each chunk is a file in the folder of its queue of :class:`S3Fifo`, ``small`` or ``main``. A file is
never changed after its write. Its header has the chunk's identity and a CRC-32C, so files need no
fsync: one that a crash has torn, or that the disk has damaged, is dropped when it is read. CRC-32C
takes less CPU time than a digest. It suffices against damage by accident, because the chunk was
verified by its digests when it arrived from the store, and only the broker's user can change files.

The cache must never cost more than speed. A failure of the directory pauses writes, is logged and
counted, and the chunk is read from the store. A share of the file system stays free for the log:
below it the cache evicts chunks and stores no others.
"""

import asyncio
import contextlib
import logging
import os
import re
import struct
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Event
from typing import NamedTuple

import google_crc32c

from tidemark.error_text import error_text
from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric
from tidemark_broker.lock_order import LockRank, ordered_lock
from tidemark_broker.remote_log.s3_fifo import QueueChanges, S3Fifo
from tidemark_broker.replication.threads import in_thread

logger = logging.getLogger(__name__)

#: Magic and version, segment id, position in the segment, length of the data, and then the CRC-32C
#: of all fields and the data.
_IDENTITY = struct.Struct(">4s16sqI")
_CRC = struct.Struct(">I")
_HEADER_BYTES = _IDENTITY.size + _CRC.size
_MAGIC = b"TMC1"
#: Segment id, position of the chunk, and length of its data, as :func:`_name_of` writes them.
_NAME = re.compile(r"([0-9a-f]{32})\.(-1|[0-9]{1,19})\.([0-9]{1,10})")
_SMALL, _MAIN = "small", "main"
#: Position of a segment's auxiliary object, which is cached like a chunk.
AUX = -1

#: Share of the file system that stays free. Below 10 % the kubelet begins to evict pods.
_FREE_SHARE = 0.15
_CHECK_S = 1.0
#: Writes pause for this time after a failure.
_PAUSE_S = 30.0
_LOG_INTERVAL_S = 600.0
#: Files that are not read for this time are deleted. They may contain records that another broker
#: has deleted from the tier, and no read requests them any more.
_UNUSED_S = 7 * 86_400.0
_UNUSED_CHECK_S = 3600.0
#: Limit of the wait for the list of files at the start, which takes 2 s for 100,000 of them.
_LOAD_WAIT_S = 5.0
#: Files for each chunk of the full size, because the last chunk of a segment is smaller.
_FILES_PER_CHUNK = 2
_FILES_MIN = 1000


class ChunkKey(NamedTuple):
    """Segment, and position of the chunk in its log, or :data:`AUX`."""

    segment_id: uuid.UUID
    position: int


class _Damaged(Exception):
    """A file does not contain the chunk of its name."""


class ChunkFiles:
    """Cache of chunks in a directory. All methods except :meth:`run` block and are thread-safe."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        chunk_bytes: int,
        count: Callable[[Metric, float], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the cache; :meth:`load` reads the directory.

        ``folder``: used by this broker only. ``limit_bytes``: limit of the size of all files.
        ``chunk_bytes``: size of a whole chunk, from which the limit of the number of files follows.
        ``count`` increases a metric. ``now`` returns monotonic seconds.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._limit_files = max(_FILES_MIN, _FILES_PER_CHUNK * limit_bytes // chunk_bytes)
        self._count = count
        self._now = now
        self._queues: S3Fifo[ChunkKey] = S3Fifo(limit_bytes, self._limit_files)
        #: Chunks that are being written, which are in the queues but not readable yet.
        self._writing: set[ChunkKey] = set()
        self._lock = ordered_lock(LockRank.CHUNK_FILES)
        self._loaded = Event()
        self._paused_until_s: float | None = None
        self._last_warning_s = -_LOG_INTERVAL_S
        self._next_unused_check_s = now()

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self._queues.size_bytes

    def __len__(self) -> int:
        return len(self._queues)

    async def run(self) -> None:
        """Read the directory, and then keep the file system's reserve until cancelled."""
        while True:
            try:
                await in_thread(self.check)
            except Exception:
                logger.exception(
                    "the chunk cache could not be checked: this is a fault of the broker, report it"
                )
            await asyncio.sleep(_CHECK_S)

    # ------------------------------------------------------------ chunks

    def get(self, key: ChunkKey, size_bytes: int | None = None) -> bytes | None:
        """Return a chunk's data, None if it is not cached or its file is damaged or lost.

        ``size_bytes``: its expected size (None: unknown). It differs if the size of chunks was
        changed.
        """
        self._loaded.wait(_LOAD_WAIT_S)
        data = None
        try:
            descriptor = self._open(key, size_bytes)
            if descriptor is not None:
                data = _read(descriptor, key)
        except (OSError, _Damaged) as error:
            # The chunk may have been evicted meanwhile, which is no failure.
            if self._drop(key):
                self._warn(
                    f"a chunk of segment {key.segment_id} is read from the store again: "
                    f"{error_text(error)}"
                )
        self._count(tier_table.CHUNK_FILE_MISSES if data is None else tier_table.CHUNK_FILE_HITS, 1)
        return data

    def put(self, key: ChunkKey, data: bytes) -> None:
        """Write a chunk that was read from the store, if there is space for it."""
        size = _HEADER_BYTES + len(data)
        if self._paused_until_s is not None or not self._loaded.is_set():
            return
        try:
            if size <= self._limit_bytes and self._keep_reserve(size):
                self._write(key, size, data)
        except OSError as error:
            with self._lock:
                self._remove(key)
            self._pause(error)

    def forget(self, segment_ids: Collection[uuid.UUID]) -> None:
        """Drop the chunks of damaged or deleted segments."""
        with self._lock:
            for key in [key for key in self._queues if key.segment_id in segment_ids]:
                self._remove(key)

    def _open(self, key: ChunkKey, size_bytes: int | None) -> int | None:
        """Return a descriptor of a chunk's file, None if it is not cached. Raises OSError."""
        # Under the lock, because a promotion renames the file and an eviction deletes it.
        with self._lock:
            size = self._queues.size_of(key)
            if size is None or key in self._writing:
                return None
            if size_bytes is not None and size != _HEADER_BYTES + size_bytes:
                self._remove(key)
                return None
            self._queues.use(key, self._now())
            return os.open(self._path(key, size), os.O_RDONLY | os.O_CLOEXEC)

    def _write(self, key: ChunkKey, size: int, data: bytes) -> None:
        """Write a chunk's file of ``size`` bytes, unless it is cached already. Raises OSError."""
        # Reserve its place first, so that concurrent writes do not exceed the limit together.
        with self._lock:
            if self._queues.size_of(key) is not None or key in self._writing:
                return
            self._writing.add(key)
            self._apply(self._queues.add(key, size, self._now()))
            path = self._path(key, size)
        try:
            identity = _IDENTITY.pack(_MAGIC, key.segment_id.bytes, key.position, len(data))
            crc = google_crc32c.extend(google_crc32c.value(identity), data)
            with open(path, "wb", buffering=0, opener=_private) as file:
                _write_all(file.fileno(), identity + _CRC.pack(crc))
                _write_all(file.fileno(), data)
        finally:
            with self._lock:
                self._writing.discard(key)
                # It was evicted or forgotten before its file existed.
                if self._queues.size_of(key) is None:
                    path.unlink(missing_ok=True)

    def _drop(self, key: ChunkKey) -> bool:
        """Remove a chunk after a failure; count it, and return whether it was cached."""
        with self._lock:
            was_cached = self._remove(key)
        if was_cached:
            self._count(tier_table.CHUNK_FILE_ERRORS, 1)
        return was_cached

    def _remove(self, key: ChunkKey) -> bool:
        """Remove a chunk and its file, under the lock; return whether it was cached."""
        size = self._queues.size_of(key)
        if size is None:
            return False
        path = self._path(key, size)
        self._queues.remove(key)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return True

    def _apply(self, changes: QueueChanges[ChunkKey]) -> None:
        """Rename and delete the files of moved and evicted chunks, under the lock.

        A file that cannot be renamed or deleted, or is lost, is left to :meth:`load`.
        """
        for key, size in changes.promoted:
            with contextlib.suppress(OSError):
                name = _name_of(key, size)
                (self._folder / _SMALL / name).rename(self._folder / _MAIN / name)
        for key, size, was_main in changes.evicted:
            with contextlib.suppress(OSError):
                queue = _MAIN if was_main else _SMALL
                (self._folder / queue / _name_of(key, size)).unlink(missing_ok=True)
        if changes.evicted:
            self._count(tier_table.CHUNK_FILE_EVICTIONS, len(changes.evicted))

    def _path(self, key: ChunkKey, size: int) -> Path:
        queue = _MAIN if self._queues.is_main(key) else _SMALL
        return self._folder / queue / _name_of(key, size)

    # ------------------------------------------------------------ the directory

    def check(self) -> None:
        """Load the directory if it is due, keep the reserve, and delete unused files."""
        paused_until_s = self._paused_until_s
        if not self._loaded.is_set() or (
            paused_until_s is not None and self._now() >= paused_until_s
        ):
            self.load()
        # The log may have grown into the reserve since the last read.
        with contextlib.suppress(OSError):
            self._keep_reserve(0)
        now_s = self._now()
        if now_s >= self._next_unused_check_s:
            self._next_unused_check_s = now_s + _UNUSED_CHECK_S
            with self._lock:
                for key in self._queues.unused_since(now_s - _UNUSED_S):
                    self._remove(key)

    def load(self) -> None:
        """Create the directory, and take over the files that are there.

        Files of an unexpected size are deleted, and the oldest ones above the limits.
        """
        try:
            for queue in (_SMALL, _MAIN):
                (self._folder / queue).mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock:
                queues: S3Fifo[ChunkKey] = S3Fifo(self._limit_bytes, self._limit_files)
                self._queues = queues
                # The order of the writes is that of the queues, except for repeated promotions.
                now_s, now_ns = self._now(), time.time_ns()
                for written_ns, key, size, is_main in sorted(self._files()):
                    # Two files of a chunk have different sizes, because chunks once had another.
                    if queues.size_of(key) is not None:
                        self._remove(key)
                    used_s = now_s - max(0, now_ns - written_ns) / 1e9
                    self._apply(queues.add(key, size, used_s, main=is_main))
            if self._paused_until_s is not None:
                logger.info("the chunk cache in %s is used again", self._folder)
            self._paused_until_s = None
        except OSError as error:
            self._pause(error)
        finally:
            # Readers wait for the first attempt only, whatever its result is.
            self._loaded.set()

    def _files(self) -> Iterator[tuple[int, ChunkKey, int, bool]]:
        """Yield time of the write in ns, key, size and queue of each whole file, under the lock.

        Delete files whose size is not that of their name. Raises OSError.
        """
        for queue in (_SMALL, _MAIN):
            with os.scandir(self._folder / queue) as entries:
                for entry in entries:
                    match = _NAME.fullmatch(entry.name)
                    # Files of other programs are left alone.
                    if match is None or not entry.is_file(follow_symlinks=False):
                        continue
                    key = ChunkKey(uuid.UUID(match[1]), int(match[2]))
                    size, status = int(match[3]) + _HEADER_BYTES, entry.stat(follow_symlinks=False)
                    if key in self._writing:
                        continue
                    # A crash during the write leaves a shorter file.
                    if status.st_size != size or size > self._limit_bytes:
                        Path(entry.path).unlink(missing_ok=True)
                    else:
                        yield status.st_mtime_ns, key, size, queue == _MAIN

    def _keep_reserve(self, size: int) -> bool:
        """Evict chunks if the file system has less than ``size`` bytes above its reserve.

        Return whether they were free before any eviction. Raises OSError.
        """
        figures = os.statvfs(self._folder)
        reserve = int(figures.f_blocks * figures.f_frsize * _FREE_SHARE)
        missing = reserve + size - figures.f_bavail * figures.f_frsize
        if missing <= 0:
            return True
        with self._lock:
            evicted = self._queues.shrink(missing)
            self._apply(evicted)
        if size or evicted.evicted:
            self._warn(
                f"less than {_FREE_SHARE:.0%} of its file system is free, which is for the log. "
                "Chunks are evicted, and no others are stored"
            )
        return False

    def _pause(self, error: OSError) -> None:
        """Stop writing for a while after a failure of the directory."""
        self._count(tier_table.CHUNK_FILE_ERRORS, 1)
        self._paused_until_s = self._now() + _PAUSE_S
        self._warn(
            f"no chunks are stored for {_PAUSE_S:.0f} s, and reads use the store: "
            f"{error_text(error)}. Check tidemark.remote.chunk.cache.disk.path"
        )

    def _warn(self, message: str) -> None:
        """Log a warning about the cache, at most one in ten minutes."""
        now_s = self._now()
        if now_s - self._last_warning_s >= _LOG_INTERVAL_S:
            self._last_warning_s = now_s
            logger.warning("chunk cache in %s: %s", self._folder, message)


def _name_of(key: ChunkKey, size: int) -> str:
    return f"{key.segment_id.hex}.{key.position}.{size - _HEADER_BYTES}"


def _private(path: str, flags: int) -> int:
    # Files contain records, so they are for the broker's user only.
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read(descriptor: int, key: ChunkKey) -> bytes:
    """Return the data of an open file, and close it. Raises OSError and :class:`_Damaged`."""
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        header = file.read(_HEADER_BYTES) or b""
        data = file.readall()
    if len(header) < _HEADER_BYTES:
        raise _Damaged("its file ends within the header")
    identity, (crc,) = header[: _IDENTITY.size], _CRC.unpack(header[_IDENTITY.size :])
    expected = _IDENTITY.pack(_MAGIC, key.segment_id.bytes, key.position, len(data))
    # A file of another chunk, or of another format, has other fields.
    if identity != expected or google_crc32c.extend(google_crc32c.value(identity), data) != crc:
        raise _Damaged("its checksum differs")
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data. Raises OSError."""
    view = memoryview(data)
    while view:
        # A full disk may take a part of the data before it refuses the rest.
        view = view[os.write(descriptor, view) :]
