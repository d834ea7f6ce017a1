"""Render a frame as text, for a terminal or a script that reads lines."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from tidemark_cli.inspection.screens import plain_table, print_by_severity, print_verdict
from tidemark_cli.top import pages
from tidemark_cli.top.pages import Bar, Cell, ProgressBar, View
from tidemark_cli.top.ranges import Range, RangePlace, cells

BAR_WIDTH = 40
#: Narrowest bar, on a narrow terminal.
BAR_WIDTH_MIN = 8
#: Distinct without colours too.
GLYPHS = {
    RangePlace.REMOTE: "░",
    RangePlace.BOTH: "▒",
    RangePlace.LOCAL: "█",
    RangePlace.NOWHERE: "?",
}
#: Bar of an Export's progress.
EXPORTED, REMAINING = "━", "╌"
STYLES = {
    RangePlace.REMOTE: "cyan",
    RangePlace.BOTH: "green",
    RangePlace.LOCAL: "yellow",
    RangePlace.NOWHERE: "red",
}
LEGEND = "░ remote only  ▒ both  █ local only.  LAG: records that each follower lacks"


def print_frame(out: Console, view: View) -> None:
    """Print a frame in the order of ``tidemark status``: verdict, tables, findings.

    Lines outside the tables are wrapped only by the terminal, so that a script reads whole lines.
    """
    print_verdict(out, view.verdict)
    for line in view.heading:
        out.print(Text(line), soft_wrap=True)
    for problem in view.problems:
        out.print(Text(f"! {problem}", "red"), soft_wrap=True)
    # A namespace without brokers has no headers without rows either.
    for table in (view.brokers, view.topics, view.exports):
        if table.rows:
            out.print()
            out.print(_table(table))
        for note in table.notes:
            out.print(Text(note, "dim"))
    # The tables of partitions have the same columns, so each needs a title.
    for table in view.partitions:
        out.print()
        out.print(Text(table.title, "bold"))
        out.print(_table(table))
        for note in table.notes:
            out.print(Text(note, "dim"))
    if view.partitions:
        out.print(Text(LEGEND, "dim"))
    # Sentences are last, at the full width, and so next to the prompt.
    print_by_severity(out, view.findings)
    if view.more_findings:
        out.print(Text(more_text(view)), soft_wrap=True)


def more_text(view: View) -> str:
    """Return where the findings are that the frame does not show."""
    return f"{view.more_findings:,} more: tidemark status --limit 0"


def _table(shown: pages.ViewTable) -> Table:
    # Only the names of objects, lags and bars adapt to a narrow terminal.
    columns = [
        Column(name, justify="right" if name in pages.NUMERIC else "left")
        if name in ("broker", "topic", "export", "lag", "stored", "exported")
        else name
        for name in shown.columns
    ]
    table = plain_table(*columns)
    for column, name in zip(table.columns, shown.columns, strict=True):
        column.justify = "right" if name in pages.NUMERIC else "left"
    for row in shown.rows:
        table.add_row(*map(_renderable, row))
    return table


class _Bar:
    """Bar that takes the width that the table's other columns leave."""

    def __init__(self, cell: Bar | ProgressBar) -> None:
        self._cell = cell

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield cell_text(self._cell, min(BAR_WIDTH, options.max_width))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(BAR_WIDTH_MIN, min(BAR_WIDTH, options.max_width))


def _renderable(cell: Cell) -> RenderableType:
    if isinstance(cell, ProgressBar) or (isinstance(cell, Bar) and cell.ranges):
        return _Bar(cell)
    return cell_text(cell)


def cell_text(cell: Cell, bar_width: int = BAR_WIDTH) -> Text:
    """Return one cell; names and messages are not parsed as markup."""
    if isinstance(cell, ProgressBar):
        return progress_bar(cell, bar_width)
    return bar(cell.ranges, bar_width) if isinstance(cell, Bar) else Text(cell)


def progress_bar(progress: ProgressBar, width: int = BAR_WIDTH) -> Text:
    """Return a bar of the share that is exported, with the percentage behind it."""
    # The bar is full only if nothing remains, as the percentage is 100 only then.
    cells_of_bar = max(1, width - len(" 100 %"))
    filled = cells_of_bar * progress.percent // 100
    drawn = Text(EXPORTED * filled, "green")
    drawn.append(REMAINING * (cells_of_bar - filled), "dim")
    return drawn.append(f"{progress.percent:>4} %")


def bar(spans: Sequence[Range], width: int = BAR_WIDTH) -> Text:
    """Return the bar that shows where a partition's offsets are stored."""
    if not spans:
        return Text("no records")
    drawn = Text()
    for place, count in cells(spans, max(width, 3)):
        drawn.append(GLYPHS[place] * count, STYLES[place])
    return drawn
