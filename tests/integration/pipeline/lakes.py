"""A table that tests export into, and jobs that end where they should not."""

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.iceberg import IcebergMissing, ensure_iceberg
from tidemark_pipeline.export.exported import Exported
from tidemark_pipeline.export.iceberg import IcebergTable, catalog_settings
from tidemark_pipeline.export.shapes import RAW_DDL
from tidemark_pipeline.export.table import Layout, Table
from tidemark_pipeline.jobs.export import Progress, export

#: Spark gives the process that plans a stream ten seconds to start, which is little where many
#: programs run.
_NOT_STARTED = "Python worker failed to connect back"
RAW_LAYOUT = Layout(columns=RAW_DDL)


@dataclass(slots=True)
class Lake:
    """A warehouse with one table, and the options of the source that it is filled from."""

    session: SparkSession
    catalog: str
    source: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.catalog}.db.events"

    def table(
        self, kind: Callable[..., IcebergTable] = IcebergTable, layout: Layout = RAW_LAYOUT
    ) -> IcebergTable:
        return kind(self.session, self.name, layout)

    def run(self, table: Table, *, continuous: bool = False) -> Progress:
        """All there is, 20 offsets a commit; a ``continuous`` run is stopped then."""
        given = {**self.source, "maxOffsetsPerTrigger": "20"}
        stop, every_s = threading.Event(), 0.1 if continuous else None

        def say(progress: Progress) -> None:
            if progress.lag == 0:
                stop.set()

        for _ in range(5):
            try:
                return export(self.session, given, table, every_s=every_s, stop=stop, say=say)
            except Exception as error:
                if _NOT_STARTED not in str(error):
                    raise
        raise AssertionError(_NOT_STARTED)


def new_lake(
    session: SparkSession, source: Mapping[str, str], folder: Path, **properties: str
) -> Lake:
    """In ``folder``, or where the catalog's properties say."""
    try:
        ensure_iceberg()
    except IcebergMissing as error:
        pytest.skip(str(error))
    catalog = f"lake_{uuid.uuid4().hex[:8]}"
    known = properties or {"type": "hadoop", "warehouse": str(folder)}
    for key, value in catalog_settings(catalog, known).items():
        session.conf.set(key, value)
    return Lake(session, catalog, source)


def loaded(table: IcebergTable) -> Any:
    """It, as somebody else has it."""
    session: Any = SparkSession.active()
    spark3 = session._jvm.org.apache.iceberg.spark.Spark3Util
    return spark3.loadIcebergTable(session._jsparkSession, table.name)


class Killed(Exception):
    """The job ends here, and does nothing more."""


class NeverClosed(IcebergTable):
    def close(self) -> None:
        """One that is killed closes nothing."""


class KilledBeforeWriting(NeverClosed):
    def write(self, frame: Any, exported: Exported) -> None:
        raise Killed


class KilledAfterWriting(NeverClosed):
    def write(self, frame: Any, exported: Exported) -> None:
        super().write(frame, exported)
        raise Killed


class KilledBeforeItsCheckpoint(NeverClosed):
    def commit(self, frame: Any, exported: Exported) -> Any:
        super().commit(frame, exported)
        raise Killed


class OthersCommitMeanwhile(IcebergTable):
    """Once."""

    others = 1

    def write(self, frame: Any, exported: Exported) -> None:
        super().write(frame, exported)
        if self.others:
            self.others -= 1
            loaded(self).newFastAppend().commit()


KILLED = (KilledBeforeWriting, KilledAfterWriting, KilledBeforeItsCheckpoint)
