"""Least recently used entries are evicted first, by weight."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.lru import Lru

_STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "put", "pop"]), st.integers(0, 6), st.integers(0, 9))
)


def test_a_used_entry_stays() -> None:
    kept: Lru[str, str] = Lru(2)
    kept.put("a", "A")
    kept.put("b", "B")
    assert kept.get("a") == "A"
    kept.put("c", "C")
    assert kept.evict() == [("b", "B")]
    assert list(kept) == ["a", "c"]


def test_some_stay_whatever_they_weigh() -> None:
    kept: Lru[str, str] = Lru(10)
    kept.put("light", "L", 1)
    kept.put("heavy", "H", 11)
    assert kept.evict(least=1) == [("light", "L")]
    assert kept.weight == 11
    assert kept.evict() == [("heavy", "H")]


@given(steps=_STEPS, limit=st.integers(0, 20))
def test_weight_is_the_sum_and_the_order_is_that_of_use(
    steps: list[tuple[str, int, int]], limit: int
) -> None:
    kept: Lru[int, int] = Lru(limit)
    model: dict[int, int] = {}
    for step, key, weight in steps:
        known = model.pop(key, None)
        if step == "put":
            kept.put(key, weight, weight)
            model[key] = weight
        elif step == "get":
            assert kept.get(key) == known
            if known is not None:
                model[key] = known
        else:
            assert kept.pop(key) == known
        expected = []
        while sum(model.values()) > limit:
            oldest = next(iter(model))
            expected.append((oldest, model.pop(oldest)))
        assert kept.evict() == expected
        assert (list(kept), len(kept), kept.weight) == (
            list(model),
            len(model),
            sum(model.values()),
        )
