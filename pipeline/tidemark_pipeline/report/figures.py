"""Figures of the reports on a topic and on a table.

:mod:`tidemark_pipeline.jobs.report` computes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

PERIODS_MAX = 120
PARTITIONS_SHOWN = 200
_WIDTHS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierShare:
    """Share of a partition that is in one tier; offsets are inclusive.

    ``first_ms`` and ``last_ms``: the least and the greatest time, None if no record has one.
    """

    partition: int
    tier: str
    rows: int
    first_offset: int
    last_offset: int
    first_ms: int | None
    last_ms: int | None
    bytes: int
    without_key: int
    without_value: int


@dataclass(frozen=True, slots=True)
class ReportPeriod:
    """Rows, and bytes of keys and values, from ``start_ms`` on for the width of all periods."""

    start_ms: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """All figures of a report.

    ``sizes``: rows by the next power of two of bytes of key and value. ``keys``: the most frequent
    keys with approximate rows. ``distinct_keys``: an approximate number.
    """

    topic: str
    shares: tuple[TierShare, ...]
    width_ms: int
    periods: tuple[ReportPeriod, ...]
    sizes: tuple[tuple[int, int], ...]
    keys: tuple[tuple[bytes, int], ...]
    distinct_keys: int

    @property
    def rows(self) -> int:
        """Return the number of rows of the whole topic."""
        return sum(share.rows for share in self.shares)

    @property
    def bytes(self) -> int:
        """Return the uncompressed bytes of keys and values."""
        return sum(share.bytes for share in self.shares)

    def missing(self) -> dict[int, int]:
        """Return by partition the number of offsets without a record between its first and last."""
        missing: dict[int, int] = {}
        for partition in sorted({share.partition for share in self.shares}):
            # Both tiers together, as the local share continues where the remote one ends.
            of_partition = [share for share in self.shares if share.partition == partition]
            span = (
                max(h.last_offset for h in of_partition)
                + 1
                - min(h.first_offset for h in of_partition)
            )
            missing[partition] = span - sum(share.rows for share in of_partition)
        return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfPartition:
    """Rows of a table that are of one partition of the topic; offsets are inclusive."""

    partition: int
    rows: int
    first_offset: int
    last_offset: int
    last_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterSample:
    """Dead letter, with the first bytes of its key and value, and the sizes of both."""

    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    key_bytes: int
    value: bytes | None
    value_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterCause:
    """Dead letters with the same error. ``samples``: the newest ones."""

    error: str
    rows: int
    first_ms: int | None
    last_ms: int | None
    samples: tuple[LetterSample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """All figures of the report on a table.

    ``topic``: of the table's export, "" if it is not known. ``committed_ms``: time of the newest
    version. ``newest_ms``: latest timestamp of a record. ``positions``: first offset of each
    partition that the table does not have. ``partitions``: at most PARTITIONS_SHOWN.
    ``letters``: rows of the table of dead letters, None if there is none. ``causes``: the most
    frequent ones.
    """

    table: str
    topic: str
    rows: int
    committed_ms: int | None
    newest_ms: int | None
    positions: Mapping[int, int]
    partitions: tuple[RowsOfPartition, ...]
    width_ms: int
    periods: tuple[ReportPeriod, ...]
    letters: int | None = None
    causes: tuple[LetterCause, ...] = ()


def width_of(span_ms: int) -> int:
    """Return a conventional period length that gives at most PERIODS_MAX periods."""
    # Beyond the longest width, the span is divided evenly.
    return next(
        (w for w in _WIDTHS_MS if span_ms // w < PERIODS_MAX), -(-span_ms // PERIODS_MAX) or 1
    )
