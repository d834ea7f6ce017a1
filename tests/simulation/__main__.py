"""``make simulate SEEDS=5000``, or ``SEED=17`` to see one seed again with its whole story."""

import argparse
import os
import sys
import time
from collections.abc import Iterator

from tests.lock_order import in_order
from tests.simulation.cluster import (
    BACKUPS,
    DOWN,
    HEADS,
    LAG,
    MOVES,
    READERS,
    RESTORES,
    TORN,
    SimulationOutcome,
    simulate,
)
from tests.simulation.runs import outcomes, profile_of, story, table_outcomes
from tests.simulation.tables import simulate_tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seed", type=int, help="one seed, with its whole story")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    # A profile changes which faults occur and how often. Without one, the seed chooses.
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--moves", action="store_true", help="users drain and delete brokers and change factors"
    )
    kinds.add_argument(
        "--backups", action="store_true", help="slices are lost, the API is put back to old data"
    )
    kinds.add_argument(
        "--restores", action="store_true", help="the API is put back under operators that run"
    )
    kinds.add_argument(
        "--down", action="store_true", help="the API is put back to old data, a broker is down"
    )
    kinds.add_argument(
        "--torn",
        action="store_true",
        help="the same, and of the others one was not in sync and one has lost its tail",
    )
    kinds.add_argument(
        "--heads", action="store_true", help="heads of the tier go back to older versions"
    )
    kinds.add_argument(
        "--lag", action="store_true", help="leaders close segments early for a maximum lag"
    )
    kinds.add_argument(
        "--readers", action="store_true", help="a Reader serves the tier while records are deleted"
    )
    kinds.add_argument(
        "--tables", action="store_true", help="a topic and the table that it is exported to"
    )
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    named = (
        (asked.moves, MOVES),
        (asked.backups, BACKUPS),
        (asked.restores, RESTORES),
        (asked.down, DOWN),
        (asked.torn, TORN),
        (asked.heads, HEADS),
        (asked.lag, LAG),
        (asked.readers, READERS),
    )
    profile = next((item for is_asked, item in named if is_asked), None)
    # One seed prints its whole story, which a developer reads to find the cause.
    if asked.seed is not None:
        outcome = (
            simulate_tables(asked.seed)
            if asked.tables
            else simulate(asked.seed, profile or profile_of(asked.seed))
        )
        print(story(outcome, None))
        print(
            _line(1, outcome.steps, outcome.seconds, outcome.seconds, outcome.violation is not None)
        )
        return outcome.violation is not None
    if asked.tables:
        return _many(seeds, table_outcomes(seeds, asked.processes))
    return _many(seeds, outcomes(seeds, asked.processes, profile))


def _many(seeds: range, ended: Iterator[SimulationOutcome]) -> int:
    began_s = told_s = time.perf_counter()
    steps, seconds, violations = 0, 0.0, 0
    # Outcomes arrive in the order in which processes finish, and only bad ones have a story.
    for number, outcome in enumerate(ended, start=1):
        steps, seconds = steps + outcome.steps, seconds + outcome.seconds
        if outcome.violation is not None:
            violations += 1
            print(story(outcome), flush=True)
        now_s = time.perf_counter()
        if now_s - told_s > 5:
            told_s = now_s
            print(
                f"{number} of {len(seeds)} seeds, {steps} steps, {violations} violations",
                flush=True,
            )
    print(_line(len(seeds), steps, seconds, time.perf_counter() - began_s, violations))
    return int(violations > 0)


def _line(seeds: int, steps: int, seconds: float, wall_s: float, violations: int) -> str:
    """``steps/s``: of one process, and of all of them together."""
    return (
        f"seeds {seeds}, steps {steps}, {steps / max(seconds, 1e-9):.0f} steps/s per process, "
        f"{steps / max(wall_s, 1e-9):.0f} steps/s in all, {wall_s:.1f} s, violations "
        f"{int(violations)}"
    )


if __name__ == "__main__":
    sys.exit(in_order(main))
