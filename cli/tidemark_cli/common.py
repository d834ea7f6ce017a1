"""Options, consoles and cluster lookups that several commands share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from tidemark_cli.lazy_commands import OF_KUBECTL
from tidemark_kube.client import KubeClient, KubeRequestError, namespace_of

if TYPE_CHECKING:
    from tidemark_devcluster.cluster import LocalCluster


DirOption = Annotated[
    Path, typer.Option("--dir", help="Folder of the local cluster.", envvar="TIDEMARK_DIR")
]
DEFAULT_DIR = Path(".tidemark")


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Kubernetes API that the options name; empty fields are not given."""

    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig of the cluster to use instead of the local one.")
    ] = None
    context: Annotated[str, typer.Option("--context", help="Context of the kubeconfig.")] = ""
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace. Default: that of the context.")
    ] = ""

    def connect(self) -> KubeClient:
        """Return a client for the named API server, or the one that kubectl would use.

        Exits with a hint on failure.
        """
        # The same order as in kubectl: the option, the environment, the home directory.
        path = self.kubeconfig or Path(
            os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"
        )
        with fail_on(KubeRequestError, ValueError, OSError):
            namespace = self.namespace or namespace_of(path, self.context)
            return KubeClient(path, namespace, self.context)

    def require_kubeconfig(self) -> None:
        """Exit if an option is given that would be ignored without a kubeconfig."""
        if self.kubeconfig is None and (self.context or self.namespace):
            fail("--context and --namespace need --kubeconfig: add --kubeconfig FILE")


console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def fail(message: str) -> NoReturn:
    """Print a message on standard error and exit with status 1."""
    errors.print(f"[red]error:[/red] {escape(message)}")
    raise typer.Exit(1)


@contextmanager
def fail_on(*explained: type[Exception]) -> Iterator[None]:
    """Exit with the text of an ``explained`` error, which says what to do, if one is raised."""
    try:
        yield
    except explained as error:
        fail(str(error))


def shown_text(text: str) -> str:
    """Return untrusted text for a terminal: control characters are replaced, markup is escaped."""
    return escape("".join(char if char.isprintable() else "?" for char in text))


def open_cluster(directory: Path, otherwise: str = "") -> "LocalCluster":
    """Return the cluster of a folder; exit with a hint if there is none.

    ``otherwise``: a further hint for the message.
    """
    # Imported only here: commands that a kubeconfig directs elsewhere need no local cluster.
    from tidemark_devcluster import settings as local_settings
    from tidemark_devcluster.cluster import LocalCluster
    from tidemark_devcluster.layout import Layout, LayoutError, nearest
    from tidemark_devcluster.processes import running

    layout = Layout(nearest(directory))
    with fail_on(LayoutError):
        settings = local_settings.load(layout)
        running(layout)  # fails early on a damaged process record, before anything is changed
    if settings is None:
        missing = (
            f"there is no cluster in {layout.root}; start one with: tidemark up --dir {directory}"
        )
        fail(missing + otherwise)
    return LocalCluster(layout, settings, console.print)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ApiOptions):
    """Options that select the cluster to look at: that of a kubeconfig, or the local one."""

    called: typer.Context
    directory: DirOption = DEFAULT_DIR

    @property
    def is_local(self) -> bool:
        """Return whether the local cluster is selected."""
        return self.kubeconfig is None and self.called.obj != OF_KUBECTL

    def local_brokers(self) -> dict[int, str] | None:
        """Return what is known about each broker's process by node id, None for another cluster."""
        if not self.is_local:
            return None
        layout = open_cluster(self.directory).layout
        from tidemark_devcluster.processes import find

        texts = {}
        for node_id in layout.broker_ids():
            record = find(layout, f"broker-{node_id}")
            texts[node_id] = "its process has ended"
            if record is not None:
                texts[node_id] = f"its process {record.pid} is alive, but does not answer"
        return texts

    @contextmanager
    def kube(self) -> Iterator[KubeClient]:
        """Yield a client for the API server of the cluster; exit if it fails, here or in the block.

        With a kubeconfig, or as a plugin of kubectl, that is the server that kubectl would use.
        Otherwise it is the local cluster's.
        """
        try:
            if self.is_local:
                self.require_kubeconfig()
                kube = open_cluster(self.directory).kube()
            else:
                kube = self.connect()
            with kube:
                yield kube
        except (KubeRequestError, OSError) as error:
            hint = "; if the local cluster is down, start it with: tidemark up"
            fail(f"{error}{hint if self.is_local else ''}")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the file in one step; a reader sees the old or the new content, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
