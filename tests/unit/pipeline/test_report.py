"""The page of a topic shows what was counted, and escapes what it shows."""

import re

import pytest

from tidemark_pipeline.report.figures import (
    PARTITIONS_SHOWN,
    PERIODS_MAX,
    LetterCause,
    LetterSample,
    ReportFigures,
    ReportPeriod,
    RowsOfPartition,
    TableFigures,
    TierShare,
    width_of,
)
from tidemark_pipeline.report.page import (
    beginning,
    duration,
    page,
    shown,
    size,
    table_page,
    utc,
)

DAY_MS = 24 * 3600 * 1000


def stored_range(partition: int, tier: str, first: int, last: int, rows: int) -> TierShare:
    return TierShare(
        partition=partition,
        tier=tier,
        rows=rows,
        first_offset=first,
        last_offset=last,
        first_ms=0,
        last_ms=5000,
        bytes=rows * 100,
        without_key=1,
        without_value=0,
    )


FOUND = ReportFigures(
    "t<b>",
    (
        stored_range(0, "remote", 10, 19, 9),
        stored_range(0, "local", 20, 29, 10),
        stored_range(1, "local", 0, 4, 5),
    ),
    1000,
    (ReportPeriod(0, 20, 2000), ReportPeriod(1000, 0, 0), ReportPeriod(2000, 4, 400)),
    ((128, 24),),
    ((b"<script>", 3), (b"\xff", 2)),
    7,
)


def test_offsets_without_a_row_are_counted_by_partition() -> None:
    # Offsets 10 to 19 have only 9 rows.
    assert FOUND.missing() == {0: 1, 1: 0}


def test_the_page_shows_the_figures_and_fetches_nothing() -> None:
    shown_page = page(FOUND, "now")
    assert "24 records, 2.3 KiB of keys and values; 3 without a key" in shown_page
    assert "<td>10 to 19</td>" in shown_page
    assert "&lt;script&gt;" in shown_page
    assert "0xff" in shown_page
    assert "<script" not in shown_page
    assert "<b>" not in shown_page
    assert not re.search(r"https?:|src=|href=", shown_page)
    heights = re.findall(r'height="([0-9.]+)"', shown_page)
    # The largest period has the full height of 100, and 4 of 20 records a fifth.
    assert heights[:3] == ["100.00", "0.00", "20.00"]
    assert "1 of 3 periods have no record" in shown_page


def test_a_topic_without_records_has_a_page_too() -> None:
    assert "No records." in page(ReportFigures("t", (), 1000, (), (), (), 0), "now")


@pytest.mark.parametrize("span_ms", [0, 1, 119_999, 120_000, DAY_MS, 365 * DAY_MS, 10**15])
def test_periods_are_few(span_ms: int) -> None:
    """One period is added, because the first one begins before the first record."""
    assert span_ms // width_of(span_ms) < PERIODS_MAX + 1


def test_sizes_durations_and_values_are_readable() -> None:
    assert [size(n) for n in (0, 1023, 1536, 2**50 * 5000)] == [
        *("0 B", "1023 B", "1.5 KiB", "5,000.0 PiB")
    ]
    assert [duration(ms) for ms in (1000, 5000, 60_000, 14_400_000, DAY_MS)] == [
        *("second", "5 seconds", "minute", "4 hours", "day")
    ]
    assert shown(b"") == "0x"
    assert shown("é".encode()) == "é"
    assert shown(b"k" * 60) == "k" * 48 + "… (60 bytes)"


# ---------------------------------------------------------------- tables

NOW_MS = 1_772_366_400_000  # 2026-03-01 12:00:00 UTC
HOUR_MS = 3_600_000
HOSTILE = b'{"name": "<script>alert(1)</script>",\n "note": "\xc3\xa9"}'


def sample(**fields: object) -> LetterSample:
    given: dict[str, object] = {
        "partition": 1,
        "offset": 7,
        "time_ms": NOW_MS,
        "key": b"k",
        "key_bytes": 1,
        "value": HOSTILE,
        "value_bytes": len(HOSTILE),
    }
    return LetterSample(**given | fields)  # type: ignore[arg-type]


def partition(number: int) -> RowsOfPartition:
    return RowsOfPartition(
        partition=number, rows=10, first_offset=5, last_offset=1014, last_ms=NOW_MS - HOUR_MS
    )


def table(**fields: object) -> TableFigures:
    # Ten rows of one partition, and twelve dead letters of which nine have the same cause.
    given: dict[str, object] = {
        "table": "db.<b>",
        "topic": "orders",
        "rows": 10,
        "committed_ms": NOW_MS - 30_000,
        "newest_ms": NOW_MS - 5 * HOUR_MS,
        "positions": {0: 1020},
        "partitions": (partition(0),),
        "width_ms": HOUR_MS,
        "periods": (ReportPeriod(NOW_MS, 10, 0),),
        "letters": 12,
        "causes": (
            LetterCause(
                error="field <i>: no number",
                rows=9,
                first_ms=NOW_MS,
                last_ms=None,
                samples=(sample(), sample(key=None, key_bytes=0, value=b"\xff\x00", value_bytes=2)),
            ),
        ),
    }
    return TableFigures(**given | fields)  # type: ignore[arg-type]


def test_the_page_of_a_table_has_freshness_partitions_and_dead_letters() -> None:
    shown_page = table_page(table(), NOW_MS)
    assert "10 rows of topic orders; 12 dead letters." in shown_page
    assert "<td>2026-03-01 07:00:00 UTC</td><td>5 hours</td>" in shown_page
    assert "<td>2026-03-01 11:59:30 UTC</td><td>30 s</td>" in shown_page
    assert "<td>5 to 1,014</td>" in shown_page
    assert "<td>1,020</td>" in shown_page
    assert "<td>field &lt;i&gt;: no number</td><td>9</td>" in shown_page
    # Causes beyond the most frequent ones are counted.
    assert "<td>other causes</td><td>3</td>" in shown_page
    # Line breaks become spaces, and bytes that are no text hexadecimal.
    assert "&quot;&lt;script&gt;alert(1)&lt;/script&gt;&quot;, &quot;note&quot;: " in shown_page
    assert "<td>null</td><td>0xff00</td>" in shown_page
    assert "<script" not in shown_page
    assert "<b>" not in shown_page
    assert not re.search(r"https?:|src=|href=", shown_page)


def test_a_table_without_rows_letters_or_an_export_has_a_page_too() -> None:
    empty = table(
        topic="",
        rows=0,
        committed_ms=None,
        newest_ms=None,
        positions={},
        partitions=(),
        periods=(),
        letters=None,
        causes=(),
    )
    shown_page = table_page(empty, NOW_MS)
    assert "0 rows; no table of dead letters." in shown_page
    assert "Dead letters by cause" not in shown_page


def test_the_page_says_that_it_leaves_partitions_out() -> None:
    many = table(partitions=tuple(map(partition, range(PARTITIONS_SHOWN))))
    assert f"the first {PARTITIONS_SHOWN}" in table_page(many, NOW_MS)


def test_a_sample_is_cut_at_a_character() -> None:
    text = "é" * 100
    assert beginning(text.encode()[:199], 5000, 200) == "é" * 99 + "… (5,000 bytes)"
    assert beginning(text.encode(), 200, 200) == text
    assert beginning(text.encode()[:199], 199, 500) == "0x" + text.encode()[:199].hex()
    assert beginning("\u202ekcart".encode(), 8, 200).startswith("0x")


@pytest.mark.parametrize("year_ms", [-62_135_596_800_001, 253_402_300_800_000, 2**63 - 1, -(2**63)])
def test_a_time_of_any_year_is_shown(year_ms: int) -> None:
    assert utc(year_ms) == f"{year_ms:,} ms, not in the years 1 to 9999"
