"""``tidemark spark export``: a topic's records in an Apache Iceberg table, each of them once."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.tier.objects import StoreError
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.commands.common import (
    DEFAULT_DIR,
    DirOption,
    console,
    errors,
    fail,
    open_cluster,
)
from tidemark_cli.commands.stores import (
    BucketsOption,
    EndpointOption,
    PathOption,
    PrefixOption,
    RegionOption,
)
from tidemark_cli.local.tier import tier_options
from tidemark_cli.toolchain import ToolchainError
from tidemark_cli.toolchain.packages import ensure_spark
from tidemark_pipeline.brokers import BrokersUnavailable, Refused
from tidemark_pipeline.errors import own_words
from tidemark_pipeline.export.exported import ExportError, Mode
from tidemark_pipeline.export.table import Evolution, Period
from tidemark_pipeline.export.wanted import Wanted, catalog_of
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.options import OptionError

if TYPE_CHECKING:
    from tidemark_pipeline.jobs.export import Progress

_PAIR = "as name=value; several times for several."
#: What says itself what to do.
_SAID = (
    *(JavaMissing, ToolchainError, ExportError, OptionError, LookupError),
    *(StoreError, TopicNotFound, TopicAmbiguous, BrokersUnavailable, Refused),
)


def export(
    topic: Annotated[str, typer.Argument(help="The topic to export.")],
    table: Annotated[str, typer.Option(help="The table, with its namespace: db.orders.")],
    warehouse: Annotated[
        str, typer.Option(help="Where tables are kept: a folder, or a URI that Hadoop knows.")
    ] = "",
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="All there is now, or until it is stopped.")
    ] = True,
    interval: Annotated[
        float, typer.Option(min=1, help="With --continuous: a commit every so many seconds.")
    ] = 60,
    catalog: Annotated[
        list[str] | None, typer.Option(help=f"A property of Iceberg's catalog, {_PAIR}")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help=f"An option of the data source, {_PAIR}")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help=f"Of Spark's configuration, {_PAIR}")
    ] = None,
    jar: Annotated[
        list[Path] | None, typer.Option(help="Iceberg's jar and others, instead of fetching it.")
    ] = None,
    schema: Annotated[
        str,
        typer.Option(
            help="Values are JSON of these fields: 'id BIGINT, name STRING'; or 'infer' them."
        ),
    ] = "",
    schema_file: Annotated[
        str, typer.Option(help="Values are Avro (.avsc) or Protobuf (.proto, or descriptors).")
    ] = "",
    message: Annotated[
        str, typer.Option(help="Of a Protobuf schema with several: the full name of the message.")
    ] = "",
    registry: Annotated[
        str, typer.Option(help="Values name a schema of this registry: http://registry:8081.")
    ] = "",
    registry_option: Annotated[
        list[str] | None, typer.Option(help=f"An option of the registry, {_PAIR}")
    ] = None,
    evolution: Annotated[
        Evolution,
        typer.Option(
            help="Where the schema has more than the table: refuse it, let the table grow, or "
            "ignore what it has no column for."
        ),
    ] = Evolution.REFUSE,
    dead_letters: Annotated[
        str, typer.Option(help="With a schema: the table of records that do not parse.")
    ] = "",
    mode: Annotated[
        Mode,
        typer.Option(help="Every record is a row, or the last one of each key (upsert by key)."),
    ] = Mode.APPEND,
    partition: Annotated[
        Period, typer.Option(help="Of a new table, by the record's timestamp.")
    ] = Period.NONE,
    key_buckets: Annotated[
        int, typer.Option(min=0, help="Of a new table: so many buckets of the record's key, too.")
    ] = 0,
    table_property: Annotated[
        list[str] | None, typer.Option(help=f"A property of a new table, {_PAIR}")
    ] = None,
    bootstrap: Annotated[str, typer.Option(help="Brokers, for what is not in the tier yet.")] = "",
    cores: Annotated[int, typer.Option(min=1, help="How many cores work at once.")] = 2,
    log: Annotated[Path, typer.Option(help="Where Spark's own log goes.")] = Path("spark.log"),
    directory: DirOption = DEFAULT_DIR,
    path: PathOption = "",
    endpoint: EndpointOption = "",
    buckets: BucketsOption = "",
    prefix: PrefixOption = "",
    region: RegionOption = "",
) -> None:
    """Write the topic's records to an Iceberg table, each exactly once: offsets stand in the
    table's own commits, and the next run goes on behind them, whatever ended this one.

    Exit status: 0 where it is done or was stopped, 1 where it failed.
    """
    source = {
        "path": path,
        "endpoint": endpoint,
        "buckets": buckets,
        "prefix": prefix,
        "region": region,
        "bootstrap": bootstrap,
    }
    extra = _pairs(option, "--option")
    properties = _pairs(catalog, "--catalog")
    conf_given = _pairs(conf, "--conf")
    of_table = _pairs(table_property, "--table-property")
    of_registry = _pairs(registry_option, "--registry-option")
    jars = _jars(jar)
    try:
        wanted = Wanted(
            table=table,
            catalog=catalog_of(_place(warehouse), properties),
            schema=schema,
            schema_file=schema_file,
            message=message,
            registry=registry,
            registry_options=of_registry,
            evolution=evolution,
            dead_letters=dead_letters,
            mode=mode,
            partition=partition,
            key_buckets=key_buckets,
            properties=of_table,
        )
        wanted.check()
        options = _source({name: value for name, value in source.items() if value}, directory)
        find_java()
        ensure_spark(console.print)
        from pyspark.errors import PySparkException

        from tidemark_pipeline.jobs.export import export as run
        from tidemark_pipeline.session import local_session

        settings = wanted.settings(jars, conf_given)
        try:
            with local_session(
                "tidemark export", cores=cores, log=log, settings=settings
            ) as session:
                stop = threading.Event()
                if not once:
                    _stop_on_signals(stop)
                from_topic = {**options, "topic": topic, **extra}
                done = run(
                    session,
                    from_topic,
                    wanted.tables(session, from_topic, _tell),
                    every_s=None if once else interval,
                    stop=stop,
                    say=_say,
                )
        except PySparkException as error:
            fail(f"{own_words(str(error))[1]}; Spark's own log: {log}")
    except _SAID as error:
        fail(str(error))
    console.print(f"{table}: {_text(done)}", highlight=False, markup=False)


def _source(given: dict[str, str], directory: Path) -> dict[str, str]:
    """Of the tier that is named, else of the local cluster."""
    if set(given) - {"bootstrap"}:
        return given
    return {**tier_options(open_cluster(directory), "-"), **given}


def _jars(jars: Sequence[Path] | None) -> list[str]:
    for each in jars or ():
        if not each.is_file():
            fail(f"--jar {each}: there is no such file")
    return [str(each.resolve()) for each in jars or ()]


def _place(warehouse: str) -> str:
    """A folder of this machine by its whole path, a URI as it is."""
    return warehouse if not warehouse or ":/" in warehouse else str(Path(warehouse).resolve())


def _pairs(texts: Sequence[str] | None, name: str) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"{name} {text!r}: write name=value")
        pairs[key] = value
    return pairs


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())


def _tell(text: str) -> None:
    errors.print(text, highlight=False, markup=False)


def _say(progress: "Progress") -> None:
    errors.print(_text(progress), highlight=False, markup=False)


def _text(progress: "Progress") -> str:
    written = progress.written
    deleted = f", {written.deleted:,} deleted" if written.deleted else ""
    letters = f" and {written.letters:,} dead letters" if written.letters else ""
    return (
        f"{written.rows:,} rows{deleted}{letters}, "
        f"{written.bytes:,} bytes in {written.files:,} files, "
        f"{progress.commits:,} commits; {progress.lag:,} offsets behind"
    )
