"""``make reproducible``: the images of operator and broker, each built twice from nothing.

A reproducible build lets users verify that an image comes from the published sources. Either all
digests match, or the files that differ are named. Packages come from their registry each time; both
builds use one base.
"""

import dataclasses
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from e2e.pods.buildah import Buildah
from e2e.pods.commands import CommandFailed, run
from e2e.pods.images import BROKER, OPERATOR, OWN, ROOT
from e2e.pods.progress import Failed, Progress
from tidemark_devcluster.toolchain.cache import locked, user_cache

IMAGES = (OPERATOR, BROKER)
PROGRAMS = ("buildah", "mmdebstrap")
SHOWN = 20


def main() -> int:
    """1 where two builds differ, 2 where nothing can be built."""
    progress = Progress()
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if os.geteuid() or missing:
        need = f"root and Debian's {' and '.join(PROGRAMS)}"
        print(f"make reproducible: it needs {need} (apt install {' '.join(PROGRAMS)})")
        return 2
    cache = user_cache() / "e2e"
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            locked(cache / "lock", lambda: progress.say("waiting for another run's images")),
        ):
            # Layers that are never used again: they go with the folder.
            buildah = Buildah(cache / "buildah", Path(folder, "state"), store=Path(folder, "store"))
            buildah.prepare(IMAGES, progress)
            for name in IMAGES:
                _twice(name, buildah, Path(folder), progress)
    except Failed as error:
        progress.say(f"FAILED: {error}")
    except CommandFailed as error:
        print(f"make reproducible: {error}", file=sys.stderr)
        return 2
    print(progress.closing())
    return 1 if progress.failed else 0


def _twice(name: str, buildah: Buildah, folder: Path, progress: Progress) -> None:
    """Build an image twice and compare.

    Raises Failed, CommandFailed.
    """
    # Timestamps in the image are those of the last commit.
    epoch = run(["git", "-C", ROOT, "log", "-1", "--format=%ct"]).strip()
    options = ("--no-cache", "--timestamp", epoch, "--build-arg", f"SOURCE_DATE_EPOCH={epoch}")
    builder = dataclasses.replace(buildah, options=options)
    short = Path(OWN[name]).parent.name
    archives = [folder / f"{short}-{number}.tar" for number in (1, 2)]
    with progress.check(f"{name}, built twice"):
        for archive in archives:
            builder.build(name, ROOT / OWN[name], ROOT, archive)
        if differences := different(*archives):
            raise Failed("\n".join(differences[:SHOWN]))
        progress.figure(name, digest(archives[0]))
    for archive in archives:
        archive.unlink()


def digest(archive: Path) -> str:
    """Return the digest of the image in a docker archive: that of its configuration, which
    names its layers.
    """
    return f"sha256:{_manifest(archive)['Config'].removesuffix('.json')}"


def different(first: Path, second: Path) -> list[str]:
    """Return a line for each difference between the images in two archives; none if they are
    equal.
    """
    if digest(first) == digest(second):
        return []
    # The first difference of layers is usually one file, which is named.
    layers = zip(_manifest(first)["Layers"], _manifest(second)["Layers"], strict=False)
    found = [
        f"layer {number}: {path}"
        for number, (one, other) in enumerate(layers)
        if one != other
        for path in _different_files((first, one), (second, other))
    ]
    return found or ["the configurations"]


def _different_files(first: tuple[Path, str], second: tuple[Path, str]) -> list[str]:
    one, other = _members(*first), _members(*second)
    return sorted(path for path in {*one, *other} if one.get(path) != other.get(path))


def _members(archive: Path, layer: str) -> dict[str, tuple[object, ...]]:
    """Return metadata and digest of each file in a layer, by path."""
    with tarfile.open(archive) as outer, tarfile.open(fileobj=outer.extractfile(layer)) as files:
        return {
            item.name: (
                *(item.mode, item.type, item.uid, item.gid, item.mtime, item.linkname),
                hash(file.read()) if (file := files.extractfile(item)) else None,
            )
            for item in files
        }


def _manifest(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as file:
        manifest = file.extractfile("manifest.json")
        assert manifest is not None
        (image,) = json.load(manifest)
        return dict(image)


if __name__ == "__main__":
    sys.exit(main())
