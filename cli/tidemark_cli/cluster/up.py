"""``tidemark up``, ``down``, ``env`` and ``kubectl``: run a whole cluster on this machine.

The cluster's modules are imported when a command runs: its help needs none of them.
"""

import shlex
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tidemark.error_text import error_text
from tidemark_cli.common import DEFAULT_DIR, DirOption, console, errors, fail, fail_on, open_cluster
from tidemark_cli.sizes import bytes_of, size_text
from tidemark_kube.client import KubeRequestError, namespace_of

if TYPE_CHECKING:
    from tidemark_devcluster.cluster import Addresses, LocalCluster
    from tidemark_devcluster.processes import ProcessRecord


def up(
    directory: DirOption = DEFAULT_DIR,
    brokers: Annotated[int, typer.Option(min=1, max=100, help="Number of brokers.")] = 3,
    engine: Annotated[
        Literal["tidemark", "kafka"] | None,
        typer.Option(
            help="Brokers: Tidemark's own, or Apache Kafka from its published jars "
            "(kafka, needs Java 17 or newer and Maven)."
        ),
    ] = None,
    tier: Annotated[
        Literal["directory", "s3"] | None,
        typer.Option(help="Store of the tier: a directory, or MinIO (s3)."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="Kubeconfig of an existing Kubernetes cluster. The namespace is that of its "
            "current context."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when everything is ready.")
    ] = False,
    output: Annotated[Literal["text", "json"], typer.Option(help="Format of the output.")] = "text",
) -> None:
    """Start a control plane, the operator and brokers with the data of an earlier run."""
    from tidemark_devcluster import settings as local_settings
    from tidemark_devcluster.cluster import LocalCluster
    from tidemark_devcluster.layout import Layout, LayoutError, nearest

    layout = Layout(nearest(directory))
    with fail_on(ValueError):
        layout.create()
        settings = local_settings.choose(
            layout,
            cluster="tidemark",
            tier=tier,
            engine=engine,
            **({} if kubeconfig is None else _existing(kubeconfig)),
        )
    # Standard output has only the JSON object, so progress goes to standard error.
    out = errors if output == "json" else console
    cluster = LocalCluster(layout, settings, out.print)
    # Installed before the start, so that Ctrl-C during it stops the new processes too.
    stop = _catch_signals()
    # Without readable records nothing can be stopped safely.
    with fail_on(LayoutError):
        addresses = _start(cluster, brokers)
        started = cluster.running()
    _print(addresses, output, authorize=cluster.authorizes())
    if not detach:
        out.print("Press Ctrl-C to stop everything.")
        if await_interrupt(stop, started):
            cluster.stop()
        else:
            line = f"The cluster in {layout.root} was stopped by another command."
            out.print(line, markup=False, soft_wrap=True)


#: Interval at which a waiting ``tidemark up`` looks whether its processes still run.
WATCH_S = 0.5
#: First commands of a new user, with what they show.
_NEXT = (
    ("tidemark status", "health of brokers and topics"),
    ("tidemark kubectl apply -f topic.yaml", "create a topic (examples/01-first-topic)"),
    ('eval "$(tidemark env)"', "addresses for kubectl and Kafka clients"),
)


def await_interrupt(stop: threading.Event, started: Sequence["ProcessRecord"]) -> bool:
    """Wait for Ctrl-C; return False if all these processes have ended before.

    Others that run then belong to a newer ``tidemark up``, which this command must not stop.
    """
    is_interrupted = False
    while not is_interrupted and any(record.alive() for record in started):
        is_interrupted = stop.wait(WATCH_S)
    return any(record.alive() for record in started)


def _start(cluster: "LocalCluster", brokers: int) -> "Addresses":
    """Start the cluster; on failure, stop again only the processes that this call started."""
    from tidemark_devcluster.controlplane.process import ServerStartError
    from tidemark_devcluster.processes import ProcessStartError
    from tidemark_devcluster.toolchain import ToolchainError

    try:
        return cluster.start(brokers=brokers)
    except (
        *(ProcessStartError, ServerStartError, ToolchainError, KubeRequestError),
        *(TimeoutError, OSError),
    ) as error:
        cluster.stop(only_own=True)
        fail(error_text(error))


def down(
    directory: DirOption = DEFAULT_DIR,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove the folder with all data as well.")
    ] = False,
) -> None:
    """Stop every process of the folder; keep its data, unless --purge is given."""
    cluster = open_cluster(directory)
    if not cluster.stop():
        console.print("nothing was running")
    # Measured after the stop, as processes write until they end.
    root = cluster.layout.root
    size = size_text(bytes_of(root))
    if purge:
        rest = "" if cluster.layout.remove() else "; the folder stays, as other files are in it"
        line = f"removed the cluster in {root} ({size}){rest}"
        console.print(line, markup=False, soft_wrap=True)
        return
    console.print(
        f"{root} keeps {size} of data; remove it with: tidemark down --purge\n"
        "Built programs stay in the cache: tidemark cache",
        markup=False,
        soft_wrap=True,
    )


def env(directory: DirOption = DEFAULT_DIR) -> None:
    """Print exports of the cluster's addresses, for eval "$(tidemark env)"."""
    cluster = open_cluster(directory)
    addresses = cluster.addresses()
    if not addresses.bootstrap:
        fail("no broker is running; start the cluster with: tidemark up")
    for name, value in (
        ("TIDEMARK_DIR", str(cluster.layout.root)),
        ("KUBECONFIG", addresses.kubeconfig),
        ("BOOTSTRAP_SERVERS", addresses.bootstrap),
    ):
        print(f"export {name}={shlex.quote(value)}")


def kubectl(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of kubectl.")] = None,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Run kubectl against the local cluster."""
    # Imported only here: building Go programs needs more imports than starting them.
    from tidemark_devcluster.controlplane.programs import kubectl as embedded

    raise typer.Exit(embedded(arguments or [], kubeconfig=open_cluster(directory).kubeconfig))


def _existing(kubeconfig: Path) -> dict[str, str]:
    """Return the settings that select an existing Kubernetes cluster."""
    return {"kubeconfig": str(kubeconfig.resolve()), "namespace": namespace_of(kubeconfig)}


def _catch_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _print(addresses: "Addresses", output: str, *, authorize: bool | None) -> None:
    if output == "json":
        print(addresses.as_json(), flush=True)  # a program may wait at the other end of a pipe
        return
    from tidemark_devcluster.cluster import described

    console.print(f"kubeconfig  {addresses.kubeconfig}", soft_wrap=True)
    console.print(f"bootstrap   {addresses.bootstrap}", soft_wrap=True)
    console.print(f"metrics     {addresses.metrics}", soft_wrap=True)
    for line in described(addresses.listeners, authorize=authorize):
        console.print(f"clients     {line}", soft_wrap=True, markup=False)
    for name, pid in addresses.processes.items():
        console.print(f"process     {name} {pid}")
    console.print("\nNext, in another terminal:")
    for command, purpose in _NEXT:
        console.print(f"  {command:<36}  {purpose}", markup=False)
