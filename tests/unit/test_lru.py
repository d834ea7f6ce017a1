"""Least recently used entries are evicted first, by weight."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.lru import Lru

_STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "put", "pop"]), st.integers(0, 6), st.integers(0, 9))
)


def test_a_used_entry_stays() -> None:
    lru: Lru[str, str] = Lru(2)
    lru.put("a", "A")
    lru.put("b", "B")
    assert lru.get("a") == "A"
    lru.put("c", "C")
    assert lru.evict() == [("b", "B")]
    assert list(lru) == ["a", "c"]


def test_minimum_number_of_entries_stays() -> None:
    lru: Lru[str, str] = Lru(10)
    lru.put("light", "L", 1)
    lru.put("heavy", "H", 11)
    assert lru.evict(least=1) == [("light", "L")]
    assert lru.weight == 11
    assert lru.evict() == [("heavy", "H")]


@given(steps=_STEPS, limit=st.integers(0, 20))
def test_weight_is_the_sum_and_the_order_is_that_of_use(
    steps: list[tuple[str, int, int]], limit: int
) -> None:
    lru: Lru[int, int] = Lru(limit)
    model: dict[int, int] = {}
    for step, key, weight in steps:
        known = model.pop(key, None)
        if step == "put":
            lru.put(key, weight, weight)
            model[key] = weight
        elif step == "get":
            assert lru.get(key) == known
            if known is not None:
                model[key] = known
        else:
            assert lru.pop(key) == known
        expected = []
        # The model evicts the oldest entries until the rest fits.
        while sum(model.values()) > limit:
            oldest = next(iter(model))
            expected.append((oldest, model.pop(oldest)))
        assert lru.evict() == expected
        assert (list(lru), len(lru), lru.weight) == (
            list(model),
            len(model),
            sum(model.values()),
        )
