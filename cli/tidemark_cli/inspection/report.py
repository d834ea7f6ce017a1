"""``tidemark report``: write a support bundle."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tidemark_cli.common import (
    DEFAULT_DIR,
    ApiOptions,
    DirOption,
    console,
    fail,
    is_local,
    local_brokers,
    open_cluster,
    open_kube,
)
from tidemark_cli.option_groups import option_groups
from tidemark_kube.client import KubeRequestError


@option_groups
def report(
    *,
    called: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: tidemark-report-TIME.tar.gz."),
    ] = None,
    directory: DirOption = DEFAULT_DIR,
    api: ApiOptions,
) -> None:
    """Write objects, Events, logs, metrics and versions to one archive, without secrets."""
    path = output or Path(time.strftime("tidemark-report-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if not path.name.endswith(".tar.gz"):
        fail(f"{path}: the name must end with .tar.gz")
    kube = open_kube(called, directory, api)
    logs = metrics = None
    if is_local(called, api):
        cluster = open_cluster(directory)
        logs = {log.stem: log for log in sorted((cluster.layout.root / "logs").glob("*.log"))}
        # A process that has left a log and does not run is named, because that is often the cause.
        records = {record.name: record for record in cluster.running()}
        metrics = dict.fromkeys(logs.keys() - records.keys(), "")
        for name, record in records.items():
            if "metrics" in record.ready:
                metrics[name] = str(record.ready["metrics"])
    # Imported only here, as the help needs none of it.
    from tidemark_cli.inspection.support_bundle import write_bundle

    try:
        processes = local_brokers(called, directory, api)
        index = write_bundle(path, kube, logs=logs, metrics=metrics, processes=processes)
    except FileExistsError:
        fail(f"{path} exists: choose another file with --output")
    except (KubeRequestError, OSError) as error:
        fail(f"{error}; if the local cluster is down, start it with: tidemark up")
    finally:
        kube.close()
    console.print(f"{path}: {path.stat().st_size:,} bytes", highlight=False, markup=False)
    for name, note in index.items():
        if "left out" in note or name == "secrets":
            console.print(f"{name}: {note}", highlight=False, markup=False, soft_wrap=True)
    console.print("Read it before you share it: it names your topics, users and hosts.")
