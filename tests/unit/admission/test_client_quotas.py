"""Clients' use of their quotas: shared, bounded, forgotten."""

import pytest

from tests.user_states import quota
from tidemark_broker.admission import client_quotas
from tidemark_broker.admission.client_quotas import ClientQuotas, QuotaKind


class QuotaClock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> QuotaClock:
    return QuotaClock()


@pytest.fixture
def quotas(clock: QuotaClock) -> ClientQuotas:
    return ClientQuotas(now=clock)


def test_all_clients_of_a_user_share_its_quota(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, produce=100)])
    first, second = quotas.of("ann", "a"), quotas.of("ann", "b")
    first.use(QuotaKind.PRODUCE, 1000)
    # 1,000 bytes are what 100 bytes/s allow in the ten complete windows.
    assert first.throttle_s == 0.0
    second.use(QuotaKind.PRODUCE, 500)
    # 500 bytes above that take 5 s at 100 bytes/s.
    assert second.throttle_s == 5.0
    assert quotas.of("bob", "a").remaining(QuotaKind.PRODUCE) is None


def test_one_answer_has_what_the_windows_allow_and_nothing_once_that_is_used_up(
    quotas: ClientQuotas, clock: QuotaClock
) -> None:
    quotas.apply([quota("", None, fetch=100)])
    request = quotas.of("ann", "a")
    assert request.remaining(QuotaKind.FETCH) == 1000
    request.use(QuotaKind.FETCH, 1200)
    refused = quotas.of("ann", "a")
    assert refused.remaining(QuotaKind.FETCH) == 0.0
    # The answer was 200 bytes larger, for which the client pauses 2 s.
    assert refused.throttle_s == 2.0
    clock.now_s += 11.0
    assert quotas.of("ann", "a").remaining(QuotaKind.FETCH) == 1000


def test_request_time_never_costs_more_than_a_window(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, request=1)])
    request = quotas.of("ann", "a")
    request.use(QuotaKind.REQUEST, 100 * 60)
    # Kafka limits the pause for request time to one window (KIP-124).
    assert request.throttle_s == 1.0


def test_no_pause_lasts_for_days(quotas: ClientQuotas) -> None:
    """An answer has 31 bits for the pause, and a paused connection is not read."""
    quotas.apply([quota("ann", None, produce=1)])
    request = quotas.of("ann", "a")
    request.use(QuotaKind.PRODUCE, 10**12)
    assert request.throttle_s == 3600.0
    assert quotas.of("ann", "a").remaining(QuotaKind.PRODUCE) == 0.0


def test_usage_still_counts_after_a_change_of_quotas(quotas: ClientQuotas) -> None:
    quotas.apply([quota("ann", None, produce=1000)])
    quotas.of("ann", "a").use(QuotaKind.PRODUCE, 2000)
    quotas.apply([quota("ann", None, produce=100)])
    assert quotas.of("ann", "a").remaining(QuotaKind.PRODUCE) == 0.0


def test_number_of_measured_names_is_limited(
    quotas: ClientQuotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_quotas, "MEASURED_MAX", 100)
    small = ClientQuotas()
    small.apply([quota(None, "", produce=1)])
    for number in range(1000):
        small.of("ann", f"client-{number}").use(QuotaKind.PRODUCE, 1)
    assert len(small._measured[QuotaKind.PRODUCE, True]) == 100


def test_names_chosen_by_clients_evict_no_other_users_usage(
    monkeypatch: pytest.MonkeyPatch, clock: QuotaClock
) -> None:
    """Ten thousand client ids must not make the broker forget a user's usage."""
    monkeypatch.setattr(client_quotas, "MEASURED_MAX", 10)
    small = ClientQuotas(now=clock)
    small.apply([quota("ann", None, fetch=100), quota(None, "", produce=100)])
    small.of("ann", "a").use(QuotaKind.FETCH, 5000)
    for number in range(100):
        small.of("bob", f"app{number}").use(QuotaKind.PRODUCE, 1)
    assert small.of("ann", "a").remaining(QuotaKind.FETCH) == 0.0
