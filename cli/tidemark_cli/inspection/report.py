"""``tidemark report``: write a support bundle."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tidemark_cli.common import ClusterOptions, console, fail, open_cluster
from tidemark_cli.option_groups import option_groups


@option_groups
def report(
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: tidemark-report-TIME.tar.gz."),
    ] = None,
    cluster: ClusterOptions,
) -> None:
    """Write objects, Events, logs, metrics and versions to one archive, without secrets."""
    path = output or Path(time.strftime("tidemark-report-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if not path.name.endswith(".tar.gz"):
        fail(f"{path}: the name must end with .tar.gz")
    # Imported only here, as the help needs none of it.
    from tidemark_cli.inspection.support_bundle import write_bundle

    with cluster.kube() as kube:
        logs, metrics = _of_processes(cluster.directory) if cluster.is_local else (None, None)
        processes = cluster.local_brokers()
        try:
            index = write_bundle(path, kube, logs=logs, metrics=metrics, processes=processes)
        except FileExistsError:
            fail(f"{path} exists: choose another file with --output")
    console.print(f"{path}: {path.stat().st_size:,} bytes", markup=False)
    for name, note in index.items():
        if "left out" in note or name == "secrets":
            console.print(f"{name}: {note}", markup=False, soft_wrap=True)
    console.print("Read it before you share it: it names your topics, users and hosts.")


def _of_processes(directory: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the logs of the local cluster's processes, and their addresses for metrics, by name.

    A process that has left a log and does not run has the address "", because that is often the
    cause.
    """
    cluster = open_cluster(directory)
    logs = {log.stem: log for log in sorted((cluster.layout.root / "logs").glob("*.log"))}
    records = {record.name: record for record in cluster.running()}
    metrics = dict.fromkeys(logs.keys() - records.keys(), "")
    for name, record in records.items():
        if "metrics" in record.ready:
            metrics[name] = str(record.ready["metrics"])
    return logs, metrics
