"""The API server: objects with resourceVersions, the rules of the CRDs that fence, and watches.

Each operator reaches it over its own :class:`Api`. A request may be lost on its way, its answer may
be lost, or it arrives long after its sender gave up (a late write). A PUT under another
resourceVersion is a conflict; a lower controller epoch is refused, as the CRDs' rules do.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.clockwork import Clockwork, ProcessLoop
from tidemark_operator.kube.errors import Conflict, Invalid, KubeError, NotFound, Unavailable
from tidemark_operator.kube.kinds import EVENT, LEASE, PARTITION_SLICE, Json, Kind

_TIMEOUT_S = 4.0
_STALE = "STALE_CONTROLLER_EPOCH: refused by a rule of the resource"

Written = Callable[[str, Json | None, Json], None]


class ApiServer:
    """``written`` is called for each change: (who, the object before, the object now)."""

    def __init__(self, world: Clockwork, written: Written) -> None:
        self.world = world
        self._written = written
        self._objects: dict[tuple[str, str], Json] = {}
        self._version = 100
        self.watchers: list[Callable[[Json, bool], None]] = []
        self.lost = 0.0
        self.late = 0.0
        self.latest_s = 12.0
        self.slow = 0.0
        self.writes = 0
        self.last_written = ""

    def quiet(self) -> None:
        self.lost = self.late = self.slow = 0.0

    # ------------------------------------------------------------ what users and tests do

    def find(self, kind: Kind, name: str) -> Json | None:
        return self._objects.get((kind.kind, name))

    def of_kind(self, kind: Kind) -> list[Json]:
        return [body for (name, _), body in self._objects.items() if name == kind.kind]

    def edit(self, kind: Kind, name: str, spec: dict[str, Any]) -> None:
        """A user changes the spec: a new generation."""
        body = self._objects[kind.kind, name]
        meta = {**body["metadata"], "generation": body["metadata"]["generation"] + 1}
        self._store("user", body, {**body, "metadata": meta, "spec": {**body["spec"], **spec}})

    # ------------------------------------------------------------ verbs

    def create(self, who: str, kind: Kind, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if (kind.kind, name) in self._objects:
            raise Conflict(409, f"{kind.kind} {name} exists already")
        meta = {
            "creationTimestamp": "2023-11-14T22:13:20Z",
            "generation": 1,
            "uid": f"00000000-0000-4000-8000-{len(self._objects) + self._version:012x}",
            **body["metadata"],
            "namespace": namespace,
        }
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": meta}
        if kind is EVENT:
            return made
        return self._store(who, None, made)

    def get(self, who: str, kind: Kind, name: str) -> Json:
        body = self._objects.get((kind.kind, name))
        if body is None:
            raise NotFound(404, f"{kind.kind} {name} does not exist")
        return body

    def replace(self, who: str, kind: Kind, body: Json) -> Json:
        old = self._current(kind, body)
        if kind is PARTITION_SLICE and body["controllerEpoch"] < old["controllerEpoch"]:
            raise Invalid(422, _STALE)
        return self._store(who, old, body)

    def replace_status(self, who: str, kind: Kind, body: Json) -> Json:
        old = self._current(kind, body)
        new_status, old_status = body.get("status") or {}, old.get("status") or {}
        self._check_status(new_status, old_status)
        return self._store(who, old, {**old, "status": new_status})

    @staticmethod
    def _check_status(new: Json, old: Json) -> None:
        for name in ("controllerEpoch", "observedGeneration"):
            if name in old and new.get(name, old[name]) < old[name]:
                raise Invalid(422, _STALE if name == "controllerEpoch" else name)
        before, now = old.get("controller"), new.get("controller")
        if before and now:
            lower = now["epoch"] < before["epoch"]
            if lower or (now["epoch"] == before["epoch"] and now != before):
                raise Invalid(422, _STALE)

    def apply(self, who: str, kind: Kind, name: str, patch: Json) -> Json:
        """Server-side apply of finalizers."""
        old = self.get(who, kind, name)
        if patch["metadata"]["uid"] != old["metadata"]["uid"]:
            raise Conflict(409, "another uid")
        wanted = patch["metadata"].get("finalizers") or []
        held = old["metadata"].get("finalizers") or []
        if wanted and set(wanted) <= set(held):
            return old
        merged = list(dict.fromkeys([*held, *wanted])) if wanted else held
        if merged == held:
            return old
        return self._store(who, old, {**old, "metadata": {**old["metadata"], "finalizers": merged}})

    def _current(self, kind: Kind, body: Json) -> Json:
        old = self.get("", kind, body["metadata"]["name"])
        if body["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise Conflict(409, "the object has been modified")
        return old

    def _store(self, who: str, old: Json | None, body: Json) -> Json:
        self._version += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version)}
        new = {**body, "metadata": meta}
        if old is not None and _same(old, new):
            return old
        self._objects[new["kind"], meta["name"]] = new
        if new["kind"] != LEASE.kind:
            self.writes += who != "user"
            self.last_written = f"{new['kind']} {meta['name']}"
            self._written(who, old, new)
            if new["kind"] != PARTITION_SLICE.kind:
                for watcher in self.watchers:
                    watcher(new, False)
        return new


def _same(old: Json, new: Json) -> bool:
    """A write that changes nothing gets no new version."""
    for name in {*old, *new} - {"metadata"}:
        if old.get(name) != new.get(name):
            return False
    return {**old["metadata"], "resourceVersion": ""} == {**new["metadata"], "resourceVersion": ""}


class Api:
    """What ``KubeApi`` is to one operator."""

    def __init__(self, server: ApiServer, loop: ProcessLoop) -> None:
        self._server = server
        self._loop = loop
        self.who = loop.name

    async def _call(self, verb: Callable[..., Any], *args: Any, writes: bool) -> Any:
        server, loop, world = self._server, self._loop, self._server.world
        chance = world.chance
        answer = loop.create_future()
        there_s = 0.0005 + 0.003 * chance.random()
        if writes and server.late and chance.random() < server.late:
            there_s = server.latest_s * chance.random()
        elif writes and server.slow and chance.random() < server.slow:
            there_s = 0.9 * _TIMEOUT_S * chance.random()
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

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        return await self._call(self._server.get, kind, name, writes=False)

    async def list_all(self, kind: Kind, namespace: str, *, label_selector: str = "") -> list[Json]:
        return await self._call(lambda _: self._server.of_kind(kind), writes=False)

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        return await self._call(self._server.create, kind, namespace, body, writes=True)

    async def replace(self, kind: Kind, body: Json, *, timeout_s: float | None = None) -> Json:
        return await self._call(self._server.replace, kind, body, writes=True)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        return await self._call(self._server.replace_status, kind, body, writes=True)

    async def apply(
        self, kind: Kind, namespace: str, name: str, body: Json, *, manager: str, force: bool
    ) -> Json:
        return await self._call(self._server.apply, kind, name, body, writes=True)


def _no_answer(answer: "asyncio.Future[Any]") -> None:
    if not answer.done():
        answer.set_exception(Unavailable(0, "no answer"))


def _settle(answer: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
