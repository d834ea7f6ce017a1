"""The images of a run: the project's own Dockerfiles, a client's, MinIO and Prometheus.

Docker builds them as they are, on the base that they name; where there is no registry, buildah does
(:mod:`e2e.pods.buildah`). What comes out are docker archives, which any node can be given.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import kafka

from e2e.pods import archives
from e2e.pods.commands import run
from e2e.pods.progress import Progress

ROOT = Path(__file__).parents[2]
REPOSITORY = "e2e.tidemark.dev"
TAG = "e2e"
OPERATOR, BROKER, SPARK, CLIENT, MINIO, PROMETHEUS = (
    f"{REPOSITORY}/{name}:{TAG}"
    for name in ("operator", "broker", "pipeline", "client", "minio", "prometheus")
)
#: The project's own by their Dockerfiles.
OWN = {
    OPERATOR: "operator/Dockerfile",
    BROKER: "broker_image/Dockerfile",
    SPARK: "pipeline/Dockerfile",
}
BUILD_TIMEOUT_S = 900
BUILDS_AT_ONCE = 2
MEGABYTE = 1_000_000
#: In all.
LARGEST_MB = {OPERATOR: 150, BROKER: 120}


@dataclass(frozen=True, slots=True)
class Image:
    """``archive``: a docker archive; sizes in bytes, ``own_size`` without the first layer: a base,
    or the runtime that was taken out of it."""

    archive: Path
    size: int
    own_size: int


class Builder(Protocol):
    """Builder of an image archive from a Dockerfile and a folder."""

    def build(self, name: str, dockerfile: Path, context: Path, archive: Path) -> None: ...


def build_all(
    builder: Builder,
    own: Sequence[str],
    programs: Mapping[str, Path],
    folder: Path,
    progress: Progress,
) -> dict[str, Image]:
    """Every image of a run by its name, as archives in ``folder``; ``own``: which of ours;
    ``programs``: static ones, by the names of their images."""
    folder.mkdir(parents=True, exist_ok=True)

    def make(name: str) -> Image:
        with progress.step(f"building {name}"):
            return _built(builder, name, ROOT / OWN[name], ROOT, folder)

    # Each waits for the registry and the disk now and then. Spark's, the last, takes longest.
    with ThreadPoolExecutor(max_workers=BUILDS_AT_ONCE) as pool:
        images = dict(zip(own[::-1], pool.map(make, own[::-1]), strict=True))
    with progress.step(f"building {CLIENT}"), tempfile.TemporaryDirectory() as context:
        # Pure Python, so that it is the same package in any image.
        shutil.copytree(Path(kafka.__file__).parent, Path(context, "kafka"))
        dockerfile = Path(__file__).with_name("client.Dockerfile")
        images[CLIENT] = _built(builder, CLIENT, dockerfile, Path(context), folder)
    for name, program in programs.items():
        archive = archives.of_program(folder / f"{program.name}.tar", name, program)
        images[name] = Image(archive, archive.stat().st_size, archive.stat().st_size)
    return images


def _built(builder: Builder, name: str, dockerfile: Path, context: Path, folder: Path) -> Image:
    archive = folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
    builder.build(name, dockerfile, context, archive)
    sizes = archives.layer_sizes(archive)
    return Image(archive, sum(sizes), sum(sizes[1:]))


class Docker:
    """docker, podman's docker, or whatever answers to that name."""

    def build(self, name: str, dockerfile: Path, context: Path, archive: Path) -> None:
        command = ["docker", "build", "--file", dockerfile, "--tag", name, context]
        run(command, timeout_s=BUILD_TIMEOUT_S)
        run(["docker", "save", "--output", archive, name], timeout_s=BUILD_TIMEOUT_S)
