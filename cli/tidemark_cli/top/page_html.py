"""Render a frame as one HTML file without scripts or external resources, to be mailed or
archived.
"""

from collections.abc import Iterable
from html import escape

from tidemark_cli.top.pages import Bar, Cell, ProgressBar, View, ViewTable
from tidemark_cli.top.ranges import RangePlace
from tidemark_cli.top.text import more_text

_STYLE = """
:root{color-scheme:light dark;--remote:#3b82c4;--both:#3f9d6b;--local:#d19a2a;--nowhere:#c0392b}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:88rem;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.3rem 0}caption{text-align:left;font-weight:600}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid #8884}
td{white-space:pre-line;overflow-wrap:anywhere}section{overflow-x:auto;margin:1.2rem 0}
h1{font-size:1.2rem}dt{font-weight:600}.problem{color:var(--nowhere)}.note,.when{opacity:.7}
.bar{display:flex;height:1rem;min-width:16rem}.bar i{display:block;min-width:3px}
.key i{display:inline-block;width:1rem;height:.8rem;margin:0 .3rem 0 1rem}
"""
_COLOURS = "".join(f".{place}{{background:var(--{place})}}" for place in RangePlace)


def page(view: View, when: str) -> str:
    """Return the page; ``when`` is the time of the figures, as text."""
    title = f"Tidemark: {view.verdict}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head><body>\n"
        f"{_verdict(view.verdict)}"
        f"{_lines(view.heading, 'heading')}{_lines([f'As of {when}.'], 'when')}"
        f"{_lines(view.problems, 'problem')}{_findings(view)}"
        f"{''.join(map(_table, view.tables))}{_key() if view.partitions else ''}"
        "</body></html>\n"
    )


def _verdict(line: str) -> str:
    kind = "verdict" if line.startswith("HEALTHY") else "verdict problem"
    return f'<h1 class="{kind}">{escape(line)}</h1>\n'


def _findings(view: View) -> str:
    """Return the findings as a list: object, reason and condition, with the message below."""
    items = "".join(
        f"<dt>{escape(' '.join(filter(None, (item.reference, item.reason, item.condition))))}</dt>"
        f"<dd>{escape(item.message)}</dd>\n"
        for item in view.findings
    )
    more = _lines([more_text(view)], "note") if view.more_findings else ""
    return f"<dl>\n{items}</dl>\n{more}" if items else ""


def _lines(texts: Iterable[str], kind: str) -> str:
    return "".join(f'<p class="{kind}">{escape(text)}</p>\n' for text in texts)


def _table(table: ViewTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>\n"
        for row in table.rows
    )
    return (
        f"<section><table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{rows}</tbody></table>{_lines(table.notes, 'note')}</section>\n"
    )


def _cell(cell: Cell) -> str:
    if isinstance(cell, ProgressBar):
        return f'<progress max="100" value="{cell.percent}"></progress> {cell.percent} %'
    if not isinstance(cell, Bar):
        return escape(cell)
    if not cell.ranges:
        return "no records"
    description = "; ".join(f"{span.place}: {span.start:,} to {span.end:,}" for span in cell.ranges)
    parts = "".join(
        f'<i class="{span.place}" style="flex:{span.end - span.start}"></i>' for span in cell.ranges
    )
    label = escape(description, quote=True)
    return f'<div class="bar" role="img" title="{label}" aria-label="{label}">{parts}</div>'


def _key() -> str:
    keys = (
        (RangePlace.REMOTE, "remote only"),
        (RangePlace.BOTH, "both"),
        (RangePlace.LOCAL, "local only"),
    )
    return (
        '<p class="key">'
        + "".join(f'<i class="{place}"></i>{text}' for place, text in keys)
        + "</p>\n"
    )
