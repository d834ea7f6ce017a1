"""Watches of kinds that are not served yet when they start, and watches beside a slow list."""

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
from tidemark_operator.health import Echoes
from tidemark_operator.kube import client, watcher
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.kinds import TOPIC, Json, Kind
from tidemark_operator.kube.watcher import Watcher
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient
from tidemark_operator.objects.store import ObjectCache

#: kopf leaves sockets and coroutines behind where it ends; they are collected here, not in another
#: test.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)


class Delivered:
    """Records events of the watches only, without lists."""

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
    """Record a registry for each time that the watches start."""
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
    # Only a few kinds, so that the watches start fast.
    monkeypatch.setattr(watcher, "FEW", watched)
    watching = Watcher(KubernetesAccess(kubeconfig), world.namespace, found)
    watching.start()
    yield found
    watching.stop()
    # Collect kopf's leftovers here instead of in another test.
    gc.collect()


@pytest.mark.full
@pytest.mark.usefixtures("definition_goes")
@pytest.mark.parametrize("watched", [(TOPIC, LATE)], ids=["a definition comes late"])
async def test_kind_that_is_served_later_is_watched(
    runs: list[kopf.OperatorRegistry],
    world: ClusterWorld,
    delivered: Delivered,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The watches start although one of the kinds is unknown.
    await world.until(
        lambda: "does not serve latecomers.late.tidemark.dev" in caplog.text, "it is missed"
    )
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "other kinds are watched meanwhile")
    # They restart periodically to look for the missing kind.
    await world.until(lambda: len(runs) > 2, "they have restarted")
    assert caplog.text.count("does not serve") == 1, "it is said once"
    await define(world)
    await make(world, "one")
    await world.until(lambda: "one" in delivered.names, "the watch brings it")


@pytest.mark.full
@pytest.mark.usefixtures("definition_goes")
@pytest.mark.parametrize("watched", [(TOPIC, LATE)], ids=["a definition goes and comes"])
async def test_recreated_definition_is_watched_again(
    world: ClusterWorld, delivered: Delivered
) -> None:
    await define(world)
    await make(world, "one")
    await world.until(lambda: "one" in delivered.names, "the watch brings it")
    # Deleting a definition deletes its objects, which the watch reports.
    await undefine(world)
    await world.until(lambda: "one" in delivered.gone, "the object went with its definition")
    await define(world)
    await make(world, "two")
    await world.until(lambda: "two" in delivered.names, "it is watched again")
    # The other watch was restarted as well, and works.
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "and so are the others")


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the current user have no name, like user 65532 of a container image."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 65532")

    monkeypatch.setattr(getpass, "getuser", unknown)


@pytest.mark.usefixtures("nameless")
async def test_process_without_a_user_name_can_watch(
    world: ClusterWorld, delivered: Delivered
) -> None:
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "the watch brings it")


@pytest.fixture
def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kopf end with an error the first time that it runs."""
    make, first = watcher.kopf_registry, iter([True])

    def registry(*arguments: Any) -> kopf.OperatorRegistry:
        made = make(*arguments)
        if next(first, False):

            @kopf.on.startup(registry=made)  # type: ignore[arg-type]
            async def fail(**_: Any) -> None:
                raise kopf.PermanentError("this run ends")

        return made

    monkeypatch.setattr(watcher, "kopf_registry", registry)


async def test_watches_restart_after_an_error(
    failing_once: None, world: ClusterWorld, delivered: Delivered
) -> None:
    await world.create_topic("flights", partitions=1, replicas=1)
    await world.until(lambda: "flights" in delivered.names, "the second run brings it")


async def test_slow_list_does_not_override_the_watch(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages of a list, a watch reports one created and one deleted Topic."""
    # One object per page, so that changes can happen between the pages.
    monkeypatch.setattr(client, "LIST_CHUNK", 1)
    objects = ObjectCache()
    first, second = [await world.create_topic(name) for name in ("first", "second")]
    objects.put(first)
    objects.put(second)
    page, made = world.api._call, []

    async def slow(method: str, path: str, **more: Any) -> Json:
        answer = await page(method, path, **more)
        # After the first page: the cache receives both changes from the watch.
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
    # The list overrides neither: the created Topic stays, the deleted one does not return.
    assert found == []
    assert {key.name for key in objects.keys(TOPIC)} == {"first", "made"}
