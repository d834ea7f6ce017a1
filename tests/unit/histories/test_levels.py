"""Anomalies that each level permits, and the possible results of an unknown outcome."""

import itertools
from typing import Any

import pytest

from tests.histories.checker import Report, check
from tests.histories.events import HistoryRecorder
from tests.histories.levels import (
    IDEMPOTENT,
    PLAIN,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TRANSACTIONAL,
)

#: Outcome of an operation: None if it was never reported.
Ended = str | None


class HistoryBuilder:
    """A history that is built line by line."""

    def __init__(self) -> None:
        self.recorder = HistoryRecorder(10**6, clock=itertools.count(0, 1000).__next__)

    def _op(self, ended: Ended, process: str, f: str, value: dict[str, Any], **done: Any) -> None:
        operation = self.recorder.invoke(process, f, **value)
        if ended is not None:
            getattr(operation, ended)(**(done if ended == "ok" else {}))

    def send(
        self,
        value: str,
        offset: int | None = 0,
        *,
        place: str = "a-0",
        level: str = IDEMPOTENT,
        txn: str = "",
        ended: Ended = "ok",
        origin: Any = None,
    ) -> None:
        fields = {"place": place, "value": value, "level": level, "txn": txn, "origin": origin}
        self._op(ended, txn or "p", "send", fields, offset=offset)

    def end(self, txn: str, ended: Ended = "ok", *, commit: bool = True) -> None:
        self._op(ended, "p", "end", {"txn": txn, "commit": commit})

    def poll(
        self, *records: tuple[int, str], level: str = READ_COMMITTED, place: str = "a-0"
    ) -> None:
        self._op("ok", f"reader-{level}", "poll", {"level": level}, records={place: records})

    def final(self, *records: tuple[int, str], level: str = READ_COMMITTED) -> None:
        process = f"final-{level}"
        self.recorder.point(process, "position", offsets={"a-0": 0}, group="", final=True)
        self._op("ok", process, "poll", {"level": level}, records={"a-0": records})

    def commit(self, offset: int, ended: Ended = "ok") -> None:
        self._op(ended, "m", "commit", {"group": "g", "offsets": {"a-0": offset}})

    def committed(self, offset: int | None, *, final: bool = False) -> None:
        fields = {"group": "g", "final": final}
        self._op("ok", "m", "committed", fields, offsets={"a-0": offset})

    def report(self) -> Report:
        return check(self.recorder.events)

    def names(self) -> list[str]:
        return sorted(anomaly.name for anomaly in self.report().violations)

    def allowed(self) -> list[str]:
        return sorted(anomaly.name for anomaly in self.report().allowed)


@pytest.fixture
def made() -> HistoryBuilder:
    return HistoryBuilder()


@pytest.mark.parametrize(
    ("level", "violations", "allowed"),
    [(PLAIN, [], ["duplicate"]), (IDEMPOTENT, ["duplicate"], [])],
)
def test_only_plain_producers_may_write_twice(
    made: HistoryBuilder, level: str, violations: list[str], allowed: list[str]
) -> None:
    made.send("v", 0, level=level)
    made.final((0, "v"), (1, "v"))
    assert (made.names(), made.allowed()) == (violations, allowed)


@pytest.mark.parametrize("answered_before", [False, True])
def test_records_in_flight_at_a_new_producer_epoch_may_occur_twice(
    made: HistoryBuilder, answered_before: bool
) -> None:
    """A record that was acknowledged before must not occur twice."""
    fields = {"place": "a-0", "value": "v", "level": IDEMPOTENT, "txn": "", "origin": None}
    operation = made.recorder.invoke("p", "send", **fields)
    if answered_before:
        operation.ok(offset=0)
    # The producer continues in a new epoch, without an answer to the record.
    made.recorder.point("p", "raised")
    if not answered_before:
        operation.ok(offset=1)
    made.final((0, "v"), (1, "v"))
    found = ["duplicate"]
    assert (made.names(), made.allowed()) == ((found, []) if answered_before else ([], found))


@pytest.mark.parametrize(
    ("level", "violations", "allowed"),
    [(PLAIN, [], ["nonmonotonic send"]), (IDEMPOTENT, ["nonmonotonic send"], [])],
)
def test_only_plain_producers_may_change_the_order(
    made: HistoryBuilder, level: str, violations: list[str], allowed: list[str]
) -> None:
    made.send("v", 1, level=level)
    made.send("w", 0, level=level)
    made.final((0, "w"), (1, "v"))
    assert (made.names(), made.allowed()) == (violations, allowed)


@pytest.mark.parametrize("ended", ["info", None])
@pytest.mark.parametrize("records", [[], [(0, "v")]], ids=["gone", "there"])
def test_write_of_unknown_outcome_may_exist_or_not(
    made: HistoryBuilder, ended: Ended, records: list[tuple[int, str]]
) -> None:
    made.send("v", ended=ended)
    # A later record proves that the first one is not merely unread.
    made.send("w", 1)
    made.final(*records, (1, "w"))
    assert made.names() == []


@pytest.mark.parametrize(
    ("records", "expected"), [([(0, "v")], []), ([], ["lost write"])], ids=["there", "gone"]
)
def test_a_write_may_be_acknowledged_without_an_offset(
    made: HistoryBuilder, records: list[tuple[int, str]], expected: list[str]
) -> None:
    made.send("v", None)
    made.send("w", 1)
    made.final(*records, (1, "w"))
    assert made.names() == expected


def test_a_failed_write_is_never_read(made: HistoryBuilder) -> None:
    made.send("v", ended="fail")
    made.final((0, "v"), level=READ_UNCOMMITTED)
    assert made.names() == ["G1a"]


@pytest.mark.parametrize(
    ("level", "violations", "allowed"),
    [(READ_COMMITTED, ["G1a"], []), (READ_UNCOMMITTED, [], ["G1a"])],
)
def test_a_read_uncommitted_consumer_may_get_aborted_records(
    made: HistoryBuilder, level: str, violations: list[str], allowed: list[str]
) -> None:
    made.send("v", level=TRANSACTIONAL, txn="t")
    made.end("t", commit=False)
    made.poll((0, "v"), level=level)
    assert (made.names(), made.allowed()) == (violations, allowed)


def test_a_transaction_without_a_commit_request_is_aborted(made: HistoryBuilder) -> None:
    made.send("v", level=TRANSACTIONAL, txn="t")
    made.poll((0, "v"))
    assert made.names() == ["G1a"]


@pytest.mark.parametrize("ends", [("info",), (None,), ("info", "fail"), ("info", "info")])
@pytest.mark.parametrize("abort", [True, False])
@pytest.mark.parametrize("records", [[], [(0, "v")]], ids=["gone", "there"])
def test_a_commit_of_unknown_outcome_may_take_effect_later(
    made: HistoryBuilder, ends: tuple[Ended, ...], abort: bool, records: list[tuple[int, str]]
) -> None:
    made.send("v", level=TRANSACTIONAL, txn="t")
    for ended in ends:
        made.end("t", ended)
    # An abort may follow a commit that has taken effect.
    if abort:
        made.end("t", commit=False)
    made.send("w", 3)
    made.final(*records, (3, "w"))
    assert made.names() == []


def test_a_commit_that_was_refused_takes_no_effect(made: HistoryBuilder) -> None:
    made.send("v", level=TRANSACTIONAL, txn="t")
    made.end("t", "fail")
    made.poll((0, "v"))
    assert made.names() == ["G1a"]


def test_a_commit_confirmed_later_is_one(made: HistoryBuilder) -> None:
    made.send("v", level=TRANSACTIONAL, txn="t")
    made.end("t", "info")
    made.end("t")
    made.send("w", 3)
    made.final((3, "w"))
    assert made.names() == ["lost write"]


@pytest.mark.parametrize("crossed", [True, False])
def test_transactions_may_write_over_one_another_in_a_circle(
    made: HistoryBuilder, crossed: bool
) -> None:
    # If crossed, t precedes u in one partition and follows it in the other.
    second = (1, 0) if crossed else (0, 1)
    for place, offsets in (("a-0", (0, 1)), ("a-1", second)):
        made.send(f"t{place}", offsets[0], place=place, level=TRANSACTIONAL, txn="t")
        made.send(f"u{place}", offsets[1], place=place, level=TRANSACTIONAL, txn="u")
    made.end("t")
    made.end("u")
    assert (made.names(), made.allowed()) == ([], ["G0"] if crossed else [])


def test_order_and_read_make_no_circle(made: HistoryBuilder) -> None:
    """t wrote before u in one partition, and is made of a record that u had committed."""
    made.send("t1", 0, level=TRANSACTIONAL, txn="t")
    made.send("u1", 1, level=TRANSACTIONAL, txn="u")
    made.send("u2", 0, place="b-0", level=TRANSACTIONAL, txn="u")
    made.end("u")
    made.poll((0, "u2"), place="b-0")
    made.send("t2", 2, level=TRANSACTIONAL, txn="t", origin=("g", "b-0", 0))
    made.end("t")
    assert made.names() == []


@pytest.mark.parametrize(
    ("returned", "expected"),
    [(5, []), (7, []), (3, ["rewound commit"]), (None, ["lost commit"]), (9, ["phantom"])],
)
def test_during_a_commit_either_offset_may_be_returned(
    made: HistoryBuilder, returned: int | None, expected: list[str]
) -> None:
    made.commit(3)
    made.commit(5)
    # The last commit is never answered, so that both 5 and 7 are possible.
    made.commit(7, ended=None)
    made.committed(returned)
    assert made.names() == expected


@pytest.mark.parametrize(
    ("later", "expected"), [(5, []), (3, ["rewound commit"]), (None, ["lost commit"])]
)
def test_a_commit_of_unknown_outcome_that_was_read_has_taken_effect(
    made: HistoryBuilder, later: int | None, expected: list[str]
) -> None:
    made.commit(3)
    made.commit(5, ended="info")
    made.committed(5)
    made.committed(later)
    assert made.names() == expected


def test_a_commit_of_unknown_outcome_may_take_effect_again(made: HistoryBuilder) -> None:
    made.commit(5, ended="info")
    made.committed(5)
    made.commit(7)
    made.committed(5)
    assert made.names() == []


def test_a_failed_commit_is_not_announced(made: HistoryBuilder) -> None:
    made.commit(3, ended="fail")
    made.committed(3)
    assert made.names() == ["phantom"]


def test_before_the_first_commit_there_is_none(made: HistoryBuilder) -> None:
    made.committed(None)
    made.commit(3)
    made.committed(3)
    assert made.names() == []


def test_results_without_their_offsets_are_part_of_a_transaction(made: HistoryBuilder) -> None:
    made.send("in", 0)
    made.recorder.invoke("p", "offsets", txn="t", group="g", offsets={"a-0": 1}).ok()
    made.send("out", 1, level=TRANSACTIONAL, txn="t", origin=("g", "a-0", 0))
    made.end("t", "info")
    made.final((0, "in"), (1, "out"))
    made.committed(None, final=True)
    assert made.names() == ["G1b"]


def test_reader_at_an_unknown_position_skips_nothing(made: HistoryBuilder) -> None:
    for offset in range(5):
        made.send(f"v{offset}", offset)
    # The reader may start anywhere, so that it skips neither 0 nor 1.
    made.recorder.point(f"reader-{READ_COMMITTED}", "position", offsets={"a-0": None}, group="")
    made.poll((2, "v2"), (3, "v3"))
    # Now it starts at 0, so that it skips 1.
    made.recorder.point(f"reader-{READ_COMMITTED}", "position", offsets={"a-0": 0}, group="")
    made.poll((0, "v0"), (2, "v2"))
    made.final(*((offset, f"v{offset}") for offset in range(5)))
    assert made.names() == ["poll skip"]
