"""The page of a topic shows what was counted, and escapes what it shows."""

import re

import pytest

from tidemark_pipeline.report.figures import (
    PERIODS_MAX,
    ReportFigures,
    ReportPeriod,
    TierShare,
    width_of,
)
from tidemark_pipeline.report.page import duration, page, shown, size

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
