"""Identity of a store: created once, and a store with any other identity is unavailable."""

from typing import Any

import pytest

from tidemark.tier.identity import WrongStore, ensure_identity
from tidemark.tier.metadata.layout import IDENTITY_KEY
from tidemark.tier.stores.objects import StoreUnavailable


def test_an_identity_is_created_once_and_then_expected(memory: Any) -> None:
    store_id = ensure_identity(memory, "c1", "")
    assert ensure_identity(memory, "c1", "") == store_id
    assert ensure_identity(memory, "c1", store_id) == store_id


def test_the_store_of_another_cluster_is_rejected(memory: Any) -> None:
    store_id = ensure_identity(memory, "c1", "")
    # Also if the other cluster was given the store's own id.
    for expected in ("", store_id):
        with pytest.raises(
            WrongStore, match=r"belongs to cluster c1, not to c2: give .* of its own"
        ):
            ensure_identity(memory, "c2", expected)


def test_another_store_is_rejected(memory: Any) -> None:
    ensure_identity(memory, "c1", "")
    with pytest.raises(WrongStore, match=r"the tier's store is s-1: check endpoint, bucket"):
        ensure_identity(memory, "c1", "s-1")


def test_a_missing_identity_is_not_created_if_one_is_expected(memory: Any) -> None:
    with pytest.raises(WrongStore, match=r"has no tidemark.json"):
        ensure_identity(memory, "c1", "s-1")
    assert memory.objects == {}


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"formatVersion":1,"storeId":1,"clusterId":"c"}']
)
def test_an_invalid_identity_is_rejected(memory: Any, data: bytes) -> None:
    memory.put(IDENTITY_KEY, data)
    with pytest.raises(WrongStore):
        ensure_identity(memory, "c1", "")


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_creation_of_an_identity_survives_any_single_failure(
    memory: Any, faulty: Any, n: int, when: str
) -> None:
    faulty.fail(lambda call, _op, _key: when if call == n else None)
    try:
        store_id = ensure_identity(faulty, "c1", "")
    # The caller retries. If the first attempt took effect, its identity is found.
    except StoreUnavailable:
        store_id = ensure_identity(faulty, "c1", "")
    assert ensure_identity(memory, "c1", store_id) == store_id
