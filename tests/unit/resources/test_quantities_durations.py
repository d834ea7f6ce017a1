"""Quantities and durations as texts, and their values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tidemark_operator.resources.scalars import Duration, Quantity, duration_ms, quantity_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("1Ki", 1024),
        ("10Gi", 10 * 2**30),
        ("500M", 500_000_000),
        ("3k", 3000),
        ("2Pi", 2**51),
        # The number has 19 digits, and 18 are allowed.
        ("9223372036854775807", None),
        ("999999999999999999", 999999999999999999),
    ],
)
def test_quantity(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(ValueError, match="whole number of bytes"):
            quantity_bytes(text)
    else:
        assert quantity_bytes(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5Gi", "1e3", "10 Gi", "10gi", "10GB", "Gi", "1_0"])
def test_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10Gi"):
        quantity_bytes(text)


def test_quantity_above_64_bits() -> None:
    with pytest.raises(ValueError, match="exceeds 9223372036854775807 bytes"):
        quantity_bytes("999999999999999999Pi")


def test_bare_number_is_a_quantity_and_a_boolean_is_not() -> None:
    adapter = TypeAdapter(Quantity)
    assert adapter.validate_python(1048576) == "1048576"
    with pytest.raises(ValidationError):
        adapter.validate_python(True)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72h", 259_200_000),
        ("1h30m", 5_400_000),
        ("500ms", 500),
        ("10m", 600_000),
        ("0s", 0),
        ("1h1m1s1ms", 3_661_001),
        ("999999h", 999999 * 3_600_000),
    ],
)
def test_duration(text: str, number: int) -> None:
    assert duration_ms(text) == number


@pytest.mark.parametrize("text", ["", "7d", "1.5h", "1m1h", "10", "-1h", "1H", "1h 1m", "9999999h"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(
        ValueError,
        match="must be a duration such as 168h, 1h30m or 500ms",
    ):
        duration_ms(text)
    with pytest.raises(ValidationError):
        TypeAdapter(Duration).validate_python(text)


@given(st.integers(0, 999), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_duration_is_the_sum_of_its_parts(hours: int, mins: int, secs: int, millis: int) -> None:
    text = f"{hours}h{mins}m{secs}s{millis}ms"
    assert duration_ms(text) == ((hours * 60 + mins) * 60 + secs) * 1000 + millis
