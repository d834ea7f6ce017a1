"""The figures that a report of a topic shows; :mod:`tidemark_pipeline.jobs.report` counts them."""

from dataclasses import dataclass

PERIODS_MAX = 120
_WIDTHS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one tier has of a partition; offsets are inclusive. ``first_ms`` and ``last_ms``: the
    least and the greatest time, None where no record has one."""

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
class Period:
    """Rows, and bytes of keys and values, from ``start_ms`` on for the width of all periods."""

    start_ms: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All of a report. ``sizes``: rows by the next power of two of bytes of key and value;
    ``keys``: the most frequent ones with about how many rows; ``distinct_keys``: about."""

    topic: str
    held: tuple[Held, ...]
    width_ms: int
    periods: tuple[Period, ...]
    sizes: tuple[tuple[int, int], ...]
    keys: tuple[tuple[bytes, int], ...]
    distinct_keys: int

    @property
    def rows(self) -> int:
        """Of the whole topic."""
        return sum(share.rows for share in self.held)

    @property
    def bytes(self) -> int:
        """Of keys and values, unpacked."""
        return sum(share.bytes for share in self.held)

    def missing(self) -> dict[int, int]:
        """Offsets between the first and the last of each partition that have no row."""
        found: dict[int, int] = {}
        for partition in sorted({share.partition for share in self.held}):
            mine = [share for share in self.held if share.partition == partition]
            span = max(h.last_offset for h in mine) + 1 - min(h.first_offset for h in mine)
            found[partition] = span - sum(share.rows for share in mine)
        return found


def width_of(span_ms: int) -> int:
    """A period that people have a name for, so that there are not too many of them."""
    return next(
        (w for w in _WIDTHS_MS if span_ms // w < PERIODS_MAX), -(-span_ms // PERIODS_MAX) or 1
    )
