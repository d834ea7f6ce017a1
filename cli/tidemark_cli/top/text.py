"""Render a frame as text, for a terminal or a script that reads lines."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from tidemark_cli.top import pages
from tidemark_cli.top.pages import Bar, Cell, View
from tidemark_cli.top.ranges import Range, RangePlace, cells

BAR_WIDTH = 40
#: Distinct without colours too.
GLYPHS = {
    RangePlace.REMOTE: "░",
    RangePlace.BOTH: "▒",
    RangePlace.LOCAL: "█",
    RangePlace.NOWHERE: "?",
}
STYLES = {
    RangePlace.REMOTE: "cyan",
    RangePlace.BOTH: "green",
    RangePlace.LOCAL: "yellow",
    RangePlace.NOWHERE: "red",
}
LEGEND = "░ remote only  ▒ both  █ local only"


def frame(view: View) -> RenderableType:
    """Return the frame as one renderable."""
    parts: list[RenderableType] = [*map(Text, view.heading)]
    parts += [Text(f"! {problem}", "red") for problem in view.problems]
    for table in view.tables:
        parts += [_table(table), *map(Text, table.notes)]
    if view.partitions:
        parts.append(Text(LEGEND))
    return Group(*parts)


def print_frame(out: Console, view: View) -> None:
    """Print a frame; without a terminal lines are not wrapped, so that a script reads whole
    rows.
    """
    out.print(frame(view), soft_wrap=not out.is_terminal)


def _table(shown: pages.ViewTable) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in shown.columns), title=shown.title)
    for row in shown.rows:
        table.add_row(*map(cell_text, row))
    return table


def cell_text(cell: Cell) -> Text:
    """Return one cell; names and messages are not parsed as markup."""
    return bar(cell.ranges) if isinstance(cell, Bar) else Text(cell)


def bar(spans: Sequence[Range], width: int = BAR_WIDTH) -> Text:
    """Return the bar that shows where a partition's offsets are stored."""
    if not spans:
        return Text("no records")
    drawn = Text()
    for place, count in cells(spans, width):
        drawn.append(GLYPHS[place] * count, STYLES[place])
    return drawn
