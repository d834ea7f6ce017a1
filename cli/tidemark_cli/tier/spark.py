"""``tidemark spark``: jobs of the pipeline on a local Spark session."""

from pathlib import Path
from typing import Annotated

import typer

from tidemark_cli.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_cli.tier.audit import audit
from tidemark_cli.tier.export import export
from tidemark_cli.tier.maintain import maintain
from tidemark_cli.tier.report import report
from tidemark_cli.tier.spark_topic import check_source
from tidemark_cli.tier.sql import sql
from tidemark_cli.tier.usage import usage
from tidemark_devcluster.tier import read_options, session_settings
from tidemark_devcluster.toolchain.errors import ToolchainError
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.java import JavaMissing, find_java

app = typer.Typer(help="Jobs over the tier. All except usage need Java 17 or newer.")
app.command()(audit)
app.command()(usage)
app.command()(export)
app.command()(maintain)
app.command()(report)
app.command()(sql)


@app.command()
def aggregate(
    topic: Annotated[str, typer.Argument(help="Topic to read. Its values are JSON.")],
    by: Annotated[str, typer.Option(help="Field to group by.")],
    value: Annotated[str, typer.Option(help="Numeric field to sum and average.")],
    output: Annotated[Path, typer.Option(help="Parquet folder to write.")],
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Count rows, and sum and average a number, by a key."""
    cluster = open_cluster(directory)
    try:
        find_java()
        ensure_spark(console.print)
        from tidemark_pipeline.jobs.aggregate import Aggregate
        from tidemark_pipeline.jobs.aggregate import aggregate as run
        from tidemark_pipeline.session import local_session

        # Checked before Spark starts: a missing topic then fails in a second, with a short message.
        options = check_source(read_options(cluster, topic))
        with local_session(
            "tidemark aggregate",
            log=cluster.layout.log("spark"),
            settings=session_settings(options),
        ) as session:
            run(session, options, Aggregate(by, value, output)).show(truncate=False)
    except (JavaMissing, ToolchainError) as error:
        fail(str(error))
    console.print(f"written to {output}", highlight=False)
