"""``tidemark broker``: add, stop, start, kill and remove brokers of a local cluster."""

import shutil
import time
from typing import Annotated

import typer

from tidemark.error_text import error_text
from tidemark_cli.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_devcluster.processes import ProcessStartError
from tidemark_devcluster.settings import KAFKA
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_kube.client import KubeRequestError

app = typer.Typer(help="Add, stop, start, kill or remove a broker of the local cluster.")
_POLL_S = 0.2
NodeId = Annotated[int, typer.Argument(metavar="ID", help="Node id of the broker.", min=0)]


@app.command()
def add(
    node_id: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", help="Node id. Default: the next free id.", min=0),
    ] = None,
    *,
    reader: Annotated[
        bool,
        typer.Option(
            "--reader", help="Without replicas: it serves to consumers what only the tier has."
        ),
    ] = False,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Declare a new broker, start it and wait until it is registered."""
    # Ids of removed brokers are not used again unless they are named.
    cluster = open_cluster(directory)
    known = cluster.brokers.broker_ids()
    # A starting cluster will use the lowest ids.
    if not known:
        fail("the cluster has no brokers yet: run `tidemark up`, or wait until it is ready")
    chosen = cluster.next_broker_id() if node_id is None else node_id
    if chosen in known:
        fail(f"broker {chosen} already exists; start it with: tidemark broker start {chosen}")
    if reader and cluster.settings.engine == KAFKA:
        fail("Apache Kafka has no Readers")
    _start(directory, chosen, is_reader=reader)


@app.command()
def start(node_id: NodeId, directory: DirOption = DEFAULT_DIR) -> None:
    """Start a broker that was added before."""
    if node_id not in open_cluster(directory).brokers.broker_ids():
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


@app.command()
def remove(
    node_id: NodeId,
    timeout: Annotated[
        int, typer.Option(min=1, help="Seconds to wait until its replicas have moved.")
    ] = 120,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Drain a broker, then delete its Broker object, its process and its data."""
    cluster = open_cluster(directory)
    if cluster.settings.engine == KAFKA:
        fail("brokers of Apache Kafka cannot be removed: stop one with tidemark broker stop")
    if node_id not in cluster.brokers.broker_ids():
        fail(f"broker {node_id} does not exist")
    from tidemark_cli.inspection.topic_rows import (
        condition,  # slow: the operator's model of partitions
    )

    name = f"broker-{node_id}"
    try:
        with cluster.kube() as kube:
            kube.delete("Broker", name)
            # The finalizer keeps the object until other brokers have all replicas.
            deadline = time.monotonic() + timeout
            while (found := kube.get("Broker", name)) is not None:
                if time.monotonic() > deadline:
                    cause = condition(found, "Draining").get("message", "its drain has not begun")
                    fail(f"{name} was not drained in {timeout} s, and the drain continues: {cause}")
                time.sleep(_POLL_S)
    except (KubeRequestError, OSError) as error:
        fail(error_text(error))
    # Without its settings the next `tidemark up` does not declare it again.
    cluster.stop_broker(node_id)
    layout = cluster.layout
    layout.broker_config(node_id).unlink(missing_ok=True)
    for folder in (layout.broker_data(node_id), layout.broker_certificates(node_id)):
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"broker {node_id} removed")


def _start(directory: DirOption, node_id: int, *, is_reader: bool = False) -> None:
    try:
        cluster = open_cluster(directory)
        if is_reader:
            cluster.start_reader(node_id)
        else:
            cluster.start_broker(node_id)
    except (ProcessStartError, KubeRequestError, ToolchainError, TimeoutError, OSError) as error:
        fail(error_text(error))
