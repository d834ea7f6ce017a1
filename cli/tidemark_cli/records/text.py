"""Text of records and tables: templates, JSON, and binary data that is safe on a terminal."""

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.records.decode import DecodedRecord

#: A directive, or an escape sequence of a shell's printf.
_PART = re.compile(r"%.|\\(?:x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_PARTITIONS_SHOWN = 10
_COLUMN_GAP = "   "


class BadTemplate(ValueError):
    """The format of records cannot be used; the text says what to write."""


def safe_text(data: bytes | None) -> str:
    """Return data as one line of printable text; "" for null.

    Bytes that are not UTF-8 and control characters become escapes such as ``\\x1b`` and ``\\n``, so
    that a record can neither end its line nor control the terminal.
    """
    text = (data or b"").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else codecs.encode(char, "unicode_escape").decode()
        for char in text
    )


def time_text(timestamp_ms: int) -> str:
    """Return a record's timestamp in ISO 8601 and UTC; "" if it has none."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):  # a producer may send any number
        return str(timestamp_ms)
    return "" if timestamp_ms < 0 else moment.isoformat(timespec="milliseconds")


class RecordFormat:
    """Format of a record as text, after kcat's ``-f``: see :data:`DIRECTIVES`.

    ``raw``: keys, values and headers as they are, without escapes.
    """

    def __init__(self, template: str, *, raw: bool = False) -> None:
        """Parse a template. Raises :class:`BadTemplate`."""
        self._show: Callable[[bytes | None], bytes] = _raw if raw else _safe
        self._parts: list[bytes | str] = []
        at = 0
        for match in _PART.finditer(template):
            self._parts += [template[at : match.start()].encode(), _parsed(match[0])]
            at = match.end()
        self._parts += [template[at:].encode()]

    def text(self, topic: str, partition: int, record: "DecodedRecord") -> bytes:
        """Return the text of a record, by the template."""
        return b"".join(
            part if isinstance(part, bytes) else self._field(part, topic, partition, record)
            for part in self._parts
        )

    def _field(self, name: str, topic: str, partition: int, record: "DecodedRecord") -> bytes:
        # Fields with bytes of a producer are escaped.
        match name:
            case "k":
                return self._show(record.key)
            case "v":
                return self._show(record.value)
            case "h":
                pairs = ((key.encode(), value) for key, value in record.headers)
                return b",".join(self._show(key) + b"=" + self._show(value) for key, value in pairs)
            case "t":
                return topic.encode()
            case "d":
                return time_text(record.timestamp_ms).encode()
        # All others are numbers. The length of null is -1, as in kcat.
        numbers = {
            "p": partition,
            "o": record.offset,
            "T": record.timestamp_ms,
            "K": -1 if record.key is None else len(record.key),
            "S": -1 if record.value is None else len(record.value),
        }
        return str(numbers[name]).encode()


#: Directives of a template, as the help of ``--format`` shows them.
DIRECTIVES = {
    "k": "key",
    "v": "value",
    "h": "headers",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp in ms",
    "d": "timestamp as a date",
    "K": "length of the key",
    "S": "length of the value",
}


def _parsed(text: str) -> bytes | str:
    """Return the bytes that an escape or ``%%`` stands for, or the name of a directive."""
    if text.startswith("\\"):
        if len(text) == 4:
            return bytes.fromhex(text[2:])
        if text not in _ESCAPES:
            raise BadTemplate(
                f"{text} is no escape sequence: use \\n, \\t, \\r, \\0, \\\\ or \\xNN"
            )
        return _ESCAPES[text].encode()
    if text == "%%":
        return b"%"
    if text[1] not in DIRECTIVES:
        known = ", ".join(f"%{name}" for name in DIRECTIVES)
        raise BadTemplate(f"{text} is no directive: use {known}, or %% for a percent sign")
    return text[1]


def _safe(data: bytes | None) -> bytes:
    return safe_text(data).encode()


def _raw(data: bytes | None) -> bytes:
    return data or b""


def json_record(topic: str, partition: int, record: "DecodedRecord") -> str:
    """Return a record as one line of JSON; see :func:`json_bytes` for keys and values."""
    body = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [{"name": name, "value": json_bytes(value)} for name, value in record.headers],
    }
    return json.dumps(body)


def json_bytes(data: bytes | None) -> str | dict[str, str] | None:
    """Return text as a string, and bytes that are not UTF-8 as ``{"base64": …}``."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def columns(rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as aligned columns; the first row is the heading.

    Numbers are at the right, and without separators, so that they can be copied into a command.
    """
    texts = [[str(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    numeric = [
        all(isinstance(value, int) for value in column[1:]) for column in zip(*rows, strict=True)
    ]
    lines = (
        _COLUMN_GAP.join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, numeric, strict=True)
        )
        for row in texts
    )
    return "\n".join(line.rstrip() for line in lines)


def rate_text(count: int, seconds: float) -> str:
    """Return such as "0.52 s, 1,923 records/s"."""
    return f"{seconds:.2f} s, {count / max(seconds, 1e-6):,.0f} records/s"


def partitions_text(items: Mapping[int, str]) -> str:
    """Return texts by partition, such as "0: 5-9, 1: 3-4"; only the first ones of many."""
    shown: Iterable[int] = sorted(items)[:_PARTITIONS_SHOWN]
    text = ", ".join(f"{partition}: {items[partition]}" for partition in shown)
    left = len(items) - _PARTITIONS_SHOWN
    return f"{text} and {left} more" if left > 0 else text
