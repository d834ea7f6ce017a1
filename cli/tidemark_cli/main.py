"""``tidemark``: run a cluster on this machine, look into it, and use the tools around it."""

import typer

from tidemark_cli.commands import (
    broker,
    demo,
    import_topics,
    restore,
    spark,
    status,
    sweep,
    top,
    up,
)
from tidemark_cli.commands.kubectl import kubectl

app = typer.Typer(
    help="Tiered topics on Kubernetes: a local cluster, its status, and the tools around it.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command()(up.up)
app.command()(up.down)
app.command()(status.status)
app.command()(top.top)
app.command()(sweep.sweep)
app.command()(restore.restore)
app.command("import")(import_topics.import_topics)
app.command()(demo.demo)
app.command(context_settings=_PASS_THROUGH)(kubectl)
app.add_typer(spark.app, name="spark")
app.add_typer(broker.app, name="broker")

if __name__ == "__main__":
    app()
