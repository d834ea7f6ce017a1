"""One driver that exports a topic to Iceberg, for :mod:`tests.benchmarks.exports`.

Without an interval each line on standard input is an export of all there is into a table of its
own, answered by a line of JSON; with one it exports until standard input ends, and tells each
commit. A process group of its own, so that its cost is that of all processes in it.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import group_cpu_seconds
from tests.table_jars import settings as settings_of
from tidemark_pipeline.export.formats import Format, catalog_settings
from tidemark_pipeline.export.iceberg import IcebergTable
from tidemark_pipeline.export.row_shapes import RAW_DDL
from tidemark_pipeline.export.table import TableLayout
from tidemark_pipeline.jobs.export import ExportProgress, export
from tidemark_pipeline.session import local_session

_CATALOG = "lake"


class Exporter:
    """The process, seen by who starts it. ``folder``: for its log and the tables. ``settings``: of
    its session."""

    def __init__(
        self,
        options: Mapping[str, str],
        folder: Path,
        every_s: float | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        # The process receives its work as one argument.
        wanted = {
            "options": dict(options),
            "folder": str(folder),
            "every_s": every_s,
            "settings": dict(settings or {}),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.export_process", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._log = folder / "spark.log"

    def run(self) -> dict[str, Any]:
        """One export of all: ``seconds``, ``rows``, ``bytes`` and ``files`` of the table."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return next(self.reports())

    def reports(self) -> Iterator[dict[str, Any]]:
        """Return the next report of the process. Raises RuntimeError if it has failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        if self._process.wait():
            raise RuntimeError(f"the export failed: see {self._log}\n{self._tail()}")

    def cpu_seconds(self) -> float:
        """CPU seconds of driver, JVM and Python workers so far, including ended ones."""
        return group_cpu_seconds(self._process.pid)

    def stop(self) -> None:
        """Nothing more is to be begun."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """End it, and wait."""
        self.stop()
        self._process.wait()

    def _tail(self) -> str:
        return self._log.read_text()[-2000:]


def main() -> None:
    """Serve until standard input ends."""
    # One job description as JSON is the only argument.
    wanted = json.loads(sys.argv[1])
    folder = Path(wanted["folder"])
    settings = settings_of(Format.ICEBERG)
    # Both name jars.
    named = [
        found["spark.jars"] for found in (settings, wanted["settings"]) if "spark.jars" in found
    ]
    settings |= wanted["settings"] | {"spark.jars": ",".join(named)}
    settings |= catalog_settings(_CATALOG, {"type": "hadoop", "warehouse": str(folder / "lake")})
    with local_session("exports", log=folder / "spark.log", settings=settings) as session:
        # Continuous: standard input ends when the parent wants the export to stop.
        if wanted["every_s"] is not None:
            stop = threading.Event()

            def tell(progress: ExportProgress) -> None:
                # The commit's time is taken here, as close to the commit as possible.
                now_ms = time.time_ns() // 1_000_000
                report = {"ms": now_ms, "offsets": progress.exported.offsets}
                print(json.dumps(report), flush=True)

            def wait() -> None:
                sys.stdin.read()
                stop.set()

            threading.Thread(target=wait, daemon=True).start()
            table = IcebergTable(session, f"{_CATALOG}.db.all", TableLayout(columns=RAW_DDL))
            every_s = wanted["every_s"]
            export(session, wanted["options"], table, every_s=every_s, stop=stop, on_commit=tell)
            return
        # A new table each time, so that no run finds data of another one.
        for number, _ in enumerate(sys.stdin):
            table = IcebergTable(session, f"{_CATALOG}.db.t{number}", TableLayout(columns=RAW_DDL))
            began_s = time.monotonic()
            written = export(session, wanted["options"], table).written
            answer = {"rows": written.rows, "bytes": written.bytes, "files": written.files}
            print(json.dumps(answer | {"seconds": time.monotonic() - began_s}), flush=True)


if __name__ == "__main__":
    main()
