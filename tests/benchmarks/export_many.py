"""Many topics in one Export, on a local cluster whose every part is the real one.

Some topics appear while the job runs, and some cannot be exported. Every other topic must be in its
table, each record once, and the status must name those that are not. Afterwards the operator and
the API server must be at rest. The last line has the figures. A table that differs from its topic,
or more writes at rest than figures of the Export need, end the program with status 1.
"""

import argparse
import runpy
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.benchmarks.topics import PREFIX, TopicBench, is_ready
from tests.table_jars import MavenMissing, jars
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.export.topic_tables import table_name

EXPORT = "many"
NAMESPACE = "many_topics_of_one_export"
TEMPLATE = f"{NAMESPACE}.{{topic}}"
RECORDS, INTERVAL_S, CORES = 60, 15, 2
TIMEOUT_S, REST_S = 3600.0, 60.0
#: Figures of the Export's status are written once a minute.
REST_WRITES_MAX = 2
_QUERY = Path(__file__).parents[2] / "examples" / "10-export" / "query.py"
#: Topics that cannot be exported: two have the same table, and the name of one is too long.
POISONED = (f"{PREFIX}same.table", f"{PREFIX}same-table", PREFIX + "l" * (249 - len(PREFIX)))
#: Topics whose tables cannot be created, because files are in their places.
BLOCKED = (f"{PREFIX}blocked-1", f"{PREFIX}blocked-2")


class ExportOfMany:
    """One Export of all topics of a cluster, and what its tables have to contain."""

    def __init__(self, bench: TopicBench, folder: Path) -> None:
        self.bench, self.lake = bench, folder / "lake"
        self.written: dict[str, int] = {}
        bootstrap = bench.bootstrap
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})

    def create(self, names: Sequence[str]) -> None:
        """Create topics and wait until they are ready."""
        for name in names:
            spec = {"clusterRef": {"name": self.bench.cluster}, "topicName": name, "partitions": 1}
            self.bench.kube.apply("Topic", _object_name(name), spec | {"replicationFactor": 1})
            self.written[name] = 0
        wanted = set(map(_object_name, names))
        self.wait(
            lambda: all(
                is_ready(body)
                for body in self.bench.kube.objects("Topic")
                if body["metadata"]["name"] in wanted
            ),
            "topics to be ready",
        )

    def write(self, names: Sequence[str]) -> None:
        for name in names:
            for number in range(self.written[name], self.written[name] + RECORDS):
                self._producer.produce(name, b"%s %d" % (name.encode(), number))
                self._producer.poll(0)
            self.written[name] += RECORDS
        assert self._producer.flush(120) == 0

    def apply(self, jar: Path) -> None:
        """Block two tables, and apply the Export."""
        for name in BLOCKED:
            place = self.lake / table_name(TEMPLATE, name).replace(".", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"")
        self.bench.kube.apply(
            "Export",
            EXPORT,
            {
                "topics": {"pattern": f"{PREFIX}.*"},
                "table": {"name": TEMPLATE, "warehouse": str(self.lake)},
                "continuous": {"interval": f"{INTERVAL_S}s"},
                "job": {"jars": [str(jar)], "cores": CORES},
            },
        )

    def status(self) -> dict[str, Any]:
        found = self.bench.kube.get("Export", EXPORT)
        return {} if found is None else found.get("status") or {}

    def wait_for(self, total: int, failing: int) -> float:
        """Wait until all topics but the failing ones are in their tables; return the seconds."""

        def is_current() -> bool:
            status = self.status()
            topics = status.get("topics", {})
            wanted = {"total": total, "failing": failing, "behind": 0}
            good = {n: written for n, written in self.written.items() if not _is_poisoned(n)}
            reached = status.get("rows") == sum(good.values()) and status.get("lag") == 0
            return reached and wanted.items() <= topics.items()

        began_s = time.monotonic()
        self.wait(is_current, f"{total} topics, of which {failing} fail")
        return time.monotonic() - began_s

    def wait(self, is_reached: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_reached():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"waited {TIMEOUT_S:.0f} s for {what}: {self.status()}")
            time.sleep(1)

    def correct_tables(self) -> int:
        """Return the number of tables that have each record of their topic once, in order."""
        query = runpy.run_path(str(_QUERY))["query"]
        correct = 0
        for name, written in self.written.items():
            if _is_poisoned(name):
                continue
            folder = self.lake / table_name(TEMPLATE, name).replace(".", "/")
            statement = f'SELECT "offset", value FROM "{folder.name}" ORDER BY "offset"'
            rows = [(at, bytes(value)) for at, value in query(folder, statement)[1]]
            expected = [(n, b"%s %d" % (name.encode(), n)) for n in range(written)]
            correct += rows == expected
            if rows != expected:
                print(f"{name}: {len(rows)} rows, expected are {written}", flush=True)
        return correct


def _is_poisoned(name: str) -> bool:
    return name in POISONED or name in BLOCKED


def _object_name(topic: str) -> str:
    return topic if len(topic) < 100 else f"{PREFIX}long"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make export-many", description=__doc__)
    parser.add_argument("--topics", type=int, default=200, help="topics at the start")
    parser.add_argument("--later", type=int, default=50, help="topics that appear meanwhile")
    given = parser.parse_args()
    try:
        jar = jars(Format.ICEBERG)[0]
    except MavenMissing as error:
        raise SystemExit(str(error)) from None
    folder = Path(tempfile.mkdtemp(prefix="tidemark-export-many-"))
    bench = TopicBench(folder / "cluster", given.topics)
    try:
        line, wrong = run(ExportOfMany(bench, folder), jar, given.topics, given.later)
        print(line)
        if wrong:
            raise SystemExit(wrong)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(many: ExportOfMany, jar: Path, topics: int, later: int) -> tuple[str, str]:
    """Run the proof; return its line of figures, and what is wrong ("" for nothing)."""
    failing = len(POISONED) + len(BLOCKED)
    first = [f"{PREFIX}{n}" for n in range(topics - failing)] + [*POISONED, *BLOCKED]
    more = [f"{PREFIX}later-{n}" for n in range(later)]
    many.create(first)
    many.write(first)
    many.apply(jar)
    first_s = many.wait_for(topics, failing)
    print(f"{topics} topics, {failing} of them failing: {first_s:.0f} s", flush=True)
    # Others appear, and those that exist get more records, while the job runs.
    many.create(more)
    many.write([*first, *more])
    more_s = many.wait_for(topics + later, failing)
    print(f"{later} more topics, and records in all: {more_s:.0f} s", flush=True)
    correct = many.correct_tables()
    worst = [row for row in many.status()["topics"]["worst"] if row.get("failure")]
    reported = sorted(row["topic"] for row in worst)
    assert reported == sorted((*POISONED, *BLOCKED)), worst
    # Nothing is written and nothing new is to be done.
    before = many.bench.cost()
    time.sleep(REST_S)
    rest = many.bench.cost().since(before)
    cpu = {name: seconds for name, seconds in rest.cpu.items() if not name.startswith("broker")}
    idle = ", ".join(f"{name} {seconds / REST_S:.1%}" for name, seconds in sorted(cpu.items()))
    # The operator renews its lease, however idle it is.
    leases = sum(number for kind, number in rest.writes.items() if kind.startswith("leases"))
    others = {kind: n for kind, n in sorted(rest.writes.items()) if not kind.startswith("leases")}
    writes = ", ".join(f"{number} of {kind}" for kind, number in others.items())
    good = topics + later - failing
    line = (
        f"export-many: {correct} of {good} tables correct, {len(reported)} of "
        f"{failing} failing topics reported; {topics} topics after {first_s:.0f} s, {later} more "
        f"after {more_s:.0f} s; in {REST_S:.0f} s at rest {leases} renewals of leases, writes "
        f"{writes or 'none'}; of a core: {idle}"
    )
    if correct != good:
        return line, f"{good - correct} tables differ from their topics"
    return line, "" if sum(others.values()) <= REST_WRITES_MAX else "there were writes at rest"


if __name__ == "__main__":
    main()
