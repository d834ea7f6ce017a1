"""An informer on the real API server: pages of a list, a watch, and reasons to list again."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.late_kind import LATE, define, make, undefine
from tidemark_operator.kube import client, informer
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import TOPIC, Json, Key, Kind


class Followed:
    """Objects by name, and the number of full lists."""

    def __init__(self) -> None:
        self.bodies: dict[str, Json] = {}
        self.lists = 0
        self.brought_names: list[str] = []

    def before_list(self, kind: Kind) -> int:
        return 0

    def list_started(self, kind: Kind, version: int, known: int) -> None: ...

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        self.bodies[body["metadata"]["name"]] = body

    def watch_event(self, body: Json, gone: bool) -> None:
        name = body["metadata"]["name"]
        self.brought_names.append(name)
        if gone:
            del self.bodies[name]
        else:
            self.bodies[name] = body

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        self.lists += 1
        names = {key.name for key in present}
        self.bodies = {name: body for name, body in self.bodies.items() if name in names}

    @property
    def names(self) -> set[str]:
        return set(self.bodies)


@contextlib.asynccontextmanager
async def following(
    api: KubeApi, namespace: str, kind: Kind = TOPIC, version: int = 0
) -> AsyncIterator[Followed]:
    """Run an informer that has received everything up to a version."""
    followed = Followed()
    made = Informer(api, kind, namespace, followed)
    made._version = version
    running = asyncio.create_task(made.run())
    try:
        yield followed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_informer_lists_all_pages_and_follows_changes(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two objects per page, so that five Topics need three pages.
    monkeypatch.setattr(client, "LIST_CHUNK", 2)
    for number in range(5):
        await world.create_topic(f"t{number}")
    async with following(world.api, world.namespace) as followed:
        await world.until(lambda: followed.lists == 1, "all pages are listed")
        assert followed.names == {f"t{number}" for number in range(5)}
        assert all(body["kind"] == "Topic" for body in followed.bodies.values())
        await world.create_topic("made")
        await world.patch(TOPIC, "t1", partitions=7)
        await world.delete(TOPIC, "t0")
        await world.until(lambda: "t0" not in followed.names, "the watch brings it")
        # Events come in the order of the changes, and no object is delivered twice.
        assert followed.brought_names == ["made", "t1", "t0"], "in its order, each once"
        assert followed.bodies["t1"]["spec"]["partitions"] == 7
        assert followed.lists == 1


async def test_expired_version_causes_a_new_list(world: ClusterWorld) -> None:
    await world.create_topic("kept")
    # Version 1 was compacted away, so the watch fails with 410 Gone.
    async with following(world.api, world.namespace, version=1) as followed:
        # An object that was deleted while nothing watched is missing in the new list.
        followed.bodies = {"deleted meanwhile": {}}
        await world.until(lambda: followed.lists == 1, "it is listed")
        assert followed.names == {"kept"}
        await world.create_topic("made")
        await world.until(lambda: "made" in followed.names, "it is watched")


async def test_informer_follows_a_kind_that_is_defined_later(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # 0.1 s instead of a longer pause, so that the kind is tried again soon.
    monkeypatch.setattr(informer, "NOT_SERVED_S", 0.1)
    try:
        async with following(world.api, world.namespace, LATE) as followed:
            await world.until(lambda: "does not serve latecomers" in caplog.text, "it is missed")
            await define(world)
            await make(world, "one")
            await world.until(lambda: "one" in followed.names, "it is followed")
            # One log line, however often the kind is tried.
            assert caplog.text.count("does not serve") == 1, "it is said once"
            await undefine(world)
            await world.until(lambda: not followed.names, "its objects go with it")
            await define(world)
            await make(world, "two")
            await world.until(lambda: followed.names == {"two"}, "it is followed again")
    finally:
        await undefine(world)


class StubServer:
    """Serves one list and silent watches; the second watch delivers an event."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await self._answer(head.split(" ")[1], writer)
        writer.close()

    async def _answer(self, target: str, writer: asyncio.StreamWriter) -> None:
        if "watch=true" not in target:
            self.requests.append("list")
            page = json.dumps({"metadata": {"resourceVersion": "7"}, "items": []})
            head = f"Content-Type: application/json\r\nContent-Length: {len(page)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{page}".encode())
            # Version 7 of the list is where each watch has to start.
            return
        self.requests.append(f"watch {target.partition('resourceVersion=')[2].partition('&')[0]}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        # The third request is the second watch.
        if len(self.requests) > 2:
            meta = {"namespace": "n", "name": "late", "uid": "u", "resourceVersion": "8"}
            event = {"type": "ADDED", "object": {"kind": "Topic", "metadata": meta}}
            line = json.dumps(event) + "\n"
            half = len(line) // 2
            for part in (line[:half], line[half:]):  # as the network cuts it
                writer.write(f"{len(part):x}\r\n{part}\r\n".encode())
        await writer.drain()


async def test_silent_watch_is_abandoned_and_resumes_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A watch without events for 0.2 s counts as dead.
    monkeypatch.setattr(informer, "SILENCE_S", 0.2)
    stub = StubServer()
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), "utf-8")
    async with (
        server,
        await KubeApi.open(KubernetesAccess(path)) as api,
        following(api, "n") as followed,
        asyncio.timeout(30),
    ):
        while not followed.names:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
    # The second watch starts where the first one was, without another list.
    assert stub.requests[:3] == ["list", "watch 7", "watch 7"]
    assert followed.brought_names[:1] == ["late"]
