"""The figures of a topic or a table as one HTML file, without scripts and external resources."""

import datetime
from collections.abc import Iterable, Sequence
from html import escape

from tidemark.message_text import count
from tidemark_pipeline.report.figures import (
    PARTITIONS_SHOWN,
    LetterCause,
    LetterSample,
    ReportFigures,
    ReportPeriod,
    TableFigures,
)

_KEY_SHOWN = 48
_VALUE_SHOWN = 200
#: Most bytes of a character.
_UTF8_BYTES_MAX = 4
_STYLE = """
:root{color-scheme:light dark;--bar:#3b82c4}
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem}
table{border-collapse:collapse;margin:.3rem 0}caption{text-align:left;font-weight:600}
th,td{text-align:left;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere}
figure{margin:1.4rem 0;overflow-x:auto}figcaption{font-weight:600}.note{opacity:.7}
svg{width:100%;height:9rem;display:block}rect{fill:var(--bar)}
"""
Bars = Sequence[tuple[str, int]]


def page(figures: ReportFigures, when: str) -> str:
    """Return the page. ``when``: the time of the figures, as text."""
    content = _charts(figures) + _tables(figures)
    return _html(f"Topic {figures.topic}", _summary(figures), when, content)


def table_page(figures: TableFigures, now_ms: int) -> str:
    """Return the page of a table. ``now_ms``: Unix time of the figures."""
    content = _freshness(figures, now_ms)
    if figures.periods:
        content += _rows_chart(figures.periods, figures.width_ms)
    content += _partitions(figures) + _dead_letters(figures)
    topic = f" of topic {figures.topic}" if figures.topic else ""
    summary = f"{count(figures.rows, 'row')}{topic}; {_letters_text(figures)}."
    return _html(f"Table {figures.table}", summary, utc(now_ms), content)


def _html(title: str, summary: str, when: str, content: str) -> str:
    """Return a page. ``content``: HTML below the title and the summary."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(summary)}</p>\n"
        f'<p class="note">As of {escape(when)}.</p>\n{content}</body></html>\n'
    )


def _summary(figures: ReportFigures) -> str:
    if not figures.rows:
        return "No records."
    without_key = sum(share.without_key for share in figures.shares)
    without_value = sum(share.without_value for share in figures.shares)
    return (
        f"{count(figures.rows, 'record')}, {size(figures.bytes)} of keys and values; "
        f"{without_key:,} without a key, {without_value:,} without a value; "
        f"about {figures.distinct_keys:,} different keys."
    )


def _charts(figures: ReportFigures) -> str:
    """Return the charts of rows and bytes over time, and of record sizes, as HTML."""
    if not figures.periods:
        return ""
    width = duration(figures.width_ms)
    between = _between(figures.periods)
    sizes = [
        (f"{utc(period.start_ms)}: {size(period.bytes)}", period.bytes)
        for period in figures.periods
    ]
    return (
        _rows_chart(figures.periods, figures.width_ms)
        + _chart(f"Bytes in each {width}", sizes, between)
        + _chart(
            "Records by size of key and value",
            [(f"up to {size(most)}: {rows:,}", rows) for most, rows in figures.sizes],
            ", ".join(f"up to {size(most)}: {rows:,}" for most, rows in figures.sizes),
        )
    )


def _between(periods: Sequence[ReportPeriod]) -> str:
    return f"{utc(periods[0].start_ms)} to {utc(periods[-1].start_ms)}"


def _rows_chart(periods: Sequence[ReportPeriod], width_ms: int) -> str:
    """Return the chart of records over time. ``width_ms``: of each period."""
    rows = [(f"{utc(period.start_ms)}: {period.rows:,}", period.rows) for period in periods]
    # A period without a record has no visible bar, so the note counts them.
    empty = sum(not period.rows for period in periods)
    note = f"{_between(periods)}; {empty} of {len(rows)} periods have no record"
    return _chart(f"Records in each {duration(width_ms)}", rows, note)


def _chart(title: str, bars: Bars, note: str) -> str:
    """Return an HTML figure with bars from zero to the largest value.

    ``bars``: (label, value); the label is the bar's tooltip. ``note``: text below the chart.
    """
    # All values may be 0.
    most = max(value for _, value in bars) or 1
    drawn = "".join(
        f'<rect x="{number}" y="{100 - 100 * value / most:.2f}" width="0.9" '
        f'height="{100 * value / most:.2f}"><title>{escape(label)}</title></rect>'
        for number, (label, value) in enumerate(bars)
    )
    return (
        f"<figure><figcaption>{escape(title)}, at most {most:,}</figcaption>"
        f'<svg viewBox="0 0 {len(bars)} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title, quote=True)}">{drawn}</svg>'
        f'<p class="note">{escape(note)}</p></figure>\n'
    )


def _tables(figures: ReportFigures) -> str:
    """Return the tables of tiers, missing offsets and frequent keys as HTML."""
    # Keys, topics and tiers are data of users; the tables escape every cell.
    missing = figures.missing()
    shares = [
        (
            str(share.partition),
            share.tier,
            f"{share.first_offset:,} to {share.last_offset:,}",
            f"{share.rows:,}",
            size(share.bytes),
            "-" if share.first_ms is None else utc(share.first_ms),
            "-" if share.last_ms is None else utc(share.last_ms),
        )
        for share in figures.shares
    ]
    # A table without rows is left out.
    return (
        _table(
            "What each tier has",
            ("partition", "tier", "offsets", "records", "bytes", "earliest", "latest"),
            shares,
        )
        + _table(
            "Offsets without a record (compacted, aborted, or a transaction's marker)",
            ("partition", "offsets"),
            [(str(number), f"{count:,}") for number, count in missing.items() if count],
        )
        + _table(
            "The most frequent keys, about",
            ("key", "records"),
            [(shown(key), f"{count:,}") for key, count in figures.keys],
        )
    )


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows
    )
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f"<section><table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{body}</tbody></table></section>\n"
    )


def shown(key: bytes) -> str:
    """Return a key as text if it is printable, else in hexadecimal; long keys are truncated."""
    return beginning(key, len(key), _KEY_SHOWN)


def beginning(data: bytes | None, size_bytes: int, most: int) -> str:
    """Return bytes as text of at most ``most`` characters, in hexadecimal if they are no text.

    ``data``: the first ones of ``size_bytes`` bytes. Line breaks and tabs become spaces.
    """
    if data is None:
        return "null"
    text = " ".join(_decoded(data, is_cut=len(data) < size_bytes).split())
    if not text.isprintable() or not text:
        text = f"0x{data.hex()}"
    if len(text) <= most and len(data) == size_bytes:
        return text
    return f"{text[:most]}… ({size_bytes:,} bytes)"


def _decoded(data: bytes, *, is_cut: bool) -> str:
    """Return UTF-8 as text, otherwise "". A last character that was cut is left out."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_cut and len(data) - error.start < _UTF8_BYTES_MAX:
            return _decoded(data[: error.start], is_cut=False)
        return ""


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    number, units = float(count), ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} {units[-1]}"


def duration(width_ms: int) -> str:
    """Return the length of a period in words."""
    for unit, length_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if width_ms % length_ms == 0:
            count = width_ms // length_ms
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if width_ms == 1000 else f"{width_ms / 1000:g} seconds"


def utc(time_ms: int) -> str:
    """Return a time as text in UTC. Timestamps of records may be of any year."""
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms:,} ms, not in the years 1 to 9999"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


# ------------------------------------------------------------ Tables


def _letters_text(figures: TableFigures) -> str:
    if figures.letters is None:
        return "no table of dead letters"
    return count(figures.letters, "dead letter")


def _freshness(figures: TableFigures, now_ms: int) -> str:
    """Return the times of the newest record and the newest version, and their ages."""
    rows = [
        (name, _time(ms), "-" if ms is None else _age(now_ms - ms))
        for name, ms in (
            ("newest record (its timestamp)", figures.newest_ms),
            ("newest version of the table", figures.committed_ms),
        )
    ]
    return _table("Freshness", ("", "time", "age"), rows)


def _age(age_ms: int) -> str:
    """Return the age of a time in the largest unit that gives two or more."""
    if age_ms < 0:
        return f"{_age(-age_ms)} in the future"
    for unit, length_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if age_ms >= 2 * length_ms:
            return f"{age_ms // length_ms:,} {unit}"
    return f"{age_ms // 1000} s"


def _partitions(figures: TableFigures) -> str:
    """Return the table of the topic's partitions: rows, offsets, newest record and position."""
    rows = [
        (
            str(item.partition),
            f"{item.rows:,}",
            f"{item.first_offset:,} to {item.last_offset:,}",
            _time(item.last_ms),
            _offset(figures.positions.get(item.partition)),
        )
        for item in figures.partitions
    ]
    title = "Rows by partition of the topic"
    if len(rows) == PARTITIONS_SHOWN:
        title += f", the first {PARTITIONS_SHOWN}"
    columns = ("partition", "rows", "offsets", "newest record", "export continues at")
    return _table(title, columns, rows)


def _offset(offset: int | None) -> str:
    return "-" if offset is None else f"{offset:,}"


def _dead_letters(figures: TableFigures) -> str:
    """Return the tables of dead letters: their causes, and samples of each."""
    causes = [
        (cause.error or "-", f"{cause.rows:,}", *(map(_time, (cause.first_ms, cause.last_ms))))
        for cause in figures.causes
    ]
    others = (figures.letters or 0) - sum(cause.rows for cause in figures.causes)
    if others:
        causes.append(("other causes", f"{others:,}", "-", "-"))
    return _table(
        "Dead letters by cause", ("cause", "records", "earliest", "latest"), causes
    ) + _table(
        "The newest dead letters of each cause",
        ("cause", "partition", "offset", "time", "key", "value"),
        [_sample(cause, sample) for cause in figures.causes for sample in cause.samples],
    )


def _sample(cause: LetterCause, sample: LetterSample) -> tuple[str, ...]:
    return (
        cause.error or "-",
        str(sample.partition),
        f"{sample.offset:,}",
        _time(sample.time_ms),
        beginning(sample.key, sample.key_bytes, _KEY_SHOWN),
        beginning(sample.value, sample.value_bytes, _VALUE_SHOWN),
    )


def _time(ms: int | None) -> str:
    return "-" if ms is None else utc(ms)
