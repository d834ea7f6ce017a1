"""Part of a file system: some of its files at their paths, with the links that lead to them.

A path such as ``/lib/ld-linux.so.2`` leads through links, in its folders too, and all of them are
needed to reach the file. Links stay links, so that no file is copied twice.
"""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

TEMPORARY = 0o1777

#: Whether a file is left out, by its path below the added one ("a/b.py").
LeftOut = Callable[[str], bool]


def nothing(_path: str) -> bool:
    """Return False for every path: nothing is left out."""
    return False


class Tree:
    """Part of a file system.

    ``root``: its folder; ``source``: the file system that it is taken from (``/``).
    """

    def __init__(self, root: Path, source: Path = Path("/")) -> None:
        self.root = root
        self._source = source
        #: Files and links that were taken, as they are called in the source, without links.
        self.taken: set[Path] = set()
        self._seen: set[Path] = set()
        root.mkdir(parents=True)

    def add(self, path: Path, left_out: LeftOut = nothing) -> None:
        """Add the target of ``path`` ("/etc/ssl", absolute in the source), folders with their
        content.

        Dangling links are added as they are. Raises FileNotFoundError.
        """
        real = self._walk(path)
        if not self._in_source(real).exists():
            raise FileNotFoundError(path)
        self._take(real, "", left_out)

    def folder(self, path: Path, mode: int) -> None:
        """Create an empty folder."""
        made = self.root / path.relative_to("/")
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(mode)

    def write(self, path: Path, text: str) -> None:
        """Write a generated file."""
        made = self.root / path.relative_to("/")
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text, encoding="utf-8")
        made.chmod(0o644)

    def _take(self, real: Path, below: str, left_out: LeftOut) -> None:
        here = self._in_source(real)
        if here.is_symlink():
            self._take(self._walk(real), below, left_out)
        elif real not in self._seen:
            self._seen.add(real)
            if here.is_dir():
                self._made(real)
                for name in sorted(path.name for path in here.iterdir()):
                    inner = f"{below}/{name}" if below else name
                    if not left_out(inner):
                        self._take(real / name, inner, left_out)
            elif here.is_file():
                shutil.copyfile(here, self._in_tree(real))
                # Independent of the umask of the build: all may read it, only root writes.
                program = here.stat().st_mode & stat.S_IXUSR
                self._in_tree(real).chmod(0o755 if program else 0o644)
                self.taken.add(real)

    def _walk(self, path: Path) -> Path:
        """Return ``path`` without links; add each link and each folder on the way."""
        if path == Path("/"):
            return path
        real = self._walk(path.parent) / path.name
        here, made = self._in_source(real), self._in_tree(real)
        if here.is_symlink():
            to = here.readlink()
            if not made.is_symlink():
                made.symlink_to(to)
                self.taken.add(real)
            return self._walk(Path(os.path.normpath(real.parent / to)))
        if here.is_dir():
            self._made(real)
        return real

    def _made(self, folder: Path) -> None:
        made = self._in_tree(folder)
        if not made.exists():
            made.mkdir()
            made.chmod(0o755)

    def _in_source(self, real: Path) -> Path:
        return self._source / real.relative_to("/")

    def _in_tree(self, real: Path) -> Path:
        return self.root / real.relative_to("/")


def set_times(root: Path, when_s: int) -> None:
    """Set the times of ``root`` and everything in it, so that the build time leaves no trace."""
    for path in (*root.rglob("*"), root):
        os.utime(path, (when_s, when_s), follow_symlinks=False)
