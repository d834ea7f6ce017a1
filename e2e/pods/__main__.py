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

from e2e.pods import kind, unsupported_machine
from e2e.pods.chapters import chosen
from e2e.pods.commands import CommandFailed
from e2e.pods.images import Docker
from e2e.pods.kubernetes import Kubernetes
from e2e.pods.node.starter import on_node
from e2e.pods.outcome import ended
from e2e.pods.progress import Progress
from e2e.pods.providers import KINDS, Machine, choose
from e2e.pods.side_outcome import KEPT, judged
from e2e.pods.stage import HELM_TIMEOUT_S, Stage
from e2e.pods.story import tell
from e2e.pods.supplies import built, programs_of
from e2e.pods.unsupported_machine import CannotRun, NotHere
from tests.helm import Helm, ensure_helm
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.build import ensure_controlplane

DOCKER_TIMEOUT_S = 20


def machine() -> Machine:
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


def on_kind(progress: Progress, chapters: Sequence[str]) -> int:
    """The exit status of a run on a cluster of kind's."""
    kubectl = [str(ensure_controlplane()), "kubectl"]
    ensure_helm()
    # Only the last run's failures are kept.
    shutil.rmtree(KEPT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        # Images before the cluster: a build that fails costs no cluster.
        images = built(Docker(), chapters, programs_of(chapters), Path(folder), progress)
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
            outcome = judged(lambda: tell(stage, chapters), progress, cluster, kubernetes, KEPT)
    return ended(Progress(progress.began_s), {"": outcome})


def main(arguments: list[str]) -> int:
    """Choose, say why, run."""
    progress = Progress()
    try:
        # The first argument may be a provider. The others are chapters.
        wanted = arguments.pop(0) if arguments and arguments[0] in KINDS else ""
        chosen(arguments)
        choice = choose(wanted, machine())
        progress.say(f"provider {choice.provider}: {choice.why}")
        return {"kind": on_kind, "node": on_node}[choice.provider](progress, arguments)
    except NotHere as error:
        return unsupported_machine.tell(error)
    except (CannotRun, CommandFailed, ToolchainError) as error:
        print(f"make e2e: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.say("interrupted; everything that the run created is removed")
        return 130


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main(sys.argv[1:]))
