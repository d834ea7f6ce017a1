"""Events are written beside the work: none holds anybody up, and one that fails is dropped."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tidemark_operator import events as events_module
from tidemark_operator.controller.events import EventType, normal
from tidemark_operator.events import Aggregator, EventWriter
from tidemark_operator.kube.kinds import EVENT, TOPIC, Json
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache

PLACED = normal("Topic", "ns/t", "PartitionsPlaced", "3 partitions placed")


class World:
    """A Topic that is known, and a writer; ``written`` are the notes of the Events, in order."""

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
    world = World()
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
    world = World()
    world.objects.remove(world.topic)
    async with world.writing():
        world.writer.emit(PLACED)
        world.objects.put(world.server.create("user", TOPIC, "ns", {"metadata": {"name": "u"}}))
        world.writer.emit(normal("Topic", "ns/u", "Other", "told"))
        await until(lambda: bool(world.events))
    assert [event["reason"] for event in world.events] == ["Other"]


async def test_one_that_cannot_be_written_is_dropped_and_the_next_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.api.fail("create Event")
    with caplog.at_level(logging.WARNING):
        async with world.writing():
            world.writer.emit(PLACED)
            world.writer.emit(normal("Topic", "ns/t", "Other", "told"))
            await until(lambda: bool(world.events))
    assert [event["reason"] for event in world.events] == ["Other"]
    assert "Event PartitionsPlaced was not written" in caplog.text


async def test_events_beyond_the_limit_of_the_queue_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events_module, "LINE_MAX", 2)
    world = World()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            world.writer.emit(normal("Topic", "ns/t", f"Reason{number}", "told"))
    assert "Event dropped, 2 are queued" in caplog.text
    async with world.writing():
        await until(lambda: len(world.events) == 2)


async def test_a_long_message_is_cut_to_what_the_api_takes() -> None:
    world = World()
    async with world.writing():
        world.writer.emit(normal("Topic", "ns/t", "Long", "x" * 5000))
        await until(lambda: bool(world.events))
    assert len(world.events[0]["note"]) == events_module.NOTE_CHARS_MAX


def test_of_the_same_event_at_most_one_in_a_few_seconds_and_the_rest_is_counted() -> None:
    aggregator = Aggregator(quiet_s=5.0)
    assert aggregator.admit("u1", "BrokerFenced", 0.0) == 0
    assert aggregator.admit("u1", "BrokerFenced", 1.0) is None
    assert aggregator.admit("u1", "BrokerFenced", 2.0) is None
    assert aggregator.admit("u1", "BrokerReady", 2.0) == 0
    assert aggregator.admit("u2", "BrokerFenced", 2.0) == 0
    assert aggregator.admit("u1", "BrokerFenced", 6.0) == 2


def test_what_is_held_back_of_one_object_is_no_example() -> None:
    aggregator = Aggregator()
    for number in range(2 * events_module.EXAMPLES_MAX):
        aggregator.admit("u1", "TopicOnline", number / 1000, EventType.NORMAL)
    assert aggregator.admit("u2", "TopicOnline", 1.0, EventType.NORMAL) == 0


def test_what_the_aggregator_remembers_is_bounded() -> None:
    aggregator = Aggregator(quiet_s=5.0, remembered_max=2)
    for number in range(3):
        aggregator.admit(f"u{number}", "R", 0.0)
    assert aggregator.admit("u0", "R", 0.1) == 0


def test_successes_are_reported_by_example_and_failures_individually() -> None:
    aggregator, most = Aggregator(), events_module.EXAMPLES_MAX

    def told(reason: str, at_s: float, type_: EventType) -> list[int]:
        found = (aggregator.admit(f"u{i}-{at_s}", reason, at_s, type_) for i in range(1000))
        return [held_back for held_back in found if held_back is not None]

    assert told("PartitionsPlaced", 0.0, EventType.NORMAL) == [0] * most
    assert told("TopicDeleted", 0.0, EventType.NORMAL) == [0] * most, "of each reason"
    second = int(events_module.EXAMPLES_PER_S)
    assert told("PartitionsPlaced", 1.0, EventType.NORMAL) == [1000 - most] + [0] * (second - 1)
    assert told("PartitionsOffline", 1.0, EventType.WARNING) == [0] * 1000
    assert len(told("PartitionsPlaced", 1e6, EventType.NORMAL)) == most
