"""What dpkg knows of the packages that files were taken of: for scanners, and for their licences.

A scanner learns what is in an image from dpkg's records. One folder for each package, of which some
files are there, is what images without a package manager have, and Trivy, Grype and Docker Scout
read it: ``/var/lib/dpkg/status.d/NAME`` as in dpkg's own list, ``NAME.md5sums`` beside it. An image
that is no Debian's has no such records, and gets none.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from images.tree import Tree

_DPKG = Path("/var/lib/dpkg")
_DOC = Path("/usr/share/doc")
_RELEASE = (Path("/etc/os-release"), Path("/etc/debian_version"))


def add_records(tree: Tree, source: Path = Path("/")) -> list[str]:
    """Add to the tree whose files these are; the names of the packages."""
    for path in filter(lambda each: _below(source, each).exists(), _RELEASE):
        tree.add(path)
    taken = {str(path) for path in tree.taken}
    stanzas = _stanzas(_below(source, _DPKG / "status"))
    records = {
        name: _below(source, _DPKG / "info" / f"{listed}.md5sums")
        for listed, files in _lists(_below(source, _DPKG / "info"))
        if any(_real(source, path) in taken for path in files)
        for name in [listed.partition(":")[0]]
        if name in stanzas
    }
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
    """By package, its paragraph of dpkg's list of what is installed."""
    if not status.exists():
        return {}
    paragraphs = status.read_text("utf-8").strip().split("\n\n")
    return {each.partition("\n")[0].removeprefix("Package: "): f"{each}\n" for each in paragraphs}


def _lists(info: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """By package, as dpkg calls it ("libc6:amd64"), the files that it brought."""
    for path in sorted(info.glob("*.list")):
        yield path.stem, path.read_text("utf-8").splitlines()


def _real(source: Path, path: str) -> str:
    """A file of a package by the name under which it is taken: its folders may be links by now."""
    folder, _, name = path.rpartition("/")
    return f"{_folder(source, folder or '/')}/{name}"


@cache
def _folder(source: Path, folder: str) -> str:
    real = _below(source, Path(folder)).resolve()
    return f"/{real.relative_to(source)}" if real.is_relative_to(source) else folder


def _below(source: Path, path: Path) -> Path:
    return source / path.relative_to("/")
