"""``tidemark spark``: jobs of the pipeline on a local Spark session."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.message_text import count
from tidemark_cli.common import DEFAULT_DIR, DirOption, console, fail, fail_on, open_cluster
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.audit import audit
from tidemark_cli.tier.export import export
from tidemark_cli.tier.maintain import maintain
from tidemark_cli.tier.spark_topic import check_source
from tidemark_cli.tier.sql import Views, failure, sql
from tidemark_cli.tier.tables import EXPLAINED, CatalogOptions, SparkOptions
from tidemark_cli.tier.usage import usage
from tidemark_devcluster.tier import read_options, session_settings
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.table_options import CATALOG, TableOptions
from tidemark_pipeline.java import JavaMissing, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Most dead letters of a cause on a page.
SAMPLES_MAX = 10
app = typer.Typer(help="Jobs over the tier. All except usage need Java 17 or newer.")
for _command in (audit, usage, export, maintain):
    app.command()(_command)


@contextmanager
def _reading(
    job: str, directory: Path, topic: str
) -> "Iterator[tuple[SparkSession, Mapping[str, str]]]":
    """Start Spark for a job over a topic of the local cluster; yield it and the topic's options.

    Exits if Java, Spark or the topic is missing.
    """
    cluster = open_cluster(directory)
    with fail_on(JavaMissing, ToolchainError):
        find_java()
        ensure_spark(console.print)
        from tidemark_pipeline.session import local_session

        # Checked before Spark starts: a missing topic then fails in a second, with a short message.
        options = check_source(read_options(cluster, topic))
        log, settings = cluster.layout.log("spark"), session_settings(options)
        with local_session(f"tidemark {job}", log=log, settings=settings) as session:
            yield session, options


@app.command()
def report(
    topic: Annotated[str, typer.Argument(help="Topic to report on.")],
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Write a page with the rates, sizes, keys and tiers of a topic."""
    with _reading("report", directory, topic) as (session, options):
        from tidemark_pipeline.jobs.report import figures
        from tidemark_pipeline.report.page import page, utc

        when = utc(time.time_ns() // 1_000_000)
        report_figures = figures(session, options)
    _write(output, page(report_figures, when))
    console.print(f"{count(report_figures.rows, 'record')}: {output}", markup=False)


@option_groups
def report_table(
    *,
    table: Annotated[str, typer.Argument(help="Exported table with its namespace: db.orders.")],
    catalog: CatalogOptions,
    dead_letters: Annotated[
        str,
        typer.Option(help="Table of dead letters. Default: the table's name with _dead_letters."),
    ] = "",
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            max=SAMPLES_MAX,
            help="Dead letters to show of each cause, with the beginning of key and value.",
        ),
    ] = 3,
    output: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    spark: SparkOptions,
    directory: DirOption = DEFAULT_DIR,
) -> None:
    """Write a page with the rows, freshness and dead letters of an exported table.

    Samples of dead letters may contain personal data. --samples 0 leaves them out.
    """
    catalog.check()
    with fail_on(*EXPLAINED):
        options = TableOptions(
            table=table,
            format=catalog.table_format,
            catalog=catalog.properties(),
            dead_letters=dead_letters,
        )
        log = spark.prepare(directory)
        settings = catalog.settings(options)
        # Suggestions for a misspelt name are of the current catalog.
        if options.format is Format.ICEBERG:
            settings.setdefault("spark.sql.defaultCatalog", CATALOG)
        with spark.session("tidemark report", log, settings) as session:
            from pyspark.errors import PySparkException

            from tidemark_pipeline.jobs.report import table_figures
            from tidemark_pipeline.report.page import table_page

            now_ms = time.time_ns() // 1_000_000
            try:
                figures = table_figures(
                    session,
                    options.format,
                    options.name_of(table),
                    options.name_of(options.letters),
                    table=table,
                    samples=samples,
                    needs_letters=bool(dead_letters),
                )
            except PySparkException as error:
                fail(failure(error, Views({}, (), ()), log, session))
    _write(output, table_page(figures, now_ms))
    letters = count(figures.letters or 0, "dead letter")
    console.print(f"{count(figures.rows, 'row')}, {letters}: {output}", markup=False)


def _write(output: Path, page: str) -> None:
    try:
        output.write_text(page, "utf-8")
    except OSError as error:
        fail(f"the page cannot be written: {error}")


app.command()(report_table)
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
    with _reading("aggregate", directory, topic) as (session, options):
        from tidemark_pipeline.jobs.aggregate import aggregate as run

        run(session, options, by=by, value=value, output=output).show(truncate=False)
    console.print(f"written to {output}", markup=False)
