"""Files of a certificate folder are replaced atomically, also across crashes."""

import os
import stat
import threading
from pathlib import Path

import pytest

from tidemark_operator.certificates import certificate_stores
from tidemark_operator.certificates.certificate_stores import read_files, write_files

FORMER = {"tls.key": b"k1", "tls.crt": b"c1", "other.crt": b"o1"}
NEXT = {"tls.key": b"k2", "tls.crt": b"c2"}


def through_names(folder: Path) -> dict[str, bytes]:
    names = [path for path in folder.iterdir() if not path.name.startswith("..")]
    return {path.name: path.read_bytes() for path in names}


def test_written_files_replace_all_former_ones(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    assert read_files(folder) == {}
    for data in (FORMER, NEXT):
        write_files(folder, data)
        assert read_files(folder) == through_names(folder) == data
    assert len(list(folder.iterdir())) == len(NEXT) + 2  # the link ..data and its target


def test_two_threads_may_write_the_same_folder(tmp_path: Path) -> None:
    folder, together = tmp_path / "tls", threading.Barrier(2)

    def write(data: dict[str, bytes]) -> None:
        for _ in range(20):
            # Both threads write at the same moment, then both read.
            together.wait(5)
            write_files(folder, data)
            together.wait(5)
            found.append(read_files(folder))

    found: list[dict[str, bytes]] = []
    threads = [threading.Thread(target=write, args=(data,)) for data in (FORMER, NEXT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 40
    assert all(data in (FORMER, NEXT) for data in found)
    assert read_files(folder) == through_names(folder)


def test_only_the_owner_has_access(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    write_files(folder, FORMER)
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("last", range(12))
def test_a_crash_leaves_the_former_version_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    folder = tmp_path / "tls"
    write_files(folder, FORMER)
    calls = 0

    def counted(function: object) -> object:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls > last:
                raise OSError("power cut")
            return function(*arguments, **named)  # type: ignore[operator]

        return call

    with monkeypatch.context() as patched:
        # Fail at each system call of the write, in order.
        for owner, name in ((os, "open"), (os, "fsync"), (Path, "rename"), (Path, "symlink_to")):
            patched.setattr(owner, name, counted(getattr(owner, name)))
        # The cleanup of old versions does not run after a power cut.
        patched.setattr(certificate_stores.shutil, "rmtree", lambda *_, **__: None)
        try:
            write_files(folder, NEXT)
        except OSError:
            assert calls > last
    assert read_files(folder) in (FORMER, NEXT)
    # Key and certificate must be of the same version.
    by_name = tuple((folder / name).read_bytes() for name in NEXT)
    assert by_name in ((b"k1", b"c1"), (b"k2", b"c2"))
    write_files(folder, NEXT)
    assert read_files(folder) == through_names(folder) == NEXT
    assert len(list(folder.iterdir())) == len(NEXT) + 2
