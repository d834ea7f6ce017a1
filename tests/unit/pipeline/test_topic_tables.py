"""Tables of many topics, and the order in which their topics are exported."""

from dataclasses import replace

import pytest

from tidemark_pipeline.export.topic_tables import (
    TOPICS_MAX,
    TopicExportState,
    TopicTable,
    next_topic,
    report_of,
    table_name,
    topic_tables,
)

ONE = TopicExportState(TopicTable("a", "lake.a"))


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("orders", "lake.orders"),
        ("orders.eu-1", "lake.orders_eu_1"),
        ("7", "lake.7"),
        ("a;DROP TABLE b", "lake.a_DROP_TABLE_b"),
    ],
)
def test_table_name_has_no_character_that_sql_would_read(topic: str, table: str) -> None:
    assert table_name("lake.{topic}", topic) == table


def test_topics_with_one_table_are_both_refused() -> None:
    found = topic_tables({"a.b", "a-b", "c", "C", "d"}, "lake.{topic}")
    assert {name for name, table in found.items() if table.problem} == {"a.b", "a-b", "c", "C"}
    assert "topics a.b and a-b have the same table lake.a_b" in found["a.b"].problem
    assert "topics a-b and a.b have the same table lake.a_b" in found["a-b"].problem


def test_a_topic_named_like_the_dead_letters_of_another_is_refused() -> None:
    letters = "lake.{topic}_dead_letters"
    found = topic_tables({"a", "a_dead_letters"}, "lake.{topic}", letters)
    assert all("lake.a_dead_letters" in table.problem for table in found.values())
    # Without dead letters there is no conflict.
    assert not any(t.problem for t in topic_tables(found, "lake.{topic}").values())


def test_a_table_name_beyond_the_limit_is_refused() -> None:
    (found,) = topic_tables({"t" * 249}, "a_long_namespace.{topic}").values()
    assert "has 266 characters, 255 are allowed" in found.problem


def test_topics_beyond_the_limit_are_refused_alone() -> None:
    found = topic_tables({f"t{n:05}" for n in range(TOPICS_MAX + 2)}, "lake.{topic}")
    refused = [table.topic for table in found.values() if table.problem]
    assert refused == [f"t{TOPICS_MAX:05}", f"t{TOPICS_MAX + 1:05}"]


def test_a_topic_that_is_behind_waits_behind_all_others() -> None:
    states = {
        n: TopicExportState(TopicTable(n, f"lake.{n}")).waiting(0.0) for n in ("big", "x", "y")
    }
    order = []
    for now_s in range(1, 6):
        due = next_topic(states.values(), float(now_s))
        assert due is not None
        name = due.table.topic
        order.append(name)
        is_big = name == "big"
        states[name] = due.committed(float(now_s), 9 * is_big, is_behind=is_big)
    # The large topic gets each turn that the others do not need.
    assert order == ["big", "x", "y", "big", "big"]


def test_a_failing_topic_is_retried_after_longer_and_longer_pauses() -> None:
    state = ONE.waiting(0.0).failed(0.0, "the registry refuses")
    assert next_topic([state], 9.0) is None
    assert next_topic([state], 10.0) is state
    again = state.failed(10.0, "the registry refuses")
    assert next_topic([again], 29.0) is None
    assert next_topic([again], 30.0) is again
    # A commit resets the pause and the failure.
    well = again.committed(30.0, 0, is_behind=False)
    assert (well.reported_failure, next_topic([well], 99.0)) == ("", None)
    assert next_topic([well.waiting(99.0).failed(99.0, "x")], 109.0) is not None


def test_a_table_that_was_taken_over_is_not_taken_back() -> None:
    state = ONE.waiting(0.0).failed(0.0, "another job has taken over the table", is_final=True)
    assert next_topic([state.waiting(1e9)], 1e9) is None
    assert state.reported_failure


def test_a_topic_that_does_not_exist_is_exported_once_it_appears() -> None:
    state = ONE.waiting(0.0).missing()
    assert next_topic([state], 1e9) is None
    assert "topic a does not exist" in state.reported_failure
    assert next_topic([state.waiting(5.0)], 5.0) is not None


def test_report_has_failing_topics_then_the_largest_lags() -> None:
    states = [
        TopicExportState(TopicTable(f"t{n:02}", f"lake.t{n:02}"), lag=n, failure="x" * (n == 3))
        for n in range(30)
    ]
    states[7] = replace(states[7], table=replace(states[7].table, problem="the same table"))
    report = report_of(states)
    assert (report.total, report.failing, report.behind) == (30, 2, 27)
    # A topic without a turn is behind, too.
    assert report_of([replace(ONE, lag=None), replace(ONE, lag=0)]).behind == 1
    assert [topic.topic for topic in report.worst[:4]] == ["t03", "t07", "t29", "t28"]
    assert report.worst[1].failure == "the same table"
    assert len(report.worst) == 20
