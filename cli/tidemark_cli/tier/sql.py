"""``tidemark spark sql``: query topics, and the tables that they are exported to."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer
from rich.table import Table

from tidemark.message_text import count, did_you_mean, names
from tidemark_cli.common import console, errors, fail, fail_on, shown_text
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.spark_topic import (
    SourceOptions,
    check_source,
    list_topic_names,
    mentioned_topics,
)
from tidemark_cli.tier.tables import (
    EXPLAINED,
    CatalogOptions,
    SparkOptions,
    check_jars,
    pairs,
    with_jars,
)
from tidemark_devcluster.tier import kafka_jars
from tidemark_pipeline.errors import project_error
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.table_options import CATALOG, TableOptions
from tidemark_pipeline.jobs.sql_text import DuplicateColumns, cell, csv_text, json_text

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from tidemark_pipeline.jobs.sql import StatementResult

LIMIT_MAX = 100_000
#: Longest text in a cell of the table; a value may have megabytes.
CELL_MAX = 300
_NAMED_MAX = 20
_UNKNOWN_TABLE = "TABLE_OR_VIEW_NOT_FOUND"


class Views(NamedTuple):
    """Topics as views: ``topics`` are the views, ``all_topics`` are all topics that could be."""

    options: Mapping[str, str]
    topics: Sequence[str]
    all_topics: Sequence[str]


@option_groups
def sql(
    *,
    statement: Annotated[str, typer.Argument(help="Statement in Spark's SQL. A topic is a view.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Topic to use as a view. Default: every topic."),
    ] = None,
    output: Annotated[
        Literal["table", "json", "csv"], typer.Option(help="Format of the output.")
    ] = "table",
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_MAX, help="Maximum number of rows.")] = 100,
    tables: CatalogOptions,
    spark: SparkOptions,
    source: SourceOptions,
) -> None:
    """Run a query in which each topic is a view, with the data source's columns: key, value,
    partition, offset, timestamp and so on. With --warehouse or --catalog the query reads tables,
    such as db.orders, and the topics that --topic names.

    Exit status: 0 if the query succeeded, 1 if it failed.
    """
    tables.check()
    source.extra()
    of_tables = bool(tables.warehouse or tables.catalog)
    with fail_on(*EXPLAINED, DuplicateColumns):
        catalog = tables.properties() if of_tables else {}
        # On standard error, so that standard output contains only the answer.
        log = spark.prepare(source.directory, errors.print)
        views = Views({}, (), ())
        if topic or not of_tables:
            views = _views(source.options(), topic or (), statement)
        settings = _settings(views, catalog, tables)
        with spark.session("tidemark sql", log, settings) as session:
            result = _query(session, statement, views, limit, log)
        _write_result(result, output, limit)


def _views(options: Mapping[str, str], named: Sequence[str], statement: str) -> Views:
    """Return the topics to create as SQL views: the named ones, or those in the statement.

    Only these are created, as each view costs the start of a process. Exits if a topic cannot be
    read.
    """
    all_topics = sorted(set(named) or list_topic_names(options))
    topics = list(all_topics) if named else mentioned_topics(all_topics, statement)
    if topics:
        check_source({**options, "subscribe": ",".join(topics)})
    # Spark compares the names of views without case.
    by_name: dict[str, str] = {}
    for topic in topics:
        same_name = by_name.setdefault(topic.lower(), topic)
        if same_name != topic:
            fail(
                f"topics {same_name} and {topic} have the same name in SQL: choose one with --topic"
            )
    return Views(options, topics, all_topics)


def _settings(views: Views, catalog: Mapping[str, str], tables: CatalogOptions) -> dict[str, str]:
    """Return Spark's configuration for the statement: catalogs of tables, and the jars needed.

    ``catalog``: properties of the catalog, empty without tables. Raises ToolchainError.
    """
    # Catalogs exist only with table formats; their jars are added to the given ones.
    if catalog:
        spark_conf = tables.settings(
            TableOptions(table="-", format=tables.table_format, catalog=catalog)
        )
        if tables.table_format is Format.ICEBERG:
            # A default only: the user's own configuration takes precedence.
            spark_conf.setdefault("spark.sql.defaultCatalog", CATALOG)
    else:
        given = with_jars({}, check_jars(tables.jar))
        spark_conf = {**given, **pairs(tables.conf, "--conf")}
    # Topics of Apache Kafka need the jars of Spark's own source.
    return with_jars(spark_conf, kafka_jars(views.options))


def _query(
    session: "SparkSession", statement: str, views: Views, limit: int, log: Path
) -> "StatementResult":
    """Run the statement with a view for each topic; exit if it fails.

    ``limit``: maximum number of rows. ``log``: file of Spark's log, for the message.
    """
    from pyspark.errors import PySparkException

    from tidemark_pipeline.jobs.sql import make_view, run_statement
    from tidemark_pipeline.session import reporting_stages

    # Progress goes to standard error, so that standard output has only the result.
    def say(done: int, tasks: int) -> None:
        errors.print(f"{done:,} of {count(tasks, 'task')}")

    try:
        with reporting_stages(session.sparkContext, say):
            # All views exist before the statement runs, as it may join topics.
            for topic in views.topics:
                make_view(session, topic, views.options)
            return run_statement(session, statement, limit)
    except PySparkException as error:
        fail(failure(error, views, log, session))


def failure(
    error: "PySparkException", views: Views, log: Path, session: "SparkSession | None" = None
) -> str:
    """Return one line about Spark's error; for an unknown name it suggests others.

    ``session``: lists the names that exist.
    """
    from tidemark_pipeline.jobs.sql import suggestions

    name, text = project_error(str(error))
    # An error without a condition is not about the statement: the log has the details.
    if name or error.getCondition() is None:
        return f"{text}; Spark's own log: {log}"
    close = [] if session is None else suggestions(session, error, views.all_topics)
    if close or error.getCondition() != _UNKNOWN_TABLE or not views.options:
        return text + did_you_mean(close)
    return f"{text} Topics: {names(views.all_topics, shown=_NAMED_MAX) or 'none'}"


def _write_result(result: "StatementResult", output: str, limit: int) -> None:
    if output == "table":
        _print(result)
    else:
        write = json_text if output == "json" else csv_text
        sys.stdout.buffer.write(write(result.columns, result.rows).encode("utf-8", "replace"))
        sys.stdout.flush()
    if result.is_truncated:
        text = f"only the first {count(limit, 'row', 'is')} shown; show more with --limit, at most "
        errors.print(f"{text}{LIMIT_MAX:,}")


def _print(result: "StatementResult") -> None:
    if not result.columns:
        return
    table = Table()
    for name in result.columns:
        table.add_column(shown_text(name), overflow="fold")
    for row in result.rows:
        table.add_row(*(shown_text(_short(cell(value))) for value in row))
    console.print(table, crop=False)


def _short(text: str) -> str:
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 1] + "…"
