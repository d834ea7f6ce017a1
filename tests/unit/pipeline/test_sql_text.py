"""Results of SQL as text: no value is lost or invented."""

import csv
import json
from decimal import Decimal

import pytest

from tidemark_pipeline.jobs.sql_text import DuplicateColumns, cell, csv_text, json_text

COLUMNS = ("text", "bytes", "number", "list")
ROWS = (
    ('a,\n"b"', b"\xc3\xa9", Decimal("2.50"), [{"key": "k", "value": b"\x00\xff"}, None]),
    (None, b"\xff", float("nan"), []),
)


def test_json_is_an_array_of_objects() -> None:
    # Bytes that are not UTF-8 are written in hexadecimal.
    headers = [{"key": "k", "value": "0x00ff"}, None]
    assert json.loads(json_text(COLUMNS, ROWS)) == [
        {"text": 'a,\n"b"', "bytes": "é", "number": 2.5, "list": headers},
        {"text": None, "bytes": "0xff", "number": "nan", "list": []},
    ]
    assert json_text(COLUMNS, ROWS).count("\n") == len(ROWS) + 2
    assert json.loads(json_text(COLUMNS, ())) == []


def test_csv_is_read_back_unchanged() -> None:
    assert list(csv.reader(csv_text(COLUMNS, ROWS).splitlines(keepends=True))) == [
        list(COLUMNS),
        ['a,\n"b"', "é", "2.50", '[{"key": "k", "value": "0x00ff"}, null]'],
        ["", "0xff", "nan", "[]"],
    ]


@pytest.mark.parametrize(
    ("number", "written"),
    [
        ("3", "3"),
        ("3.0", "3"),
        ("0.1", "0.1"),
        ("12345678901234567890", "12345678901234567890"),
        # A double would lose digits of this number.
        ("0.12345678901234567890", '"0.12345678901234567890"'),
    ],
)
def test_decimal_is_a_json_number_unless_digits_are_lost(number: str, written: str) -> None:
    assert json_text(("n",), ((Decimal(number),),)) == f'[\n{{"n": {written}}}\n]\n'


def test_json_refuses_two_columns_of_one_name() -> None:
    with pytest.raises(DuplicateColumns, match=r"named key: .* AS"):
        json_text(("key", "value", "key"), ((1, 2, 3),))
    assert csv_text(("key", "key"), ((1, 2),)) == "key,key\n1,2\n"


def test_cells_use_the_json_names_of_constants() -> None:
    assert [cell(value) for value in (None, True, 1.5, b"x", {"a": None})] == [
        "null",
        "true",
        "1.5",
        "x",
        '{"a": null}',
    ]
