"""One Spark driver of the comparison: reads a topic on request.

Each line on standard input is one read, with options of its own as JSON. The answer is a JSON line
with what was read and the seconds that it took. The sums force every key and value out of the
source, and are compared with what was produced. The driver has a process group of its own, so that
its cost is that of all processes in it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from tests.benchmarks.processes import group_cpu_seconds
from tidemark_pipeline.session import local_session

_SUMS = ("count(1)", "sum(octet_length(key))", "sum(octet_length(value))", "max(offset)")


class SparkReader:
    """The process, seen by who starts it. ``source``: the name of a Spark format; ``jars``: with
    the jars of this folder; ``folder``: for its log; ``settings``: of its session."""

    def __init__(
        self,
        source: str,
        options: Mapping[str, str],
        folder: Path,
        jars: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        wanted = {
            "source": source,
            "options": dict(options),
            "log": str(folder / "spark.log"),
            "settings": dict(settings or {}),
        }
        environment = dict(os.environ)
        # The Kafka source is no part of Spark's distribution.
        if jars is not None:
            paths = ",".join(map(str, sorted(jars.glob("*.jar"))))
            environment["PYSPARK_SUBMIT_ARGS"] = f"--jars {paths} pyspark-shell"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.spark_process", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._log = folder / "spark.log"

    def read(self, options: Mapping[str, str]) -> tuple[tuple[int, ...], float]:
        """The sums, and seconds; with more options. Raises RuntimeError where Spark failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark failed: see {self._log}\n{self._log.read_text()[-2000:]}")
        answer = json.loads(line)
        return tuple(answer["sums"]), float(answer["seconds"])

    def cpu_seconds(self) -> float:
        """CPU seconds of driver, JVM and Python workers so far, including ended ones."""
        return group_cpu_seconds(self._process.pid)

    def close(self) -> None:
        """End it, and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _sums(session: SparkSession, source: str, options: Mapping[str, str]) -> list[int]:
    table = session.read.format(source).options(**options).load()
    row = table.selectExpr(*_SUMS).first()
    assert row is not None
    return [int(item) for item in row]


def main() -> None:
    """Serve until standard input ends."""
    wanted = json.loads(sys.argv[1])
    log, settings = Path(wanted["log"]), wanted["settings"]
    with local_session("benchmark", log=log, settings=settings) as session:
        for line in sys.stdin:
            began_s = time.monotonic()
            sums = _sums(session, wanted["source"], wanted["options"] | json.loads(line))
            answer = {"sums": sums, "seconds": time.monotonic() - began_s}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
