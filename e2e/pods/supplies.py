"""The images of a run: which ones its chapters need, made once, and how large ours are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.pods.chapters import chosen, own_images
from e2e.pods.chapters.chapter import Chapter
from e2e.pods.commands import CommandFailed
from e2e.pods.images import (
    BROKER,
    CLIENT,
    LARGEST_MB,
    MEGABYTE,
    MINIO,
    OPERATOR,
    OWN,
    PROMETHEUS,
    Builder,
    Image,
    build_all,
)
from e2e.pods.progress import Progress
from tests.monitoring.programs import ensure_prometheus
from tidemark_devcluster.toolchain.build import ensure_minio

#: What every installation has.
ALWAYS = (OPERATOR, BROKER, CLIENT, MINIO)


def programs_of(names: Sequence[str]) -> dict[str, Path]:
    """Static programs that are an image each, by its name. Raises ToolchainError."""
    watched = any(PROMETHEUS in chapter.images for chapter in chosen(names))
    return {MINIO: ensure_minio()} | ({PROMETHEUS: ensure_prometheus()} if watched else {})


def built(
    builder: Builder,
    names: Sequence[str],
    programs: Mapping[str, Path],
    folder: Path,
    progress: Progress,
) -> dict[str, Image]:
    """Return every image of a run of the chapters with the given names.

    Raises CommandFailed, also for an image that exceeds its size limit.
    """
    images = build_all(builder, own_images(names), programs, folder, progress)
    # Only our own images have a size limit.
    for name in [item for item in OWN if item in images]:
        image = images[name]
        short = name.rpartition("/")[2].partition(":")[0]
        sizes = f"{image.size / MEGABYTE:.0f} MB ({image.own_size / MEGABYTE:.0f} above Python)"
        progress.figure(f"{short} image", sizes)
        largest = LARGEST_MB.get(name)
        if largest and image.size > largest * MEGABYTE:
            raise CommandFailed(f"the {short} image has {sizes}: more than {largest} MB")
    return images


def of_chapters(images: Mapping[str, Image], chapters: Sequence[Chapter]) -> dict[str, Image]:
    """Those of a run that these chapters need."""
    needed = {*ALWAYS, *(name for chapter in chapters for name in chapter.images)}
    return {name: image for name, image in images.items() if name in needed}
