"""``tidemark kubectl``: the embedded kubectl, pointed at the local cluster."""

from typing import Annotated

import typer

from tidemark_cli.common import DEFAULT_DIR, DirOption, open_cluster
from tidemark_devcluster.controlplane.client import kubectl as embedded


def kubectl(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of kubectl.")] = None,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Run kubectl against the local cluster."""
    raise typer.Exit(embedded(arguments or [], kubeconfig=open_cluster(directory).kubeconfig))
