"""The provider for people with Docker: a cluster of one node, made by the kind command."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.pods.commands import CommandFailed, run
from e2e.pods.progress import Progress

NAME = "tidemark-e2e"
NODE = f"{NAME}-control-plane"
CREATE_TIMEOUT_S = 600
_CTR = ("docker", "exec", NODE, "ctr", "--namespace", "k8s.io")


@dataclass(frozen=True, slots=True)
class Kind:
    """A cluster that runs; ``folder`` is the run's own."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def load(self, archives: Mapping[str, Path]) -> None:
        for path in archives.values():
            command = ["kind", "load", "image-archive", path, "--name", NAME]
            run(command, timeout_s=CREATE_TIMEOUT_S)

    def tag(self, image: str, other: str) -> None:
        run([*_CTR, "images", "tag", "--force", image, other])

    def signal(self, container_id: str, name: str) -> None:
        run([*_CTR, "tasks", "kill", "--signal", name, container_id])

    def way_in(self) -> str:
        return f"kubectl --kubeconfig {self.kubeconfig}"

    def logs(self) -> Sequence[Path]:
        folder = self.folder / "logs"
        with contextlib.suppress(CommandFailed):
            run(["kind", "export", "logs", folder, "--name", NAME])
        return [path for path in sorted(folder.rglob("*.log")) if path.is_file()]


@contextlib.contextmanager
def created(progress: Progress) -> Iterator[Kind]:
    """A cluster that goes when the block ends. Raises CommandFailed."""
    with tempfile.TemporaryDirectory() as folder:
        kind = Kind(Path(folder))
        try:
            with progress.step("kind makes a cluster"):
                named = ["--name", NAME, "--kubeconfig", kind.kubeconfig, "--wait", "120s"]
                run(["kind", "create", "cluster", *named], timeout_s=CREATE_TIMEOUT_S)
            yield kind
        finally:
            with contextlib.suppress(CommandFailed):
                run(["kind", "delete", "cluster", "--name", NAME])
