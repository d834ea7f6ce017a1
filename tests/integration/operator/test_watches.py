"""The watches find out when the API server did not serve a kind yet as they began, and do not
disagree with a list that takes its time."""

import gc
import getpass
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kopf
import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.late_kind import LATE, define, make, undefine
from tidemark_operator.handlers import watcher
from tidemark_operator.handlers.watcher import Watcher
from tidemark_operator.health import Echoes
from tidemark_operator.kube import client
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.kinds import TOPIC, Json, Kind
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient
from tidemark_operator.objects.store import ObjectCache

#: kopf leaves sockets and coroutines behind where it ends; they are collected here, not in another
#: test.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


class Delivered:
    """Events of the watches only, without lists."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.gone: set[str] = set()

    def __call__(self, body: Json, gone: bool) -> None:
        (self.gone if gone else self.names).add(body["metadata"]["name"])


@pytest.fixture
async def definition_goes(world: ClusterWorld) -> AsyncIterator[None]:
    yield
    await undefine(world)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[kopf.OperatorRegistry]:
    """One for each time that the watches began."""
    make, made = watcher.kopf_registry, []

    def registry(*arguments: Any) -> kopf.OperatorRegistry:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(watcher, "kopf_registry", registry)
    return made


@pytest.fixture
def watched() -> tuple[Kind, ...]:
    return (TOPIC,)


@pytest.fixture
def delivered(
    world: ClusterWorld,
    kubeconfig: Path,
    watched: tuple[Kind, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Delivered]:
    found = Delivered()
    monkeypatch.setattr(watcher, "FEW", watched)
    watching = Watcher(KubernetesAccess(kubeconfig), world.namespace, found)
    watching.start()
    yield found
    watching.stop()
    gc.collect()


@pytest.mark.usefixtures("definition_goes")
@pytest.mark.parametrize("watched", [(TOPIC, LATE)], ids=["a definition comes late"])
async def test_a_kind_that_is_served_later_is_watched_all_the_same(
    runs: list[kopf.OperatorRegistry],
    world: ClusterWorld,
    delivered: Delivered,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await world.until(
        lambda: "does not serve latecomers.late.tidemark.dev" in caplog.text, "it is missed"
    )
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "other kinds are watched meanwhile")
    await world.until(lambda: len(runs) > 2, "they have restarted")
    assert caplog.text.count("does not serve") == 1, "it is said once"
    await define(world)
    await make(world, "one")
    await world.until(lambda: "one" in delivered.names, "the watch brings it")


@pytest.mark.usefixtures("definition_goes")
@pytest.mark.parametrize("watched", [(TOPIC, LATE)], ids=["a definition goes and comes"])
async def test_a_definition_that_is_deleted_and_made_again_is_watched_again(
    world: ClusterWorld, delivered: Delivered
) -> None:
    await define(world)
    await make(world, "one")
    await world.until(lambda: "one" in delivered.names, "the watch brings it")
    await undefine(world)
    await world.until(lambda: "one" in delivered.gone, "the object went with its definition")
    await define(world)
    await make(world, "two")
    await world.until(lambda: "two" in delivered.names, "it is watched again")
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "and so are the others")


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current user has no name, as user 65532 of an image has none."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", unknown)


@pytest.mark.usefixtures("nameless")
async def test_a_user_without_a_name_watches(world: ClusterWorld, delivered: Delivered) -> None:
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "the watch brings it")


@pytest.fixture
def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf ends with an error the first time that it runs."""
    make, first = watcher.kopf_registry, iter([True])

    def registry(*arguments: Any) -> kopf.OperatorRegistry:
        made = make(*arguments)
        if next(first, False):

            @kopf.on.startup(registry=made)  # type: ignore[arg-type]
            async def fail(**_: Any) -> None:
                raise kopf.PermanentError("this run ends")

        return made

    monkeypatch.setattr(watcher, "kopf_registry", registry)


async def test_the_watches_begin_again_after_an_error(
    failing_once: None, world: ClusterWorld, delivered: Delivered
) -> None:
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "the second run brings it")


async def test_a_list_that_takes_its_time_takes_nothing_away_and_brings_nothing_back(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its two pages a watch tells of a Topic that was made, and of one that was deleted."""
    monkeypatch.setattr(client, "LIST_CHUNK", 1)
    objects = ObjectCache()
    first, second = [await world.create_topic(name) for name in ("first", "second")]
    objects.put(first)
    objects.put(second)
    page, made = world.api._call, []

    async def slow(method: str, path: str, **more: Any) -> Json:
        answer = await page(method, path, **more)
        if not made and "limit" in more.get("query", {}):
            made.append(await world.create_topic("made"))
            objects.put(dict(made[0]))
            await world.delete(TOPIC, "second")
            objects.remove(second)
        return answer

    monkeypatch.setattr(world.api, "_call", slow)
    found = await ObjectClient(world.api, objects, Metrics(), Echoes(time.monotonic)).relist(
        TOPIC, world.namespace
    )
    assert made
    assert found == []
    assert {key.name for key in objects.keys(TOPIC)} == {"first", "made"}
