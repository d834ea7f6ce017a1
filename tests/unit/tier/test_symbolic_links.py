"""A writer of a shared tier directory cannot lead a broker outside of it."""

import os
from pathlib import Path

import pytest

from tidemark.tier.stores import directory
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.objects import ObjectNotFound, StoreUnavailable

KEY = "data/t/0/1.log"


@pytest.fixture(params=["one call", "a call for each folder"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DirectoryStore:
    # Older kernels and other systems lack the call that opens a whole path.
    if request.param != "one call":
        monkeypatch.setattr(directory, "_system_call", None)
    (tmp_path / "tier").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "1.log").write_bytes(b"secret")
    return DirectoryStore(tmp_path / "tier")


def link_in(tmp_path: Path, where: str, target: Path) -> None:
    link = tmp_path / "tier" / where
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


@pytest.fixture(params=["the file", "its folder", "a folder above"])
def link_outside(request: pytest.FixtureRequest, tmp_path: Path, store: DirectoryStore) -> None:
    outside = tmp_path / "outside"
    # Each component of the object's path is a link once.
    if request.param == "the file":
        link_in(tmp_path, KEY, outside / "1.log")
    elif request.param == "its folder":
        link_in(tmp_path, "data/t/0", outside)
    else:
        (outside / "0").mkdir()
        (outside / "0" / "1.log").write_bytes(b"secret")
        link_in(tmp_path, "data/t", outside)


@pytest.mark.usefixtures("link_outside")
def test_objects_behind_a_link_are_not_read(store: DirectoryStore) -> None:
    for read in (lambda: store.get(KEY), lambda: store.get_range(KEY, 0, 6)):
        with pytest.raises(StoreUnavailable, match="behind a link"):
            read()


def test_objects_behind_a_link_are_not_written(store: DirectoryStore, tmp_path: Path) -> None:
    link_in(tmp_path, "data/t/0", tmp_path / "outside")
    for write in (lambda: store.put(KEY, b"x"), lambda: store.create(KEY, b"x")):
        with pytest.raises(StoreUnavailable, match="behind a link"):
            write()
    with pytest.raises(StoreUnavailable, match="behind a link"):
        store.delete(KEY)
    assert (tmp_path / "outside" / "1.log").read_bytes() == b"secret"


def test_a_link_is_replaced_and_not_written_through(store: DirectoryStore, tmp_path: Path) -> None:
    link_in(tmp_path, KEY, tmp_path / "outside" / "1.log")
    store.put(KEY, b"mine")
    assert store.get(KEY).data == b"mine"
    assert (tmp_path / "outside" / "1.log").read_bytes() == b"secret"


def test_listing_does_not_follow_links(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("data/t/1/2.log", b"x")
    link_in(tmp_path, "data/t/0", tmp_path / "outside")
    link_in(tmp_path, "data/t/1/3.log", tmp_path / "outside" / "1.log")
    assert [info.key for info in store.list("data/")] == ["data/t/1/2.log"]
    assert list(store.list("data/t/0/")) == []


def test_a_pipe_does_not_block_a_reader(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("data/t/0/0.log", b"x")
    # Opening a FIFO for reading blocks until a writer opens it.
    os.mkfifo(tmp_path / "tier" / KEY)
    with pytest.raises(StoreUnavailable, match="is not a file"):
        store.get(KEY)


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = DirectoryStore(tmp_path / "link")
    store.put(KEY, b"x")
    assert store.get(KEY).data == b"x"
    store.delete(KEY)
    with pytest.raises(ObjectNotFound):
        store.get(KEY)
