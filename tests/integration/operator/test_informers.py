"""An informer on the API server itself: pages, a watch, and what ends one."""

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

    def asking(self, kind: Kind) -> int:
        return 0

    def listing(self, kind: Kind, version: int, known: int) -> None: ...

    def found(self, kind: Kind, body: Json, version: int) -> None:
        self.bodies[body["metadata"]["name"]] = body

    def brought(self, body: Json, gone: bool) -> None:
        name = body["metadata"]["name"]
        self.brought_names.append(name)
        if gone:
            del self.bodies[name]
        else:
            self.bodies[name] = body

    def listed(self, kind: Kind, present: set[Key], version: int) -> None:
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
    """An informer while the block runs, that has heard all until a version."""
    followed = Followed()
    made = Informer(api, kind, namespace, followed)
    made._version = version
    running = asyncio.create_task(made.run())
    try:
        yield followed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_follows_all_there_is(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        assert followed.brought_names == ["made", "t1", "t0"], "in its order, each once"
        assert followed.bodies["t1"]["spec"]["partitions"] == 7
        assert followed.lists == 1


async def test_a_version_that_is_too_old_lets_it_list_again(world: ClusterWorld) -> None:
    await world.create_topic("kept")
    async with following(world.api, world.namespace, version=1) as followed:
        followed.bodies = {"deleted meanwhile": {}}
        await world.until(lambda: followed.lists == 1, "it is listed")
        assert followed.names == {"kept"}
        await world.create_topic("made")
        await world.until(lambda: "made" in followed.names, "it is watched")


async def test_a_definition_that_comes_late_and_goes_and_comes_is_followed(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(informer, "NOT_SERVED_S", 0.1)
    try:
        async with following(world.api, world.namespace, LATE) as followed:
            await world.until(lambda: "does not serve latecomers" in caplog.text, "it is missed")
            await define(world)
            await make(world, "one")
            await world.until(lambda: "one" in followed.names, "it is followed")
            assert caplog.text.count("does not serve") == 1, "it is said once"
            await undefine(world)
            await world.until(lambda: not followed.names, "its objects go with it")
            await define(world)
            await make(world, "two")
            await world.until(lambda: followed.names == {"two"}, "it is followed again")
    finally:
        await undefine(world)


class StubServer:
    """Serves one list, then watches that bring nothing, and once they have fallen silent an
    event."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await self._answer(head.split(" ")[1], writer)
        writer.close()

    async def _answer(self, target: str, writer: asyncio.StreamWriter) -> None:
        if "watch=true" not in target:
            self.asked.append("list")
            page = json.dumps({"metadata": {"resourceVersion": "7"}, "items": []})
            head = f"Content-Type: application/json\r\nContent-Length: {len(page)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n{page}".encode())
            return
        self.asked.append(f"watch {target.partition('resourceVersion=')[2].partition('&')[0]}")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if len(self.asked) > 2:
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
    assert stub.asked[:3] == ["list", "watch 7", "watch 7"]
    assert followed.brought_names[:1] == ["late"]
