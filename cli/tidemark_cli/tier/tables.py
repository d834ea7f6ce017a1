"""Options of the commands that work on tables: their location, and the jars of their format."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.kafka_client.errors import KafkaError
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.topics import TopicAmbiguous, TopicNotFound
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, errors, fail
from tidemark_devcluster.layout import Layout, nearest
from tidemark_devcluster.toolchain import ToolchainError
from tidemark_devcluster.toolchain.maven import (
    JarSet,
    MavenMissing,
    ensure_jars,
    iceberg_cloud,
    table_format,
)
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.errors import DataLoss, ExportError, project_error
from tidemark_pipeline.export.formats import CLOUD_PACKAGES, Format, packages
from tidemark_pipeline.export.table_options import TableOptions, catalog_of
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.read.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAIR = "as NAME=VALUE."


#: Errors of commands over topics and tables whose text already says what to do.
EXPLAINED = (
    *(JavaMissing, ToolchainError, ExportError, DataLoss, OptionError, LookupError),
    *(StoreError, ManifestError, TopicNotFound, TopicAmbiguous, KafkaError),
)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Options of the Spark session that runs a command."""

    cores: Annotated[
        int, typer.Option(min=1, help="Number of cores; with --master of each executor.")
    ] = 2
    master: Annotated[
        str | None,
        typer.Option(
            help="Spark cluster that runs the tasks, such as spark://host:7077. Default: this "
            "machine."
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(
            help="File for Spark's log. Default: in the folder of the local cluster, without one "
            "spark.log."
        ),
    ] = None

    def prepare(self, directory: Path, say: Callable[[str], None] = console.print) -> Path:
        """Install Spark if it is missing, and return the file for its log.

        Java is checked first: downloading Spark takes minutes. ``directory``: folder of the local
        cluster. ``say`` receives the progress. Raises JavaMissing, ToolchainError.
        """
        find_java()
        ensure_spark(say)
        return spark_log(self.log, directory)

    @contextmanager
    def session(
        self, name: str, log: Path, settings: Mapping[str, str] | None = None
    ) -> "Iterator[SparkSession]":
        """Yield a Spark session; if Spark fails, exit with its error and the place of its log."""
        # Imported here, as loading Spark takes a second that other commands need not wait for.
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from tidemark_pipeline.session import local_session

        try:
            with local_session(
                name, cores=self.cores, master=self.master, log=log, settings=settings
            ) as session:
                yield session
        except (PySparkException, Py4JJavaError) as error:
            fail(f"{project_error(str(error))[1]}; Spark's own log: {log}")


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Options that locate tables, and the jars and settings with which Spark uses them."""

    table_format: Annotated[Format, typer.Option("--format", help="Format of the table.")] = (
        Format.ICEBERG
    )
    warehouse: Annotated[
        str, typer.Option(help="Location of tables: a folder, or a URI that Hadoop supports.")
    ] = ""
    catalog: Annotated[
        list[str] | None, typer.Option(help=f"Property of Iceberg's catalog, {PAIR}")
    ] = None
    conf: Annotated[list[str] | None, typer.Option(help=f"Setting of Spark, {PAIR}")] = None
    jar: Annotated[
        list[Path] | None,
        typer.Option(help="Jars to use. The format's own jar is then not fetched."),
    ] = None

    def check(self) -> None:
        """Exit if an option has a wrong form."""
        pairs(self.catalog, "--catalog")
        pairs(self.conf, "--conf")
        check_jars(self.jar)

    def properties(self) -> dict[str, str]:
        """Return the properties of the catalog. Raises ExportError."""
        catalog = pairs(self.catalog, "--catalog")
        return catalog_of(place(self.warehouse), catalog, self.table_format)

    def settings(self, options: TableOptions) -> dict[str, str]:
        """Return Spark's configuration for a table, with the jars needed. Raises ToolchainError."""
        conf = pairs(self.conf, "--conf")
        found = jars(check_jars(self.jar), self.table_format, options.catalog, conf)
        return options.settings(found, conf)


def spark_log(log: Path | None, directory: Path) -> Path:
    """Return the file for Spark's log, and print where it is on standard error.

    Without an option it is one of the local cluster's logs, so that ``tidemark down --purge``
    removes it.
    """
    layout = Layout(nearest(directory))
    path = log or (layout.log("spark") if layout.settings.exists() else Path("spark.log"))
    path.parent.mkdir(parents=True, exist_ok=True)
    errors.print(f"Spark's own log: {path}", markup=False, soft_wrap=True)
    return path


def pairs(texts: Sequence[str] | None, name: str) -> dict[str, str]:
    """Parse ``name=value`` arguments; exit if one has another form."""
    values = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            fail(f"{name} {text!r} is not a pair: write name=value")
        values[key] = value
    return values


def place(warehouse: str) -> str:
    """Return a local folder as an absolute path, a URI unchanged."""
    return warehouse if not warehouse or ":/" in warehouse else str(Path(warehouse).resolve())


def check_jars(given: Sequence[Path] | None) -> list[str]:
    """Return the absolute paths of jars; exit if one is not a file."""
    for jar in given or ():
        if not jar.is_file():
            fail(f"--jar {jar}: no such file")
    return [str(jar.resolve()) for jar in given or ()]


def with_jars(settings: Mapping[str, str], more: Sequence[str]) -> dict[str, str]:
    """Return Spark's configuration with ``more`` jars added to those that it names."""
    configured = settings.get("spark.jars")
    both = [*([configured] if configured else []), *more]
    return {**settings, **({"spark.jars": ",".join(both)} if both else {})}


def jars(
    given: Sequence[str], kind: Format, catalog: Mapping[str, str], conf: Mapping[str, str]
) -> list[str]:
    """Return the jars for Spark: the given ones, or those of the table format.

    The format's jars come from the cache or Maven. The result is empty without Maven, or if the
    configuration says what Spark fetches: Spark then downloads them itself. Raises ToolchainError.
    """
    if given or conf.keys() & {"spark.jars", "spark.jars.packages"}:
        return list(given)
    sets: list[JarSet] = [table_format(kind)]
    needed = packages(kind, catalog)
    sets += [iceberg_cloud(cloud) for cloud in CLOUD_PACKAGES if CLOUD_PACKAGES[cloud] in needed]
    try:
        return [str(jar) for jar_set in sets for jar in sorted(ensure_jars(jar_set).glob("*.jar"))]
    except MavenMissing:
        return []
