"""Room in memory, of which no client has more than half of what the others leave."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import pytest

from tidemark_broker.memory_shares import Shares, asking


@contextmanager
def asked_by(who: Hashable) -> Iterator[None]:
    token = asking.set(who)
    try:
        yield
    finally:
        asking.reset(token)


def fill(shares: Shares, who: str) -> int:
    """Return the number of bytes that a client can take."""
    with asked_by(who):
        taken = 0
        while not shares.lacks(1):
            shares.add(f"{who} {taken}", 1)
            taken += 1
    return taken


def test_one_that_takes_what_it_can_leaves_half_to_others() -> None:
    shares = Shares(100)
    assert fill(shares, "ann") == 50
    assert fill(shares, "bob") == 25
    assert not shares.lacks(1), "the broker itself"
    shares.add("by itself", 24)
    assert shares.lacks(1)


def test_earlier_memory_has_no_owner_and_reduces_the_limit() -> None:
    """As after each takeover by another broker."""
    shares, there = Shares(1024), 0
    for left in (512, 256, 128):
        assert fill(shares, "ann") == left
        for number in range(left):
            shares.leave(f"ann {number}")
        there += left
        assert shares.used_bytes == there


@pytest.mark.parametrize("gone", ["all", "half"])
def test_what_goes_is_given_back(gone: str) -> None:
    shares = Shares(100)
    fill(shares, "ann")
    for number in range(50 if gone == "all" else 25):
        shares.add(f"ann {number}", -1)
    assert fill(shares, "ann2") == (50 if gone == "all" else 37)


def test_what_others_add_to_it_is_its_holders() -> None:
    """One client creates a group and others commit to it; a transaction's marker takes bytes
    away.
    """
    shares = Shares(100)
    with asked_by("ann"):
        shares.add("g", 10)
    with asked_by("bob"):
        shares.add("g", 30)
        assert not shares.lacks(30)
    shares.add("g", 5)
    with asked_by("ann"):
        assert shares.lacks(6)
    shares.add("g", -40)
    with asked_by("ann"):
        assert not shares.lacks(40)


def test_of_what_was_there_before_no_more_is_given_back_than_was_added() -> None:
    shares = Shares(100)
    shares.used_bytes = 20
    with asked_by("ann"):
        shares.add("g", 1)
        shares.add("g", -15)
        assert shares.used_bytes == 6
        assert not shares.lacks(47)
        assert shares.lacks(48)
