"""``python -m e2e.pods [PROVIDER] [CHAPTER …]``: charts, images and pods on a real kubelet.

The one run that needs more than an ordinary user's rights, and so not a part of the tests.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from e2e.pods import kind, not_here
from e2e.pods.chapters import chosen, own_images
from e2e.pods.commands import CommandFailed
from e2e.pods.images import (
    LARGEST_MB,
    MEGABYTE,
    MINIO,
    OWN,
    PROMETHEUS,
    ROOT,
    Buildah,
    Docker,
    Image,
    build_all,
)
from e2e.pods.judged import judged
from e2e.pods.kubernetes import Kubernetes
from e2e.pods.node.debian import ensure_packages
from e2e.pods.node.inside import Plan
from e2e.pods.node.programs import ensure_node, ensure_pause, ensure_policies
from e2e.pods.node.sandbox import layout_of, remove_leftovers, run_inside
from e2e.pods.node.trial import ensure_namespaces
from e2e.pods.not_here import CannotRun, NotHere, of_the_machine
from e2e.pods.progress import Progress
from e2e.pods.providers import KINDS, Machine, choose
from e2e.pods.stage import HELM_TIMEOUT_S, Stage
from e2e.pods.story import tell
from tests.helm import Helm, ensure_helm
from tests.monitoring.programs import ensure_prometheus
from tidemark_cli.toolchain.cache import locked, user_cache
from tidemark_cli.toolchain.errors import ToolchainError
from tidemark_cli.toolchain.programs import ensure_controlplane, ensure_minio

KEPT = ROOT / "build" / "e2e"
DOCKER_TIMEOUT_S = 20


def machine() -> Machine:
    """This one."""
    programs = frozenset(name for name in ("kind", "docker", "apt-get") if shutil.which(name))
    return Machine(
        system=sys.platform,
        root=os.geteuid() == 0,
        debian="apt-get" in programs and Path("/etc/debian_version").exists(),
        programs=programs,
        docker_answers={"kind", "docker"} <= programs and _docker_answers(),
    )


def _docker_answers() -> bool:
    try:
        done = subprocess.run(
            ["docker", "info"], capture_output=True, check=False, timeout=DOCKER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def programs_of(chapters: Sequence[str]) -> dict[str, Path]:
    """Static programs that are an image each, by its name. Raises ToolchainError."""
    watched = any(PROMETHEUS in chapter.images for chapter in chosen(chapters))
    return {MINIO: ensure_minio()} | ({PROMETHEUS: ensure_prometheus()} if watched else {})


def on_node(progress: Progress, chapters: Sequence[str]) -> int:
    """The exit status of a run on a node of our own, which may stand beside others."""
    folder = user_cache() / "e2e"
    remove_leftovers(folder)
    layout = layout_of(folder, os.getpid())
    layout.root.mkdir(mode=0o700, parents=True)
    try:
        kubectl = [str(ensure_controlplane()), "kubectl"]
        ensure_helm()
        # Packages and the store of images are one for all runs.
        with locked(folder / "lock", lambda: progress.say("waiting for another run's images")):
            with of_the_machine():
                ensure_packages(progress)
                ensure_namespaces(layout)
            programs = ensure_node(), ensure_pause(), ensure_policies()
            own = own_images(chapters)
            buildah = Buildah(folder / "buildah", layout.root / "buildah")
            with of_the_machine():
                buildah.prepare(own, progress)
            images = build_all(
                buildah, own, programs_of(chapters), layout.root / "images", progress
            )
        tell_sizes(images, progress)
        plan = Plan(
            root=layout.root,
            cgroup=layout.cgroup,
            program=programs[0],
            pause=programs[1],
            policies=programs[2],
            kubectl=kubectl,
            images=images,
            figures=progress.figures,
            began_s=progress.began_s,
            kept=KEPT,
            chapters=list(chapters),
        )
        plan.write(layout.root / "plan.json")
        return run_inside(["-m", "e2e.pods.node.inside", str(layout.root / "plan.json")])
    finally:
        remove_leftovers(folder)


def on_kind(progress: Progress, chapters: Sequence[str]) -> int:
    """The exit status of a run on a cluster of kind's."""
    kubectl = [str(ensure_controlplane()), "kubectl"]
    ensure_helm()
    with tempfile.TemporaryDirectory() as folder:
        own = own_images(chapters)
        images = build_all(Docker(), own, programs_of(chapters), Path(folder), progress)
        tell_sizes(images, progress)
        with kind.created(progress) as cluster:
            kubernetes = Kubernetes(kubectl, cluster.kubeconfig)
            stage = Stage(
                provider=cluster,
                kubernetes=kubernetes,
                helm=Helm(Path(folder, "helm"), cluster.kubeconfig, HELM_TIMEOUT_S),
                images=images,
                progress=progress,
                reaches_pods=False,
            )
            return judged(lambda: tell(stage, chapters), progress, cluster, kubernetes, KEPT)


def tell_sizes(images: dict[str, Image], progress: Progress) -> None:
    """Each of ours, with and without what is below it. Raises CommandFailed for one that has
    grown too large."""
    for name in [each for each in OWN if each in images]:
        image = images[name]
        short = name.rpartition("/")[2].partition(":")[0]
        sizes = f"{image.size / MEGABYTE:.0f} MB ({image.own_size / MEGABYTE:.0f} above Python)"
        progress.figure(f"{short} image", sizes)
        largest = LARGEST_MB.get(name)
        if largest and image.size > largest * MEGABYTE:
            raise CommandFailed(f"the {short} image has {sizes}: more than {largest} MB")


def main(arguments: list[str]) -> int:
    """Choose, say why, run."""
    progress = Progress()
    try:
        wanted = arguments.pop(0) if arguments and arguments[0] in KINDS else ""
        chosen(arguments)
        choice = choose(wanted, machine())
        progress.say(f"provider {choice.provider}: {choice.why}")
        return {"kind": on_kind, "node": on_node}[choice.provider](progress, arguments)
    except NotHere as error:
        return not_here.tell(error)
    except (CannotRun, CommandFailed, ToolchainError) as error:
        print(f"make e2e: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.say("interrupted; all that the run had made is gone")
        return 130


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main(sys.argv[1:]))
