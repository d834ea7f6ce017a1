"""The directory as an object store: the rules of the port, compare-and-set between processes, and
faults."""

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.objects import (
    AlreadyExists,
    NotInMemory,
    ObjectNotFound,
    PreconditionFailed,
    StoreUnavailable,
    Version,
)


def test_objects_round_trip(directory: DirectoryStore, tmp_path: Path) -> None:
    directory.put("a/b", b"12345")
    assert directory.get("a/b").data == b"12345"
    assert directory.get_range("a/b", 1, 3) == b"23"
    assert directory.get_range("a/b", 3, 99) == b"45"
    assert directory.get_range("a/b", 5, 99) == b""
    assert list(directory.get_parts("a/b", 1, [2, 1, 5, 5])) == [b"23", b"4", b"5", b""]
    directory.put("a/b", b"6")
    assert directory.get("a/b").data == b"6"


def test_only_cached_files_are_read_on_the_event_loop(
    directory: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.put("a/b", b"12345")
    # Whether the file system tells what it caches is known from the first read.
    with pytest.raises(NotInMemory):
        directory.get_cached_parts("a/b", 0, [5])
    directory.get_parts("a/b", 0, [5])
    assert directory.has_page_cache
    assert list(directory.get_cached_parts("a/b", 1, [2, 1, 1])) == [b"23", b"4", b"5"]
    # A shorter file is left to a thread, too, which reports it. Errors are those of other reads.
    (tmp_path / "a/link").symlink_to(tmp_path / "a/b")
    for key in ("a/none", "a/link", "a"):
        with pytest.raises(NotInMemory):
            directory.get_cached_parts(key, 0, [5])
    # A page is not in memory, or the file system is one that does not tell.
    for number in (errno.EAGAIN, errno.EOPNOTSUPP):
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", _failing(number))
            with pytest.raises(NotInMemory):
                directory.get_cached_parts("a/b", 0, [5])
            other = DirectoryStore(tmp_path)
            other.get_parts("a/b", 0, [5])
            assert other.has_page_cache == (number == errno.EAGAIN)


def test_pages_that_are_not_in_memory_are_not_waited_for(
    directory: DirectoryStore, tmp_path: Path
) -> None:
    size = 1 << 20
    directory.put("a/b", os.urandom(size))
    directory.get_parts("a/b", 0, [5])
    assert len(directory.get_cached_parts("a/b", 0, [size])) == 1
    # One page of each 16 KiB is in memory.
    descriptor = os.open(tmp_path / "a/b", os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for position in range(0, size, 16 * 1024):
        os.pread(descriptor, 1, position)
    os.close(descriptor)
    with pytest.raises(NotInMemory):
        directory.get_cached_parts("a/b", 0, [size])


def _failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, "refused")

    return fail


def test_a_stream_is_stored_completely_or_not_at_all(directory: DirectoryStore) -> None:
    directory.put_stream("x/whole", iter([b"0123", b"", b"456789"]))
    directory.put_stream("x/empty", ())
    assert directory.get("x/whole").data == b"0123456789"
    assert directory.get("x/empty").data == b""

    def failing() -> Iterator[bytes]:
        yield b"0123"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        directory.put_stream("x/short", failing())
    assert [info.key for info in directory.list("x/")] == ["x/empty", "x/whole"]


def test_deleting_many_ignores_missing_objects(directory: DirectoryStore) -> None:
    for key in ("a/b", "a/c", "d"):
        directory.put(key, b"x")
    directory.delete_many(["a/b", "a/none", "d"])
    assert [info.key for info in directory.list("")] == ["a/c"]


def test_missing_objects(directory: DirectoryStore) -> None:
    with pytest.raises(ObjectNotFound):
        directory.get("a/b")
    with pytest.raises(ObjectNotFound):
        directory.get_range("a/b", 0, 1)
    with pytest.raises(PreconditionFailed):
        directory.replace("a/b", b"", Version("x"))
    directory.delete("a/b")
    assert list(directory.list("a/")) == []


def test_compare_and_set(directory: DirectoryStore) -> None:
    first = directory.create("h/1", b"one")
    assert directory.get("h/1").version == first
    with pytest.raises(AlreadyExists):
        directory.create("h/1", b"other")
    second = directory.replace("h/1", b"two", first)
    with pytest.raises(PreconditionFailed):
        directory.replace("h/1", b"three", first)
    assert directory.get("h/1") == type(directory.get("h/1"))(b"two", second)


def test_listing_is_sorted_and_hides_internal_files(
    directory: DirectoryStore, tmp_path: Path
) -> None:
    for key in ("b", "a/2", "a/1", "a.x/9"):
        directory.put(key, b"12")
    directory.create("c", b"3")
    # "a.x" sorts after "a/" as a key, although "." is smaller than "/" in the folder names.
    assert [info.key for info in directory.list("")] == ["a/1", "a/2", "a.x/9", "b", "c"]
    (info,) = directory.list("a.x/")
    assert (info.key, info.size_bytes) == ("a.x/9", 2)
    assert (list(directory.folders("")), list(directory.folders("a/"))) == (["a", "a.x"], [])
    assert abs(info.last_modified_ms - (tmp_path / "a.x/9").stat().st_mtime * 1000) < 2


def test_deleting_leaves_no_empty_folders(directory: DirectoryStore, tmp_path: Path) -> None:
    directory.put("data/t/0/x", b"1")
    directory.put("data/u/0/x", b"1")
    directory.delete("data/t/0/x")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["u"]
    directory.delete("data/u/0/x")
    assert tmp_path.is_dir()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\0", ".tidemark-store/x"]
)
def test_keys_outside_the_directory_are_rejected(directory: DirectoryStore, key: str) -> None:
    with pytest.raises(ValueError, match=r"key|own folder"):
        directory.put(key, b"")


def test_a_missing_directory_is_unavailable_never_empty(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "unmounted")
    # No call may create the directory: it is the mount point of a volume that is missing.
    calls: list[Any] = [
        lambda: store.get("a"),
        lambda: store.get_range("a", 0, 1),
        lambda: store.put("a", b""),
        lambda: store.create("a", b""),
        lambda: store.replace("a", b"", Version("x")),
        lambda: store.delete("a"),
        lambda: list(store.list("")),
    ]
    for call in calls:
        with pytest.raises(
            StoreUnavailable, match="does not exist: mount the file system"
        ) as caught:
            call()
        assert (caught.value.reason, caught.value.retriable) == ("StoreDirectoryMissing", True)
    assert not (tmp_path / "unmounted").exists()


def test_a_full_disk_is_unavailable(
    directory: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    directory.put("z", b"")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match="No space left on device; make room") as caught:
        directory.put("a/b", b"x")
    assert caught.value.reason == "StoreFull"
    monkeypatch.undo()
    # Neither the object nor a temporary file is left.
    assert [info.key for info in directory.list("")] == ["z"]
    assert list((tmp_path / ".tidemark-store/tmp").iterdir()) == []


def test_temporary_files_of_killed_writers_are_deleted_after_a_day(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put("a", b"")
    old, young = (tmp_path / ".tidemark-store/tmp" / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    DirectoryStore(tmp_path)
    assert (old.exists(), young.exists()) == (False, True)


def _count(path: str, times: int) -> None:
    """Add one to a counter object, by compare-and-set."""
    store = DirectoryStore(Path(path))
    for _ in range(times):
        while True:
            got = store.get("counter")
            try:
                store.replace("counter", b"%d" % (int(got.data) + 1), got.version)
                break
            except PreconditionFailed:
                continue


def test_compare_and_set_holds_between_processes(directory: DirectoryStore, tmp_path: Path) -> None:
    directory.create("counter", b"0")
    # Spawned processes share no lock in memory, as brokers on different nodes.
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(str(tmp_path), 25)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert directory.get("counter").data == b"75"


def test_compare_and_set_holds_between_threads(directory: DirectoryStore, tmp_path: Path) -> None:
    directory.create("counter", b"0")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _n: _count(str(tmp_path), 10), range(4)))
    assert directory.get("counter").data == b"40"


def test_concurrent_writes_and_folder_pruning(directory: DirectoryStore) -> None:
    """A folder that one writer has emptied is not removed while another writer uses it."""

    def churn(name: int) -> None:
        for _ in range(40):
            directory.put(f"d/e/{name}", b"x")
            directory.delete(f"d/e/{name}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert list(directory.list("")) == []


def test_folders_deeper_than_a_key_are_skipped(directory: DirectoryStore, tmp_path: Path) -> None:
    """Before, such folders ended each sweep and each deletion of a topic in a RecursionError."""
    directory.put("data/a/b", b"1")
    folder = os.open(tmp_path / "data", os.O_RDONLY)
    # The path exceeds PATH_MAX, so it can only be made relative to an open folder.
    for _ in range(600):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    assert [info.key for info in directory.list("data/")] == ["data/a/b"]


def test_a_temporary_file_of_any_name_is_removed(directory: DirectoryStore, tmp_path: Path) -> None:
    directory.put("a", b"1")
    (tmp_path / ".tidemark-store" / "tmp" / "a\\b").write_bytes(b"1")
    (found,) = directory.unfinished()
    directory.abort(found)
    assert list(directory.unfinished()) == []
