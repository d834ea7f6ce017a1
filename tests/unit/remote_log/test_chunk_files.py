"""The cache of remote chunks on disk: its limits, and what damages and failures of it cost."""

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.full_disk.disks import SIZE_BYTES, Disk
from tests.unit.remote_log.test_segment_reader import FIRST, CopiedSegment
from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric
from tidemark.tier.segments.integrity import PIECE_BYTES, ObjectDamaged
from tidemark_broker.remote_log import chunk_files
from tidemark_broker.remote_log.chunk_files import AUX, ChunkFiles, ChunkKey
from tidemark_broker.remote_log.segment_reader import Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings

SEGMENT = uuid.UUID(int=7)
CHUNK = 10_000
#: A file's header, which the limits below include.
HEADER = 36
FILE = CHUNK + HEADER


@dataclass
class Cache:
    """A loaded cache in a folder, its metrics, and its clock."""

    folder: Path
    limit_bytes: int = 20 * FILE
    chunk_bytes: int = CHUNK
    counts: Counter[str] = field(default_factory=Counter)
    now_s: float = 0.0
    files: ChunkFiles = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start, or start again with what the folder has, like a broker."""
        self.files = ChunkFiles(
            self.folder,
            limit_bytes=self.limit_bytes,
            chunk_bytes=self.chunk_bytes,
            count=self._count,
            now=lambda: self.now_s,
        )
        self.files.check()

    def _count(self, metric: Metric, amount: float) -> None:
        self.counts[metric.name] += int(amount)

    def read(self, number: int, *, after_s: float = 0) -> bool:
        """Read a chunk as a broker does; return whether it was cached."""
        self.now_s += after_s
        found = self.files.get(key_of(number), CHUNK)
        if found is None:
            self.files.put(key_of(number), data_of(number))
        assert found in (None, data_of(number))
        return found is not None

    def cached(self, *numbers: int) -> list[int]:
        """Return which of the chunks are cached."""
        return [number for number in numbers if self.files.get(key_of(number), CHUNK) is not None]

    def paths(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def path(self, number: int) -> Path:
        (found,) = self.folder.rglob(f"{SEGMENT.hex}.{number * CHUNK}.*")
        return found

    @property
    def errors(self) -> int:
        return self.counts[tier_table.CHUNK_FILE_ERRORS.name]


def key_of(number: int) -> ChunkKey:
    return ChunkKey(SEGMENT, number * CHUNK)


def data_of(number: int) -> bytes:
    return random.Random(number).randbytes(CHUNK)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small file system of its own."""
    made = Disk(tmp_path / "disk")
    try:
        made.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine allows no mounts: {error}")
    yield made
    made.unmount()


def test_chunk_is_read_back(cache: Cache) -> None:
    assert [cache.read(1), cache.read(1)] == [False, True]
    assert cache.files.get(key_of(2)) is None
    assert cache.counts == {
        tier_table.CHUNK_FILE_HITS.name: 1,
        tier_table.CHUNK_FILE_MISSES.name: 2,
    }
    assert (cache.files.size_bytes, len(cache.files)) == (FILE, 1)
    # Files contain records, so no other user may read them.
    assert cache.path(1).stat().st_mode & 0o077 == 0
    assert cache.path(1).stat().st_size == FILE


def test_directory_stays_within_its_limits(cache: Cache) -> None:
    for number in range(100):
        cache.read(number)
        sizes = [path.stat().st_size for path in cache.paths()]
        assert sum(sizes) == cache.files.size_bytes <= cache.limit_bytes
        assert len(sizes) == len(cache.files)
    assert cache.counts[tier_table.CHUNK_FILE_EVICTIONS.name] == 80


def test_number_of_files_is_limited(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=1 << 30, chunk_bytes=1 << 30)
    for number in range(1010):
        cache.files.put(ChunkKey(SEGMENT, number), b"small")
    assert len(cache.files) == len(cache.paths()) == 1000


def test_bulk_scan_does_not_evict_chunks_of_several_readers(cache: Cache) -> None:
    popular = range(8)
    # Four readers, and one that reads much more than the cache holds.
    for _ in range(4):
        for number in popular:
            cache.read(number, after_s=2)
    # The scan reads each chunk in four requests, which count as one use.
    for number in range(400, 1200):
        cache.read(number // 4)
    assert cache.cached(*popular) == list(popular)
    # A restart does not change that: the queues are folders.
    cache.start()
    for number in range(1200, 2000):
        cache.read(number // 4)
    assert cache.cached(*popular) == list(popular)


def test_restart_keeps_the_cache(cache: Cache) -> None:
    for number in range(10):
        cache.read(number)
    cache.start()
    assert cache.cached(*range(11)) == list(range(10))
    assert cache.files.size_bytes == 10 * FILE


def test_unused_files_are_deleted_after_a_week(cache: Cache) -> None:
    """Files may have records that were deleted in the tier."""
    day_s = 86_400
    cache.read(1)
    cache.read(2)
    # A restart does not start the week again.
    written_s = time.time() - 6 * day_s
    for number in (1, 2):
        os.utime(cache.path(number), (written_s, written_s))
    cache.start()
    assert cache.cached(2) == [2]
    cache.now_s += 1.5 * day_s
    cache.files.check()
    assert len(cache.paths()) == len(cache.files) == 1
    assert cache.cached(1, 2) == [2]
    cache.now_s += 7.5 * day_s
    cache.files.check()
    assert cache.paths() == []


def test_restart_with_a_lower_limit_evicts_the_oldest_chunks(cache: Cache) -> None:
    for number in range(10):
        cache.read(number)
    cache.limit_bytes = 4 * FILE
    cache.start()
    assert cache.cached(*range(10)) == [6, 7, 8, 9]
    assert len(cache.paths()) == 4


@pytest.mark.parametrize("position", [0, 5, 20, 27, 31, 35, 36, 5000, FILE - 1])
def test_flipped_byte_is_found(
    cache: Cache, position: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache.read(1)
    damaged = bytearray(cache.path(1).read_bytes())
    damaged[position] ^= 1
    cache.path(1).write_bytes(damaged)
    # The chunk is read from the store again, and cached again.
    assert [cache.read(1), cache.read(1)] == [False, True]
    assert cache.errors == 1
    assert len(warnings(caplog)) == 1


def test_file_of_another_chunk_is_not_returned(cache: Cache) -> None:
    cache.read(1)
    cache.read(2)
    cache.path(1).write_bytes(cache.path(2).read_bytes())
    assert cache.cached(1, 2) == [2]


def test_torn_files_are_found(cache: Cache) -> None:
    """A crash may leave a shorter file, or one of the right size without its data."""
    for number in range(4):
        cache.read(number)
    with cache.path(1).open("r+b") as file:
        file.truncate(FILE // 2)
    with cache.path(2).open("r+b") as file:
        file.truncate(HEADER)
        file.truncate(FILE)
    cache.path(3).write_bytes(b"")
    cache.start()
    assert len(cache.files) == 2
    assert cache.cached(*range(4)) == [0]
    assert len(cache.paths()) == 1


#: Writes chunks until it is killed. The limit lets it evict and promote all the time.
WRITER = """
import sys
from pathlib import Path
from tests.unit.remote_log.test_chunk_files import Cache
cache = Cache(Path(sys.argv[1]))
print("started", flush=True)
for number in range(10**9):
    cache.read(number // 3 % 40, after_s=20)
"""


def test_killed_process_leaves_a_usable_cache(cache: Cache) -> None:
    for seed in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(cache.folder)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.05, 0.15))
        writer.kill()
        writer.communicate()
        cache.start()
        assert len(cache.paths()) == len(cache.files) <= 20
        assert sum(path.stat().st_size for path in cache.paths()) == cache.files.size_bytes
        # Each chunk is the right one, and most are there.
        assert sum(cache.read(number) for number in range(40)) >= 10
    assert cache.errors == 0


def test_foreign_files_are_left_alone(cache: Cache) -> None:
    for name in ("notes.txt", "small/notes.txt", f"main/{SEGMENT.hex}.1"):
        (cache.folder / name).write_text("mine")
    cache.start()
    assert len(cache.paths()) == 3


def test_chunk_of_another_size_is_read_again(cache: Cache) -> None:
    """As after a change of the size of chunks."""
    cache.read(1)
    assert cache.files.get(key_of(1), CHUNK // 2) is None
    cache.files.put(key_of(1), b"x" * (CHUNK // 2))
    assert cache.files.get(key_of(1), CHUNK // 2) == b"x" * (CHUNK // 2)
    assert cache.files.size_bytes == HEADER + CHUNK // 2


def test_only_one_file_of_a_chunk_is_kept(cache: Cache) -> None:
    cache.read(1)
    smaller = cache.folder / "main" / f"{SEGMENT.hex}.{CHUNK}.5000"
    smaller.write_bytes(bytes(HEADER + 5000))
    cache.start()
    assert len(cache.paths()) == len(cache.files) == 1
    assert cache.files.size_bytes == cache.paths()[0].stat().st_size


def test_chunk_that_is_forgotten_during_its_write_leaves_no_file(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = chunk_files._private

    def forget_and_create(path: str, flags: int) -> int:
        cache.files.forget({SEGMENT})
        return create(path, flags)

    monkeypatch.setattr(chunk_files, "_private", forget_and_create)
    cache.read(1)
    assert (cache.cached(1), cache.paths(), cache.errors) == ([], [], 0)


def test_forgotten_segment_is_deleted(cache: Cache) -> None:
    cache.read(1)
    other = ChunkKey(uuid.UUID(int=8), 0)
    cache.files.put(other, b"other")
    cache.files.forget({SEGMENT})
    assert cache.cached(1) == []
    assert cache.files.get(other) == b"other"
    assert len(cache.paths()) == 1


def test_log_takes_precedence_on_a_short_disk(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(disk.path / "cache", limit_bytes=SIZE_BYTES, chunk_bytes=1 << 20)
    reserve = int(SIZE_BYTES * 0.15)

    def put(number: int) -> None:
        cache.files.put(ChunkKey(SEGMENT, number), bytes(1 << 20))

    # The limit would allow all of the disk, but a share of it stays free.
    for number in range(60):
        put(number)
    assert reserve - (1 << 20) < disk.free_bytes < reserve + (3 << 20)
    # A log that grows gets its space without any read, by the next check.
    log = disk.path / "log"
    log.write_bytes(bytes(5 << 20))
    assert disk.free_bytes < reserve
    cache.files.check()
    assert disk.free_bytes >= reserve
    # A log that takes all space gets what the cache has, too.
    while len(cache.files):
        grow(log, disk.free_bytes - (64 << 10))
        cache.files.check()
    grow(log, disk.free_bytes - (64 << 10))
    put(100)
    assert (len(cache.files), cache.paths()) == (0, [])
    assert len(warnings(caplog)) == 1
    # It is used again as soon as there is space.
    log.unlink()
    put(200)
    assert cache.files.get(ChunkKey(SEGMENT, 200)) == bytes(1 << 20)


def grow(log: Path, size_bytes: int) -> None:
    with log.open("ab") as file:
        file.write(bytes(size_bytes))


def test_read_only_disk_costs_only_writes(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(disk.path / "cache")
    cache.read(1)
    remount(disk, "ro")
    # What is there is still read, and the rest comes from the store.
    assert cache.cached(1) == [1]
    assert [cache.read(2) for _ in range(10)] == [False] * 10
    assert cache.errors == 1
    assert len(warnings(caplog)) == 1
    # The broker tries again after a pause, and logs nothing more.
    cache.now_s += 31
    cache.files.check()
    assert not cache.read(2)
    assert (cache.errors, len(warnings(caplog))) == (2, 1)
    remount(disk, "rw")
    cache.now_s += 31
    cache.files.check()
    assert [cache.read(2), cache.read(2), cache.read(1)] == [False, True, True]


def remount(disk: Disk, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk.path)], check=True)


def test_removed_directory_is_created_again(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        cache.read(number)
    shutil.rmtree(cache.folder)
    assert not any(cache.read(number) for number in range(5) for _ in range(2))
    assert len(warnings(caplog)) == 1
    cache.now_s += 31
    cache.files.check()
    assert [cache.read(1), cache.read(1)] == [False, True]


def test_directory_that_cannot_be_created_costs_only_speed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a directory")
    cache = Cache(tmp_path / "file" / "cache")
    assert [cache.read(1), cache.read(1)] == [False, False]
    assert cache.errors == 1
    (message,) = warnings(caplog)
    assert "Check tidemark.remote.chunk.cache.disk.path" in message


def test_concurrent_readers_get_their_own_chunks(cache: Cache) -> None:
    """Threads that read, write and evict the same chunks at the same time."""

    def work(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(300):
            cache.read(min(numbers.randrange(40), numbers.randrange(40)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert cache.errors == 0
    # The directory has exactly the files that the queues have.
    assert len(cache.paths()) == len(cache.files) <= 20
    assert sum(path.stat().st_size for path in cache.paths()) == cache.files.size_bytes
    cache.start()
    assert len(cache.paths()) == len(cache.files)


# ------------------------------------------------------------ below the cache in memory


@dataclass
class ColdReads:
    """Reads of a copied segment with a cache of one byte in memory, so that the disk serves all."""

    segment: CopiedSegment
    cache: Cache

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start with empty caches in memory."""
        settings = RemoteSettings(chunk_bytes=1, chunk_cache_bytes=1, index_cache_bytes=1)
        self.segment.caches = Caches(settings, self.cache.files)

    def all(self) -> list[int]:
        """Read the segment in steps of a part of a chunk; return the base offsets."""
        return [base for n in range(20) for base in self.segment.read(FIRST + 5 * n, 1)]


@pytest.fixture
def cold(tmp_path: Path) -> ColdReads:
    cache = Cache(tmp_path / "cache", limit_bytes=1 << 30, chunk_bytes=PIECE_BYTES)
    return ColdReads(CopiedSegment(tmp_path), cache)


def test_second_pass_reads_nothing_from_the_store(cold: ColdReads) -> None:
    first = cold.all()
    # Each of the six chunks was requested once, although memory held none of them.
    assert sum(count for _, count in cold.segment.reads) == 6
    cold.segment.reads.clear()
    shutil.rmtree(cold.segment.folder / "tier")
    # Without its objects the store could serve nothing, not even the indexes.
    assert cold.all() == first
    assert cold.segment.reads == []


def test_restarted_broker_reads_nothing_from_the_store(cold: ColdReads) -> None:
    first = cold.all()
    shutil.rmtree(cold.segment.folder / "tier")
    cold.cache.start()
    cold.start()
    assert cold.all() == first


@pytest.mark.parametrize("part", [0, PIECE_BYTES, AUX], ids=["chunk", "another chunk", "indexes"])
def test_damaged_file_is_read_from_the_store_again(cold: ColdReads, part: int) -> None:
    first = cold.all()
    (path,) = cold.cache.folder.rglob(f"*.{part}.*")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert cold.all() == first
    assert cold.cache.errors == 1
    assert cold.all() == first
    assert cold.cache.errors == 1


def test_valid_file_with_wrong_data_is_dropped_with_its_segment(cold: ColdReads) -> None:
    """Damage that happened in memory, before the checksum was made."""
    first = cold.all()
    segment_id = cold.segment.entry.segment_id
    cold.cache.files.forget({segment_id})
    cold.cache.files.put(ChunkKey(segment_id, 0), bytes(PIECE_BYTES))
    with pytest.raises(ObjectDamaged):
        cold.all()
    # The fetcher does this before it reads once more.
    cold.segment.caches.forget(segment_id)
    assert cold.all() == first


def test_waiting_readers_share_one_request(cold: ColdReads) -> None:
    caches = Caches(RemoteSettings(chunk_bytes=1), cold.cache.files)
    begin = threading.Barrier(8)

    def read() -> bytes:
        begin.wait(5)
        reader = SegmentReader(cold.segment.tier, caches, cold.segment.entry)
        return reader.read(FIRST, 1)[0]

    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(read) for _ in range(8)]
        assert len({future.result(10) for future in futures}) == 1
    assert cold.segment.reads == [(0, 1)]
