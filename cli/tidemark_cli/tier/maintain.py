"""``tidemark spark maintain``: compact exported tables, expire versions, remove orphaned files."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.message_text import count
from tidemark_cli.common import console, errors, fail, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.spark_topic import SourceOptions
from tidemark_cli.tier.tables import EXPLAINED, CatalogOptions, SparkOptions
from tidemark_operator.resources.scalars import duration_ms
from tidemark_pipeline.export.maintenance import Maintained, Propagated, TableMaintenance
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.read.topic_source import topic_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NEVER = "never"


@option_groups
def maintain(
    *,
    tables: Annotated[
        list[str], typer.Argument(help="Tables with their namespace, such as db.orders.")
    ],
    catalog: CatalogOptions,
    compact: Annotated[
        bool, typer.Option(help="Compact small files, and files with many deleted rows.")
    ] = True,
    keep: Annotated[
        str, typer.Option(help="Keep versions of the table for this time: 168h, 1h30m, never.")
    ] = "168h",
    keep_last: Annotated[
        int, typer.Option(min=1, help="Number of snapshots to keep at any age (Iceberg).")
    ] = 1,
    orphans_after: Annotated[
        str, typer.Option(help="Age at which unreferenced files are removed, or never.")
    ] = "72h",
    propagate_deletes: Annotated[
        bool,
        typer.Option(
            "--propagate-deletes",
            help="Delete rows of records below the log starts of the topic.",
        ),
    ] = False,
    from_history: Annotated[
        bool,
        typer.Option(
            "--from-history",
            help="With --propagate-deletes: delete older versions and their files, too.",
        ),
    ] = False,
    source: SourceOptions,
    spark: SparkOptions,
) -> None:
    """Compact small files of tables, expire old versions, and remove unreferenced files.

    Exports may run meanwhile. --propagate-deletes first deletes rows whose records the topic no
    longer has, including those that retention deleted.

    Exit status: 0 if it is done, 1 if it failed.
    """
    catalog.check()
    source.extra()
    upkeep = TableMaintenance(
        compact=compact,
        keep=_age(keep, "--keep"),
        keep_last=keep_last,
        orphans=_age(orphans_after, "--orphans-after"),
    )
    if from_history and not propagate_deletes:
        fail("--from-history needs --propagate-deletes")
    with fail_on(*EXPLAINED):
        table_options = TableOptions(
            table=tables[0], format=catalog.table_format, catalog=catalog.properties()
        )
        topics = None
        if propagate_deletes:
            topics = source.options()
            # Checks the source before Spark starts; each table names its own topic, so "-" is a
            # placeholder.
            topic_options({**topics, "topic": "-"})
        log = spark.prepare(source.directory)
        settings = catalog.settings(table_options)
        with spark.session("tidemark maintain", log, settings) as session:
            for table in tables:
                if topics is not None:
                    # Before the compaction, which then does not rewrite rows that are about to be
                    # deleted.
                    _propagate(session, table_options, table, topics, history=from_history)
                _maintain(session, table_options, table, upkeep)


def _propagate(
    session: "SparkSession",
    table_options: TableOptions,
    table: str,
    source: Mapping[str, str],
    *,
    history: bool,
) -> None:
    """Delete the rows of deleted records from one table, and print the result.

    ``source``: options of the data source that has the topic. ``history``: delete older versions of
    the table too.
    """
    from tidemark_pipeline.jobs.maintain import propagate

    def say(line: str) -> None:
        errors.print(f"{table}: {line}", markup=False)

    # Spark addresses the table by its catalog or path, and the output by the name that the user
    # gave.
    name = table_options.name_of(table)
    done = propagate(session, table_options.format, name, source, history=history, say=say)
    console.print(f"{table}: {propagated(done)}", markup=False)


def propagated(done: Propagated) -> str:
    """Return one line about the rows that were deleted with their records, and what is pending."""
    referenced = f"; still referenced by {', '.join(done.retained_by)}" if done.retained_by else ""
    behind = ", ".join(map(str, done.behind))
    more = f"; partitions {behind} are not exported that far yet" if behind else ""
    again = ": run this command again later" if referenced or more else ""
    return (
        f"{count(done.rows, 'row')} deleted, {count(done.expired, 'version')} expired, "
        f"{count(done.removed, 'file')} removed{referenced}{more}{again}"
    )


def _maintain(
    session: "SparkSession", table_options: TableOptions, table: str, upkeep: TableMaintenance
) -> None:
    """Run the maintenance of one table and print the result."""
    from tidemark_pipeline.jobs.maintain import maintain as run
    from tidemark_pipeline.session import reporting_stages

    def say(line: str) -> None:
        errors.print(f"{table}: {line}", markup=False)

    started = time.monotonic()
    with reporting_stages(
        session.sparkContext, lambda done, of: say(f"{done:,} of {count(of, 'task')}")
    ):
        done = run(session, table_options.format, table_options.name_of(table), upkeep, say)
    took_s = time.monotonic() - started
    console.print(f"{table}: {text(done)}; {took_s:.0f} s", markup=False)


def text(done: Maintained) -> str:
    """Return one line about the work of a maintenance run."""
    failed = f" ({done.failed:,} kept, a concurrent commit changed them)" if done.failed else ""
    return (
        f"{count(done.compacted, 'file')} compacted to {done.into:,}{failed}, "
        f"{count(done.expired, 'version')} expired, {count(done.removed, 'file')} removed, "
        f"{count(done.orphans, 'orphan')} removed"
    )


def _age(value: str, option: str) -> timedelta | None:
    if value == _NEVER:
        return None
    try:
        return timedelta(milliseconds=duration_ms(value))
    except ValueError as error:
        fail(f"{option}: {error}, or {_NEVER}")
