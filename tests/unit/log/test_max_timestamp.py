"""Search for the record with the largest timestamp (ListOffsets -3, KIP-734) by lookups by time."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.log.reading import offset_of_max_timestamp


@dataclass(frozen=True)
class Dated:
    offset: int
    timestamp_ms: int


@given(
    st.lists(st.integers(-1, 20) | st.integers(0, 2**60)), st.integers(0, 2**60) | st.integers(0, 3)
)
def test_the_first_record_with_the_largest_timestamp_is_found_although_a_larger_one_was_deleted(
    timestamps: list[int], more_ms: int
) -> None:
    records = [Dated(offset, time_ms) for offset, time_ms in enumerate(timestamps)]
    dated = [record for record in records if record.timestamp_ms >= 0]
    lookups = 0

    def find(timestamp_ms: int) -> Dated | None:
        nonlocal lookups
        lookups += 1
        return next((record for record in records if record.timestamp_ms >= timestamp_ms), None)

    # Segments still report a timestamp up to ``more_ms`` above any that remains.
    largest_ms = max((record.timestamp_ms for record in records), default=-1) + more_ms
    expected = min(dated, key=lambda item: (-item.timestamp_ms, item.offset), default=None)
    assert offset_of_max_timestamp(find, largest_ms) == expected
    # A binary search over 63 bits, not a scan.
    assert lookups < 70
