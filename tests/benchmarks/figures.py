"""Medians of rounds and their ratios, as a table. A measure has figures of both sides, each with
its unit in its name."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from tests.benchmarks.sides import KAFKA, OURS

Figures = Mapping[str, float]


class Table:
    """Figures of all rounds."""

    def __init__(self) -> None:
        self._rounds: dict[str, dict[str, list[Figures]]] = {}
        #: Measures that gave none, and why.
        self.failures: list[str] = []

    def add(self, measure: str, side: str, figures: Figures) -> None:
        """One round of one side."""
        self._rounds.setdefault(measure, {}).setdefault(side, []).append(figures)

    def lines(self) -> Iterator[str]:
        """Ours, Apache Kafka's, and ours / Kafka's for each figure, in the order of the first
        round."""
        for measure, sides in self._rounds.items():
            yield measure
            ours, theirs = (medians(sides.get(name, ())) for name in (OURS, KAFKA))
            for name in dict.fromkeys((*ours, *theirs)):
                shown = f"{_shown(ours, name)} {_shown(theirs, name)}"
                yield f"  {name:24} {shown} {ratio(ours, theirs, name):8.2f}"


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each figure."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {
        name: statistics.median(figures[name] for figures in rounds if name in figures)
        for name in names
    }


def ratio(ours: Figures, theirs: Figures, name: str) -> float:
    """Not a number where there are not both."""
    if not theirs.get(name) or name not in ours:
        return float("nan")
    return ours[name] / theirs[name]


def one_line(figures: Figures) -> str:
    """Return the figures of one round as one line."""
    return "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())


def _shown(figures: Figures, name: str) -> str:
    return f"{figures[name]:12,.2f}" if name in figures else f"{'-':>12}"
