"""``tidemark``: run a cluster on this machine, inspect it, and use the tools around it.

``plugin`` is ``kubectl tidemark``: kubectl starts ``kubectl-tidemark`` from the PATH.
"""

from typing import Annotated, ClassVar

import typer

from tidemark_cli.lazy_commands import OF_KUBECTL, LazyCommand, LazyGroup

_CLI = "tidemark_cli"


class Commands(LazyGroup):
    """Every command of ``tidemark``, in the order of its help."""

    rows: ClassVar = {
        "up": LazyCommand(
            f"{_CLI}.cluster.up:up",
            "Start a control plane, the operator and brokers with the data of an earlier run.",
        ),
        "down": LazyCommand(
            f"{_CLI}.cluster.up:down",
            "Stop every process of the folder; keep its data, unless --purge is given.",
        ),
        "env": LazyCommand(
            f"{_CLI}.cluster.up:env",
            'Print exports of the cluster\'s addresses, for eval "$(tidemark env)".',
        ),
        "status": LazyCommand(
            f"{_CLI}.inspection.status:status",
            "Show the health of the cluster, its objects and their problems.",
        ),
        "why": LazyCommand(
            f"{_CLI}.inspection.why:why",
            "Explain a problem: the conditions, their cause, the remedy and the latest Events.",
        ),
        "check": LazyCommand(
            f"{_CLI}.inspection.check:check",
            "Exit with status 0 if the cluster, or the named objects, are healthy; "
            "otherwise with 3.",
        ),
        "report": LazyCommand(
            f"{_CLI}.inspection.report:report",
            "Write objects, Events, logs, metrics and versions to one archive, without secrets.",
        ),
        "top": LazyCommand(
            f"{_CLI}.top.command:top",
            "Show the offsets, lags and problems of each partition.",
        ),
        "produce": LazyCommand(
            f"{_CLI}.records.produce:produce",
            "Write records to a topic: lines of standard input, or a value.",
        ),
        "consume": LazyCommand(
            f"{_CLI}.records.consume:consume",
            "Print the records of a topic, up to its present end.",
        ),
        "topics": LazyCommand(
            f"{_CLI}.records.topics:app", "Show the topics that brokers serve, with their offsets."
        ),
        "groups": LazyCommand(
            f"{_CLI}.records.groups:app",
            "Show consumer groups with their lag, reset their offsets, or delete them.",
        ),
        "sweep": LazyCommand(
            f"{_CLI}.tier.sweep:sweep",
            "Show orphans in the tier, and remove them with --delete.",
        ),
        "rewrap": LazyCommand(
            f"{_CLI}.tier.rewrap:rewrap",
            "Encrypt the keys of segments with the first of the --encryption-keys.",
        ),
        "restore": LazyCommand(
            f"{_CLI}.tier.restore:restore",
            "Recreate the topics of a lost cluster from its tier.",
        ),
        "import": LazyCommand(
            f"{_CLI}.imports.command:import_topics",
            "Write manifests for the topics of a Kafka cluster (--bootstrap) or for Strimzi's "
            "KafkaTopics and KafkaUsers (--strimzi). With both, Topics have the topics' ids.",
        ),
        "demo": LazyCommand(
            f"{_CLI}.demo.command:demo",
            "Run the demo on flight records. The exit status is 0 if every check passed.",
        ),
        "kubectl": LazyCommand(
            f"{_CLI}.cluster.up:kubectl",
            "Run kubectl against the local cluster.",
            passes_through=True,
        ),
        "spark": LazyCommand(
            f"{_CLI}.tier.spark:app",
            "Jobs over the tier. All except usage need Java 17 or newer.",
        ),
        "broker": LazyCommand(
            f"{_CLI}.cluster.broker:app",
            "Add, stop, start, kill or remove a broker of the local cluster.",
        ),
        "cache": LazyCommand(
            f"{_CLI}.cluster.cache:cache",
            "List the caches of built and compiled programs with their sizes, or clear them.",
        ),
    }


class PluginCommands(LazyGroup):
    """Commands of ``kubectl tidemark``, which need only an API server."""

    rows: ClassVar = {
        name: Commands.rows[name] for name in ("status", "why", "check", "report", "top")
    }


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_show_locals=False)
plugin = typer.Typer(cls=PluginCommands, no_args_is_help=True, pretty_exceptions_show_locals=False)


def _print_version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version  # parsers of mail headers, a tenth of the start

        print(f"tidemark {version('tidemark')}")
        raise typer.Exit


@app.callback()
def tidemark(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Tiered topics on Kubernetes: a local cluster, its status, and the tools around it."""


@plugin.callback()
def of_kubectl(context: typer.Context) -> None:
    """Show the topics, brokers and partitions of the cluster in your kubeconfig."""
    context.obj = OF_KUBECTL


if __name__ == "__main__":
    app()
