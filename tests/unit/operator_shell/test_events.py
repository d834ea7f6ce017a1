"""Events are written in the background: none delays a reconciler, and failed ones are dropped."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tidemark_operator import events as events_module
from tidemark_operator.controller.state.events import EventType, normal
from tidemark_operator.events import Aggregator, EventWriter
from tidemark_operator.kube.kinds import EVENT, TOPIC, Json
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache

PLACED = normal("Topic", "ns/t", "PartitionsPlaced", "3 partitions placed")


class EventWorld:
    """A cached Topic, and a writer of Events about it."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.api = FakeKubeApi(self.server)
        self.objects = ObjectCache()
        self.topic = self.server.create("user", TOPIC, "ns", {"metadata": {"name": "t"}})
        self.objects.put(self.topic)
        self.writer = EventWriter(self.api, self.objects, "operator-1", Metrics())  # type: ignore[arg-type]

    @property
    def events(self) -> list[Json]:
        return self.server.of_kind(EVENT)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the writer sends no notification
            await asyncio.sleep(0)


async def test_an_event_names_its_object_and_its_reporter() -> None:
    world = EventWorld()
    async with world.writing():
        world.writer.emit(PLACED)
        await until(lambda: bool(world.events))
    (event,) = world.events
    assert event["regarding"]["uid"] == world.topic["metadata"]["uid"]
    assert (event["type"], event["reason"], event["note"]) == (
        "Normal",
        "PartitionsPlaced",
        "3 partitions placed",
    )
    assert event["reportingInstance"] == "operator-1"


async def test_an_event_about_a_deleted_object_is_not_written() -> None:
    world = EventWorld()
    world.objects.remove(world.topic)
    async with world.writing():
        world.writer.emit(PLACED)
        # A second event is written after it, which shows that the first one was skipped.
        world.objects.put(world.server.create("user", TOPIC, "ns", {"metadata": {"name": "u"}}))
        world.writer.emit(normal("Topic", "ns/u", "Other", "a note"))
        await until(lambda: bool(world.events))
    assert [event["reason"] for event in world.events] == ["Other"]


async def test_one_that_cannot_be_written_is_dropped_and_the_next_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = EventWorld()
    world.api.fail("create Event")
    with caplog.at_level(logging.WARNING):
        async with world.writing():
            world.writer.emit(PLACED)
            world.writer.emit(normal("Topic", "ns/t", "Other", "a note"))
            await until(lambda: bool(world.events))
    assert [event["reason"] for event in world.events] == ["Other"]
    assert "Event PartitionsPlaced was not written" in caplog.text


async def test_events_beyond_the_limit_of_the_queue_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The writer is not running yet, so the third event exceeds the queue.
    monkeypatch.setattr(events_module, "LINE_MAX", 2)
    world = EventWorld()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            world.writer.emit(normal("Topic", "ns/t", f"Reason{number}", "a note"))
    assert "Event dropped, 2 are queued" in caplog.text
    async with world.writing():
        await until(lambda: len(world.events) == 2)


async def test_a_long_message_is_cut_to_what_the_api_takes() -> None:
    world = EventWorld()
    async with world.writing():
        world.writer.emit(normal("Topic", "ns/t", "Long", "x" * 5000))
        await until(lambda: bool(world.events))
    assert len(world.events[0]["note"]) == events_module.NOTE_CHARS_MAX


def test_repeated_events_are_suppressed_and_counted() -> None:
    aggregator = Aggregator(quiet_s=5.0)
    assert aggregator.admit("u1", "BrokerFenced", 0.0) == 0
    assert aggregator.admit("u1", "BrokerFenced", 1.0) is None
    assert aggregator.admit("u1", "BrokerFenced", 2.0) is None
    assert aggregator.admit("u1", "BrokerReady", 2.0) == 0
    assert aggregator.admit("u2", "BrokerFenced", 2.0) == 0
    # The next admitted event reports the two that were suppressed.
    assert aggregator.admit("u1", "BrokerFenced", 6.0) == 2


def test_suppressed_repetitions_do_not_use_up_the_examples() -> None:
    aggregator = Aggregator()
    for number in range(2 * events_module.EXAMPLES_MAX):
        aggregator.admit("u1", "TopicOnline", number / 1000, EventType.NORMAL)
    assert aggregator.admit("u2", "TopicOnline", 1.0, EventType.NORMAL) == 0


def test_aggregator_memory_is_bounded() -> None:
    aggregator = Aggregator(quiet_s=5.0, remembered_max=2)
    for number in range(3):
        aggregator.admit(f"u{number}", "R", 0.0)
    # The oldest entry was evicted, so its event counts as new.
    assert aggregator.admit("u0", "R", 0.1) == 0


def test_successes_are_reported_by_example_and_failures_individually() -> None:
    aggregator, most = Aggregator(), events_module.EXAMPLES_MAX

    def admitted(reason: str, at_s: float, type_: EventType) -> list[int]:
        found = (aggregator.admit(f"u{i}-{at_s}", reason, at_s, type_) for i in range(1000))
        return [suppressed for suppressed in found if suppressed is not None]

    assert admitted("PartitionsPlaced", 0.0, EventType.NORMAL) == [0] * most
    assert admitted("TopicDeleted", 0.0, EventType.NORMAL) == [0] * most, "of each reason"
    second = int(events_module.EXAMPLES_PER_S)
    assert admitted("PartitionsPlaced", 1.0, EventType.NORMAL) == [1000 - most] + [0] * (second - 1)
    assert admitted("PartitionsOffline", 1.0, EventType.WARNING) == [0] * 1000
    assert len(admitted("PartitionsPlaced", 1e6, EventType.NORMAL)) == most
