"""An API server without a network: objects with resourceVersions, and the refusals that fence.

A PUT under another resourceVersion is a conflict. A lower controller epoch is refused, as the rules
of the CRDs do. An object with finalizers stays until the last of them is removed. The simulation
and the unit tests of the operator's shell run against it.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from tests import kstatus
from tidemark_operator.kube.definitions import DEFINITION
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    FieldConflict,
    Invalid,
    KubeError,
    NotFound,
)
from tidemark_operator.kube.kinds import PARTITION_SLICE, Json, Kind, ObjectList
from tidemark_operator.kube.own_objects import OwnObjects

CREATED = "2023-11-14T22:13:20Z"
#: What a PUT that leaves it out does not change.
_OF_THE_SERVER = ("uid", "creationTimestamp", "generation")
STALE = "STALE_CONTROLLER_EPOCH: refused by a rule of the resource"


class FakeApiServer:
    """Names are unique over all namespaces.

    ``watchers`` are notified of each object except slices.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], Json] = {}
        self._version = 100
        #: Owner of each field, for objects that were applied.
        self._held: dict[tuple[str, str], dict[str, set[tuple[str, ...]]]] = {}
        self.watchers: list[Callable[[Json, bool], None]] = []
        #: Kinds whose definitions are being deleted.
        self.leaving_kinds: set[str] = set()

    def written(self, who: str, old: Json | None, new: Json) -> None:
        """An object has changed."""
        if new["kind"] != PARTITION_SLICE.kind:
            for watcher in self.watchers:
                watcher(new, False)

    # ------------------------------------------------------------ what users and tests do

    def find(self, kind: Kind, name: str) -> Json | None:
        return self._objects.get((kind.kind, name))

    @property
    def version(self) -> int:
        """Rises with each write."""
        return self._version

    def of_kind(self, kind: Kind) -> list[Json]:
        return [body for (name, _), body in self._objects.items() if name == kind.kind]

    def edit(self, kind: Kind, name: str, spec: dict[str, Any]) -> Json:
        """A user changes the spec: a new generation."""
        body = self._objects[kind.kind, name]
        meta = {**body["metadata"], "generation": body["metadata"]["generation"] + 1}
        return self._store(
            "user", body, {**body, "metadata": meta, "spec": {**body["spec"], **spec}}
        )

    # ------------------------------------------------------------ verbs

    def create(self, who: str, kind: Kind, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if (kind.kind, name) in self._objects:
            raise Conflict(409, f"{kind.kind} {name} exists already")
        meta = {
            "creationTimestamp": CREATED,
            "generation": 1,
            "uid": f"00000000-0000-4000-8000-{len(self._objects) + self._version:012x}",
            **body["metadata"],
            "namespace": namespace,
        }
        made = {"apiVersion": kind.api_version, "kind": kind.kind, **body, "metadata": meta}
        return self._store(who, None, made)

    def get(self, who: str, kind: Kind, name: str) -> Json:
        return self._managed(self._present(kind, name))

    def _present(self, kind: Kind, name: str) -> Json:
        body = self._objects.get((kind.kind, name))
        if body is None:
            raise NotFound(404, f"{kind.kind} {name} does not exist")
        return body

    def list_all(self, who: str, kind: Kind, label_selector: str) -> ObjectList:
        name, _, value = label_selector.partition("=")
        labelled = (
            body
            for body in self.of_kind(kind)
            if not name or (body["metadata"].get("labels") or {}).get(name) == value
        )
        return ObjectList(labelled, resource_version=self._version)

    def replace(self, who: str, kind: Kind, body: Json) -> Json:
        old = self._current(kind, body)
        # The fence of the CRD's validation rule.
        if kind is PARTITION_SLICE and body["controllerEpoch"] < old["controllerEpoch"]:
            raise Invalid(422, STALE)
        kept = {name: old["metadata"][name] for name in _OF_THE_SERVER}
        return self._store(who, old, {**body, "metadata": kept | body["metadata"]})

    def replace_status(self, who: str, kind: Kind, body: Json) -> Json:
        old = self._current(kind, body)
        new_status, old_status = body.get("status") or {}, old.get("status") or {}
        _check_status(new_status, old_status)
        _check_verdict({**old, "status": new_status})
        return self._store(who, old, {**old, "status": new_status})

    def apply(self, who: str, kind: Kind, name: str, patch: Json) -> Json:
        """Server-side apply of finalizers."""
        old = self._present(kind, name)
        if patch["metadata"]["uid"] != old["metadata"]["uid"]:
            raise Conflict(409, "another uid")
        wanted = patch["metadata"].get("finalizers") or []
        held = old["metadata"].get("finalizers") or []
        if wanted and set(wanted) <= set(held):
            return old
        merged = list(dict.fromkeys([*held, *wanted])) if wanted else held
        return old if merged == held else self._finalizers(who, old, merged)

    def apply_fields(self, who: str, kind: Kind, name: str, patch: Json, manager: str) -> Json:
        """Server-side apply of a spec, without force: what another holds and is to be otherwise is
        a conflict; what the manager held and leaves out goes, unless another holds it too. A uid
        and a resourceVersion have to be those of the object."""
        held = self._held.setdefault((kind.kind, name), {})
        old = self._objects.get((kind.kind, name))
        # Preconditions, as a patch with a uid or a version has.
        for identity in ("uid", "resourceVersion"):
            wanted_one = patch["metadata"].get(identity)
            if wanted_one is not None and (old is None or old["metadata"][identity] != wanted_one):
                raise Conflict(409, f"another {identity}")
        # Spec and user metadata as flat fields, so that ownership is per field.
        wanted = dict(_leaves({"spec": patch["spec"]}))
        wanted |= dict(_leaves({"metadata": _user_metadata(patch)}))
        present = {} if old is None else dict(_leaves({"spec": old["spec"]}))
        if old is not None:
            present |= dict(_leaves({"metadata": _user_metadata(old)}))
        # A field of another manager with another value is a conflict without force.
        for path, value in wanted.items():
            for other, paths in held.items():
                if other != manager and path in paths and present.get(path) != value:
                    field = ".".join(path)
                    raise FieldConflict(
                        409, f'Apply failed with 1 conflict: conflict with "{other}": .{field}'
                    )
        # Fields that this manager held and no longer applies are removed, unless another holds
        # them.
        others = set().union(*(paths for other, paths in held.items() if other != manager))
        gone = held.get(manager, set()) - set(wanted) - others
        fields = {path: value for path, value in {**present, **wanted}.items() if path not in gone}
        held[manager] = set(wanted)
        merged = _tree(fields)
        if old is None:
            meta = {**merged.get("metadata", {}), "name": name}
            namespace = patch["metadata"]["namespace"]
            return self.create(who, kind, namespace, {"metadata": meta, "spec": merged["spec"]})
        # Only a changed spec raises the generation.
        generation = old["metadata"]["generation"] + (merged["spec"] != old["spec"])
        kept = {k: v for k, v in old["metadata"].items() if k not in ("labels", "annotations")}
        meta = {**kept, **merged.get("metadata", {}), "generation": generation}
        return self._store(who, old, {**old, "metadata": meta, "spec": merged["spec"]})

    def hold(self, kind: Kind, name: str, manager: str, *paths: tuple[str, ...]) -> None:
        """Let a manager own fields of an object, as if its manifest had applied them."""
        self._held.setdefault((kind.kind, name), {}).setdefault(manager, set()).update(paths)

    def _managed(self, body: Json) -> Json:
        """With who holds which field."""
        held = self._held.get((body["kind"], body["metadata"]["name"]))
        if not held:
            return body
        entries = [
            {"manager": manager, "operation": "Apply", "fieldsV1": _fields_v1(paths)}
            for manager, paths in held.items()
        ]
        return {**body, "metadata": {**body["metadata"], "managedFields": entries}}

    def json_patch(self, who: str, kind: Kind, name: str, patch: list[Json]) -> Json:
        """Removal of one finalizer, under tests of its place and of the uid."""
        old = self._present(kind, name)
        held = list(old["metadata"].get("finalizers") or [])
        uid, finalizer, removal = patch
        index = int(removal["path"].rpartition("/")[2])
        if uid["value"] != old["metadata"]["uid"] or held[index] != finalizer["value"]:
            raise Invalid(422, "a test of the patch failed")
        return self._finalizers(who, old, [*held[:index], *held[index + 1 :]])

    def delete(self, who: str, kind: Kind, name: str, uid: str = "") -> Json:
        old = self._present(kind, name)
        if uid and uid != old["metadata"]["uid"]:
            raise Conflict(409, "another uid")
        if not old["metadata"].get("finalizers"):
            return self._remove(old)
        meta = {**old["metadata"], "deletionTimestamp": CREATED}
        return self._store(who, old, {**old, "metadata": meta})

    # ------------------------------------------------------------ the store

    def _finalizers(self, who: str, old: Json, finalizers: list[str]) -> Json:
        new = self._store(
            who, old, {**old, "metadata": {**old["metadata"], "finalizers": finalizers}}
        )
        # The last finalizer of a deleted object removes it.
        gone = not finalizers and "deletionTimestamp" in new["metadata"]
        return self._remove(new) if gone else new

    def _remove(self, body: Json) -> Json:
        del self._objects[body["kind"], body["metadata"]["name"]]
        self._held.pop((body["kind"], body["metadata"]["name"]), None)
        for watcher in self.watchers:
            watcher(body, True)
        return body

    def _current(self, kind: Kind, body: Json) -> Json:
        old = self._present(kind, body["metadata"]["name"])
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
        self.written(who, old, new)
        return new


def _user_metadata(body: Json) -> Json:
    return {k: v for k, v in body["metadata"].items() if k in ("labels", "annotations")}


def _leaves(value: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


def _tree(leaves: dict[tuple[str, ...], Any]) -> Json:
    made: Json = {}
    for path, value in leaves.items():
        place = made
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return made


def _fields_v1(paths: set[tuple[str, ...]]) -> Json:
    return _tree({tuple(f"f:{name}" for name in path): {} for path in sorted(paths)})


def _check_status(new: Json, old: Json) -> None:
    for name in ("controllerEpoch", "observedGeneration"):
        if name in old and new.get(name, old[name]) < old[name]:
            raise Invalid(422, STALE if name == "controllerEpoch" else name)
    before, now = old.get("controller"), new.get("controller")
    if before and now:
        lower = now["epoch"] < before["epoch"]
        if lower or (now["epoch"] == before["epoch"] and now != before):
            raise Invalid(422, STALE)


def _check_verdict(body: Json) -> None:
    """Check that no status makes tools stop waiting too early, or wait for a failed object."""
    conditions = (body.get("status") or {}).get("conditions")
    if conditions and any(condition["type"] == "Stalled" for condition in conditions):
        said, meant = kstatus.verdict(body), kstatus.expected(body)
        assert said == meant, f"{body['kind']}: {said} for kstatus, {meant} for people: {body}"


def _same(old: Json, new: Json) -> bool:
    """A write that changes nothing gets no new version."""
    for name in {*old, *new} - {"metadata"}:
        if old.get(name) != new.get(name):
            return False
    return {**old["metadata"], "resourceVersion": ""} == {**new["metadata"], "resourceVersion": ""}


class FakeKubeApi:
    """One process's ``KubeApi``.

    ``calls`` has every call, as "verb Kind name"; ``fail`` lets one of them fail.
    """

    def __init__(self, server: FakeApiServer, who: str = "operator") -> None:
        self.server = server
        self.who = who
        self.calls: list[str] = []
        self.own = OwnObjects()
        self._failures: list[tuple[str, KubeError, bool]] = []
        self._fail_at: tuple[int, KubeError, bool] | None = None
        self.page_max = 500
        #: What a dry run of a creation comes back with.
        self.refuses_creation: KubeError | None = None
        #: What a read of a definition comes back with.
        self.refuses_definitions: KubeError | None = None
        #: Called before each write, with its "verb Kind name".
        self.before: Callable[[str], None] = lambda _: None

    def fail(
        self, call: str, error: KubeError | None = None, *, times: int = 1, after: bool = False
    ) -> None:
        """The next calls that begin with ``call`` fail, ``after`` they took effect or without any;
        without an ``error``: no answer comes."""
        failure = (call, error or ApiServerUnavailable(0, "no answer"), after)
        self._failures += [failure] * times

    def fail_at(self, number: int, error: KubeError, *, after: bool = False) -> None:
        """Fail the call of that number (from 0, earlier ones included) as ``fail`` does, and
        every later one: its caller counts as dead.
        """
        self._fail_at = number, error, after

    async def _call(self, verb: Callable[..., Any], *args: Any, writes: bool, who: str = "") -> Any:
        kind, *rest = args
        bodies = (item for item in rest if isinstance(item, dict))
        name = next((body["metadata"]["name"] for body in bodies), rest[0])
        call = f"{verb.__name__} {kind.kind} {name}"
        self.calls.append(call)
        if writes:
            self.before(call)
        self._die(len(self.calls) - 1)
        # A planned failure is used once. It may strike before or after the call took effect.
        failure = next((item for item in self._failures if call.startswith(item[0])), None)
        if failure is not None:
            self._failures.remove(failure)
        if failure is None or failure[2]:
            result = verb(self.who, *args)
        if failure is not None:
            raise failure[1]
        return result

    def revive(self) -> None:
        """Let calls succeed again, as for the next process."""
        self._fail_at = None
        self._failures.clear()

    def _die(self, number: int) -> None:
        if self._fail_at is None or number < self._fail_at[0]:
            return
        at, error, after = self._fail_at
        if number > at:
            raise error
        self._failures.insert(0, ("", error, after))

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        if kind == DEFINITION:  # each of ours is there, and not counted
            if self.refuses_definitions is not None:
                raise self.refuses_definitions
            leaving = any(
                name.startswith(f"{leaving_kind.lower()}s.")
                for leaving_kind in self.server.leaving_kinds
            )
            return {"metadata": {"deletionTimestamp": CREATED} if leaving else {}}
        return await self._call(self.server.get, kind, name, writes=False)

    async def list_all(self, kind: Kind, namespace: str, *, label_selector: str = "") -> ObjectList:
        return await self._call(self.server.list_all, kind, label_selector, writes=False)

    async def pages(
        self, kind: Kind, namespace: str, *, label_selector: str = ""
    ) -> AsyncIterator[ObjectList]:
        """Yield pages of ``page_max`` objects, all as they were at the first request."""
        whole = await self.list_all(kind, namespace, label_selector=label_selector)
        for start in range(0, max(1, len(whole)), self.page_max):
            page = whole[start : start + self.page_max]
            yield ObjectList(page, resource_version=whole.resource_version)

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        async def send(marked: Json) -> Json:
            return await self._call(self.server.create, kind, namespace, marked, writes=True)

        return await self.own.write(kind, body, send)

    async def try_create(self, kind: Kind, namespace: str, body: Json) -> None:
        """To see whether the kind is served."""
        if self.refuses_creation is not None:
            raise self.refuses_creation
        if kind.kind in self.server.leaving_kinds:
            raise ApiServerUnavailable(405, "create not allowed while ... is terminating")
        raise Invalid(422, "spec is required")

    async def replace(self, kind: Kind, body: Json, *, timeout_s: float | None = None) -> Json:
        async def send(marked: Json) -> Json:
            return await self._call(self.server.replace, kind, marked, writes=True)

        return await self.own.write(kind, body, send)

    async def replace_status(self, kind: Kind, body: Json) -> Json:
        return await self._call(self.server.replace_status, kind, body, writes=True)

    async def apply(
        self,
        kind: Kind,
        body: Json,
        *,
        manager: str,
        force: bool = False,
        dry_run: bool = False,
    ) -> Json:
        name = body["metadata"]["name"]
        if dry_run:
            return {**body, "metadata": {**body["metadata"], "uid": "dry-run"}}
        # An apply of a spec, in contrast to one of finalizers.
        if "spec" in body:

            async def send(applied: Json) -> Json:
                fields = self.server.apply_fields
                return await self._call(fields, kind, name, applied, manager, writes=True)

            if "uid" in body["metadata"]:
                return await send(body)
            return await self.own.write(kind, body, send)
        return await self._call(self.server.apply, kind, name, body, writes=True)

    async def json_patch(self, kind: Kind, namespace: str, name: str, patch: list[Json]) -> Json:
        return await self._call(self.server.json_patch, kind, name, patch, writes=True)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> Json:
        return await self._call(self.server.delete, kind, name, uid, writes=True)
