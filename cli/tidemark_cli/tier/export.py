"""``tidemark spark export``: write a topic's records to a table, exactly once."""

import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.message_text import count
from tidemark_cli.common import ApiOptions, console, errors, fail_on
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.record_deletions import deleter_of
from tidemark_cli.tier.spark_topic import SourceOptions, check_source
from tidemark_cli.tier.tables import EXPLAINED, PAIR, CatalogOptions, SparkOptions, pairs, with_jars
from tidemark_devcluster.tier import kafka_jars
from tidemark_pipeline.export.export_progress import WriteMode
from tidemark_pipeline.export.table import Evolution, PartitionPeriod
from tidemark_pipeline.export.table_options import TableOptions

if TYPE_CHECKING:
    from tidemark_pipeline.jobs.export import ExportProgress


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Options about the rows of a table, and about the table that the first export creates."""

    schema: Annotated[
        str,
        typer.Option(help="Fields of JSON values, such as 'id BIGINT, name STRING', or 'infer'."),
    ] = ""
    schema_file: Annotated[
        str, typer.Option(help="Schema of Avro (.avsc) or Protobuf (.proto, descriptors) values.")
    ] = ""
    message: Annotated[
        str, typer.Option(help="Full name of the message, if the Protobuf file has several.")
    ] = ""
    registry: Annotated[
        str, typer.Option(help="Address of the schema registry, such as http://registry:8081.")
    ] = ""
    registry_option: Annotated[
        list[str] | None, typer.Option(help=f"Option of the registry, {PAIR}")
    ] = None
    evolution: Annotated[
        Evolution,
        typer.Option(
            help="If the schema has more fields than the table: refuse the schema, grow the "
            "table, or ignore the fields."
        ),
    ] = Evolution.REFUSE
    dead_letters: Annotated[
        str, typer.Option(help="Table for records that do not parse, with a schema.")
    ] = ""
    mode: Annotated[
        WriteMode,
        typer.Option(help="One row for each record, or for the last record of each key (upsert)."),
    ] = WriteMode.APPEND
    partition: Annotated[
        PartitionPeriod, typer.Option(help="Partition a new table by the record's timestamp.")
    ] = PartitionPeriod.NONE
    key_buckets: Annotated[
        int, typer.Option(min=0, help="Number of buckets by the record's key, of a new table.")
    ] = 0
    table_property: Annotated[
        list[str] | None, typer.Option(help=f"Property of a new table, {PAIR}")
    ] = None

    def table_options(self, table: str, tables: CatalogOptions, *, deletes: bool) -> TableOptions:
        """Return the options of one table, checked. Raises ExportError."""
        # Options as users give them; pairs are parsed, and paths are made absolute.
        options = TableOptions(
            table=table,
            format=tables.table_format,
            catalog=tables.properties(),
            schema=self.schema,
            schema_file=self.schema_file,
            message=self.message,
            registry=self.registry,
            registry_options=pairs(self.registry_option, "--registry-option"),
            evolution=self.evolution,
            dead_letters=self.dead_letters,
            mode=self.mode,
            partition=self.partition,
            key_buckets=self.key_buckets,
            properties=pairs(self.table_property, "--table-property"),
            deletes=deletes,
        )
        # Some options exclude each other.
        options.check()
        return options


@option_groups
def export(
    *,
    topic: Annotated[str, typer.Argument(help="Topic to export.")],
    table: Annotated[str, typer.Option(help="Table with its namespace, such as db.orders.")],
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Export what exists now, or run until stopped."),
    ] = True,
    interval: Annotated[
        float, typer.Option(min=1, help="With --continuous: seconds between two commits.")
    ] = 60,
    tables: CatalogOptions,
    rows: RowOptions,
    delete_after_commit: Annotated[
        bool,
        typer.Option(
            "--delete-after-commit",
            help="Delete records from the topic after the table has committed them.",
        ),
    ] = False,
    api: ApiOptions,
    spark: SparkOptions,
    source: SourceOptions,
) -> None:
    """Write the topic's records to a table of Apache Iceberg or Delta Lake, each exactly once.

    The table's commits contain the offsets. The next run continues there, whatever ended this one.

    Exit status: 0 if it is done or was stopped, 1 if it failed.
    """
    # Options are parsed and checked before Java and Spark, which take ten seconds to start.
    tables.check()
    source.extra()
    with fail_on(*EXPLAINED):
        table_options = rows.table_options(table, tables, deletes=delete_after_commit)
        from_topic = {"topic": topic, **source.options()}
        # The deleter is opened early: an unreachable API fails the command before any record is
        # written.
        directory = source.directory if source.is_local() else None
        deleter = (
            deleter_of(from_topic, table_options, directory, api) if delete_after_commit else None
        )
        check_source(from_topic)
        log = spark.prepare(source.directory)
        settings = with_jars(tables.settings(table_options), kafka_jars(from_topic))
        with spark.session("tidemark export", log, settings) as session:
            from tidemark_pipeline.jobs.export import export as run

            stop = threading.Event()
            if not once:
                _stop_on_signals(stop)
            done = run(
                session,
                from_topic,
                table_options.tables(session, from_topic, _print_line),
                every_s=None if once else interval,
                stop=stop,
                deleter=deleter,
                on_commit=_print_progress,
                on_progress=_StartNotice(table),
            )
    console.print(f"{table}: {_summary(done)}", markup=False)


class _StartNotice:
    """Watcher that prints once how far behind the topic the export starts."""

    def __init__(self, table: str) -> None:
        self._table, self._is_printed = table, False

    def __call__(self, progress: "ExportProgress") -> None:
        if not self._is_printed:
            self._is_printed = True
            _print_line(f"{self._table}: export starts, {count(progress.lag, 'offset')} behind")


def _stop_on_signals(stop: threading.Event) -> None:
    # The job ends after its current commit, so that no file of the table is left unfinished.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _print_line(text: str) -> None:
    errors.print(text, markup=False)


def _print_progress(progress: "ExportProgress") -> None:
    errors.print(_summary(progress), markup=False)


def _summary(progress: "ExportProgress") -> str:
    written = progress.written
    deleted = f", {written.deleted:,} deleted" if written.deleted else ""
    letters = f" and {count(written.letters, 'dead letter')}" if written.letters else ""
    deleted_from_topic = (
        f"; {progress.deleted:,} deleted from the topic" if progress.deleted else ""
    )
    return (
        f"{count(written.rows, 'row')}{deleted}{letters}, "
        f"{count(written.bytes, 'byte')} in {count(written.files, 'file')}, "
        f"{count(progress.commits, 'commit')}; "
        f"{count(progress.lag, 'offset')} behind{deleted_from_topic}"
    )
