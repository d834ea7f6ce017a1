"""Program inside the namespaces: starts the node and runs the chapters on it."""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from e2e.pods.images import Image
from e2e.pods.kubernetes import Kubernetes
from e2e.pods.node.layout import Layout
from e2e.pods.node.node import Node
from e2e.pods.node.sandbox import prepare
from e2e.pods.progress import Progress
from e2e.pods.side_outcome import judged
from e2e.pods.stage import HELM_TIMEOUT_S, Stage
from e2e.pods.story import tell
from e2e.pods.unsupported_machine import of_the_machine
from tests.helm import Helm

PLAN, OUTCOME = "plan.json", "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input that the starter prepares for one side.

    ``side``: prefix of its lines, "" if there is only one side; ``program``: the node's binary.
    """

    root: Path
    side: str
    program: Path
    pause: Path
    policies: Path
    kubectl: list[str]
    images: dict[str, Image]
    began_s: float
    kept: Path
    chapters: list[str]
    again: bool

    def write(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """As :meth:`write` left it."""
        body: dict[str, Any] = json.loads(path.read_text("utf-8"))
        for name in ("root", "program", "pause", "policies", "kept"):
            body[name] = Path(body[name])
        images = body.pop("images").items()
        parts = {
            name: Image(Path(part["archive"]), part["size"], part["own_size"])
            for name, part in images
        }
        return cls(**body, images=parts)


def main(path: Path) -> int:
    """The exit status of this side; more of what came of it is beside the plan."""
    # A shell makes background jobs ignore this signal, but it still has to stop the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plan = Plan.read(path)
    # Kubernetes' clients remember an address's definitions, and each side's server has the same.
    os.environ["KUBECACHEDIR"] = str(plan.root / "kubectl")
    layout = Layout(plan.root)
    kubernetes = Kubernetes(plan.kubectl, layout.admin)
    node = Node(layout, plan.program, plan.pause, plan.policies, kubernetes)
    # Both sides count from the same moment.
    progress = Progress(began_s=plan.began_s, side=plan.side)
    stage = Stage(
        provider=node,
        kubernetes=kubernetes,
        helm=Helm(plan.root / "helm", layout.admin, HELM_TIMEOUT_S),
        images=plan.images,
        progress=progress,
        reaches_pods=True,
    )

    # What fails before the node is Ready is the machine's fault, and no finding.
    def all_of_it() -> None:
        with progress.check("the node is Ready"), of_the_machine():
            prepare(layout)
            node.start()
        tell(stage, plan.chapters, again=plan.again)

    outcome = judged(all_of_it, progress, node, kubernetes, plan.kept)
    outcome.write(path.with_name(OUTCOME))
    return outcome.status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
