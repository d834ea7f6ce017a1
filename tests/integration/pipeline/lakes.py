"""Tables that tests export into, and jobs that are killed at a chosen step."""

import runpy
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.table_jars import MavenMissing, jars
from tidemark_pipeline.export.delta import DeltaTable
from tidemark_pipeline.export.export_progress import Exported
from tidemark_pipeline.export.formats import Format, catalog_settings
from tidemark_pipeline.export.iceberg import IcebergTable
from tidemark_pipeline.export.record_deletion import Deleter
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout, TargetTable
from tidemark_pipeline.export.table_options import delta_name
from tidemark_pipeline.jobs.export import ExportProgress, export

RAW_LAYOUT = TableLayout(columns=RAW_DDL)
#: The script that users run to query a table without Spark.
_QUERY = Path(__file__).parents[3] / "examples" / "10-export" / "query.py"
_CLASSES: dict[Format, Any] = {Format.ICEBERG: IcebergTable, Format.DELTA: DeltaTable}


@dataclass(slots=True)
class Lake:
    """A warehouse, and the options of the source that it is filled from. ``catalog``: Iceberg's
    name of it, or Delta's path."""

    session: SparkSession
    kind: Format
    catalog: str
    source: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.named("events")

    def named(self, table: str) -> str:
        if self.kind is Format.DELTA:
            return delta_name(self.catalog, f"db.{table}")
        return f"{self.catalog}.db.{table}"

    def elsewhere(self) -> "Lake":
        """As another program knows it, whose session has settings of its own. Of Delta only."""
        return replace(self, session=self.session.newSession())

    def table(
        self, doomed: type = object, layout: TableLayout = RAW_LAYOUT, name: str = "events"
    ) -> Any:
        """Return a table; ``doomed`` is a class that changes how it is written."""
        own = _CLASSES[self.kind]
        # The doomed class precedes the real one, so that its methods come first.
        if doomed is not object:
            own = type(doomed.__name__, (doomed, own), {"lake": self})
        return own(self.session, self.named(name), layout)

    def run(
        self, table: TargetTable, *, continuous: bool = False, deleter: Deleter | None = None
    ) -> ExportProgress:
        """Export all records with 20 offsets per commit; stop a ``continuous`` run at the end."""
        given = {**self.source, "maxOffsetsPerTrigger": "20"}
        stop, every_s = threading.Event(), 0.1 if continuous else None

        def report_progress(progress: ExportProgress) -> None:
            # No lag: a continuous run has nothing more to do.
            if progress.lag == 0:
                stop.set()

        return export(
            self.session,
            given,
            table,
            every_s=every_s,
            stop=stop,
            deleter=deleter,
            on_commit=report_progress,
        )

    def commit_of_others(self) -> None:
        """Commit something that changes no row."""
        if self.kind is Format.ICEBERG:
            self.loaded().newFastAppend().commit()
        else:
            # Delta has no empty commit, so change a property.
            self.session.sql(
                f"ALTER TABLE {self.name} SET TBLPROPERTIES ('touched'='{time.time()}')"
            )

    def query_without_spark(self, statement: str, table: str = "events") -> list[tuple[Any, ...]]:
        """Return the rows that PyIceberg or delta-rs and DuckDB find."""
        warehouse = self.catalog
        if self.kind is Format.ICEBERG:
            warehouse = self.session.conf.get(f"spark.sql.catalog.{self.catalog}.warehouse")
        return runpy.run_path(str(_QUERY))["query"](Path(warehouse) / "db" / table, statement)[1]

    def loaded(self) -> Any:
        """Load Iceberg's table, as another client does."""
        session: Any = SparkSession.active()
        spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
        return spark3.loadIcebergTable(session._jsparkSession, self.name)


def new_lake(
    session: SparkSession,
    source: Mapping[str, str],
    folder: Path,
    kind: Format = Format.ICEBERG,
    **properties: str,
) -> Lake:
    """In ``folder``, or where the catalog's properties report_progress."""
    try:
        jars(*Format)
    except MavenMissing as error:
        pytest.skip(str(error))
    if kind is Format.DELTA:
        return Lake(session, kind, str(folder), source)
    # A catalog of its own: Spark caches tables by name.
    catalog = f"lake_{uuid.uuid4().hex[:8]}"
    known = properties or {"type": "hadoop", "warehouse": str(folder)}
    for key, value in catalog_settings(catalog, known).items():
        session.conf.set(key, value)
    return Lake(session, kind, catalog, source)


@dataclass(frozen=True, slots=True)
class Pause:
    """A frame whose rows wait for a signal, in the workers that read them."""

    folder: Path

    def of(self, frame: DataFrame) -> DataFrame:
        reached, proceed = str(self.folder / "reached"), str(self.folder / "go-on")

        def wait(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            Path(reached).touch()
            for _ in range(6_000):
                if Path(proceed).exists():
                    break
                time.sleep(0.02)
            # At most two minutes, so that a failed test ends.
            yield from batches

        # One task only: other cores remain for the process that the pause waits for.
        # One task, so that the process that it waits for has a core to work on.
        return frame.coalesce(1).mapInArrow(wait, frame.schema)

    @contextmanager
    def meanwhile(self, do: Any) -> Iterator[None]:
        """Call ``do`` in the first of such waits."""

        def run() -> None:
            # Wait for the first paused row, or for the end of the block.
            while not (self.folder / "reached").exists():
                if done.wait(0.02):
                    return
            try:
                do()
            finally:
                # Release the rows even if the action failed.
                (self.folder / "go-on").touch()
                done.set()

        done = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


class Killed(Exception):
    """The job was killed at this point."""


class NeverClosed:
    def close(self) -> None:
        """Close nothing, like a killed process."""


class KilledBeforeWriting(NeverClosed):
    def write(self, frame: Any, exported: Exported) -> None:
        raise Killed


class KilledAfterWriting(NeverClosed):
    """Iceberg's rows are in a branch without readers; Delta's are in the table."""

    def write(self, frame: Any, exported: Exported) -> None:
        super().write(frame, exported)  # type: ignore[misc]
        raise Killed


class KilledBeforeItsCheckpoint(NeverClosed):
    def commit(self, frame: Any, exported: Exported) -> Any:
        super().commit(frame, exported)  # type: ignore[misc]
        raise Killed


class OthersCommitMeanwhile:
    """Commits once through another client, in the middle of the first write."""

    lake: "Lake"
    others = 1

    def write(self, frame: Any, exported: Exported) -> None:
        if not self.others:
            super().write(frame, exported)  # type: ignore[misc]
            return
        self.others -= 1
        with tempfile.TemporaryDirectory() as folder:
            # The pause lets the other commit happen between the read and the commit of this write.
            pause = Pause(Path(folder))
            with pause.meanwhile(self.lake.commit_of_others):
                super().write(pause.of(frame), exported)  # type: ignore[misc]


KILLED = (KilledBeforeWriting, KilledAfterWriting, KilledBeforeItsCheckpoint)
