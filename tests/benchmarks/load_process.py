"""Runs :mod:`tests.benchmarks.load` in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.load import Answer, ClientLoad


def run(load: ClientLoad, clients: int = 1) -> Answer:
    """Run the load and return its result.

    If several clients share the records, time runs from the first client's start to the last one's
    end.
    """
    shares = [
        replace(load, records=load.records // clients, share=(which, clients))
        for which in range(clients)
    ]
    return together(_run_all(shares))


def _run_all(loads: Sequence[ClientLoad]) -> list[Answer]:
    command = (sys.executable, "-m", "tests.benchmarks.load")
    processes = [
        subprocess.Popen([*command, load.as_json()], stdout=subprocess.PIPE) for load in loads
    ]
    try:
        said = [process.communicate()[0] for process in processes]
    # A failure of one client must not leave the others running.
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, load in zip(processes, loads, strict=True):
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, [*command, load.as_json()])
    return [json.loads(item) for item in said]


def together(answers: Sequence[Answer]) -> Answer:
    """One answer for all: from the first beginning to the last end."""
    if len(answers) == 1:
        return answers[0]
    return {
        "began": min(answer["began"] for answer in answers),
        "ended": max(answer["ended"] for answer in answers),
        "records": sum(answer["records"] for answer in answers),
    }


def run_load(kind: str, bootstrap: str, topic: str, records: int, trusted: str = "") -> float:
    """Seconds that one client took; ``trusted``: TLS, with that certificate."""
    load = ClientLoad(kind=kind, bootstrap=bootstrap, topic=topic, records=records, trusted=trusted)
    answer = run(load)
    return answer["ended"] - answer["began"]
