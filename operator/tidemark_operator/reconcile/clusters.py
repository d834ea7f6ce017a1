"""The Cluster: its configuration, its remote storage, its status. And the Clusters that are not
controlled by this operator, which are told so."""

import asyncio
import logging

from tidemark_operator.controller.events import normal, warning
from tidemark_operator.controller.status import cluster_status
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.controller.status.pacing import FIGURES_MS
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key
from tidemark_operator.reconcile import storage
from tidemark_operator.reconcile.context import Context, StorageState
from tidemark_operator.reconcile.elsewhere import write_conditions

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 3.0
STORAGE_RETRY_S = 5.0
STORAGE_CHECK_S = 60.0


class ClusterReconciler:
    """Reconciles the Cluster of one term."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failing = False

    async def reconcile(self, key: Key) -> float | None:
        """One step; when to look again, in seconds."""
        context = self._context
        body = context.objects.get(key)
        if body is None:
            return None
        if key != context.cluster_key:
            text = (
                f"this operator looks after Cluster {context.cluster_key.name} of this namespace: "
                "use one namespace for each Cluster"
            )
            conditions = summary(ready=False, reason="SecondCluster", message=text, stalled=True)
            await write_conditions(context, CLUSTER, key, body, conditions)
            return None
        if not body["metadata"].get("deletionTimestamp"):
            await self._storage(key, body)
        later_s = await self._write(key)
        if context.storage.problem:
            return STORAGE_RETRY_S
        configured = bool(body["spec"].get("remoteStorage"))
        check_s = STORAGE_CHECK_S if configured else None
        return min((s for s in (later_s, check_s) if s is not None), default=None)

    # ------------------------------------------------------------ storage

    async def look_first(self) -> None:
        """Before the first broker is told anything: the accepted storage with its credentials, or
        why it is not known yet. A store that does not answer holds the take-over up only
        briefly."""
        context = self._context
        body = context.objects.get(context.cluster_key)
        if body is None or not body["spec"].get("remoteStorage"):
            return
        context.storage = StorageState("", "the remote store has not answered yet")
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._resolve_accepted(body)
                await self._storage(context.cluster_key, body)
        except (TimeoutError, KubeError, storage.StorageProblem) as error:
            logger.warning("remote storage: %s", error or "no answer yet")
            context.state.cluster = context.cluster_view_of(body)

    async def _resolve_accepted(self, body: Json) -> None:
        """What was accepted before is given to the brokers whether the store answers or not: they
        check its identity themselves, and "unavailable" is not "none"."""
        context, spec = self._context, body["spec"]["remoteStorage"]
        former = (body.get("status") or {}).get("acceptedStorage")
        if former and not storage.moved(former, storage.location_of(spec) or {}):
            text = await storage.resolve(context.api, context.cluster_key.namespace, spec)
            context.storage = StorageState(text, context.storage.problem)

    async def _storage(self, key: Key, body: Json) -> None:
        before = self._context.storage
        found, accepted = await self._look(key, body)
        if accepted is not None:
            await self._record(key, accepted)
        if found == before:
            return
        context = self._context
        context.storage = found
        held = context.objects.get(key) or body
        context.state.cluster = context.cluster_view_of(held)
        self._told(key, found, is_new=accepted is not None)
        context.engine.publish()
        for topic_key in context.objects.keys(TOPIC):
            context.queue.add(topic_key)

    async def _look(self, key: Key, body: Json) -> tuple[StorageState, storage.Accepted | None]:
        """What may be used now; with it what has to be recorded first, if that is new."""
        context, spec = self._context, body["spec"].get("remoteStorage")
        status = body.get("status") or {}
        place, former = storage.location_of(spec), status.get("acceptedStorage")
        in_use = bool(status.get("tieredTopics"))
        if place is None or spec is None:
            if former and in_use:
                return self._kept(
                    f"remoteStorage was removed while {self._tiered()} need it: put it back"
                ), None
            return StorageState(), None
        why = "" if not former else storage.moved(former, place)
        if why and in_use:
            return self._kept(
                f"{why} while {self._tiered()} have data in the tier: set it back"
            ), None
        expected = "" if why or not former else str(status.get("storeId") or "")
        text = ""
        try:
            text = await storage.resolve(context.api, key.namespace, spec)
            accepted = await storage.accept(
                text,
                place,
                cluster_id=context.state.cluster.cluster_id,
                expected_store_id=expected,
            )
        except storage.StorageProblem as problem:
            usable = text if former and not why else context.storage.remote_storage
            return StorageState(usable, str(problem)), None
        new = former != place or status.get("storeId") != accepted.store_id
        return StorageState(text, ""), accepted if new else None

    def _kept(self, problem: str) -> StorageState:
        return StorageState(self._context.storage.remote_storage, problem)

    def _tiered(self) -> str:
        """The topics that have data in the tier, by name, a few of them."""
        topics = self._context.state.topics.values()
        names = sorted(topic.name for topic in topics if topic.tiering_status is not None)
        shown = ", ".join(names[:5]) or "topics"
        return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

    async def _record(self, key: Key, accepted: storage.Accepted) -> None:
        """Location and store id stand in the status before a broker is given the storage."""
        held = self._context.objects.get(key)
        status = dict((held or {}).get("status") or {})
        status["acceptedStorage"] = accepted.location
        status["storeId"] = accepted.store_id
        await self._context.write_status(CLUSTER, key, status)

    def _told(self, key: Key, now: StorageState, *, is_new: bool) -> None:
        """One Event when the storage is accepted, when it fails, and when it is back."""
        text, context = f"{key.namespace}/{key.name}", self._context
        if now.problem:
            self._failing = True
            context.emit(warning(CLUSTER.kind, text, "RemoteStorageUnavailable", now.problem))
        elif now.remote_storage and (is_new or self._failing):
            self._failing = False
            sentence = f"the remote tier is usable, store {context.state.cluster.store_id}"
            context.emit(normal(CLUSTER.kind, text, "RemoteStorageAccepted", sentence))

    # ------------------------------------------------------------ status

    async def _write(self, key: Key) -> float | None:
        context, now_ms = self._context, self._context.now_ms()
        former = context.state.cluster.status
        status = cluster_status(context.state, now_ms=now_ms).status
        if context.pacer.should_write(str(key), former, status, now_ms=now_ms):
            await context.write_status(CLUSTER, key, status)
        elif former != status:
            return FIGURES_MS / 1000
        return None
