"""Answers of SQL statements as JSON, CSV, and cells of a table.

Keys and values of records are bytes that usually contain text. Bytes are shown as text if they are
valid UTF-8, else as hexadecimal digits (``0x00ff``).
"""

import csv
import io
import json
import math
from collections.abc import Sequence
from decimal import Decimal


class DuplicateColumns(ValueError):
    """Two columns with the same name, which a JSON object cannot have; the message says what to
    do.
    """


def json_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a JSON array with one object per row, each on its own line.

    Raises DuplicateColumns.
    """
    # A dictionary would silently drop one of two equal names.
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise DuplicateColumns(
            f"two columns are named {', '.join(twice)}: give one of them another name (… AS other)"
        )
    lines = (
        json.dumps(dict(zip(columns, map(_for_json, row), strict=True)), ensure_ascii=False)
        for row in rows
    )
    return "[\n" + ",\n".join(lines) + "\n]\n" if rows else "[]\n"


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a header line and one line per row; null is empty, lists and structs are JSON."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    # An empty cell is null, as CSV cannot tell null from the text "null".
    writer.writerows(["" if value is None else cell(value) for value in row] for row in rows)
    return written.getvalue()


def cell(value: object) -> str:
    """Return a value as text; null is ``null``."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case bytes():
            return _text(value)
        case list() | dict():
            return json.dumps(_for_json(value), ensure_ascii=False)
        case _:
            return str(value)


def _for_json(value: object) -> object:
    """Return a column's value in a form that :mod:`json` can encode without loss.

    Bytes become text. Decimals and non-finite numbers become text if JSON cannot represent them.
    """
    match value:
        case bytes():
            return _text(value)
        # Lists and structs may contain bytes at any depth.
        case list():
            return [_for_json(item) for item in value]
        case dict():
            return {str(name): _for_json(item) for name, item in value.items()}
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no such number
        case Decimal():
            return _number(value)
        case _:
            return value


def _number(value: Decimal) -> int | float | str:
    """Return a number if it represents the decimal exactly, else text."""
    # JSON readers compute with floats, so a decimal that a float would round stays text.
    if value == value.to_integral_value():
        return int(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "0x" + data.hex()
