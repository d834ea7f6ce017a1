"""Draw delays by hour: ``plot.py delays.csv delays.png``, of the query on this example's page."""

import csv
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Delays as lines above the flights as bars; ``rows`` have the query's columns, in the order of
    their hours."""
    hours = [int(row["hour"]) for row in rows]
    drawn = Figure(figsize=(9, 6), layout="constrained")
    delays, flights = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    late = [float(row["delay_of_one_in_ten"]) for row in rows]
    mean = [float(row["mean_delay"]) for row in rows]
    delays.plot(hours, late, marker="o", color="#c44e52", label="one flight in ten is later")
    delays.plot(hours, mean, marker="o", color="#4c72b0", label="mean")
    delays.axhline(0, color="0.7", linewidth=0.8)
    delays.set(title="Departures from New York, early 2013", ylabel="delay (minutes)")
    delays.legend(frameon=False)
    flights.bar(hours, [int(row["flights"]) for row in rows], color="0.6")
    flights.set(ylabel="flights", xlabel="scheduled hour of departure", xticks=hours)
    for item in (delays, flights):
        item.spines[["top", "right"]].set_visible(False)
    return drawn


def main(source: str, picture: str) -> None:
    """Both are paths; the picture's name says its format."""
    with Path(source).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure(rows).savefig(picture, dpi=120)
    print(f"{picture}: {len(rows)} hours of {sum(int(row['flights']) for row in rows)} flights")


if __name__ == "__main__":
    main(*sys.argv[1:])
