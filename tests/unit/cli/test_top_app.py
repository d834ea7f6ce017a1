"""The screen of ``tidemark top``, driven by keys, with data instead of reader threads."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.unit.cli.top_objects import broker, cluster, condition, export, pieces, row, topic
from tidemark_cli.top.app import TopApp
from tidemark_cli.top.broker_offsets import BrokerOffsets, PartitionQuery
from tidemark_cli.top.object_index import BROKER, CLUSTER, EXPORT, SLICE, TOPIC
from tidemark_cli.top.query import Query
from tidemark_cli.top.ranges import PartitionOffsets
from tidemark_cli.top.reader import ObjectBatch

ENDPOINTS = [{"name": "PLAINTEXT", "host": "h", "port": 9092}]
NAMES = [f"orders-{number}" for number in range(5)]


class PreparedReader:
    """Batches that exist from the start. After them, nothing changes."""

    def __init__(self, *batches: ObjectBatch) -> None:
        self._batches = list(batches)

    def read(self, wait_s: int) -> Iterator[ObjectBatch]:
        while self._batches:
            yield self._batches.pop(0)
        # The screen waits before the next request after a batch with only a problem.
        yield ObjectBatch(SLICE, problem="the API server does not answer")


def ask(
    queries: Sequence[PartitionQuery], reached_at: Mapping[int, tuple[str, int]]
) -> BrokerOffsets:
    offsets = PartitionOffsets(
        log_start=0, local_start=50, tier_end=75, high_watermark=100, log_ends={1: 100, 2: 97}
    )
    assert reached_at == {1: ("h", 9092)}
    return BrokerOffsets(
        {item.partition: offsets for item in queries}, {2: "broker 2 is not reached"}
    )


@pytest.fixture
def app() -> TopApp:
    topics = [topic(name, number) for number, name in enumerate(NAMES)]
    topics[3] = topic("orders-3", 3, conditions=[condition("Ready", "False", "no [b]leader[/]")])
    rows = [row(number) for number in range(5)]
    batches = [
        ObjectBatch(CLUSTER, [cluster()]),
        ObjectBatch(BROKER, [broker(1, endpoints=ENDPOINTS)]),
        ObjectBatch(TOPIC, topics),
        ObjectBatch(SLICE, pieces(rows)),
    ]
    query = Query(sort="name", page_size=2)
    return TopApp([PreparedReader(*batches)], ask, interval_s=300, query=query, listener="")


async def until(pilot: Pilot[None], is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():
            await pilot.pause(0.02)


def table(app: TopApp, name: str) -> DataTable[object]:
    return app.query_one(f"#{name}", DataTable)


def cells(app: TopApp, name: str) -> list[list[str]]:
    found = table(app, name)
    return [[str(cell) for cell in found.get_row_at(n)] for n in range(found.row_count)]


def shown(app: TopApp) -> list[str]:
    return [found[0] for found in cells(app, "topics")]


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


async def test_keys_select_pages_topics_and_filters(app: TopApp) -> None:
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: bool(cells(app, "partitions")))
        assert text(app, "heading").splitlines() == [
            "NOT HEALTHY: topic/orders-3: no [b]leader[/] (1 of 5 topics)",
            "cluster main: 2 brokers live",
        ]
        assert text(app, "findings") == "topic/orders-3 R: no [b]leader[/]"
        assert cells(app, "brokers")[0][:3] == ["broker-1", "1", "True"]
        assert shown(app) == ["orders-0", "orders-1"]
        # Without Exports there is no empty table of them.
        assert not app.query_one("#exports").display

        # The offsets arrive after the objects, and with them the reader's problems.
        await until(pilot, lambda: "2:3" in cells(app, "partitions")[0])
        assert cells(app, "partitions")[0][4:] == ["0 to 100", "░" * 20 + "▒" * 10 + "█" * 10]
        problems = ["the API server does not answer", "broker 2 is not reached"]
        assert text(app, "problems").splitlines() == problems

        # The cursor moves to the second topic, and the lower table follows.
        await pilot.press("down")
        await until(pilot, lambda: "Partitions of orders-1" in text(app, "partitions-title"))
        # There are three pages of two topics, so that the third press has no effect.
        await pilot.press("n", "n", "n")
        await until(pilot, lambda: shown(app) == ["orders-4"])
        await pilot.press("p")
        await until(pilot, lambda: shown(app) == ["orders-2", "orders-3"])
        # Only topics with a problem are shown.
        await pilot.press("w")
        await until(pilot, lambda: shown(app) == ["orders-3"])
        # The filter is removed, and a search finds one topic.
        await pilot.press("w", "slash", *"rs-4", "enter")
        await until(pilot, lambda: shown(app) == ["orders-4"])
        await pilot.press("s")
        await until(pilot, lambda: "by remote" in text(app, "topics-note"))
        await pilot.press("escape", "q")
    assert app.return_value is None


async def test_exports_show_their_progress() -> None:
    exports = [export("orders-daily", lag=0, exportedOffsets=7, lagSeconds=0)]
    batches = [ObjectBatch(CLUSTER, [cluster()]), ObjectBatch(EXPORT, exports)]
    query = Query(sort="name", page_size=2)
    app = TopApp([PreparedReader(*batches)], ask, interval_s=300, query=query, listener="")
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: bool(cells(app, "exports")))
        assert app.query_one("#exports").display
        assert cells(app, "exports") == [
            ["orders-daily", "True", "0", "0 s", "?", "?", "━" * 34 + " 100 %"]
        ]
        assert "COST: CPU time" in text(app, "exports-note")
