"""``python -m tests.conformance.oracle``: see the package."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.kafka import KafkaMissing
from tests.conformance.oracle import compare
from tests.conformance.oracle.cases import cases
from tests.conformance.oracle.sides import Side
from tests.suites.targets import Wants, apache_kafka, bootstrap, tidemark


def main() -> int:
    """0 if nothing differs but what is listed."""
    arguments = argparse.ArgumentParser(prog="oracle", description=compare.__doc__)
    arguments.add_argument("--only", default="", help="cases whose name has this")
    only: str = arguments.parse_args().only
    wants = Wants(brokers=1)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            apache_kafka(_below(folder, "kafka"), wants) as kafka,
            tidemark(_below(folder, "ours"), wants) as target,
        ):
            return _compare(
                Side("ours", bootstrap(target)), Side("Apache Kafka", bootstrap(kafka)), only
            )
    except KafkaMissing as error:
        print(error, file=sys.stderr)
        return 2


def _below(folder: str, name: str) -> Path:
    made = Path(folder) / name
    made.mkdir()
    return made


def _compare(ours: Side, theirs: Side, only: str) -> int:
    for side in (ours, theirs):
        compare.prepare(side)
    table = [each for each in cases(compare.shared_versions(ours, theirs)) if only in each.name]
    verdict = compare.run(ours, theirs, table, lambda line: print(line, flush=True))
    ours.close()
    theirs.close()
    idle = [] if only else verdict.unused
    for each in idle:
        print(f"on_purpose.py: explains nothing any more: {each.case} {each.path}")
    print(verdict.figures)
    return bool(verdict.unexplained or idle)


if __name__ == "__main__":
    sys.exit(main())
