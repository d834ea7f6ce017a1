"""``make bench-lives``: memory that the operator retains for deleted topics.

Topics of three partitions and three replicas are made and deleted in waves, LIVES of them in all
(10,000); after each wave the operator's memory is read. What is printed is the slope, from the
first quarter on: a start fills pools and caches. Everything else is as in ``make bench-operator``.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.operator_bench import OperatorBench, plane_of, running, said
from tests.benchmarks.processes import resident_mb
from tidemark_devcluster.controlplane.launcher import ControlPlane
from tidemark_operator.kube.kinds import TOPIC

LIVES = 10_000
WAVE = 500
#: What a wave leaves for a moment (tombstones, remembered deletions) is collected every 5 s.
SETTLE_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnSizes:
    """Amounts of the benchmark."""

    lives: int = LIVES
    wave: int = WAVE
    settle_s: float = SETTLE_S


def slope_kb(samples: Sequence[tuple[int, float]]) -> float:
    """KB for each life, by least squares over (lives, MB) from the first quarter on."""
    # The start fills pools and caches, which would look like a leak.
    tail = [sample for sample in samples if sample[0] * 4 >= samples[-1][0]] if samples else []
    if len(tail) < 2:
        return float("nan")
    lives = sum(x for x, _ in tail) / len(tail)
    mean_mb = sum(y for _, y in tail) / len(tail)
    spread = sum((x - lives) ** 2 for x, _ in tail)
    return 1024 * sum((x - lives) * (y - mean_mb) for x, y in tail) / spread


async def wave(bench: OperatorBench, number: int, topics: int, settle_s: float) -> None:
    """Create ``topics`` Topics, and delete them as soon as all are Ready."""
    names = [f"w{number}-{index}" for index in range(topics)]
    await bench.create(names)
    await bench.until(lambda item: item.ready, topics, "Ready")
    # Deleted at once, and gone from the watch before the next wave.
    await bench.each(names, lambda name: bench.world.delete(TOPIC, name))
    await bench.until(lambda _: True, 0, "left", fewer=True)
    await asyncio.sleep(settle_s)


async def measure(plane: ControlPlane, folder: Path, sizes: ChurnSizes) -> str:
    """The figures, in words."""
    samples: list[tuple[int, float]] = []
    async with running(plane, folder) as bench:
        pid, lived = bench.operator.pid, 0
        while lived < sizes.lives:
            topics = min(sizes.wave, sizes.lives - lived)
            await wave(bench, len(samples), topics, sizes.settle_s)
            lived += topics
            samples.append((lived, resident_mb(pid)))
            said(f"{lived:,} lives: {samples[-1][1]:.1f} MB")
        # Rows that remain would be a leak in the API's data.
        rows = await bench.world.rows()
    first, last = samples[0][1], samples[-1][1]
    return (
        f"{lived:,} lives in waves of {sizes.wave:,}: {first:.1f} MB after the first wave, "
        f"{last:.1f} in the end, {slope_kb(samples):.2f} KB each; {len(rows)} rows are left"
    )


def main() -> None:
    """Measure, and print the slope in one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=LIVES)
    parser.add_argument("--wave", type=int, default=WAVE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-lives-") as name:
        sizes = ChurnSizes(lives=options.lives, wave=options.wave)
        with plane_of(Path(name)) as plane:
            line = asyncio.run(measure(plane, Path(name), sizes))
    print("bench-lives: " + line)


if __name__ == "__main__":
    main()
