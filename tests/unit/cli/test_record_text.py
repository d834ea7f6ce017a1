"""Formats of records: templates, JSON, escapes of what a terminal must not receive."""

import json

import pytest

from tidemark.records.decode import DecodedRecord
from tidemark_cli.records.text import (
    BadTemplate,
    RecordFormat,
    columns,
    json_record,
    partitions_text,
    safe_text,
    time_text,
)

RECORD = DecodedRecord(
    offset=7,
    timestamp_ms=1_357_035_300_000,
    key=b"k1",
    value=b"two\nlines",
    headers=(("source", b"cli"), ("empty", None)),
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%v\\n", b"two\\nlines\n"),
        ("%t-%p@%o", b"orders-3@7"),
        ("%k=%v", b"k1=two\\nlines"),
        ("%h", b"source=cli,empty="),
        ("%T %d", b"1357035300000 2013-01-01T10:15:00.000+00:00"),
        ("%K %S", b"2 9"),
        ("100%%\\t\\x00\\\\", b"100%\t\x00\\"),
        ("plain é", "plain é".encode()),
    ],
)
def test_template_is_filled_in(template: str, text: bytes) -> None:
    assert RecordFormat(template).text("orders", 3, RECORD) == text


@pytest.mark.parametrize("template", ["%q", "\\q", "%k%"])
def test_unknown_directives_and_escapes_are_refused(template: str) -> None:
    if template.endswith("%"):
        # A single percent sign at the end is no directive, and is printed.
        assert RecordFormat(template).text("orders", 3, RECORD) == b"k1%"
        return
    with pytest.raises(BadTemplate, match="use"):
        RecordFormat(template)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, ""),
        (b"plain \xc3\xa9", "plain é"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"na\xffme", "na\\xffme"),
        ("\u202eright to left".encode(), "\\u202eright to left"),
        (b"a\tb\r\n", "a\\tb\\r\\n"),
        (b'{"path": "C:\\dir"}', '{"path": "C:\\dir"}'),
    ],
)
def test_text_is_one_printable_line(data: bytes | None, text: str) -> None:
    assert safe_text(data) == text


def test_raw_format_has_the_bytes_themselves() -> None:
    binary = DecodedRecord(offset=0, timestamp_ms=-1, key=None, value=b"\xff\n", headers=())
    assert RecordFormat("%v", raw=True).text("orders", 0, binary) == b"\xff\n"
    assert RecordFormat("%k|%K|%d").text("orders", 0, binary) == b"|-1|"


def test_json_tells_null_text_and_binary_apart() -> None:
    found = json.loads(json_record("orders", 3, RECORD))
    assert found["value"] == "two\nlines"
    assert found["headers"] == [
        {"name": "source", "value": "cli"},
        {"name": "empty", "value": None},
    ]
    binary = DecodedRecord(offset=0, timestamp_ms=-1, key=None, value=b"\xff\x00", headers=())
    line = json_record("orders", 0, binary)
    assert json.loads(line)["value"] == {"base64": "/wA="}
    assert json.loads(line)["key"] is None
    escaped = DecodedRecord(offset=0, timestamp_ms=-1, key=None, value=b"\x1b\xc2\x9b", headers=())
    assert json_record("orders", 0, escaped).isprintable()


def test_timestamps_outside_of_the_calendar_are_numbers() -> None:
    assert time_text(-1) == ""
    assert time_text(2**62) == str(2**62)


def test_columns_are_aligned_and_numbers_can_be_copied() -> None:
    assert columns([("NAME", "END"), ("a", 5), ("longer", 1000)]) == (
        "NAME      END\na           5\nlonger   1000"
    )


def test_only_the_first_partitions_of_many_are_shown() -> None:
    assert partitions_text({1: "3-4", 0: "5-9"}) == "0: 5-9, 1: 3-4"
    text = partitions_text(dict.fromkeys(range(50), "0-1"))
    assert text.endswith("9: 0-1 and 40 more")
