"""One run of an export in a process group of its own, which kills or suspends itself at a given
step:

``python -m tests.export_kills.job TABLE TIER WAREHOUSE STEP [MASTER [struck]]``.

With the master of a cluster the run is on its executors. With ``struck`` it loses them twice, and
continues (:class:`~tests.export_kills.steps.StruckPart`).

The last run checks nothing itself: it prints the table's contents as JSON.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.export_kills.records import digest
from tests.export_kills.steps import (
    NO_STEP,
    STANDING_STILL,
    STRUCK,
    ExportStep,
    StepKind,
    StruckPart,
)
from tests.spark_cluster import executors_of
from tests.table_jars import settings as settings_of
from tidemark_pipeline.export.delta import DeltaTable
from tidemark_pipeline.export.export_progress import Exported, Superseded
from tidemark_pipeline.export.formats import Format, catalog_settings
from tidemark_pipeline.export.iceberg import IcebergTable
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout, Written
from tidemark_pipeline.export.table_options import delta_name
from tidemark_pipeline.jobs.export import export
from tidemark_pipeline.session import local_session

TABLE = "db.events"
#: What a run that was superseded ends with.
SUPERSEDED = 9
#: The commit, of this run, at which it is killed.
_COMMIT = 2
#: The commits at which it loses its executors instead.
_STRIKES = {2: StruckPart.EXECUTORS, 3: StruckPart.NODES}
_ATTEMPTS = 5
_NOT_STARTED = "Python worker failed to connect back"
_PARQUET_END = b"PAR1"
#: Time in which drained executors have to end.
_DRAIN_S = 120.0


def kill_all() -> None:
    """This process, the JVM and its workers."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def strike_executors(application: str, victim: StruckPart) -> None:
    """Kill or drain all executors of this run, which continues."""
    found = executors_of(application)
    # Spark's image sends this signal before Kubernetes ends a pod.
    number = signal.SIGPWR if victim is StruckPart.NODES else signal.SIGKILL
    for pid in found:
        os.kill(pid, number)
    print(f"{STRUCK} {victim.value} {len(found)}", flush=True)
    # A drained node leaves the cluster, so the commit continues on other executors.
    deadline_s = time.monotonic() + _DRAIN_S
    while set(found) & set(executors_of(application)):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"an executor did not end in {_DRAIN_S:.0f} s")
        time.sleep(0.05)


class Doomed:
    """Ends at a step of its second commit; before one of the two formats' tables."""

    step = ExportStep.NONE
    warehouse = Path()
    #: Application whose executors are struck; none: the run itself is killed.
    application = ""
    _commits = 0

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        self._commits += 1
        written: Written = super().commit(frame, exported)  # type: ignore[misc]
        if self._is_at(ExportStep.COMMITTED):
            self._kill()
        return written

    def write(self, frame: DataFrame, exported: Exported) -> None:
        # Each step is a moment between two writes of a commit.
        if self._is_at(ExportStep.PLANNED):
            self._kill()
        if self._is_at(ExportStep.DATA_FILES):
            self._kill_once(lambda: filter(_whole, self.warehouse.rglob("*.parquet")))
        if self._is_at(ExportStep.LOGGED):
            self._kill_once(lambda: self.warehouse.rglob("_delta_log/*.json"))
        if self._is_at(ExportStep.OVERTAKEN) and isinstance(self, DeltaTable):
            stand_still()
        super().write(frame, exported)  # type: ignore[misc]

    def publish(self, base: int, exported: Exported) -> bool:
        if self._is_at(ExportStep.WRITTEN):
            self._kill()
        if self._is_at(ExportStep.OVERTAKEN):
            stand_still()
        published: bool = super().publish(base, exported)  # type: ignore[misc]
        return published

    def _is_at(self, step: ExportStep) -> bool:
        commits = _STRIKES if self.application else (_COMMIT,)
        return self.step is step and self._commits in commits

    def _kill(self, commit: int | None = None) -> None:
        if self.application:
            strike_executors(self.application, _STRIKES[commit or self._commits])
        else:
            kill_all()

    def _kill_once(self, files: Callable[[], Iterable[Path]]) -> None:
        """There is one more of them."""
        # Files of earlier commits do not count.
        before, commit = set(files()), self._commits

        def watch() -> None:
            while not set(files()) - before:
                time.sleep(0.001)
            self._kill(commit)

        threading.Thread(target=watch, daemon=True).start()


def stand_still() -> None:
    """Suspend this process until it receives SIGCONT."""
    print(STANDING_STILL, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _whole(file: Path) -> bool:
    try:
        return file.read_bytes()[4:].endswith(_PARQUET_END)
    except OSError:
        return False


def main(
    name: str, tier: str, warehouse: str, step: str, master: str = "", struck: str = ""
) -> int:
    """A run; what it exits with."""
    kind = StepKind(name)
    settings = settings_of(kind.format)
    if kind.format is Format.ICEBERG:
        settings |= catalog_settings("lake", {"type": "hadoop", "warehouse": warehouse})
    if master:
        # Half of the cluster, so that a run that is suspended leaves executors to the next one.
        settings |= {"spark.cores.max": "2"}
    with local_session(
        "export kills", cores=1, master=master or None, short=True, settings=settings
    ) as session:
        options = {"topic": "t", "path": tier, "maxOffsetsPerTrigger": "20"}
        application = session.sparkContext.applicationId if struck else ""
        # Another attempt only for Spark's own start problem.
        for _ in range(_ATTEMPTS):
            table = table_of(session, kind, warehouse, step, application)
            try:
                export(session, options, table)
                break
            except Superseded:
                return SUPERSEDED
            except Exception as error:
                # Spark gives the process that plans a read ten seconds to start.
                if _NOT_STARTED not in str(error):
                    raise
        # The whole table, in an order of its own, for the comparison by the loop.
        rows = session.table(table.name).select("partition", "offset", "key", "value").collect()
        print(json.dumps({"rows": len(rows), "digest": digest(sorted(map(tuple, rows)))}))
    return 0


def table_of(
    session: SparkSession, kind: StepKind, warehouse: str, step: str, application: str
) -> Any:
    """Doomed, where a step says so."""
    own: Any = IcebergTable if kind.format is Format.ICEBERG else DeltaTable
    if step != NO_STEP:
        doom = {
            "step": ExportStep(step),
            "warehouse": Path(warehouse),
            "application": application,
        }
        own = type("DoomedAt", (Doomed, own), doom)
    is_delta = kind.format is Format.DELTA
    name = delta_name(warehouse, TABLE) if is_delta else f"lake.{TABLE}"
    return own(session, name, TableLayout(columns=RAW_DDL, mode=kind.mode))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
