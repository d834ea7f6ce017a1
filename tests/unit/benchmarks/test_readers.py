"""Progress of a benchmark's consumer group: records read, and when all were assigned."""

from dataclasses import dataclass
from unittest import mock

from tests.benchmarks.load import Readers

MEMBER = mock.sentinel.consumer


@dataclass
class ReadRecord:
    """A record, as a client returns it."""

    at: tuple[int, int]

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]


def read(*places: tuple[int, int]) -> list[ReadRecord]:
    return [ReadRecord(place) for place in places]


def test_revocation_at_the_end_does_not_reset_the_start() -> None:
    readers = Readers(partitions=2, records=2)
    readers.assigned(MEMBER, [0, 1])  # type: ignore[list-item]
    joined = readers.joined
    assert joined
    readers.took(read((0, 0), (1, 0)))  # type: ignore[arg-type]
    assert readers.have_all
    # The members end once everything is read, which revokes their partitions.
    readers.revoked(MEMBER, [0, 1])  # type: ignore[list-item]
    assert readers.joined == joined


def test_rebalance_before_the_first_record_resets_the_start() -> None:
    readers = Readers(partitions=2, records=2)
    readers.assigned(MEMBER, [0, 1])  # type: ignore[list-item]
    readers.revoked(MEMBER, [1])  # type: ignore[list-item]
    assert not readers.joined


def test_repeated_records_count_once() -> None:
    readers = Readers(partitions=2, records=4)
    readers.took(read((0, 0), (0, 1)))  # type: ignore[arg-type]
    readers.took(read((0, 0), (0, 1), (1, 0)))  # type: ignore[arg-type]
    assert (readers.records, readers.have_all) == (3, False)
    readers.took(read((1, 1)))  # type: ignore[arg-type]
    assert readers.have_all
