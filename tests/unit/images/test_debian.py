"""Records of packages in an image are those of dpkg, for packages with files in it."""

from pathlib import Path

from tools.images.debian import add_records
from tools.images.tree import Tree

STATUS = """\
Package: libz1
Status: install ok installed
Version: 1.2-3
Description: a library
 .
 with a paragraph

Package: bash
Status: install ok installed
Version: 5

Package: doc
Status: install ok installed
Version: 1
"""


def debian(source: Path) -> None:
    """Create a system with two packages, whose folders have moved below /usr since."""
    info = source / "var/lib/dpkg/info"
    for folder in (info, source / "usr/lib", source / "usr/share/doc/zlib", source / "etc"):
        folder.mkdir(parents=True)
    (source / "lib").symlink_to("usr/lib")
    for name in ("libz.so.1", "libz.so.9", "bash"):
        (source / "usr/lib" / name).write_text(name)
    (source / "var/lib/dpkg/status").write_text(STATUS)
    (info / "libz1:amd64.list").write_text("/.\n/lib\n/lib/libz.so.1\n/lib/libz.so.9\n")
    (info / "libz1:amd64.md5sums").write_text(
        f"{'1' * 32}  lib/libz.so.1\n{'9' * 32}  lib/libz.so.9\n"
    )
    (info / "bash.list").write_text("/.\n/lib\n/lib/bash\n")
    (source / "usr/share/doc/libz1").symlink_to("zlib")
    (source / "usr/share/doc/zlib/copyright").write_text("the licence")
    (source / "etc/debian_version").write_text("12")


def test_package_of_a_copied_file_is_recorded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    debian(source)
    tree = Tree(tmp_path / "tree", source)
    tree.add(Path("/lib/libz.so.1"))
    assert add_records(tree, source) == ["libz1"]
    records = tree.root / "var/lib/dpkg/status.d"
    assert sorted(path.name for path in records.iterdir()) == ["libz1", "libz1.md5sums"]
    assert (records / "libz1").read_text() == STATUS.partition("\n\n")[0] + "\n"
    # The checksum of the other file is left out, because the image does not have it.
    assert (records / "libz1.md5sums").read_text() == f"{'1' * 32}  lib/libz.so.1\n"
    assert (tree.root / "usr/share/doc/libz1/copyright").read_text() == "the licence"
    assert (tree.root / "etc/debian_version").exists()


def test_other_systems_have_no_records(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    tree = Tree(tmp_path / "tree", tmp_path / "source")
    assert add_records(tree, tmp_path / "source") == []
    assert list(tree.root.iterdir()) == []
