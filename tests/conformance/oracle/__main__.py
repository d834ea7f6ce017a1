"""``python -m tests.conformance.oracle``: see the package."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.apache_kafka import MavenMissing
from tests.conformance.oracle import compare
from tests.conformance.oracle.broker_pair import both
from tests.conformance.oracle.cases import cases
from tests.conformance.oracle.figures import FIGURES
from tests.conformance.oracle.sides import ComparedBroker


def main() -> int:
    """0 if nothing differs but what is listed."""
    arguments = argparse.ArgumentParser(prog="oracle", description=compare.__doc__)
    arguments.add_argument("--only", default="", help="cases whose name has this")
    only: str = arguments.parse_args().only
    try:
        with tempfile.TemporaryDirectory() as folder, both(Path(folder)) as (ours, theirs):
            # Brokers are in a temporary folder, and both end with the run.
            return _compare(ours, theirs, only)
    except MavenMissing as error:
        print(error, file=sys.stderr)
        return 2


def _compare(ours: ComparedBroker, theirs: ComparedBroker, only: str) -> int:
    table = [case for case in cases(compare.shared_versions(ours, theirs)) if only in case.name]
    verdict = compare.run(ours, theirs, table, lambda line: print(line, flush=True))
    # Unused entries are only known after the whole table.
    idle = [] if only else verdict.unused
    for item in idle:
        print(f"intended_differences.py: explains nothing any more: {item.case} {item.path}")
    print(verdict.figures)
    failed = bool(verdict.unexplained or idle)
    # The figures of the documentation change with a complete and successful run alone.
    if not only and not failed:
        FIGURES.write_text(verdict.figures.dumped(), encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
