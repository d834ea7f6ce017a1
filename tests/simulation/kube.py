"""The simulated API server: the fake one, with a network before it.

Each operator reaches it over its own :class:`SimulatedApi`. A request or its answer may be lost,
or the request arrives long after its sender gave up (a late write).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.simulation.clockwork import Clockwork, ProcessLoop
from tidemark_operator.kube.errors import ApiServerUnavailable, KubeError
from tidemark_operator.kube.kinds import EVENT, LEASE, Json, Kind

_TIMEOUT_S = 4.0
_RAISED = 1_000_000

Written = Callable[[str, Json | None, Json], None]


class ApiServer(FakeApiServer):
    """``written`` is called for each change: (who, the object before, the object now)."""

    def __init__(self, world: Clockwork, written: Written) -> None:
        super().__init__()
        self.world = world
        self._written = written
        self.lost = 0.0
        self.late = 0.0
        self.latest_s = 12.0
        self.slow = 0.0
        self.writes = 0
        self.last_written = ""

    def quiet(self) -> None:
        self.lost = self.late = self.slow = 0.0

    def put_back(self, body: Json) -> None:
        """Restore an object, whatever the rules of the API say, without an event."""
        self._version += 1
        # A new version, as no operator watches at that moment.
        body["metadata"]["resourceVersion"] = str(self._version)
        self._objects[body["kind"], body["metadata"]["name"]] = body

    def put_all_back(self, bodies: Iterable[Json]) -> None:
        """Objects as they were, with the versions that they had; the next ones are far above."""
        self._version += _RAISED
        for body in bodies:
            self._objects[body["kind"], body["metadata"]["name"]] = body

    def create(self, who: str, kind: Kind, namespace: str, body: Json) -> Json:
        return body if kind is EVENT else super().create(who, kind, namespace, body)

    def written(self, who: str, old: Json | None, new: Json) -> None:
        # Renewals of the lease never end and say nothing about steadiness.
        if new["kind"] == LEASE.kind:
            return
        self.writes += who != "user"
        self.last_written = f"{new['kind']} {new['metadata']['name']}"
        self._written(who, old, new)
        super().written(who, old, new)


class SimulatedApi(FakeKubeApi):
    """The ``KubeApi`` of one operator."""

    def __init__(self, server: ApiServer, loop: ProcessLoop) -> None:
        super().__init__(server, loop.name)
        self._server = server
        self._loop = loop

    async def _call(self, verb: Callable[..., Any], *args: Any, writes: bool) -> Any:
        server, loop, world = self._server, self._loop, self._server.world
        chance = world.chance
        answer = loop.create_future()
        # The way there: usually some milliseconds, at a fault until after the caller's timeout.
        there_s = 0.0005 + 0.003 * chance.random()
        if writes and server.late and chance.random() < server.late:
            there_s = server.latest_s * chance.random()
        elif writes and server.slow and chance.random() < server.slow:
            there_s = 0.9 * _TIMEOUT_S * chance.random()
        # Lost requests and lost answers are drawn separately. A request whose answer is lost has
        # taken effect.
        if not (server.lost and chance.random() < server.lost):
            back = not (server.lost and chance.random() < server.lost)
            world.after(there_s, self._at_server, answer, back, verb, args)
        timer = loop.call_later(_TIMEOUT_S, _no_answer, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def _at_server(
        self, answer: "asyncio.Future[Any]", back: bool, verb: Callable[..., Any], args: tuple
    ) -> None:
        try:
            result, error = verb(self.who, *args), None
        except KubeError as refused:
            result, error = None, refused
        if back and not self._loop.dead:
            world = self._server.world
            delay_s = 0.0005 + 0.003 * world.chance.random()
            world.at(world.now_s + delay_s, self._loop, _settle, answer, result, error)


def _no_answer(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(ApiServerUnavailable(0, "no answer"))


def _settle(answer: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
