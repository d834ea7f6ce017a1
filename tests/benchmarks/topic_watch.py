"""The Topics of a namespace as a watch brings them: asking for all of them again and again would be
most of what the API server does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.benchmarks.topics import is_ready
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import TOPIC, Json, Key, Kind


class TopicWatch:
    """State of each Topic. It keeps the requested fields, not the objects."""

    def __init__(self) -> None:
        #: By name: its generation, the one that its status tells of, Ready, its tiering state.
        self.seen: dict[str, Seen] = {}
        self._changed = asyncio.Event()

    def take(self, kind: str, body: Json) -> None:
        """Update the state from an event of the informer."""
        name = body["metadata"]["name"]
        if kind == "DELETED":
            self.seen.pop(name, None)
        else:
            self.seen[name] = Seen(body)
        self._changed.set()

    def count(self, look: "Callable[[Seen], bool]") -> int:
        """Return the number of Topics that match."""
        return sum(map(look, self.seen.values()))

    async def until(
        self, is_over: Callable[["TopicWatch"], bool], timeout_s: float, look_s: float = 0.1
    ) -> None:
        """Wait, looking at most once in ``look_s``; raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            while not is_over(self):
                # At most ten looks per second, however many events arrive.
                self._changed.clear()
                await self._changed.wait()
                await asyncio.sleep(look_s)


class Seen:
    """Relevant state of one Topic."""

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


class _Follower:
    """Passes what the informer finds to its counter.

    It resumes a watch that the API server ends, as it does with slow readers.
    """

    def __init__(self, found: TopicWatch) -> None:
        self._found = found
        self.has_begun = asyncio.Event()

    def before_list(self, kind: Kind) -> int:
        return 0

    def list_started(self, kind: Kind, version: int, known: int) -> None:
        pass

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        self._found.take("ADDED", body)

    def watch_event(self, body: Json, gone: bool) -> None:
        self._found.take("DELETED" if gone else "MODIFIED", body)

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        # A list replaces what was known: deletions during an interruption have no event.
        names = {name for _, name in present}
        for name in [item for item in self._found.seen if item not in names]:
            del self._found.seen[name]
        self.has_begun.set()


@asynccontextmanager
async def watching(api: KubeApi, namespace: str) -> AsyncIterator[TopicWatch]:
    """A watch from now on, while the block runs."""
    found = TopicWatch()
    follower = _Follower(found)
    reading = asyncio.create_task(Informer(api, TOPIC, namespace, follower).run())
    try:
        await follower.has_begun.wait()
        yield found
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
