"""Runs :mod:`tests.benchmarks.load` in a process of its own."""

import json
import subprocess
import sys


def run_load(kind: str, bootstrap: str, topic: str, records: int, trusted: str = "") -> float:
    """Seconds as the client saw them; ``trusted``: TLS, with that certificate."""
    more = [trusted] if trusted else []
    answer = subprocess.run(
        [
            *(sys.executable, "-m", "tests.benchmarks.load"),
            *(kind, bootstrap, topic, str(records), *more),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    return float(json.loads(answer.stdout)["seconds"])
