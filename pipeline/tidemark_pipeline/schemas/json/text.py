"""Strict parser of a value as JSON (RFC 8259), which loses nothing silently.

Spark's parser accepts more than JSON: text in single quotes, a second object after the first, bytes
that are not UTF-8, numbers beyond a double. It changes each of them.
"""

import json
import math
import re
from typing import Any

NOT_JSON = "not JSON"
DOES_NOT_FIT = "JSON that does not fit the schema"
#: Objects and lists within one another; as for Avro and Protobuf.
DEPTH_MAX = 100
_FRAME = b"\x00"
_FRAME_BYTES = 5
#: A string, or a bracket of an object or list. An unterminated string extends to the end of the
#: text: a search for its end after each of its quotes would take hours.
_NESTING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
_SURROGATES = "\\ud", "\\uD"
#: ``NaN`` and ``Infinity``, which Spark's parser accepts, must not look like numbers that are too
#: large, which Python reads as infinity.
_DECODER = json.JSONDecoder(parse_constant=lambda _: math.nan)


class RecordRefused(ValueError):
    """The record is a dead letter; the message is its cause."""


def parse_object(value: bytes) -> dict[str, Any]:
    """Parse a JSON object from a record value, which a registry's serializer may have framed.

    The last value of a repeated name counts. A number beyond a double is infinite. Raises
    :class:`RecordRefused`.
    """
    # JSON never starts with a zero byte, so it marks the frame: a zero byte and a schema ID.
    if value.startswith(_FRAME):
        value = value[_FRAME_BYTES:]
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise RecordRefused(_cause_of(value)) from None
    # Python's parser recurses, so the depth is checked before it runs.
    if _depth(text) > DEPTH_MAX:
        raise RecordRefused(f"nested more than {DEPTH_MAX} deep")
    parsed = _parsed(text)
    if not isinstance(parsed, dict):
        raise RecordRefused(DOES_NOT_FIT)
    # Only an escape can produce half of a surrogate pair, so most texts need no further check.
    if any(escape in text for escape in _SURROGATES):
        _check_text(parsed)
    return parsed


def _parsed(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):  # ValueError: also a whole number of thousands of digits
        raise RecordRefused(NOT_JSON) from None


def _cause_of(value: bytes) -> str:
    """Return the cause for bytes that are not UTF-8: JSON with wrong bytes, or no JSON at all."""
    try:
        json.loads(value.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return NOT_JSON
    return f"{NOT_JSON}: its text is not UTF-8"


def _depth(text: str) -> int:
    """Return the nesting depth of a JSON text, or a lower bound if it is within DEPTH_MAX."""
    # Counting is much faster than matching, and most records have few brackets.
    if text.count("{") + text.count("[") <= DEPTH_MAX:
        return 0
    depth = deepest = 0
    for match in _NESTING.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return depth
            deepest = max(deepest, depth)
        elif token in "]}":
            depth -= 1
    return deepest


def _check_text(parsed: Any) -> None:
    """Refuse half of a surrogate pair, which Spark would replace by another character."""
    try:
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RecordRefused(f"{NOT_JSON}: a text has half of a surrogate pair") from None
