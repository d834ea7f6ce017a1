"""``kubectl tidemark``: kubectl starts a program of that name that it finds on the PATH.

The same commands as of ``tidemark``, for the cluster that kubectl itself would speak to.
"""

from typing import ClassVar

import typer

from tidemark_cli.lazy_commands import OF_KUBECTL, LazyGroup
from tidemark_cli.main import Commands


class PluginCommands(LazyGroup):
    """The commands that need nothing but an API server."""

    rows: ClassVar = {name: Commands.rows[name] for name in ("status", "top")}


app = typer.Typer(cls=PluginCommands, no_args_is_help=True, pretty_exceptions_show_locals=False)


@app.callback()
def of_kubectl(context: typer.Context) -> None:
    """Tiered topics on Kubernetes: what the cluster of your kubeconfig holds."""
    context.obj = OF_KUBECTL


if __name__ == "__main__":
    app()
