"""An informer on the fake API server: it tells of everything once, in order, whatever ends its
watch."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.loop_turns import many_turns
from tests.unit.operator_shell.watched_server import WatchedApi, WatchedServer
from tidemark.backoff import Backoff
from tidemark_operator.kube import informer, line_stream
from tidemark_operator.kube.client import WATCH_S, KubeApi
from tidemark_operator.kube.errors import ApiServerUnavailable, Forbidden, KubeError, NotFound
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import TOPIC, Json, Key, Kind
from tidemark_operator.kube.line_stream import LineTooLong, split_lines

NAMESPACE = "ns"


class Told:
    """Notifications of an informer, as words."""

    def __init__(self, server: WatchedServer) -> None:
        self.words: list[str] = []
        #: Number of requests to the server when each word was recorded.
        self._server = server

    def asking(self, kind: Kind) -> int:
        return 0

    def listing(self, kind: Kind, version: int, known: int) -> None: ...

    def found(self, kind: Kind, body: Json, version: int) -> None:
        self.words.append(f"found {body['metadata']['name']}")

    def brought(self, body: Json, gone: bool) -> None:
        name, size = body["metadata"]["name"], body["spec"].get("partitions")
        self.words.append(f"{name} gone" if gone else f"{name} has {size}")

    def listed(self, kind: Kind, present: set[Key], version: int) -> None:
        self.words.append(f"all: {' '.join(sorted(key.name for key in present)) or '-'}")

    def take(self) -> list[str]:
        """Return and clear the new words."""
        words, self.words = self.words, []
        return words


class World:
    """A server, an informer, and its notifications."""

    def __init__(self) -> None:
        self.server = WatchedServer()
        self.api = WatchedApi(self.server)
        self.told = Told(self.server)
        self.informer = Informer(self.api, TOPIC, NAMESPACE, self.told)  # type: ignore[arg-type]

    def make(self, name: str, partitions: int = 1) -> None:
        body = {"metadata": {"name": name}, "spec": {"partitions": partitions}}
        self.server.create("user", TOPIC, NAMESPACE, body)

    def edit(self, name: str, partitions: int) -> None:
        self.server.edit(TOPIC, name, {"partitions": partitions})

    def delete(self, name: str) -> None:
        self.server.delete("user", TOPIC, name)

    @property
    def asked(self) -> list[str]:
        """Lists and watches since the last time, without versions."""
        calls, self.api.calls = self.api.calls, []
        return [call.split(" ")[0] for call in calls]

    async def news(self) -> list[str]:
        await many_turns()
        return self.told.take()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "RETRY", Backoff(first_s=0, most_s=0))
    monkeypatch.setattr(informer, "NOT_SERVED_S", 0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """With two Topics that are known, and a watch."""
    made = World()
    made.make("a")
    made.make("b")
    running = asyncio.create_task(made.informer.run())
    assert await made.news() == ["found a", "found b", "all: a b"]
    assert made.asked == ["list_all", "watch"]
    yield made
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert made.api.watching == 0, "nothing is left open"


async def test_events_are_reported_in_order(world: World) -> None:
    world.edit("a", 2)
    world.make("c")
    world.edit("a", 3)
    world.delete("b")
    assert await world.news() == ["a has 2", "c has 1", "a has 3", "b gone"]
    assert world.asked == []


async def test_an_ended_watch_resumes_where_it_was(world: World) -> None:
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    world.api.end_watch()
    world.edit("a", 3)
    world.delete("b")
    assert await world.news() == ["a has 3", "b gone"], "nothing is lost, and nothing comes twice"
    assert world.asked == ["watch"]


async def test_a_bookmark_moves_it_on(world: World) -> None:
    world.server.bookmark(TOPIC)
    await many_turns()
    world.server.forget()
    world.server._forgotten -= 1  # the bookmark's version is the oldest that is known
    world.api.end_watch()
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    assert world.asked == ["watch"]


@pytest.mark.parametrize("told_in", ["the answer", "an event"])
async def test_after_410_a_full_list_finds_deleted_objects(world: World, told_in: str) -> None:
    """The error comes as the answer to the watch request, or as an event of the watch."""
    status = {"kind": "Status", "code": 410, "message": "too old resource version"}
    world.api.end_watch(status if told_in == "an event" else None)
    world.delete("b")
    world.make("c")
    world.server.forget()
    assert await world.news() == ["found a", "found c", "all: a c"]
    assert "list_all" in world.asked
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
async def test_a_failed_watch_resumes_where_it_was(world: World, error: KubeError) -> None:
    world.api.end_watch(error)
    world.api.fail("watch", error, times=3)
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    assert world.asked == ["watch"] * 4


async def test_a_list_counts_once_a_watch_continues_from_it(world: World) -> None:
    world.server.forget()
    world.api.end_watch()
    world.api.fail("watch", ApiServerUnavailable(0, "no answer"))
    world.delete("b")
    await many_turns()
    assert await world.news() == ["found a", "all: a"]
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]


async def test_a_persistent_failure_of_a_watch_leads_to_a_list(world: World) -> None:
    world.api.fail("watch", ApiServerUnavailable(504, "too large"), times=informer.LISTED_AFTER)
    world.api.end_watch()
    assert await world.news() == ["found a", "found b", "all: a b"]


async def test_what_may_not_be_watched_is_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.fail("watch", Forbidden(403, "may not watch"))
    world.api.end_watch()
    assert await world.news() == ["found a", "found b", "all: a b"]
    assert "relisting topics: may not watch" in caplog.text


async def test_a_kind_that_is_not_served_yet_is_missed_once_and_followed_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    world = World()
    world.api.fail("list_all", NotFound(404, "no such resource"), times=3)
    running = asyncio.create_task(world.informer.run())
    assert await world.news() == ["all: -"]
    assert caplog.text.count("does not serve topics.tidemark.dev yet") == 1
    world.make("a", 3)
    assert await world.news() == ["a has 3"]
    running.cancel()


async def test_a_definition_that_is_deleted_and_made_again_is_followed_again(world: World) -> None:
    world.delete("a")
    world.delete("b")
    world.api.fail("watch", NotFound(404, "no such resource"))
    world.api.fail("list_all", NotFound(404, "no such resource"), times=3)
    world.api.end_watch()
    await many_turns()
    world.make("c")
    assert (await world.news())[-1] in ("found c", "all: c", "c has 1")
    world.edit("c", 2)
    assert await world.news() == ["c has 2"]


async def test_a_page_is_processed_before_the_next_one_is_requested() -> None:
    world = World()
    world.api.page_max = 2
    for name in "abcde":
        world.make(name)
    pages: list[list[str]] = []
    whole = world.api.pages

    async def noted(*arguments: Any) -> AsyncIterator[Any]:
        async for page in whole(*arguments):
            pages.append(world.told.take())
            yield page

    world.api.pages = noted  # type: ignore[method-assign,assignment]
    running = asyncio.create_task(world.informer.run())
    assert await world.news() == ["found e", "all: a b c d e"]
    assert pages == [[], ["found a", "found b"], ["found c", "found d"]]
    running.cancel()


async def test_it_stops_at_once(world: World) -> None:
    """The fixture cancels it, and sees that nothing is left open."""
    assert world.api.watching == 1


@pytest.mark.parametrize(
    "event",
    [{"type": "ADDED"}, {"type": "ERROR", "object": "gone"}, {"type": "ADDED", "object": {}}, {}],
    ids=["no object", "no status", "an empty object", "nothing"],
)
async def test_what_cannot_be_understood_ends_nothing(world: World, event: Json) -> None:
    world.api.end_watch_with(event)
    assert await world.news() == ["found a", "found b", "all: a b"]
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]


async def test_a_watch_that_never_begins_is_no_good_one_however_long_it_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy API server refuses late: the pauses grow all the same, and all is listed at last."""
    monkeypatch.setattr(informer, "GOOD_S", -1.0)
    world.api.fail("watch", ApiServerUnavailable(504, "too large"), times=informer.LISTED_AFTER)
    world.api.end_watch(ApiServerUnavailable(0, "restarts"))
    assert await world.news() == ["found a", "found b", "all: a b"]


async def test_an_api_that_was_put_back_is_listed_again(world: World) -> None:
    """etcd was restored: its versions are lower than the known ones, and its content counts
    although newer versions were announced.
    """
    world.edit("a", 2)
    assert await world.news() == ["a has 2"]
    world.server.history.clear()
    world.server._version -= 2
    world.server.bookmark(TOPIC)
    world.api.end_watch_with(world.server.history[-1])
    assert await world.news() == ["found a", "found b", "all: a b"]


# ---------------------------------------------------------------- connections


class Answer:
    """A watch that has begun, as the client has it."""

    status = 200

    def __init__(self) -> None:
        self.response = self.content = self.connection = self.transport = self
        self.heard: list[str] = []

    async def param_serialize(self, *_: object, **__: object) -> tuple[object, ...]:
        return None, "", {}, None, None

    async def call_api(self, *_: object, _request_timeout: Any) -> "Answer":
        self.timeout = _request_timeout
        return self

    def iter_any(self) -> AsyncIterator[bytes]:
        return pieces(b'{"type":"BOOKMARK"}\n')

    def abort(self) -> None:
        self.heard.append("abort")

    def close(self) -> None:
        self.heard.append("close")


@pytest.mark.parametrize("taken", [1, 2], ids=["as it begins", "later"])
async def test_a_cancelled_watch_leaves_no_connection(taken: int) -> None:
    answer = Answer()
    watch = KubeApi(answer).watch(TOPIC, NAMESPACE, 7, silence_s=1)
    for _ in range(taken):
        await anext(watch)
    await watch.aclose()
    assert answer.heard == ["abort", "close"]
    assert answer.timeout.total == WATCH_S + 1, "none continues for ever"


# ---------------------------------------------------------------- lines


async def pieces(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield text


async def split(*texts: bytes) -> list[list[bytes]]:
    return [found async for found in split_lines(pieces(*texts))]


async def test_lines_come_as_soon_as_they_are_whole() -> None:
    assert await split(b"a\nb\nc", b"d", b"e\n\n", b"f") == [[b"a", b"b"], [b"cde"]]


@pytest.mark.parametrize("texts", [(b"abc", b"de"), (b"abcde\n",)], ids=["endless", "at once"])
async def test_a_line_has_a_limit(
    texts: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_stream, "LINE_MAX", 4)
    assert await split(b"abcd\n", b"abc\n") == [[b"abcd"], [b"abc"]]
    with pytest.raises(LineTooLong):
        await split(*texts)
