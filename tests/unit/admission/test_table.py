"""The quota that applies in KIP-55's order, compared with the list written out."""

import itertools

import pytest

from tests.user_states import quota
from tidemark_broker.admission.client_quotas import Limit, QuotaKind, QuotaTable

#: KIP-55, from the most precise on: (user, client id), each named, the default, or left out.
ORDER = (
    ("ann", "etl"),
    ("ann", ""),
    ("ann", None),
    ("", "etl"),
    ("", ""),
    ("", None),
    (None, "etl"),
    (None, ""),
)
FETCH = QuotaKind.FETCH


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_most_precise_quota_applies(first: int) -> None:
    quotas = [quota(user, client, fetch=n + 1) for n, (user, client) in enumerate(ORDER)]
    found = QuotaTable(quotas[first:]).limits("ann", "etl")
    user, client = ORDER[first]
    shared_by = (None if user is None else "ann", None if client is None else "etl")
    assert found == {FETCH: Limit(first + 1.0, shared_by, by_any_name=client == "")}


def test_each_kind_is_looked_for_by_itself() -> None:
    table = QuotaTable([quota("ann", None, produce=5), quota("", None, produce=7, request=9)])
    found = table.limits("ann", "x")
    assert found[QuotaKind.PRODUCE].value == 5.0
    assert found[QuotaKind.REQUEST].value == 9.0
    assert FETCH not in found


def test_others_are_not_limited() -> None:
    named = [(u, c) for u, c in itertools.product(("ann", None), ("etl", None)) if u or c]
    table = QuotaTable(quota(user, client, fetch=1) for user, client in named)
    assert table.limits("bob", "app") == {}
    assert QuotaTable([quota("ann", None)]).is_empty


def test_default_is_per_user_and_a_users_clients_share_its_quota() -> None:
    table = QuotaTable([quota("", None, fetch=1), quota("ann", None, fetch=2)])
    assert table.limits("bob", "a")[FETCH].shared_by == ("bob", None)
    assert table.limits("eve", "a")[FETCH].shared_by == ("eve", None)
    assert table.limits("ann", "a")[FETCH] == table.limits("ann", "b")[FETCH]
