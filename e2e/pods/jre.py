"""A Java runtime in one folder, out of Debian's package and without installing it.

An image that copies a runtime needs it whole. Debian's has its settings under /etc, behind links
with whole paths: here each is replaced by what it means. What is left out is what another package
brings, such as the certificates of authorities; the programs of a job find theirs elsewhere.
"""

import shutil
import tempfile
from pathlib import Path

from e2e.pods.commands import CommandFailed, run

DOWNLOAD_TIMEOUT_S = 600
META_PACKAGE = "default-jre-headless"


def unpack(target: Path) -> None:
    """Debian's default runtime in ``target``, which is made. Raises CommandFailed."""
    with tempfile.TemporaryDirectory() as folder:
        # The person whom apt takes for a download must reach the folder.
        Path(folder).chmod(0o755)
        run(["apt-get", "-qq", "update"], timeout_s=DOWNLOAD_TIMEOUT_S)
        run(
            ["apt-get", "-qq", "download", _package()],
            timeout_s=DOWNLOAD_TIMEOUT_S,
            folder=Path(folder),
        )
        (package,) = Path(folder).glob("*.deb")
        root = Path(folder, "root")
        run(["dpkg-deb", "--extract", package, root])
        # Of the links to one home, only the real folder counts.
        homes = [path.parents[1] for path in root.glob("usr/lib/jvm/*/bin/java")]
        (home,) = [path for path in homes if not path.is_symlink()]
        copy_without_links(root, home, target)


def _package() -> str:
    """The one that the default depends on, such as openjdk-17-jre-headless."""
    lines = run(["apt-cache", "depends", "--important", META_PACKAGE]).splitlines()
    for line in lines:
        word, _, name = line.strip().partition(" ")
        if word == "Depends:" and name.startswith("openjdk-"):
            return name
    raise CommandFailed(f"{META_PACKAGE} names no openjdk: {lines}")


def copy_without_links(root: Path, source: Path, target: Path) -> None:
    """``source`` as ``target``; links are followed as if ``root`` were /, and those that lead to
    nothing are left out."""
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        real = _real(root, path)
        if real.is_dir():
            copy_without_links(root, real, target / path.name)
        elif real.exists():
            shutil.copy2(real, target / path.name)


def _real(root: Path, path: Path) -> Path:
    """Resolve a path below ``root`` through chains of links."""
    while path.is_symlink():
        to = path.readlink()
        path = root / to.relative_to("/") if to.is_absolute() else path.parent / to
    return path
