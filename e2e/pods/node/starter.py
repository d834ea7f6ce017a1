"""A run on nodes of our own: what they need is made once, then each side has its namespaces."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.pods.buildah import Buildah
from e2e.pods.chapters import chosen, own_images
from e2e.pods.images import Image
from e2e.pods.node.debian import ensure_packages
from e2e.pods.node.leftovers import folder_made, layout_of
from e2e.pods.node.machine_check import ensure_namespaces
from e2e.pods.node.node_run import OUTCOME, PLAN, Plan
from e2e.pods.node.programs import ensure_node, ensure_pause, ensure_policies
from e2e.pods.node.sandbox import run_inside
from e2e.pods.outcome import Outcome, ended
from e2e.pods.progress import Progress
from e2e.pods.side_outcome import KEPT
from e2e.pods.sides import Side, how_many, shared_out
from e2e.pods.supplies import built, of_chapters, programs_of
from e2e.pods.unsupported_machine import of_the_machine
from tests.helm import ensure_helm
from tidemark_devcluster.toolchain.build import ensure_controlplane
from tidemark_devcluster.toolchain.cache import locked, user_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class _Supplies:
    """Supplies that every side of a run receives."""

    node: Path
    pause: Path
    policies: Path
    kubectl: list[str]
    images: dict[str, Image]


def on_node(progress: Progress, names: Sequence[str]) -> int:
    """Run the chapters with the given names and return the exit status.

    Other runs may run at the same time.

    Raises CommandFailed, ToolchainError, NotHere, CannotRun.
    """
    cache = user_cache() / "e2e"
    shutil.rmtree(KEPT, ignore_errors=True)
    with folder_made(cache) as run_folder:
        # The number of sides depends on the machine's cores and memory.
        sides = shared_out(chosen(names), how_many(names, _cores(), _available_bytes()))
        if len(sides) > 1:
            for side in sides:
                told = ", ".join(chapter.name for chapter in side.chapters)
                progress.say(f"side {side.name}, on a node of its own: {told}")
        supplies = _supplied(cache, run_folder, names, progress)
        plans = [
            _plan(run_folder, side, supplies, progress, alone=len(sides) == 1) for side in sides
        ]
        # All sides run at the same time, and their outcomes are in files.
        statuses = run_inside([["-m", "e2e.pods.node.node_run", str(path)] for path in plans])
        outcomes = {
            side.name: Outcome.read(path.with_name(OUTCOME), status)
            for side, path, status in zip(sides, plans, statuses, strict=True)
        }
        return ended(progress, outcomes)


def _supplied(cache: Path, run_folder: Path, names: Sequence[str], progress: Progress) -> _Supplies:
    kubectl = [str(ensure_controlplane()), "kubectl"]
    ensure_helm()
    # Packages and the store of images are one for all runs.
    with locked(cache / "lock", lambda: progress.say("waiting for another run's images")):
        # A machine that cannot install packages or make namespaces is unsupported, which is no
        # failure of a test.
        with of_the_machine():
            ensure_packages(progress)
            ensure_namespaces(layout_of(run_folder, "trial"))
        node, pause, policies = ensure_node(), ensure_pause(), ensure_policies()
        buildah = Buildah(cache / "buildah", run_folder / "buildah")
        with of_the_machine():
            buildah.prepare(own_images(names), progress)
        images = built(buildah, names, programs_of(names), run_folder / "images", progress)
    return _Supplies(node=node, pause=pause, policies=policies, kubectl=kubectl, images=images)


def _plan(
    run_folder: Path, side: Side, supplies: _Supplies, progress: Progress, *, alone: bool
) -> Path:
    """Write one side's plan and return its path."""
    layout = layout_of(run_folder, side.name)
    layout.root.mkdir()
    plan = Plan(
        root=layout.root,
        side="" if alone else side.name,
        program=supplies.node,
        pause=supplies.pause,
        policies=supplies.policies,
        kubectl=supplies.kubectl,
        images=of_chapters(supplies.images, side.chapters),
        began_s=progress.began_s,
        kept=KEPT if alone else KEPT / side.name,
        chapters=[chapter.name for chapter in side.chapters],
        again=side.again,
    )
    plan.write(layout.root / PLAN)
    return layout.root / PLAN


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) << 10
