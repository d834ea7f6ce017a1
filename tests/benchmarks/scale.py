"""``make bench-scale``: what one unit of work costs at 10, 100 and 1,000 of what it may grow with.

Microseconds of CPU time of this process per unit, the median of several rounds; then two real
broker processes: the share of a core that each uses while nothing happens, and CPU-milliseconds per
created topic. A row that grows with the number is work that is done for those that nothing happened
to. No figure is a pass or a failure; ``tests/unit/replication/test_operation_cost.py`` counts calls
and is.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from tests.benchmarks.scale_operations import OPERATIONS, ScaleOperation, Work
from tests.benchmarks.scale_processes import running_pair

SIZES = (10, 100, 1000)
ROUNDS = 5
ROUND_S = 0.1
UNITS_MAX = 100


async def cost_us(operation: ScaleOperation, size: int) -> float:
    """CPU-microseconds of one unit."""
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        async with operation.ready(Path(folder), size) as work:
            # One unit before the measurement fills caches.
            await work()
            return statistics.median([await _round(work) for _ in range(ROUNDS)]) * 1e6


async def _round(work: Work) -> float:
    units, began_s = 0, time.process_time()
    while (spent_s := time.process_time() - began_s) < ROUND_S and units < UNITS_MAX:
        await work()
        units += 1
    return spent_s / units


async def idle_share(size: int) -> float:
    """Return the idle share of a core for each of two brokers that have ``size`` partitions,
    two replicas each.
    """
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        async with running_pair(Path(folder)) as pair:
            await pair.create(1, size)
            return await pair.idle_share()


async def creation_ms(size: int) -> float:
    """Return a broker's CPU-milliseconds for each of ``size`` topics with a replica on it."""
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        async with running_pair(Path(folder)) as pair:
            before_s = pair.cpu_s()
            await pair.create(size)
            return (pair.cpu_s() - before_s) / size * 1000


async def measure(
    sizes: tuple[int, ...], *, only: str, processes: bool
) -> list[tuple[str, list[str]]]:
    """The table's rows, printed as they come."""
    rows: list[tuple[str, list[str]]] = []
    for operation in OPERATIONS:
        if only not in operation.name:
            continue
        costs = [await cost_us(operation, size) for size in sizes]
        name = f"{operation.name} ({operation.grows})"
        rows.append(_printed(name, [f"{cost:,.0f} µs" for cost in costs]))
    if processes:
        shares = [await idle_share(size) for size in sizes]
        rows.append(_printed("an idle broker (partitions)", [f"{s:.1%} core" for s in shares]))
        created = [await creation_ms(size) for size in sizes]
        rows.append(_printed("one created topic (topics)", [f"{ms:.1f} ms" for ms in created]))
    return rows


def _printed(name: str, cells: list[str]) -> tuple[str, list[str]]:
    print(f"{name:55}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    return name, cells


def main() -> None:
    """Measure, print the table, and all of it once more in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--only", default="", help="operations whose name contains this")
    parser.add_argument("--no-processes", action="store_true", help="only what runs in this one")
    options = parser.parse_args()
    _printed("CPU for one unit of work at", [f"{size:,}" for size in options.sizes])
    rows = asyncio.run(
        measure(tuple(options.sizes), only=options.only, processes=not options.no_processes)
    )
    print("bench-scale: " + "; ".join(f"{name}: {' '.join(cells)}" for name, cells in rows))


if __name__ == "__main__":
    main()
