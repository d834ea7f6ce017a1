"""Clients' use of their quotas: shared, bounded, forgotten."""

import pytest

from tests.user_states import quota
from tidemark_broker.quotas import client_quotas
from tidemark_broker.quotas.client_quotas import ClientQuotas
from tidemark_broker.quotas.table import QuotaKind


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> ClientQuotas:
    return ClientQuotas(now=clock)


def test_all_clients_of_a_user_share_its_quota(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, produce=100)])
    first, second = quotas.of("ann", "a"), quotas.of("ann", "b")
    first.use(QuotaKind.PRODUCE, 1000)
    assert first.rest_s == 0.0
    second.use(QuotaKind.PRODUCE, 500)
    assert second.rest_s == 5.0
    assert quotas.of("bob", "a").room(QuotaKind.PRODUCE) is None


def test_one_answer_has_what_the_windows_allow_and_nothing_once_that_is_used_up(
    quotas: ClientQuotas, clock: Clock
) -> None:
    quotas.apply([quota("", None, fetch=100)])
    request = quotas.of("ann", "a")
    assert request.room(QuotaKind.FETCH) == 1000
    request.use(QuotaKind.FETCH, 1200)
    refused = quotas.of("ann", "a")
    assert refused.room(QuotaKind.FETCH) == 0.0
    assert refused.rest_s == 2.0
    clock.now_s += 11.0
    assert quotas.of("ann", "a").room(QuotaKind.FETCH) == 1000


def test_request_time_never_costs_more_than_a_window(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, request=1)])
    request = quotas.of("ann", "a")
    request.use(QuotaKind.REQUEST, 100 * 60)
    assert request.rest_s == 1.0


def test_no_pause_lasts_for_days(quotas: ClientQuotas) -> None:
    """An answer has 31 bits for it; a connection that rests is not looked at."""
    quotas.apply([quota("ann", None, produce=1)])
    request = quotas.of("ann", "a")
    request.use(QuotaKind.PRODUCE, 10**12)
    assert request.rest_s == 3600.0
    assert quotas.of("ann", "a").room(QuotaKind.PRODUCE) == 0.0


def test_what_was_used_counts_on_when_quotas_change(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, produce=1000)])
    quotas.of("ann", "a").use(QuotaKind.PRODUCE, 2000)
    quotas.apply([quota("ann", None, produce=100)])
    assert quotas.of("ann", "a").room(QuotaKind.PRODUCE) == 0.0


def test_names_without_end_take_no_memory_without_end(
    quotas: ClientQuotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "MEASURED_MAX", 100)
    small = ClientQuotas()
    small.apply([quota(None, "", produce=1)])
    for number in range(1000):
        small.of("ann", f"client-{number}").use(QuotaKind.PRODUCE, 1)
    assert len(small._measured[QuotaKind.PRODUCE, True]) == 100


def test_names_chosen_by_clients_evict_no_other_users_usage(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Ten thousand client ids made the broker forget what a user had used."""
    monkeypatch.setattr(client_quotas, "MEASURED_MAX", 10)
    small = ClientQuotas(now=clock)
    small.apply([quota("ann", None, fetch=100), quota(None, "", produce=100)])
    small.of("ann", "a").use(QuotaKind.FETCH, 5000)
    for number in range(100):
        small.of("bob", f"app{number}").use(QuotaKind.PRODUCE, 1)
    assert small.of("ann", "a").room(QuotaKind.FETCH) == 0.0
