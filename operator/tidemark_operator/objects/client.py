"""The API server as the reconcilers use it: every answer is taken into the store at once.

So the echo of an own write, which the watch brings a moment later, is no news. A status is a PUT
under the resourceVersion last seen; a finalizer is set and taken away by server-side apply.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from tidemark_operator.health import Echoes
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import BY_KIND, Json, Key, Kind, key_of, resource_version
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectStore

PARALLEL_WRITES = 16
#: Of the first writes of new objects: thousands of them are not to hold up any other.
PARALLEL_HOLDS = 8


async def take_list(api: KubeApi, objects: ObjectStore, kind: Kind, namespace: str) -> list[Key]:
    """Take in all objects of a kind, a page at a time: the keys that appeared, changed or vanished.
    Thousands of them, with their managed fields, are several times what is kept of them."""
    changed: list[Key] = []
    present: set[Key] = set()
    reached, version = objects.reached(kind), 0
    async with contextlib.aclosing(api.pages(kind, namespace)) as pages:
        async for page in pages:
            if not version:
                objects.listing(kind, page.resource_version, reached)
            version = page.resource_version
            present.update(map(key_of, page))
            changed += [key_of(body) for body in page if objects.found(kind, body, version)]
    return changed + objects.keep(kind, present, version)


class ObjectClient:
    """Writes at most ``PARALLEL_WRITES`` objects at a time, and ``PARALLEL_HOLDS`` new ones. All
    methods raise ``KubeError``."""

    def __init__(
        self, api: KubeApi, objects: ObjectStore, metrics: Metrics, echoes: Echoes
    ) -> None:
        self.api = api
        self._echoes = echoes
        self._objects = objects
        self._metrics = metrics
        self._parallel = asyncio.Semaphore(PARALLEL_WRITES)
        self._holds = asyncio.Semaphore(PARALLEL_HOLDS)

    async def replace_status(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """The object with the new status; ``Conflict`` when what is in the store is not the newest
        (the caller's key then comes again with the newest object)."""
        held = self._objects.get(key)
        if held is None:
            raise NotFound(404, f"{key} is deleted")
        async with self._parallel:
            began_s = self._echoes.begins()
            written = await self.api.replace_status(kind, {**held, "status": dict(status)})
        self._metrics.status_writes.labels(kind.kind).inc()
        if resource_version(written) != resource_version(held):
            self._echoes.wrote(kind.kind, began_s)
        self._objects.put(written)
        return written

    async def hold(self, kind: Kind, body: Json, finalizer: str) -> None:
        """Our finalizer stands on the object."""
        if finalizer in finalizers_of(body):
            return
        async with self._holds:
            held = await add_finalizer(self.api, kind, body, finalizer)
        self._objects.put(held)

    async def release(self, kind: Kind, body: Json, finalizer: str) -> None:
        """Take our finalizer off an object that is being deleted."""
        async with self._parallel:
            left = await remove_finalizer(self.api, kind, body, finalizer)
        if finalizers_of(left):
            self._objects.put(left)
        else:
            self._objects.remove(left)

    async def apply(self, kind: Kind, body: Json, *, manager: str, dry_run: bool = False) -> Json:
        """Server-side apply without force: ``Conflict`` names the fields that others hold. The
        object as it then is, with its managed fields."""
        meta = body["metadata"]
        async with self._parallel:
            written = await self.api.apply(
                kind,
                meta["namespace"],
                meta["name"],
                body,
                manager=manager,
                force=False,
                dry_run=dry_run,
            )
        if not dry_run:
            self._objects.put({**written, "metadata": dict(written["metadata"])})
        return written

    async def delete(self, kind: Kind, key: Key, *, uid: str) -> None:
        """Ask for the deletion of exactly this object."""
        self._objects.believe(uid)
        async with self._parallel:
            await self.api.delete(kind, key.namespace, key.name, uid=uid)
        await self.refresh(key)

    async def refresh(self, key: Key) -> bool:
        """Read the newest object of a key, after a conflict; whether it is news."""
        held, kind = self._objects.get(key), BY_KIND[key.kind]
        try:
            found = await self.api.get(kind, key.namespace, key.name)
            return self._objects.read(kind, found, held)
        except NotFound:  # what was held: another may have been made meanwhile
            return held is not None and self._objects.remove(held)

    async def relist(self, kind: Kind, namespace: str) -> list[Key]:
        """Read every object of a kind; the keys that appeared, changed or vanished. That they did
        its watch has yet to tell."""
        began_s = self._echoes.begins()
        changed = await take_list(self.api, self._objects, kind, namespace)
        if changed:
            self._echoes.wrote(kind.kind, began_s)
        return changed
