"""A part of a file system contains the links that lead to its files, and each file once."""

from pathlib import Path

import pytest

from tools.images.tree import Tree, set_times


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Create a system whose /lib is a link, as in Debian."""
    source = tmp_path / "source"
    (source / "usr/lib/python/inner").mkdir(parents=True)
    (source / "lib").symlink_to("usr/lib")
    (source / "usr/lib/libz.so.1.2").write_bytes(b"library")
    (source / "usr/lib/libz.so.1").symlink_to("libz.so.1.2")
    (source / "usr/lib/python/os.py").write_text("import")
    (source / "usr/lib/python/inner/test.py").write_text("test")
    (source / "usr/lib/python/settings.py").symlink_to("/etc/python/settings.py")
    (source / "usr/lib/python/up").symlink_to("..")
    (source / "etc/python").mkdir(parents=True)
    (source / "etc/python/settings.py").write_text("x = 1")
    return source


def files(root: Path) -> set[str]:
    """Return the paths of all entries except folders."""
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_links_to_a_file_are_copied(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/lib/libz.so.1"))
    assert files(tree.root) == {"lib", "usr/lib/libz.so.1", "usr/lib/libz.so.1.2"}
    assert (tree.root / "lib/libz.so.1").read_bytes() == b"library"
    assert Path("/usr/lib/libz.so.1.2") in tree.taken


def test_folder_is_copied_with_link_targets_and_omissions(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/usr/lib/python"), {"inner/test.py", "up"}.__contains__)
    assert (tree.root / "etc/python/settings.py").read_text() == "x = 1"
    assert not (tree.root / "usr/lib/python/inner/test.py").exists()
    assert not (tree.root / "usr/lib/libz.so.1.2").exists()


def test_upward_link_terminates(source: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/usr/lib/python"))
    assert (tree.root / "usr/lib/python/up/libz.so.1").read_bytes() == b"library"


def test_missing_path_is_an_error_but_a_broken_link_is_not(source: Path, tmp_path: Path) -> None:
    (source / "etc/nowhere").symlink_to("gone")
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/etc"))
    assert (tree.root / "etc/nowhere").readlink() == Path("gone")
    with pytest.raises(FileNotFoundError):
        tree.add(Path("/etc/gone"))


def test_all_can_read_only_root_can_write_and_times_are_constant(
    source: Path, tmp_path: Path
) -> None:
    # The copy must be neither writable by others nor run with its owner's rights.
    (source / "usr/lib/libz.so.1.2").chmod(0o6777)
    (source / "usr/lib/python/os.py").chmod(0o600)
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/lib/libz.so.1"))
    tree.add(Path("/lib/python/os.py"))
    tree.folder(Path("/tmp"), 0o1777)
    assert (tree.root / "usr/lib/libz.so.1.2").stat().st_mode & 0o7777 == 0o755
    assert (tree.root / "usr/lib/python/os.py").stat().st_mode & 0o7777 == 0o644
    assert (tree.root / "usr/lib/python").stat().st_mode & 0o7777 == 0o755
    assert (tree.root / "tmp").stat().st_mode & 0o7777 == 0o1777
    set_times(tree.root, 17)
    assert {path.lstat().st_mtime for path in (tree.root, *tree.root.rglob("*"))} == {17}
