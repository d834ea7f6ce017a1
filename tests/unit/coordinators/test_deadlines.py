"""The heap of deadlines, compared with a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark_broker.coordinators.deadlines import Deadlines

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("schedule"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS)
def test_due_keys_match_a_dictionary(steps: list[tuple[str, str, int]]) -> None:
    deadlines, expected = Deadlines[str](), dict[str, int]()
    for action, key, at_s in steps:
        if action == "schedule":
            deadlines.schedule(key, at_s)
            expected[key] = at_s
        elif action == "cancel":
            deadlines.cancel(key)
            expected.pop(key, None)
        else:
            due = deadlines.due(at_s, 100)
            assert sorted(due) == sorted(k for k, when_s in expected.items() if when_s <= at_s)
            assert [expected[k] for k in due] == sorted(expected[k] for k in due)
            for k in due:
                del expected[k]
        assert len(deadlines) == len(expected)
        assert deadlines.next_s() == min(expected.values(), default=None)


def test_rescheduling_takes_no_memory() -> None:
    deadlines = Deadlines[str]()
    for now_s in range(1000):
        deadlines.schedule("session", now_s + 45)
    # A heartbeat moves a deadline, instead of adding another one.
    assert len(deadlines._heap) == 1
    assert deadlines.due(1043, 10) == []
    assert deadlines.due(1044, 10) == ["session"]


def test_cancelled_keys_leave_the_heap() -> None:
    deadlines = Deadlines[int]()
    for number in range(10_000):
        deadlines.schedule(number, 1800)
        deadlines.cancel(number)
    # Cancelled entries are removed in batches.
    assert len(deadlines._heap) < 200


def test_number_of_due_keys_is_limited() -> None:
    deadlines = Deadlines[int]()
    for number in range(5):
        deadlines.schedule(number, number)
    assert deadlines.due(10, 2) == [0, 1]
    assert deadlines.due(10, 2) == [2, 3]
    assert 4 in deadlines


def test_a_sleeper_is_woken_for_an_earlier_deadline() -> None:
    wakeups: list[int] = []
    deadlines = Deadlines[str](lambda: wakeups.append(1))
    deadlines.schedule("a", 10)
    deadlines.schedule("b", 20)
    deadlines.schedule("a", 30)
    # A later deadline never wakes the sleeper.
    assert len(wakeups) == 1
    deadlines.schedule("b", 5)
    assert len(wakeups) == 2
