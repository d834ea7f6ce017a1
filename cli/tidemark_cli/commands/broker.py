"""``tidemark broker``: add, stop, start and kill brokers of a local cluster."""

from typing import Annotated

import typer

from tidemark.error_text import error_text
from tidemark_cli.commands.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_cli.local.kube import KubeRequestError
from tidemark_cli.local.processes import ProcessStartError
from tidemark_cli.toolchain.errors import ToolchainError

app = typer.Typer(help="Add, stop, start or kill a broker of the local cluster.")
NodeId = Annotated[int, typer.Argument(metavar="ID", help="Node id of the broker.", min=0)]


@app.command()
def add(
    node_id: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Node id. Default: the next free id.", min=0),
    ] = None,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Declare a new broker, start it and wait until it is registered."""
    cluster = open_cluster(directory)
    chosen = cluster.next_broker_id() if node_id is None else node_id
    if chosen in cluster.brokers.ids():
        fail(f"broker {chosen} already exists; start it with: tidemark broker start {chosen}")
    _start(directory, chosen)


@app.command()
def start(node_id: NodeId, directory: DirOption = DEFAULT_DIR) -> None:
    """Start a broker that was added before."""
    if node_id not in open_cluster(directory).brokers.ids():
        fail(f"broker {node_id} does not exist; add it with: tidemark broker add {node_id}")
    _start(directory, node_id)


@app.command()
def stop(node_id: NodeId, directory: DirOption = DEFAULT_DIR) -> None:
    """Shut a broker down cleanly: its leaderships move first."""
    clean = open_cluster(directory).stop_broker(node_id)
    console.print(
        f"broker {node_id} " + ("stopped" if clean else "was not running, or had to be killed")
    )


@app.command()
def kill(node_id: NodeId, directory: DirOption = DEFAULT_DIR) -> None:
    """Kill a broker with SIGKILL. The kernel keeps what it had not synced."""
    if not open_cluster(directory).kill_broker(node_id):
        fail(f"broker {node_id} is not running")
    console.print(f"broker {node_id} killed")


def _start(directory: DirOption, node_id: int) -> None:
    try:
        open_cluster(directory).start_broker(node_id)
    except (ProcessStartError, KubeRequestError, ToolchainError, TimeoutError, OSError) as error:
        fail(error_text(error))
