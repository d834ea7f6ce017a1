"""Temporary folders of killed processes are removed, and nothing else."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark import scratch
from tidemark.scratch import ScratchFolder

HOLDER = """
import sys
from tidemark.scratch import ScratchFolder
folder = ScratchFolder("test")
(folder.create() / "key").touch()
print(folder.path, flush=True)
sys.stdin.read()
folder.remove()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of this process and of those that it starts."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(scratch, "_swept", set())
    return folder


def begin(process: str = HOLDER) -> tuple["subprocess.Popen[str]", Path]:
    started = subprocess.Popen(
        [sys.executable, "-c", process], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    return started, Path(started.stdout.readline().strip())


def test_a_folder_is_private_and_removed_at_the_end(place: Path) -> None:
    with ScratchFolder("test") as folder:
        assert folder.parent == place
        assert folder.name.startswith("tidemark-test-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "file").touch()
        (folder / "link").symlink_to(place)
    assert list(place.iterdir()) == []


def test_a_folder_is_created_once_and_removed_once(place: Path) -> None:
    folder = ScratchFolder("test")
    folder.remove()
    assert folder.create() == folder.create() == folder.path
    folder.remove()
    folder.remove()
    assert list(place.iterdir()) == []


def test_folders_of_killed_processes_are_removed(place: Path) -> None:
    killed, left = begin()
    running, used = begin()
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "key").exists()
        with ScratchFolder("test") as folder:
            assert set(place.iterdir()) == {folder, used}
        # Once for each process.
        assert (used / "key").exists()
    finally:
        running.communicate()
        killed.communicate()
    assert list(place.iterdir()) == []


def left_behind(place: Path) -> Path:
    """Return a folder as a killed process leaves it."""
    folder = ScratchFolder("test")
    folder.create()
    assert folder._lock is not None
    os.close(folder._lock)
    (folder.path / "key").touch()
    return folder.path


def without_lock(folder: Path) -> None:
    (folder / scratch._LOCK).unlink()


def lock_is_a_link(folder: Path) -> None:
    without_lock(folder)
    (folder / scratch._LOCK).symlink_to(folder / "key")


def lock_is_a_pipe(folder: Path) -> None:
    without_lock(folder)
    os.mkfifo(folder / scratch._LOCK)


def is_a_link(folder: Path) -> None:
    target = folder.rename(folder.parent / "precious")
    folder.symlink_to(target)


def has_another_name(folder: Path) -> None:
    folder.rename(folder.parent / "tidemar-k")


def is_renamed(folder: Path) -> None:
    folder.rename(folder.parent / "tidemark-precious")


@pytest.mark.parametrize(
    "change",
    [without_lock, lock_is_a_link, lock_is_a_pipe, is_a_link, has_another_name, is_renamed],
)
def test_other_folders_stay(place: Path, change: Callable[[Path], None]) -> None:
    change(left_behind(place))
    before = sorted(place.rglob("*"))
    scratch._swept.clear()
    with ScratchFolder("test") as folder:
        assert sorted(path for path in place.rglob("*") if folder not in (path, path.parent)) == (
            before
        )


def test_folders_of_other_users_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = left_behind(place)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    scratch._swept.clear()
    scratch._sweep(place)
    assert (folder / "key").exists()


def test_links_in_a_folder_are_not_followed(place: Path) -> None:
    folder, precious = left_behind(place), place / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (folder / "link").symlink_to(precious)
    (folder / "deep").mkdir()
    (folder / "deep" / "link").symlink_to(precious)
    scratch._swept.clear()
    with ScratchFolder("test"):
        assert not folder.exists()
        assert (precious / "file").exists()


def test_one_process_removes_a_limited_number(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_REMOVED_MAX", 2)
    for _ in range(5):
        scratch._swept.add(place)
        left_behind(place)
    for left in (3, 1, 0):
        scratch._swept.clear()
        with ScratchFolder("test"):
            assert len(list(place.iterdir())) == left + 1


def test_a_file_that_a_child_adds_is_removed_later(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ScratchFolder("test")
    (folder.create() / "first").touch()
    unlink = os.unlink

    def late(name: str, **named: int) -> None:
        unlink(name, **named)
        (folder.path / "late").touch()

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", late)
        folder.remove()
    assert (folder.path / "late").exists()
    scratch._swept.clear()
    with ScratchFolder("test") as other:
        assert list(place.iterdir()) == [other]


def test_a_directory_without_locks_works(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    with ScratchFolder("test") as folder:
        assert not (folder / scratch._LOCK).exists()
    assert list(place.iterdir()) == []
