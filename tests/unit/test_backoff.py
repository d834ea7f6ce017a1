"""Pauses of exponential backoff between attempts."""

from tidemark.backoff import Backoff

RULE = Backoff(first_s=1.0, most_s=3.0)


def test_the_pause_doubles_up_to_its_maximum_and_restarts() -> None:
    assert RULE.ready(0.0)
    first = RULE.failed(10.0)
    assert (first.until_s, first.ready(10.5), first.ready(11.0)) == (11.0, False, True)
    assert first.failed(20.0).until_s == 22.0
    assert first.failed(0.0).failed(0.0).until_s == 3.0
    assert first.succeeded() == RULE


def test_jitter_only_shortens_and_no_count_overflows() -> None:
    assert [RULE.pause_s(failures) for failures in (0, 1, 2, 3, 10_000)] == [
        1.0,
        1.0,
        2.0,
        3.0,
        3.0,
    ]
    assert RULE.pause_s(2, jitter=1.0) == 1.5
