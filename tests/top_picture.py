"""``python -m tests.top_picture [--check] docs/images/top.svg``: the picture of ``tidemark top``.

A frame of a small cluster that stands here, drawn as any other; text that fetches nothing. A frame
that looks otherwise is another picture, and lint compares.
"""

import io
import re
import sys
from collections.abc import Sequence

from rich.console import Console

from tests.unit.cli.top_objects import broker, condition, holding, pieces, row, topic
from tidemark.generated import command
from tidemark_cli.top import pages
from tidemark_cli.top.object_index import BROKER
from tidemark_cli.top.query import Query
from tidemark_cli.top.ranges import Offsets
from tidemark_cli.top.text import frame

WIDTH = 132
MIB = 1 << 20
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def view() -> pages.View:
    """Three brokers, one of them down; a topic in the tier, one that leaves it, one without."""
    tiered = {"state": "Enabled", "remoteSegments": 31, "remoteBytes": 31 * MIB}
    leaving = {
        "state": "Disabling",
        "policy": "Delete",
        "pendingBrokers": [2],
        "remainingSegments": 14,
        "remoteSegments": 14,
        "remoteBytes": 14 * MIB,
    }
    well = condition("Ready", "True", "served")
    behind = condition("FullyReplicated", "False", "3 replicas are behind: broker 3 is down")
    topics = [
        topic("orders", 0, conditions=[well, behind], tiering=tiered),
        topic("clicks", 1, tiering=leaving),
        topic("invoices", 2),
    ]
    rows = [
        *(row(0, n, replicas=(1, 2, 3), isr=(1, 2), leader=n % 2 + 1) for n in range(3)),
        *(row(1, n, replicas=(2, 1), leader=2) for n in range(2)),
        row(2, replicas=(1, 2)),
    ]
    holdings = holding(topics, pieces(rows))
    down = condition("Ready", "False", "broker 3 is down: start it", "Fenced")
    holdings.put(BROKER, [broker(3, conditions=[down])])
    told = {
        ("orders", n): Offsets(
            log_start=0,
            local_start=52_000 + 800 * n,
            tier_end=71_000 - 900 * n,
            high_watermark=90_000 + 1_000 * n,
            log_ends={1: 90_000 + 1_000 * n, 2: 90_000 + 1_000 * n - 12 * n},
        )
        for n in range(3)
    }
    return pages.view(holdings, Query(), detailed=["orders"], told=told, problems=[])


def render() -> str:
    """The same text each time."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, color_system="truecolor")
    console.print(frame(view()))
    drawn = console.export_svg(title="tidemark top", unique_id="top")
    return "\n".join(line.rstrip() for line in _FONTS.sub("", drawn).splitlines()) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 where ``--check`` finds a difference."""
    return command(lambda path: {path: render()}, "make pages", arguments)


if __name__ == "__main__":
    sys.exit(main())
