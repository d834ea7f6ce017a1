"""Shares of memory: a client has at most half of what the others leave."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import pytest

from tidemark_broker.admission.fair_share import MemoryShares, requesting_client


@contextmanager
def request_of(who: Hashable) -> Iterator[None]:
    token = requesting_client.set(who)
    try:
        yield
    finally:
        requesting_client.reset(token)


def fill(shares: MemoryShares, who: str) -> int:
    """Return the number of bytes that a client can take."""
    with request_of(who):
        taken = 0
        while not shares.is_full_for(1):
            shares.add(f"{who} {taken}", 1)
            taken += 1
    return taken


def test_one_client_leaves_half_to_others() -> None:
    shares = MemoryShares(100)
    assert fill(shares, "ann") == 50
    # The second client has half of the other half.
    assert fill(shares, "bob") == 25
    assert not shares.is_full_for(1), "the broker itself"
    shares.add("by itself", 24)
    assert shares.is_full_for(1)


def test_earlier_memory_has_no_owner_and_reduces_the_limit() -> None:
    """Each takeover by another broker leaves memory without an owner."""
    shares, ownerless = MemoryShares(1024), 0
    for available in (512, 256, 128):
        assert fill(shares, "ann") == available
        for number in range(available):
            # As after a takeover, the memory stays in use, and its owner is not known.
            shares.forget_owner(f"ann {number}")
        ownerless += available
        assert shares.used_bytes == ownerless


@pytest.mark.parametrize("released", ["all", "half"])
def test_released_memory_is_available_again(released: str) -> None:
    shares = MemoryShares(100)
    fill(shares, "ann")
    for number in range(50 if released == "all" else 25):
        shares.add(f"ann {number}", -1)
    # 25 bytes remain in use, so that another client has half of 75.
    assert fill(shares, "ann2") == (50 if released == "all" else 37)


def test_additions_of_others_count_towards_the_owner() -> None:
    """One client creates a group, and others commit to it. A marker releases memory."""
    shares = MemoryShares(100)
    with request_of("ann"):
        shares.add("g", 10)
    with request_of("bob"):
        shares.add("g", 30)
        assert not shares.is_full_for(30)
    shares.add("g", 5)
    with request_of("ann"):
        # The 45 bytes of the group are Ann's, of the 50 that she may use.
        assert shares.is_full_for(6)
    shares.add("g", -40)
    with request_of("ann"):
        assert not shares.is_full_for(40)


def test_release_is_limited_to_the_owners_additions() -> None:
    shares = MemoryShares(100)
    shares.used_bytes = 20
    with request_of("ann"):
        shares.add("g", 1)
        shares.add("g", -15)
        assert shares.used_bytes == 6
        # 94 bytes are free, and the client owns none of the used ones.
        assert not shares.is_full_for(47)
        assert shares.is_full_for(48)
