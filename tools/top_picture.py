"""Draw ``docs/images/top.svg``: ``python -m tools.top_picture [--check] docs/images/top.svg``.

The picture is a frame of ``tidemark top`` as a local cluster showed it: tiering of ``flights`` is
being switched off while broker 3 is down. The SVG contains text only and loads nothing from a
network. Lint compares it with what the program draws today.
"""

import dataclasses
import io
import re
import sys
from collections.abc import Sequence

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from tests.unit.cli.clusters import NOW, lease
from tests.unit.cli.top_objects import broker, condition, export, holding, pieces, row, topic
from tidemark.generated import command
from tidemark_cli.top import pages
from tidemark_cli.top.object_index import BROKER, CLUSTER, EXPORT
from tidemark_cli.top.query import Query
from tidemark_cli.top.ranges import PartitionOffsets
from tidemark_cli.top.text import print_frame

WIDTH = 136
_LOG_BYTES = 7_113_421
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
#: Lines are 24.4 pixels apart. Glyphs of 21 pixels are as high, so vertical rules have no gaps.
_FONT = (
    'font-family: "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace;\n'
    "        font-size: 21px;"
)


def view() -> pages.View:
    """Return the frame: three brokers, one of them down, a topic that is ``Disabling``, and an
    Export.
    """
    flights = topic(
        "flights",
        0,
        conditions=[
            condition("Ready", "True", "turning tiering off"),
            condition(
                "FullyReplicated",
                "False",
                "3 replicas of 9 not in sync, in partitions 0, 1, 2; broker 3 is down: start "
                "them, or delete the Broker of one that never returns",
                "ReplicasBehind",
            ),
            condition(
                "TieringSettled",
                "False",
                "waiting for broker 3; 0 segments left",
                "Disabling",
            ),
        ],
        tiering={
            "state": "Disabling",
            "epoch": 1,
            "policy": "Retain",
            "pendingBrokers": [3],
            "remainingSegments": 0,
            "remoteSegments": 38,
            "remoteBytes": 29_839_787,
        },
    )
    # Broker 3 is down, so it is in no ISR, and its partition has another leader.
    placed = [
        (row(0, 0, replicas=(2, 1, 3), isr=(2, 1), leader=2), 0),
        (row(0, 1, replicas=(1, 2, 3), isr=(1, 2), leader=1), 0),
        (row(0, 2, replicas=(3, 2, 1), isr=(2, 1), leader=2), 1),
    ]
    rows = [dataclasses.replace(partition, leader_epoch=epoch) for partition, epoch in placed]
    object_index = holding([flights], pieces(rows))
    object_index.drop(CLUSTER, ["main"])
    ready = condition("Ready", "True", "2 brokers live, fenced: 3")
    object_index.put(
        CLUSTER, [{"metadata": {"name": "tidemark"}, "status": {"conditions": [ready]}}]
    )
    fenced = condition(
        "Ready",
        "False",
        "fenced since 2026-11-28T03:48:05Z: the operator receives no heartbeat, or the broker has "
        "not caught up after its start. Start the broker with node.id 3, or look at its log. If it "
        "never returns, delete this Broker",
        "Fenced",
    )
    object_index.put(BROKER, [broker(node_id, logBytes=_LOG_BYTES) for node_id in (1, 2)])
    object_index.put(BROKER, [broker(3, conditions=[fenced], logBytes=_LOG_BYTES)])
    object_index.put_lease(lease(1.0), NOW)
    delays = export(
        "delays",
        lag=13_120,
        exportedOffsets=86_880,
        lagSeconds=64,
        observedTime="2026-03-01T11:59:30Z",
        cost={"cpuSeconds": 96, "writtenBytes": 2_133_000_000, "cpuSecondsPerGigabyte": 45},
    )
    object_index.put(EXPORT, [delays])
    # Local start, end of the tier and end of the log: the tier is behind the log and ahead of local
    # retention.
    offsets = {
        0: (26_307, 30_926, 33_402),
        1: (26_200, 31_300, 33_914),
        2: (25_300, 30_200, 32_684),
    }
    told = {
        ("flights", partition): PartitionOffsets(
            log_start=0,
            local_start=local_start,
            tier_end=tier_end,
            high_watermark=end,
            log_ends={1: end, 2: end},
        )
        for partition, (local_start, tier_end, end) in offsets.items()
    }
    return pages.view(object_index, Query(), detailed=["flights"], offsets=told, problems=[])


def render() -> str:
    """Return the SVG. The text is the same each time."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, color_system="truecolor", force_terminal=True
    )
    print_frame(console, view())
    template = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace(
        "font-family: Fira Code, monospace;\n        font-size: {char_height}px;", _FONT
    )
    drawn = console.export_svg(title="tidemark top", unique_id="top", code_format=template)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture, or return 1 if ``--check`` finds a difference."""
    return command(lambda path: {path: render()}, "make pages", arguments)


if __name__ == "__main__":
    sys.exit(main())
