"""Writes of the reconcilers to the API server; every answer is put into the store at once.

The echo of an own write, which the watch delivers a moment later, is therefore no news. A status is
a PUT under the resourceVersion last seen. Finalizers are added and removed by server-side apply.

A status is written only if it has changed, and at most once a minute for figures alone.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from tidemark_operator.controller.status import Pacer
from tidemark_operator.health import Echoes
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import BY_KIND, Json, Key, Kind, key_of, resource_version
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache

PARALLEL_WRITES = 16
#: For the first writes of new objects: thousands of them must not delay other writes.
PARALLEL_HOLDS = 8


async def take_list(api: KubeApi, objects: ObjectCache, kind: Kind, namespace: str) -> list[Key]:
    """List all objects of a kind into the store, page by page; return the keys that changed.

    Changed keys have appeared, changed or vanished. Only one page is in memory: managed fields make
    a list of thousands of objects several times larger than what the store keeps.
    """
    changed: list[Key] = []
    present: set[Key] = set()
    reached, version = objects.reached(kind), 0
    async with contextlib.aclosing(api.pages(kind, namespace)) as pages:
        async for page in pages:
            # The first page shows whether the list belongs to the history that the store knows.
            if not version:
                objects.list_started(kind, page.resource_version, reached)
            version = page.resource_version
            present.update(map(key_of, page))
            changed += [key_of(body) for body in page if objects.list_item(kind, body, version)]
    # Objects that the list lacks were deleted.
    return changed + objects.remove_missing(kind, present, version)


class ObjectClient:
    """Writes at most ``PARALLEL_WRITES`` objects at a time, and ``PARALLEL_HOLDS`` new ones.

    All methods raise ``KubeError``.
    """

    def __init__(
        self, api: KubeApi, objects: ObjectCache, metrics: Metrics, echoes: Echoes
    ) -> None:
        self.api = api
        self._echoes = echoes
        self._objects = objects
        self._metrics = metrics
        self._parallel = asyncio.Semaphore(PARALLEL_WRITES)
        self._holds = asyncio.Semaphore(PARALLEL_HOLDS)

    async def replace_status(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """Write an object's status, based on the stored object; return the object as written.

        Raises ``Conflict`` if the stored object is not the newest: the watch then delivers the
        newest one, and its key is queued again.
        """
        cached = self._objects.get(key)
        if cached is None:
            raise NotFound(404, f"{key} is deleted")
        async with self._parallel:
            began_s = self._echoes.begins()
            written = await self.api.replace_status(kind, {**cached, "status": dict(status)})
        self._metrics.status_writes.labels(kind.kind).inc()
        # With an unchanged resourceVersion nothing was written, so the watch reports nothing.
        if resource_version(written) != resource_version(cached):
            self._echoes.wrote(kind.kind, began_s)
        self._objects.put(written)
        return written

    async def ensure_finalizer(self, kind: Kind, body: Json, finalizer: str) -> None:
        """Add our finalizer to the object, unless it is there."""
        if finalizer in finalizers_of(body):
            return
        async with self._holds:
            updated = await add_finalizer(self.api, kind, body, finalizer)
        self._objects.put(updated)

    async def release(self, kind: Kind, body: Json, finalizer: str) -> None:
        """Remove our finalizer from an object that is being deleted."""
        async with self._parallel:
            left = await remove_finalizer(self.api, kind, body, finalizer)
        # The last finalizer deletes the object: the store must not wait for the watch.
        if finalizers_of(left):
            self._objects.put(left)
        else:
            self._objects.remove(left)

    async def apply(self, kind: Kind, body: Json, *, manager: str, dry_run: bool = False) -> Json:
        """Apply an object server-side without force; return it with its managed fields.

        Raises ``Conflict`` with the fields that other managers own.
        """
        async with self._parallel:
            written = await self.api.apply(kind, body, manager=manager, dry_run=dry_run)
        if not dry_run:
            # The store drops the managed fields of what it takes in, and the caller needs them.
            self._objects.put({**written, "metadata": dict(written["metadata"])})
        return written

    async def delete(self, kind: Kind, key: Key, *, uid: str) -> None:
        """Request the deletion of exactly this object."""
        # The operator decided this deletion itself, so it is not in doubt.
        self._objects.confirm_deletion(uid)
        async with self._parallel:
            await self.api.delete(kind, key.namespace, key.name, uid=uid)
        await self.refresh(key)

    async def refresh(self, key: Key) -> bool:
        """Read the newest object of a key after a conflict; return whether it is news."""
        cached, kind = self._objects.get(key), BY_KIND[key.kind]
        try:
            found = await self.api.get(kind, key.namespace, key.name)
            return self._objects.read(kind, found, cached)
        except NotFound:
            # Only what was known is deleted: another object may have been created meanwhile.
            return cached is not None and self._objects.remove(cached)

    async def relist(self, kind: Kind, namespace: str) -> list[Key]:
        """Read every object of a kind; return the keys that appeared, changed or vanished.

        The kind's watch still has to report these changes, or it is broken.
        """
        began_s = self._echoes.begins()
        changed = await take_list(self.api, self._objects, kind, namespace)
        if changed:
            self._echoes.wrote(kind.kind, began_s)
        return changed


class StatusWriter:
    """Single writer of the statuses of watched objects. Raises ``KubeError``."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client
        self._pacer = Pacer()
        self._written: dict[Key, object] = {}

    async def write(self, kind: Kind, key: Key, status: Mapping[str, object]) -> Json:
        """Write the status now and return the object."""
        return await self._client.replace_status(kind, key, status)

    async def write_if_due(
        self,
        kind: Kind,
        key: Key,
        former: Mapping[str, object],
        status: Mapping[str, object],
        *,
        now_ms: int,
    ) -> bool:
        """Write a status if it is due; return whether it was written.

        A changed condition is written at once. Changed figures are written at most once in an
        interval.
        """
        if not self._pacer.should_write(str(key), former, status, now_ms=now_ms):
            return False
        await self.write(kind, key, status)
        return True

    async def write_once(
        self,
        kind: Kind,
        key: Key,
        former: Mapping[str, object],
        status: Mapping[str, object],
        *,
        uid: str,
        now_ms: int,
    ) -> None:
        """Write a status at most once per content.

        For an object that another operator may also manage: if that overwrites the status, this one
        does not repeat it. Otherwise two operators that contradict each other would write forever.
        """
        conditions: Any = status["conditions"]
        content = [uid, *({**condition, "lastTransitionTime": None} for condition in conditions)]
        # Transition times differ in each rendering, so they are not compared.
        if self._written.get(key) != content:
            await self.write_if_due(kind, key, former, status, now_ms=now_ms)
            self._written[key] = content

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deleted object."""
        self._written.pop(key, None)
        self._pacer.forget(str(key))
