"""What the commands share: the folder option, the consoles, finding a running cluster."""

from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from tidemark_cli.local import settings as local_settings
from tidemark_cli.local.cluster import LocalCluster
from tidemark_cli.local.layout import Layout, LayoutError
from tidemark_cli.local.processes import running

DirOption = Annotated[
    Path, typer.Option("--dir", help="The folder of the local cluster.", envvar="TIDEMARK_DIR")
]
DEFAULT_DIR = Path(".tidemark")

console = Console()
errors = Console(stderr=True)


def fail(message: str) -> NoReturn:
    """End with status 1 and a message on standard error."""
    errors.print(f"[red]error:[/red] {escape(message)}", highlight=False)
    raise typer.Exit(1)


def open_cluster(directory: Path) -> LocalCluster:
    """The cluster of a folder; ends with a hint where there is none."""
    layout = Layout.at(directory)
    try:
        settings = local_settings.load(layout)
        running(layout)  # what is no record of a process is said before anything is done
    except LayoutError as error:
        fail(str(error))
    if settings is None:
        fail(f"there is no cluster in {layout.root}; start one with: tidemark up --dir {directory}")
    return LocalCluster(layout, settings, lambda line: console.print(line, highlight=False))
