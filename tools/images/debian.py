"""dpkg's records of the packages that files were taken from, for scanners and for licences.

A scanner reads the content of an image from dpkg's records. Images without a package manager have a
file for each package, which Trivy, Grype and Docker Scout read: ``/var/lib/dpkg/status.d/NAME`` as
in dpkg's own list, ``NAME.md5sums`` beside it. An image that is not based on Debian has no such
records, and gets none.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tools.images.tree import Tree

_DPKG = Path("/var/lib/dpkg")
_DOC = Path("/usr/share/doc")
_RELEASE = (Path("/etc/os-release"), Path("/etc/debian_version"))


def add_records(tree: Tree, source: Path = Path("/")) -> list[str]:
    """Add the records of the packages that own the tree's files; return the names of the
    packages.
    """
    for path in filter(lambda item: _below(source, item).exists(), _RELEASE):
        tree.add(path)
    taken = {str(path) for path in tree.taken}
    stanzas = _stanzas(_below(source, _DPKG / "status"))
    # A package counts if at least one of its files is in the tree.
    records = {
        name: _below(source, _DPKG / "info" / f"{listed}.md5sums")
        for listed, files in _lists(_below(source, _DPKG / "info"))
        if any(_real(source, path) in taken for path in files)
        for name in [listed.partition(":")[0]]
        if name in stanzas
    }
    # Checksums only of the files that are in the tree, or a scanner would report the others as
    # missing.
    for name, sums in sorted(records.items()):
        tree.write(_DPKG / "status.d" / name, stanzas[name])
        if sums.exists():
            lines = sums.read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in lines if _real(source, f"/{line[34:].rstrip()}") in taken]
            tree.write(_DPKG / "status.d" / f"{name}.md5sums", "".join(kept))
        licence = _DOC / name / "copyright"
        if _below(source, licence).exists():
            tree.add(licence)
    return sorted(records)


def _stanzas(status: Path) -> dict[str, str]:
    """Return the paragraphs of dpkg's list of installed packages, by package."""
    if not status.exists():
        return {}
    paragraphs = status.read_text("utf-8").strip().split("\n\n")
    return {
        paragraph.partition("\n")[0].removeprefix("Package: "): f"{paragraph}\n"
        for paragraph in paragraphs
    }


def _lists(info: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the files of each package, by dpkg's name ("libc6:amd64")."""
    for path in sorted(info.glob("*.list")):
        yield path.stem, path.read_text("utf-8").splitlines()


def _real(source: Path, path: str) -> str:
    """Return the path under which a file of a package is taken, because its folders may be
    links.
    """
    folder, _, name = path.rpartition("/")
    return f"{_folder(source, folder or '/')}/{name}"


@cache
def _folder(source: Path, folder: str) -> str:
    real = _below(source, Path(folder)).resolve()
    return f"/{real.relative_to(source)}" if real.is_relative_to(source) else folder


def _below(source: Path, path: Path) -> Path:
    return source / path.relative_to("/")
