"""Informer on the fake API server: every change is reported once, in order, across watches."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.loop_turns import many_turns
from tests.unit.operator_shell.watched_server import WatchedApi, WatchedServer
from tidemark.backoff import Backoff
from tidemark_operator.kube import client, informer
from tidemark_operator.kube.client import WATCH_S, KubeApi, LineTooLong, split_lines
from tidemark_operator.kube.errors import ApiServerUnavailable, Forbidden, KubeError, NotFound
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import TOPIC, Json, Key, Kind, resource_version
from tidemark_operator.term.object_follower import ObjectFollower

NAMESPACE = "ns"


class NoteTaker:
    """Notifications of an informer, as texts."""

    def __init__(self, server: WatchedServer) -> None:
        self.texts: list[str] = []
        #: The server, whose request count is recorded with each notification.
        self._server = server

    def before_list(self, kind: Kind) -> int:
        return 0

    def list_started(self, kind: Kind, version: int, known: int) -> None: ...

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        self.texts.append(f"found {body['metadata']['name']}")

    def watch_event(self, body: Json, gone: bool) -> None:
        name, size = body["metadata"]["name"], body["spec"].get("partitions")
        self.texts.append(f"{name} gone" if gone else f"{name} has {size}")

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        self.texts.append(f"all: {' '.join(sorted(key.name for key in present)) or '-'}")

    def take(self) -> list[str]:
        """Return and clear the new notifications."""
        texts, self.texts = self.texts, []
        return texts


class InformerWorld:
    """A server, an informer, and its notifications."""

    def __init__(self) -> None:
        self.server = WatchedServer()
        self.api = WatchedApi(self.server)
        self.notes = NoteTaker(self.server)
        self.informer = Informer(self.api, TOPIC, NAMESPACE, self.notes)  # type: ignore[arg-type]

    def make(self, name: str, partitions: int = 1) -> None:
        body = {"metadata": {"name": name}, "spec": {"partitions": partitions}}
        self.server.create("user", TOPIC, NAMESPACE, body)

    def edit(self, name: str, partitions: int) -> None:
        self.server.edit(TOPIC, name, {"partitions": partitions})

    def delete(self, name: str) -> None:
        self.server.delete("user", TOPIC, name)

    @property
    def requests(self) -> list[str]:
        """Lists and watches since the last read of this property, without versions."""
        calls, self.api.calls = self.api.calls, []
        return [call.split(" ")[0] for call in calls]

    async def news(self) -> list[str]:
        await many_turns()
        return self.notes.take()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "RETRY", Backoff(first_s=0, most_s=0))
    monkeypatch.setattr(informer, "NOT_SERVED_S", 0)


@pytest.fixture
async def world() -> AsyncIterator[InformerWorld]:
    """InformerWorld with two listed Topics and an open watch."""
    made = InformerWorld()
    made.make("a")
    made.make("b")
    running = asyncio.create_task(made.informer.run())
    assert await made.news() == ["found a", "found b", "all: a b"]
    assert made.requests == ["list_all", "watch"]
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert made.api.watching == 0, "nothing is left open"


async def test_events_are_reported_in_order(world: InformerWorld) -> None:
    world.edit("a", 2)
    world.make("c")
    world.edit("a", 3)
    world.delete("b")
    assert await world.news() == ["a has 2", "c has 1", "a has 3", "b gone"]
    assert world.requests == []


async def test_an_ended_watch_resumes_where_it_was(world: InformerWorld) -> None:
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    # The API server closes every watch after some minutes.
    world.api.end_watch()
    world.edit("a", 3)
    world.delete("b")
    assert await world.news() == ["a has 3", "b gone"], "nothing is lost, and nothing comes twice"
    assert world.requests == ["watch"]


async def test_bookmark_advances_the_version_of_the_next_watch(world: InformerWorld) -> None:
    world.server.bookmark(TOPIC)
    await many_turns()
    # etcd compacts everything before the bookmark.
    world.server.forget()
    world.server._forgotten -= 1  # the oldest version is the bookmark's
    world.api.end_watch()
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    assert world.requests == ["watch"]


@pytest.mark.parametrize("error_in", ["the answer", "an event"])
async def test_after_410_a_full_list_finds_deleted_objects(
    world: InformerWorld, error_in: str
) -> None:
    """The error comes as the answer to the watch request, or as an event of the watch."""
    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
    # The version of the next watch is compacted, because the history is dropped.
    world.api.end_watch(status if error_in == "an event" else None)
    world.delete("b")
    world.make("c")
    world.server.forget()
    assert await world.news() == ["found a", "found c", "all: a c"]
    assert "list_all" in world.requests
    world.edit("c", 2)
    assert await world.news() == ["c has 2"]


@pytest.mark.parametrize(
    "error",
    [
        ApiServerUnavailable(0, "nothing came"),
        ApiServerUnavailable(503, "restarts"),
        ApiServerUnavailable(429, "busy"),
    ],
    ids=["silent", "restarted", "busy"],
)
async def test_a_failed_watch_resumes_where_it_was(world: InformerWorld, error: KubeError) -> None:
    world.api.end_watch(error)
    # The informer keeps its version through three failed attempts.
    world.api.fail("watch", error, times=3)
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    assert world.requests == ["watch"] * 4


async def test_a_list_counts_once_a_watch_continues_from_it(world: InformerWorld) -> None:
    world.server.forget()
    world.api.end_watch()
    # The list succeeds and the watch from it fails: the list is not repeated.
    world.api.fail("watch", ApiServerUnavailable(0, "no answer"))
    world.delete("b")
    await many_turns()
    assert await world.news() == ["found a", "all: a"]
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]


async def test_a_persistent_failure_of_a_watch_leads_to_a_list(world: InformerWorld) -> None:
    # A server may refuse a version for other reasons than its age.
    world.api.fail("watch", ApiServerUnavailable(504, "too large"), times=informer.LISTED_AFTER)
    world.api.end_watch()
    assert await world.news() == ["found a", "found b", "all: a b"]


async def test_forbidden_watch_is_logged_and_replaced_by_lists(
    world: InformerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.fail("watch", Forbidden(403, "may not watch"))
    world.api.end_watch()
    assert await world.news() == ["found a", "found b", "all: a b"]
    assert "relisting topics: may not watch" in caplog.text


async def test_kind_without_definition_is_logged_once_and_followed_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    world = InformerWorld()
    # The definition is installed after the informer starts.
    world.api.fail("list_all", NotFound(404, "no such resource"), times=3)
    running = asyncio.create_task(world.informer.run())
    assert await world.news() == ["all: -"]
    assert caplog.text.count("does not serve topics.tidemark.dev yet") == 1
    world.make("a", 3)
    assert await world.news() == ["a has 3"]
    running.cancel()


async def test_recreated_definition_is_followed_again(
    world: InformerWorld,
) -> None:
    world.delete("a")
    world.delete("b")
    world.api.fail("watch", NotFound(404, "no such resource"))
    # kubectl delete crd, and the installation of a new definition.
    world.api.fail("list_all", NotFound(404, "no such resource"), times=3)
    world.api.end_watch()
    await many_turns()
    world.make("c")
    assert (await world.news())[-1] in ("found c", "all: c", "c has 1")
    world.edit("c", 2)
    assert await world.news() == ["c has 2"]


async def test_a_page_is_processed_before_the_next_one_is_requested() -> None:
    world = InformerWorld()
    world.api.page_max = 2
    for name in "abcde":
        world.make(name)
    pages: list[list[str]] = []
    pages_of_api = world.api.pages

    async def noted(*arguments: Any) -> AsyncIterator[Any]:
        async for page in pages_of_api(*arguments):
            pages.append(world.notes.take())
            yield page

    world.api.pages = noted  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(world.informer.run())
    # Each page is processed before the next request, so memory holds one page.
    assert await world.news() == ["found e", "all: a b c d e"]
    assert pages == [[], ["found a", "found b"], ["found c", "found d"]]
    running.cancel()


async def test_cancelled_informer_closes_its_watch(world: InformerWorld) -> None:
    """The fixture cancels the informer and checks that no watch stays open."""
    assert world.api.watching == 1


@pytest.mark.parametrize(
    "event",
    [{"type": "ADDED"}, {"type": "ERROR", "object": "gone"}, {"type": "ADDED", "object": {}}, {}],
    ids=["no object", "no status", "an empty object", "nothing"],
)
async def test_malformed_event_leads_to_a_list(world: InformerWorld, event: Json) -> None:
    world.api.end_watch_with(event)
    assert await world.news() == ["found a", "found b", "all: a b"]
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]


async def test_late_refusal_does_not_reset_the_backoff(
    world: InformerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy API server refuses late. The pauses grow nevertheless, until a list is due."""
    # Every watch counts as long enough, except one that never began.
    monkeypatch.setattr(informer, "GOOD_S", -1.0)
    world.api.fail("watch", ApiServerUnavailable(504, "too large"), times=informer.LISTED_AFTER)
    world.api.end_watch(ApiServerUnavailable(0, "restarts"))
    assert await world.news() == ["found a", "found b", "all: a b"]


async def test_restored_api_server_is_listed_again(world: InformerWorld) -> None:
    """etcd was restored: its versions are lower than the known ones, and its content counts
    although newer versions were announced.
    """
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    world.server.history.clear()
    # The restored server continues from a lower version.
    world.server._version -= 2
    world.server.bookmark(TOPIC)
    world.api.end_watch_with(world.server.history[-1])
    assert await world.news() == ["found a", "found b", "all: a b"]


async def test_informers_list_again_when_a_takeover_finds_a_restored_api_server() -> None:
    """A watch from a version above the server's is silent until the server reaches it."""
    world = InformerWorld()
    signs: list[str] = []
    follower = ObjectFollower(
        NAMESPACE,
        deliver=lambda _key, _gone: None,
        restored=signs.append,
        definitions_changed=lambda: None,
    )
    world.make("a")
    backup = world.server.find(TOPIC, "a")
    assert backup is not None
    running = asyncio.create_task(follower.follow(world.api))  # type: ignore[arg-type]
    for partitions in (2, 3, 4):
        await many_turns()
        world.edit("a", partitions)
    await many_turns()
    (key,) = follower.objects.keys(TOPIC)
    # etcd is put back, and the takeover lists the kind before a watch shows it.
    world.server.history.clear()
    world.server._objects[TOPIC.kind, "a"] = backup
    world.server._version = resource_version(backup)
    follower.list_started(TOPIC, world.server.version, follower.before_list(TOPIC))
    await many_turns()
    world.edit("a", 9)
    await many_turns()
    assert signs
    found = follower.objects.get(key)
    assert found is not None
    assert found["spec"]["partitions"] == 9
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# ---------------------------------------------------------------- connections


class WatchResponse:
    """HTTP response of an established watch."""

    status = 200

    def __init__(self) -> None:
        self.response = self.content = self.connection = self.transport = self
        self.calls: list[str] = []

    async def param_serialize(self, *_: object, **__: object) -> tuple[object, ...]:
        return None, "", {}, None, None

    async def call_api(self, *_: object, _request_timeout: Any) -> "WatchResponse":
        self.timeout = _request_timeout
        return self

    def iter_any(self) -> AsyncIterator[bytes]:
        return pieces(b'{"type":"BOOKMARK"}\n')

    def abort(self) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("batches", [1, 2], ids=["as it begins", "later"])
async def test_a_cancelled_watch_leaves_no_connection(batches: int) -> None:
    answer = WatchResponse()
    watch = KubeApi(answer).watch(TOPIC, NAMESPACE, 7, silence_s=1)
    # Cancel while the watch waits for its first event, or later.
    for _ in range(batches):
        await anext(watch)
    await watch.aclose()
    assert answer.calls == ["abort", "close"]
    assert answer.timeout.total == WATCH_S + 1, "none continues for ever"


# ---------------------------------------------------------------- line splitting


async def pieces(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield text


async def split(*texts: bytes) -> list[list[bytes]]:
    return [found async for found in split_lines(pieces(*texts))]


async def test_complete_lines_are_yielded_at_once() -> None:
    assert await split(b"a\nb\nc", b"d", b"e\n\n", b"f") == [[b"a", b"b"], [b"cde"]]


@pytest.mark.parametrize("texts", [(b"abc", b"de"), (b"abcde\n",)], ids=["endless", "at once"])
async def test_a_line_has_a_limit(
    texts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LINE_MAX", 4)
    # The limit counts a line without its end.
    assert await split(b"abcd\n", b"abc\n") == [[b"abcd"], [b"abc"]]
    with pytest.raises(LineTooLong):
        await split(*texts)
