"""``tidemark demo``: run the main scenario on real data and print a table of checks."""

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidemark_cli.common import console, fail
from tidemark_cli.inspection.status import print_status
from tidemark_cli.records.flights import FLIGHTS_TOTAL
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.layout import Layout

#: Fewer flights would end before the time up to which the demo deletes.
FLIGHTS_MIN = 200_000


def demo(
    tier: Annotated[
        Literal["directory", "s3"], typer.Option(help="Store of the tier.")
    ] = "directory",
    engine: Annotated[
        Literal["tidemark", "kafka"],
        typer.Option(help="Brokers: Tidemark's own, or Apache Kafka."),
    ] = "tidemark",
    flights: Annotated[
        int,
        typer.Option(
            help="Number of flight records, oldest first.", min=FLIGHTS_MIN, max=FLIGHTS_TOTAL
        ),
    ] = FLIGHTS_TOTAL,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder and its logs after a successful run.")
    ] = False,
) -> None:
    """Run the demo on flight records. The exit status is 0 if every check passed."""
    from tidemark_cli.demo.report import DemoReport
    from tidemark_cli.demo.scenario import Scenario
    from tidemark_cli.demo.stage import KafkaStage, OwnStage

    # SIGTERM unwinds like Ctrl-C, so that the finally block stops the processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = DemoReport(console)
    root = Path(tempfile.mkdtemp(prefix="tidemark-demo-"))
    layout = Layout(root)
    layout.create()
    try:
        settings = local_settings.choose(layout, cluster="tidemark", tier=tier, engine=engine)
    except ValueError as error:
        shutil.rmtree(root, ignore_errors=True)
        fail(str(error))
    cluster = LocalCluster(layout, settings, report.say)
    stage = KafkaStage(cluster) if engine == local_settings.KAFKA else OwnStage(cluster)
    scenario = Scenario(cluster, stage, report, root, flights)
    console.print(f"cluster folder: {root}")
    try:
        scenario.run()
        if scenario.kube is not None:
            print_status(console, scenario.kube)
    except Exception as error:  # noqa: BLE001 - any error is reported as a failed check
        report.check("the demo ran to completion", False, f"{type(error).__name__}: {error}")
    finally:
        cluster.stop()
    console.print()
    console.print(report.table())
    failed = report.failed()
    # After a failure the folder stays, as its logs are needed to find the cause.
    if failed or keep:
        console.print(f"logs: {root / 'logs'}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    raise typer.Exit(1 if failed else 0)
