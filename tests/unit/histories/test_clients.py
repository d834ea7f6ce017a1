"""Client logic without a cluster: targets of results, repeated calls, rebalances in polls."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.histories import clients, consumers
from tests.histories.clients import (
    Restart,
    Run,
    error_of,
    is_hung,
    next_topic,
    partition_of,
    place_of,
    repeated,
)
from tests.histories.consumers import GroupReading
from tests.histories.events import INVOKE, HistoryRecorder
from tests.histories.plan import COOPERATIVE, EAGER, LAST


def test_results_of_results_alternate_until_the_last_topic() -> None:
    topic, value, topics = "a", "v#0", []
    while topic != LAST:
        topic, hops = next_topic(topic, value)
        topics.append(topic)
        value = f"v#{hops}"
    assert topics == ["b", "a", "c"]


def test_a_place_is_a_partition() -> None:
    partition = partition_of("h7-a-1", 5)
    assert (partition.topic, partition.partition, partition.offset) == ("h7-a", 1, 5)
    assert place_of(partition) == "h7-a-1"


def _error(*, retriable: bool) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=retriable))


def _answers(*results: KafkaException | None) -> Callable[..., None]:
    remaining: Iterator[KafkaException | None] = iter(results)

    def call(argument: str, timeout_s: float) -> None:
        assert (argument, timeout_s) == ("x", clients.CALL_S)
        if (result := next(remaining)) is not None:
            raise result

    return call


def test_retriable_call_is_repeated_until_it_succeeds() -> None:
    before: list[str] = []
    repeated(_answers(_error(retriable=True), None), "x", before=before)
    assert len(before) == 1


def test_an_error_that_is_not_retriable_is_raised() -> None:
    with pytest.raises(KafkaException) as raised:
        repeated(_answers(_error(retriable=True), _error(retriable=False)), "x")
    assert not error_of(raised.value).retriable()


def test_repetition_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "REPEATED_S", -1.0)
    with pytest.raises(KafkaException):
        repeated(_answers(_error(retriable=True), None), "x")


def test_hung_call_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, seen = threading.current_thread(), []

    def call(timeout_s: float) -> None:
        seen.append(is_hung(thread))
        # From here on, any call takes too long.
        monkeypatch.setattr(clients, "HUNG_S", -1.0)
        seen.append(is_hung(thread))

    repeated(call)
    assert [*seen, is_hung(thread)] == [False, True, False]


def test_fatal_errors_have_a_handler() -> None:
    """Without a handler, the library raises them within another callback."""
    settings = Run("", {}, HistoryRecorder(10), 1).settings()
    assert settings["error_cb"](KafkaError(KafkaError._FATAL, "fenced", fatal=True)) is None


class Message:
    """A record of a topic with one partition."""

    def __init__(self, topic: str, offset: int) -> None:
        self._topic, self._offset = topic, offset

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return f"{self._topic}{self._offset}".encode()

    def error(self) -> None:
        return None


class ScriptedConsumer:
    """Consumer that returns records and rebalances in a given order.

    A real consumer cannot be made to rebalance in a certain poll.
    """

    script: tuple[tuple[str, str, int], ...] = ()
    refusal: KafkaException | None = None

    def __init__(self, settings: dict[str, Any]) -> None:
        self._steps = iter(self.script)
        self._on: dict[str, Callable[..., None]] = {}

    def subscribe(self, topics: list[str], **on: Callable[..., None]) -> None:
        self._on = on

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.refusal is not None:
            raise self.refusal
        return [TopicPartition(place.topic, place.partition, 3) for place in places]

    def poll(self, timeout: float) -> Message | None:
        for kind, topic, offset in self._steps:
            if kind == "record":
                return Message(topic, offset)
            self._on[kind](self, [TopicPartition(topic, 0)])
        return None

    def assign(self, partitions: list[TopicPartition]) -> None:
        assert self.refusal or all(partition.offset == 3 for partition in partitions)

    incremental_assign = assign

    def unassign(self) -> None:
        pass

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        pass


@pytest.mark.parametrize("assignor", [EAGER, COOPERATIVE])
def test_rebalance_within_a_poll_splits_its_records(
    monkeypatch: pytest.MonkeyPatch, assignor: str
) -> None:
    script = (
        ("on_assign", "t", 0),
        ("record", "t", 3),
        ("on_revoke", "t", 0),
        ("on_assign", "u", 0),
        ("record", "u", 3),
        ("record", "u", 4),
    )
    monkeypatch.setattr(ScriptedConsumer, "script", script)
    monkeypatch.setattr(consumers, "Consumer", ScriptedConsumer)
    recorder = HistoryRecorder(1000, clock=itertools.count().__next__)
    run = Run("", {"t": "t", "u": "u"}, recorder, 1)
    reading = GroupReading(run, "p", "read_committed", "g", assignor, ("t", "u"))
    # One call polls through the rebalance, and returns what follows it.
    assert reading.poll(10) == {"u-0": [(3, "u3"), (4, "u4")]}
    recorded = [
        (event.f, event.value.get("offsets") or event.value.get("places") or event.value["records"])
        for event in recorder.events
        if event.type != INVOKE and event.value.get("records") != {}
    ]
    assert recorded == [
        # The history has the first record in a poll of its own, before its partition is lost.
        ("committed", {"t-0": 3}),
        ("position", {"t-0": 3}),
        ("poll", {"t-0": [(3, "t3")]}),
        ("lost", ["t-0"]),
        ("committed", {"u-0": 3}),
        ("position", {"u-0": 3}),
        ("poll", {"u-0": [(3, "u3"), (4, "u4")]}),
    ]
    assert reading.at == {"u-0": 5}


def test_a_member_without_a_committed_offset_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedConsumer, "script", (("on_assign", "t", 0),))
    monkeypatch.setattr(ScriptedConsumer, "refusal", _error(retriable=False))
    monkeypatch.setattr(consumers, "Consumer", ScriptedConsumer)
    recorder = HistoryRecorder(1000, clock=itertools.count().__next__)
    run = Run("", {"t": "t"}, recorder, 1)
    reading = GroupReading(run, "p", "read_committed", "g", EAGER, ("t",))
    with pytest.raises(Restart):
        reading.poll(10)
    recorded = [(event.f, event.type) for event in recorder.events if event.type != INVOKE]
    assert recorded == [("committed", "info"), ("poll", "ok"), ("position", "ok"), ("poll", "ok")]
