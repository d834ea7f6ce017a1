"""``kubectl tidemark``, started by kubectl when ``kubectl-tidemark`` is on the PATH.

It has the commands of ``tidemark`` that make sense for kubectl's current cluster.
"""

from typing import ClassVar

import typer

from tidemark_cli.lazy_commands import OF_KUBECTL, LazyGroup
from tidemark_cli.main import Commands


class PluginCommands(LazyGroup):
    """Commands that need only an API server."""

    rows: ClassVar = {
        name: Commands.rows[name] for name in ("status", "why", "check", "report", "top")
    }


app = typer.Typer(cls=PluginCommands, no_args_is_help=True, pretty_exceptions_show_locals=False)


@app.callback()
def of_kubectl(context: typer.Context) -> None:
    """Show the topics, brokers and partitions of the cluster in your kubeconfig."""
    context.obj = OF_KUBECTL


if __name__ == "__main__":
    app()
