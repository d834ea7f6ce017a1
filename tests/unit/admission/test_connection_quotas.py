"""Limits on the connections of an address and on the rate of new ones."""

from tidemark_broker.admission import connection_limits
from tidemark_broker.admission.connection_limits import ConnectionQuotas


class ManualClock:
    now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_each_address_has_its_own_connection_limit() -> None:
    limits = ConnectionQuotas(per_address_max=2, rate_per_address_max=100)
    assert [limits.refusal("a") for _ in range(3)] == [
        None,
        None,
        "the address already has 2 connections, the limit",
    ]
    assert limits.refusal("b") is None
    limits.remove("a")
    assert limits.refusal("a") is None


def test_each_address_has_a_connection_rate_and_rejected_attempts_do_not_count() -> None:
    clock = ManualClock()
    limits = ConnectionQuotas(per_address_max=1000, rate_per_address_max=3, now=clock)
    taken = [limits.refusal("a") is None for _ in range(200)]
    # Three connections a second over ten windows of one second, as Kafka's quota sensors allow.
    assert taken == [True] * 30 + [False] * 170
    assert limits.refusal("b") is None
    # All windows have passed. Had the rejected attempts counted, the address would still be
    # blocked.
    clock.now_s += 11
    assert limits.refusal("a") is None


def test_the_number_of_remembered_addresses_is_limited() -> None:
    limits = ConnectionQuotas(per_address_max=5, rate_per_address_max=5)
    for number in range(connection_limits.ADDRESSES_MAX + 50):
        address = f"2001:db8::{number:x}"
        assert limits.refusal(address) is None
        limits.remove(address)
    assert len(limits._rates) == connection_limits.ADDRESSES_MAX
    assert not limits._open
