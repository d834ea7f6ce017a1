"""``make simulate SEEDS=5000``, or ``SEED=17`` to see one seed again with its whole story."""

import argparse
import functools
import gc
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.cluster import BACKUPS, MOVES, RESTORES, Outcome, Profile, simulate

EVENTS_SHOWN = 30


def story(outcome: Outcome, shown: int | None = EVENTS_SHOWN) -> str:
    """What a failing seed did last, and how to see it again."""
    lines = outcome.events if shown is None else outcome.events[-shown:]
    invariant, text = outcome.violation or ("", "no violation")
    return "\n".join(
        (
            f"seed {outcome.seed}: invariant {invariant}: {text}" if invariant else text,
            *(f"  {line}" for line in lines),
            f"  again: make simulate SEED={outcome.seed}",
        )
    )


def _one(seed: int, profile: Profile) -> Outcome:
    outcome = simulate(seed, profile)
    if outcome.violation is None:
        outcome.events.clear()
    return outcome


def outcomes(seeds: range, processes: int, profile: Profile) -> Iterator[Outcome]:
    """Run them all, on every core."""
    one = functools.partial(_one, profile=profile)
    if processes == 1:
        yield from map(one, seeds)
        return
    # After each seed what it has left is collected: the modules need not be looked at for that.
    with ProcessPoolExecutor(processes, initializer=gc.freeze) as pool:
        yield from pool.map(one, seeds, chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--seed", type=int, help="one seed, with its whole story")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
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
    asked = parser.parse_args()
    named = ((asked.moves, MOVES), (asked.backups, BACKUPS), (asked.restores, RESTORES))
    profile = next((each for is_asked, each in named if is_asked), Profile())
    if asked.seed is not None:
        outcome = simulate(asked.seed, profile)
        print(story(outcome, None))
        print(
            _line(1, outcome.steps, outcome.seconds, outcome.seconds, outcome.violation is not None)
        )
        return outcome.violation is not None
    return _many(range(asked.first, asked.first + asked.seeds), asked.processes, profile)


def _many(seeds: range, processes: int, profile: Profile) -> int:
    began_s = told_s = time.perf_counter()
    steps, seconds, violations = 0, 0.0, 0
    for number, outcome in enumerate(outcomes(seeds, processes, profile), start=1):
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
    sys.exit(main())
