"""The fake API server with watches. Events stay in its history until a test drops them."""

import asyncio
from collections.abc import AsyncIterator

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tidemark_operator.kube.errors import Expired, KubeError
from tidemark_operator.kube.kinds import Json, Kind, resource_version


class WatchedServer(FakeApiServer):
    """Server with a ``history`` of the events of all kinds, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Json] = []
        self._forgotten = 0
        self._known: set[str] = set()
        self.turned = asyncio.Event()
        self.watchers.append(self._note)

    def _note(self, body: Json, gone: bool) -> None:
        uid = body["metadata"]["uid"]
        if gone:  # a deletion has a version of its own
            self._version += 1
            meta = {**body["metadata"], "resourceVersion": str(self._version)}
            body = {**body, "metadata": meta}
        # The first event of an object is its creation, as in the API server's watch cache.
        seen = "MODIFIED" if uid in self._known else "ADDED"
        self._known.add(uid)
        self.say("DELETED" if gone else seen, body)

    def say(self, type_: str, body: Json) -> None:
        """Send an event to all open watches."""
        self.history.append({"type": type_, "object": body})
        self.turn()

    def turn(self) -> None:
        self.turned.set()
        self.turned = asyncio.Event()

    def bookmark(self, kind: Kind) -> None:
        """Send a bookmark: a new version without a change."""
        self._version += 1
        meta = {"resourceVersion": str(self._version)}
        self.say("BOOKMARK", {"kind": kind.kind, "metadata": meta})

    def forget(self) -> None:
        """Drop the history, as etcd does when it compacts."""
        self._version += 1
        self.history.clear()
        self._forgotten = self._version

    def watch(self, who: str, kind: Kind, version: str) -> None:
        """Check that a watch may start at a version."""
        if int(version) < self._forgotten:
            raise Expired(410, "too old resource version")


class WatchedApi(FakeKubeApi):
    """Each watch is a call: "watch KIND VERSION"."""

    server: WatchedServer

    def __init__(self, server: WatchedServer) -> None:
        super().__init__(server)
        #: Ends of open watches: raised, sent as an event, or None for a normal end.
        self._ends: list[KubeError | Json | None] = []
        self.watching = 0

    def end_watch(self, error: KubeError | Json | None = None) -> None:
        """End the open watch; a ``Status`` is sent as its last event."""
        self._ends.append(error)
        self.server.turn()

    def end_watch_with(self, event: Json) -> None:
        """End the open watch with an event of any content."""
        self._ends.append({"event": event})
        self.server.turn()

    async def watch(
        self, kind: Kind, namespace: str, version: int, *, silence_s: float
    ) -> AsyncIterator[list[Json]]:
        await self._call(self.server.watch, kind, str(version), writes=False)
        self.watching += 1
        try:
            # The first, empty list tells the client that the watch is established.
            yield []
            while True:
                if self._ends:
                    error = self._ends.pop(0)
                    if isinstance(error, KubeError):
                        raise error
                    if error is not None:
                        yield [error.get("event", {"type": "ERROR", "object": error})]
                    return
                turned = self.server.turned
                # Deliver everything after the client's version at once, as one read from the socket
                # may.
                found = [
                    event
                    for event in self.server.history
                    if event["object"]["kind"] == kind.kind
                    and resource_version(event["object"]) > version
                ]
                if found:
                    version = resource_version(found[-1]["object"])
                    yield found
                else:
                    await turned.wait()
        finally:
            self.watching -= 1
