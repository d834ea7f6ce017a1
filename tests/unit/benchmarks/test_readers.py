"""Progress of a benchmark's consumer group: records read, and when all were assigned."""

from dataclasses import dataclass
from unittest import mock

from tests.benchmarks.load import Readers

MEMBER = mock.sentinel.consumer


@dataclass
class Read:
    """A record, as a client hands it out."""

    at: tuple[int, int]

    def partition(self) -> int:
        return self.at[0]

    def offset(self) -> int:
        return self.at[1]


def read(*places: tuple[int, int]) -> list[Read]:
    return [Read(place) for place in places]


def test_members_that_end_take_nothing_back_of_when_all_was_given_out() -> None:
    readers = Readers(partitions=2, records=2)
    readers.assigned(MEMBER, [0, 1])  # type: ignore[list-item]
    joined = readers.joined
    assert joined
    readers.took(read((0, 0), (1, 0)))  # type: ignore[arg-type]
    assert readers.have_all
    readers.revoked(MEMBER, [0, 1])  # type: ignore[list-item]
    assert readers.joined == joined


def test_a_rebalance_before_that_restarts_the_count() -> None:
    readers = Readers(partitions=2, records=2)
    readers.assigned(MEMBER, [0, 1])  # type: ignore[list-item]
    readers.revoked(MEMBER, [1])  # type: ignore[list-item]
    assert not readers.joined


def test_what_is_read_twice_counts_once() -> None:
    readers = Readers(partitions=2, records=4)
    readers.took(read((0, 0), (0, 1)))  # type: ignore[arg-type]
    readers.took(read((0, 0), (0, 1), (1, 0)))  # type: ignore[arg-type]
    assert (readers.records, readers.have_all) == (3, False)
    readers.took(read((1, 1)))  # type: ignore[arg-type]
    assert readers.have_all
