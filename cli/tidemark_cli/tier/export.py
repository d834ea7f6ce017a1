"""``tidemark spark export``: write a topic's records to a table, exactly once."""

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.kafka_client.errors import KafkaError
from tidemark.message_text import count
from tidemark.tier.objects import StoreError
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.common import (
    DEFAULT_DIR,
    ContextOption,
    DirOption,
    KubeconfigOption,
    NamespaceOption,
    console,
    errors,
    fail,
)
from tidemark_cli.tier.export_deletes import ApiOptions, deleter_of
from tidemark_cli.tier.spark_topic import check_source, is_local, source_options
from tidemark_cli.tier.stores import (
    BucketsOption,
    EndpointOption,
    PathOption,
    PrefixOption,
    RegionOption,
    named_store,
)
from tidemark_cli.tier.tables import (
    PAIR,
    CatalogOption,
    ConfOption,
    CoresOption,
    FormatOption,
    JarOption,
    LogOption,
    WarehouseOption,
    check_jars,
    jars,
    pairs,
    place,
    spark_log,
    with_jars,
)
from tidemark_devcluster.tier import kafka_jars
from tidemark_devcluster.toolchain.errors import ToolchainError
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.errors import DataLoss, project_error
from tidemark_pipeline.export.export_progress import ExportError, WriteMode
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.table import Evolution, PartitionPeriod
from tidemark_pipeline.export.table_options import TableOptions, catalog_of
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.read.options import OptionError

if TYPE_CHECKING:
    from tidemark_pipeline.jobs.export import ExportProgress

#: Errors whose text already says what to do.
_EXPLAINED = (
    *(JavaMissing, ToolchainError, ExportError, DataLoss, OptionError, LookupError),
    *(StoreError, TopicNotFound, TopicAmbiguous, KafkaError),
)


def export(
    topic: Annotated[str, typer.Argument(help="Topic to export.")],
    table: Annotated[str, typer.Option(help="Table with its namespace, such as db.orders.")],
    table_format: FormatOption = Format.ICEBERG,
    warehouse: WarehouseOption = "",
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Export what exists now, or run until stopped."),
    ] = True,
    interval: Annotated[
        float, typer.Option(min=1, help="With --continuous: seconds between two commits.")
    ] = 60,
    catalog: CatalogOption = None,
    option: Annotated[
        list[str] | None, typer.Option(help=f"Option of the data source, {PAIR}")
    ] = None,
    conf: ConfOption = None,
    jar: JarOption = None,
    schema: Annotated[
        str,
        typer.Option(help="Fields of JSON values, such as 'id BIGINT, name STRING', or 'infer'."),
    ] = "",
    schema_file: Annotated[
        str, typer.Option(help="Schema of Avro (.avsc) or Protobuf (.proto, descriptors) values.")
    ] = "",
    message: Annotated[
        str, typer.Option(help="Full name of the message, if the Protobuf file has several.")
    ] = "",
    registry: Annotated[
        str, typer.Option(help="Address of the schema registry, such as http://registry:8081.")
    ] = "",
    registry_option: Annotated[
        list[str] | None, typer.Option(help=f"Option of the registry, {PAIR}")
    ] = None,
    evolution: Annotated[
        Evolution,
        typer.Option(
            help="If the schema has more fields than the table: refuse the schema, grow the "
            "table, or ignore the fields."
        ),
    ] = Evolution.REFUSE,
    dead_letters: Annotated[
        str, typer.Option(help="Table for records that do not parse, with a schema.")
    ] = "",
    mode: Annotated[
        WriteMode,
        typer.Option(help="One row for each record, or for the last record of each key (upsert)."),
    ] = WriteMode.APPEND,
    partition: Annotated[
        PartitionPeriod, typer.Option(help="Partition a new table by the record's timestamp.")
    ] = PartitionPeriod.NONE,
    key_buckets: Annotated[
        int, typer.Option(min=0, help="Number of buckets by the record's key, of a new table.")
    ] = 0,
    table_property: Annotated[
        list[str] | None, typer.Option(help=f"Property of a new table, {PAIR}")
    ] = None,
    delete_after_commit: Annotated[
        bool,
        typer.Option(
            "--delete-after-commit",
            help="Delete records from the topic after the table has committed them.",
        ),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    bootstrap: Annotated[
        str, typer.Option(help="Brokers, for records that are not in the tier.")
    ] = "",
    cores: CoresOption = 2,
    log: LogOption = None,
    directory: DirOption = DEFAULT_DIR,
    path: PathOption = "",
    endpoint: EndpointOption = "",
    buckets: BucketsOption = "",
    prefix: PrefixOption = "",
    region: RegionOption = "",
) -> None:
    """Write the topic's records to a table of Apache Iceberg or Delta Lake, each exactly once.

    The table's commits contain the offsets. The next run continues there, whatever ended this one.

    Exit status: 0 if it is done or was stopped, 1 if it failed.
    """
    # Options are parsed and checked before Java and Spark, which take ten seconds to start.
    source = {**named_store(path, endpoint, buckets, prefix, region), "bootstrap": bootstrap}
    extra = pairs(option, "--option")
    properties = pairs(catalog, "--catalog")
    conf_given = pairs(conf, "--conf")
    table_properties = pairs(table_property, "--table-property")
    registry_options = pairs(registry_option, "--registry-option")
    jar_paths = check_jars(jar)
    try:
        table_options = TableOptions(
            table=table,
            format=table_format,
            catalog=catalog_of(place(warehouse), properties, table_format),
            schema=schema,
            schema_file=schema_file,
            message=message,
            registry=registry,
            registry_options=registry_options,
            evolution=evolution,
            dead_letters=dead_letters,
            mode=mode,
            partition=partition,
            key_buckets=key_buckets,
            properties=table_properties,
            deletes=delete_after_commit,
        )
        table_options.check()
        from_topic = {"topic": topic, **source_options(source, extra, directory)}
        # The deleter is opened early: an unreachable API fails the command before any record is
        # written.
        deleter = (
            deleter_of(
                from_topic,
                table_options,
                directory if is_local(source, extra) else None,
                ApiOptions(kubeconfig, context, namespace),
            )
            if delete_after_commit
            else None
        )
        check_source(from_topic)
        find_java()
        ensure_spark(console.print)
        spark_log_path = spark_log(log, directory)
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from tidemark_pipeline.jobs.export import export as run
        from tidemark_pipeline.session import local_session

        format_jars = jars(jar_paths, table_format, table_options.catalog, conf_given)
        settings = with_jars(
            table_options.settings(format_jars, conf_given), kafka_jars(from_topic)
        )
        try:
            with local_session(
                "tidemark export", cores=cores, log=spark_log_path, settings=settings
            ) as session:
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
        except (PySparkException, Py4JJavaError) as error:
            fail(f"{project_error(str(error))[1]}; Spark's own log: {spark_log_path}")
    except _EXPLAINED as error:
        fail(str(error))
    console.print(f"{table}: {_summary(done)}", highlight=False, markup=False)


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
    errors.print(text, highlight=False, markup=False)


def _print_progress(progress: "ExportProgress") -> None:
    errors.print(_summary(progress), highlight=False, markup=False)


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
