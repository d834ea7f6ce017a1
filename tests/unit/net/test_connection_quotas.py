"""Limits on an address's connections and on the rate of new ones."""

from tidemark_broker.net import connection_quotas
from tidemark_broker.net.connection_quotas import Newcomers


class Clock:
    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_an_address_has_a_connection_limit_of_its_own() -> None:
    few = Newcomers(per_address_max=2, rate_per_address_max=100)
    assert [few.refusal("a") for _ in range(3)] == [
        None,
        None,
        "the address already has 2 connections, the limit",
    ]
    assert few.refusal("b") is None
    few.left("a")
    assert few.refusal("a") is None


def test_an_address_has_a_connection_rate_and_refused_attempts_do_not_count() -> None:
    clock = Clock()
    few = Newcomers(per_address_max=1000, rate_per_address_max=3, now=clock)
    taken = [few.refusal("a") is None for _ in range(200)]
    assert taken == [True] * 30 + [False] * 170
    assert few.refusal("b") is None
    clock.now_s += 11
    assert few.refusal("a") is None


def test_memory_of_addresses_is_bounded() -> None:
    few = Newcomers(per_address_max=5, rate_per_address_max=5)
    for number in range(connection_quotas.ADDRESSES_MAX + 50):
        address = f"2001:db8::{number:x}"
        assert few.refusal(address) is None
        few.left(address)
    assert len(few._rates) == connection_quotas.ADDRESSES_MAX
    assert not few._open
