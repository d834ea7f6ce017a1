"""Many runs of the simulated cluster, on every core, and the report of a failed one."""

import functools
import gc
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.cluster import (
    BACKUPS,
    DOWN,
    HEADS,
    LAG,
    MOVES,
    READERS,
    RESTORES,
    TORN,
    Profile,
    SimulationOutcome,
    simulate,
)
from tests.simulation.tables import simulate_tables

EVENTS_SHOWN = 30
#: Which faults a seed has where no kind is named: every second one the usual ones.
_ROTATION = (
    *(Profile(), DOWN, Profile(), MOVES, Profile(), BACKUPS),
    *(Profile(), RESTORES, LAG, HEADS, Profile(), TORN),
    *(Profile(), READERS),
)


def profile_of(seed: int) -> Profile:
    """Return the profile of a seed if no kind is named."""
    return _ROTATION[seed % len(_ROTATION)]


def story(outcome: SimulationOutcome, shown: int | None = EVENTS_SHOWN) -> str:
    """Report of a failing seed: its last steps, and the command that repeats it."""
    lines = outcome.events if shown is None else outcome.events[-shown:]
    invariant, text = outcome.violation or ("", "no violation")
    return "\n".join(
        (
            f"seed {outcome.seed}: invariant {invariant}: {text}" if invariant else text,
            *(f"  {line}" for line in lines),
            f"  again: make simulate SEED={outcome.seed}",
        )
    )


def _one_of_tables(seed: int) -> SimulationOutcome:
    outcome = simulate_tables(seed)
    if outcome.violation is None:
        outcome.events.clear()
    return outcome


def _one(seed: int, profile: Profile | None) -> SimulationOutcome:
    outcome = simulate(seed, profile or profile_of(seed))
    if outcome.violation is None:
        outcome.events.clear()
    return outcome


def outcomes(seeds: range, processes: int, profile: Profile | None) -> Iterator[SimulationOutcome]:
    """Run all seeds on every core; without a ``profile`` each has that of :func:`profile_of`."""
    return _all(seeds, processes, functools.partial(_one, profile=profile))


def table_outcomes(seeds: range, processes: int) -> Iterator[SimulationOutcome]:
    """Run all seeds of a topic and its table."""
    return _all(seeds, processes, _one_of_tables)


def _all(
    seeds: range, processes: int, one: Callable[[int], SimulationOutcome]
) -> Iterator[SimulationOutcome]:
    if processes == 1:
        yield from map(one, seeds)
        return
    # Not forked: a test's process may have had the threads and libraries of others (Spark's), with
    # which a fork dies. After each seed what it has left is collected: the modules need not be
    # looked at for that.
    afresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, afresh, initializer=gc.freeze) as pool:
        yield from pool.map(one, seeds, chunksize=8)
