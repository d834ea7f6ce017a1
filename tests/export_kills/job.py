"""One run of an export in a process group of its own, which kills itself, or stands still, where it
is told to: ``python -m tests.export_kills.job TIER WAREHOUSE STEP``.

The last run checks nothing itself: it prints what the table has as JSON.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.export_kills.steps import NO_STEP, STANDING_STILL, Step
from tests.iceberg import ensure_iceberg
from tidemark_pipeline.export.exported import Exported, Superseded
from tidemark_pipeline.export.iceberg import IcebergTable, catalog_settings
from tidemark_pipeline.export.shapes import RAW_DDL
from tidemark_pipeline.export.table import Layout, Written
from tidemark_pipeline.jobs.export import export
from tidemark_pipeline.session import local_session

TABLE = "lake.db.events"
#: What a run that was superseded ends with.
SUPERSEDED = 9
#: The commit, of this run, at which it is killed.
_COMMIT = 2
_ATTEMPTS = 5
_NOT_STARTED = "Python worker failed to connect back"
_PARQUET_END = b"PAR1"


def kill_all() -> None:
    """This process, the JVM and its workers."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


class Doomed(IcebergTable):
    """Ends at a step of its second commit."""

    step = Step.NONE
    data = Path()
    _commits = 0

    def commit(self, frame: DataFrame, exported: Exported) -> Written:
        self._commits += 1
        written = super().commit(frame, exported)
        self._at(Step.COMMITTED)
        return written

    def write(self, frame: DataFrame, exported: Exported) -> None:
        self._at(Step.PLANNED)
        if self.step is Step.DATA_FILES and self._commits == _COMMIT:
            threading.Thread(target=self._kill_at_data, daemon=True).start()
        super().write(frame, exported)

    def publish(self, base: int, exported: Exported) -> bool:
        self._at(Step.WRITTEN)
        if self.step is Step.OVERTAKEN and self._commits == _COMMIT:
            print(STANDING_STILL, flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().publish(base, exported)

    def _at(self, step: Step) -> None:
        if self.step is step and self._commits == _COMMIT:
            kill_all()

    def _kill_at_data(self) -> None:
        before = set(self.data.rglob("*.parquet"))
        while not any(_whole(file) for file in set(self.data.rglob("*.parquet")) - before):
            time.sleep(0.001)
        kill_all()


def _whole(file: Path) -> bool:
    try:
        return file.read_bytes()[4:].endswith(_PARQUET_END)
    except OSError:
        return False


def main(tier: str, warehouse: str, step: str) -> int:
    """A run; what it exits with."""
    settings = {"spark.jars": str(ensure_iceberg())}
    settings |= catalog_settings("lake", {"type": "hadoop", "warehouse": warehouse})
    with local_session("export kills", short=True, settings=settings) as session:
        table: Any = IcebergTable
        if step != NO_STEP:
            table = type("DoomedAt", (Doomed,), {"step": Step(step), "data": Path(warehouse)})
        options = {"topic": "t", "path": tier, "maxOffsetsPerTrigger": "20"}
        for _ in range(_ATTEMPTS):
            try:
                export(session, options, table(session, TABLE, Layout(columns=RAW_DDL)))
                break
            except Superseded:
                return SUPERSEDED
            except Exception as error:
                # Spark gives the process that plans a stream ten seconds to start.
                if _NOT_STARTED not in str(error):
                    raise
        rows = session.table(TABLE).select("partition", "offset", "key", "value").collect()
        print(json.dumps({"rows": len(rows), "digest": digest(sorted(map(tuple, rows)))}))
    return 0


def digest(rows: list[tuple[Any, ...]]) -> str:
    """Of (partition, offset, key, value) in order."""
    text = "\n".join(f"{p} {o} {bytes(k).hex()} {bytes(v).hex()}" for p, o, k, v in rows)
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
