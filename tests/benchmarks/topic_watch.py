"""The Topics of a namespace as a watch brings them: asking for all of them again and again would be
most of what the API server does."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.benchmarks.topics import is_ready
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import TOPIC, Json

Look = Callable[[Json], bool]


class TopicWatch:
    """Where each Topic stands: only what is asked of them is kept, not the objects."""

    def __init__(self) -> None:
        #: By name: its generation, the one that its status tells of, Ready, its tiering state.
        self.seen: dict[str, Seen] = {}
        self._changed = asyncio.Event()

    def take(self, kind: str, body: Json) -> None:
        """One event."""
        name = body["metadata"]["name"]
        if kind == "DELETED":
            self.seen.pop(name, None)
        else:
            self.seen[name] = Seen(body)
        self._changed.set()

    def count(self, look: "Callable[[Seen], bool]") -> int:
        """Of how many Topics something is true."""
        return sum(map(look, self.seen.values()))

    async def until(
        self, is_over: Callable[["TopicWatch"], bool], timeout_s: float, look_s: float = 0.1
    ) -> None:
        """Wait, looking at most once in ``look_s``; raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while not is_over(self):
                self._changed.clear()
                await self._changed.wait()
                await asyncio.sleep(look_s)


class Seen:
    """What counts of one Topic."""

    __slots__ = ("generation", "name", "observed", "ready", "tiering")

    def __init__(self, body: Json) -> None:
        status = body.get("status") or {}
        self.name = str(body["metadata"]["name"])
        self.generation = int(body["metadata"]["generation"])
        self.observed = int(status.get("observedGeneration") or 0)
        self.ready = is_ready(body)
        self.tiering = str((status.get("tiering") or {}).get("state", ""))

    @property
    def settled(self) -> bool:
        """Ready, as the spec is now."""
        return self.ready and self.observed == self.generation


@asynccontextmanager
async def watching(api: KubeApi, namespace: str) -> AsyncIterator[TopicWatch]:
    """A watch from now on, while the block runs."""
    found, client = TopicWatch(), api._client
    listed = await api.list_all(TOPIC, namespace)
    for body in listed:
        found.take("ADDED", body)
    path = f"{TOPIC.path(namespace)}?watch=1&resourceVersion={listed.resource_version}"
    _, url, headers, _, _ = await client.param_serialize(
        "GET", path, header_params={}, auth_settings=["BearerToken"]
    )
    answer: Any = await client.call_api("GET", url, headers, None, _request_timeout=_FOR_EVER)

    async def read() -> None:
        rest = b""
        async for piece in answer.response.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                event = json.loads(line)
                found.take(event["type"], event["object"])

    reading = asyncio.create_task(read())
    try:
        yield found
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        answer.response.close()


_FOR_EVER = aiohttp.ClientTimeout(None)
