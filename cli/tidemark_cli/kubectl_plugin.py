"""``kubectl tidemark``: kubectl starts a program of that name that it finds on the PATH.

The same commands as of ``tidemark``, for the cluster that kubectl itself would speak to.
"""

import typer

from tidemark_cli.commands import status, top
from tidemark_cli.commands.common import OF_KUBECTL

app = typer.Typer(
    help="Tiered topics on Kubernetes: what the cluster of your kubeconfig holds.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def of_kubectl(context: typer.Context) -> None:
    """Tiered topics on Kubernetes: what the cluster of your kubeconfig holds."""
    context.obj = OF_KUBECTL


app.command()(status.status)
app.command()(top.top)

if __name__ == "__main__":
    app()
