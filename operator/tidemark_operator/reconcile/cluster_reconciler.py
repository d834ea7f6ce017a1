"""Reconciler of the Cluster: configuration, remote storage, brokers, status.

Other Clusters of the namespace get a condition that explains why they are not controlled.

Audits run anywhere, with the keys of the store, and leave a record there
(:mod:`tidemark.tier.maintenance.audit_record`). The record changes once in weeks, and may be some
MiB with thousands of topics, so reading it once a minute is enough. A Topic is also reconciled when
only time has passed, because a clean audit counts for a limited time.
"""

import asyncio
import dataclasses
import functools
import logging
import time

from tidemark.error_text import error_text
from tidemark.reasons import Reason
from tidemark.tier.stores.config import location_of, moved
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import rebuilding
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.status.remote_integrity import has_changed, remote_integrity
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.objects.conversions import cluster_info, is_leaving
from tidemark_operator.reconcile import remote_storage
from tidemark_operator.reconcile.failures import take_refusals
from tidemark_operator.reconcile.made_brokers import MadeBrokers
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.shared_steps import (
    leave_cluster,
    managed_cluster,
    write_cluster_status,
)
from tidemark_operator.reconcile.workers import earliest
from tidemark_operator.resources.names import CLUSTER_FINALIZER

logger = logging.getLogger(__name__)

FIRST_LOOK_S = 3.0
STORAGE_RETRY_S = 5.0
#: Secrets are not watched: a changed key is noticed within this time.
STORAGE_CHECK_S = 15.0
#: The result of a sweep is shown within this time.
SWEEP_CHECK_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteStorageState:
    """State of the remote storage.

    ``remote_storage``: the JSON for the brokers, "" while none is accepted. ``problem``: why it
    cannot be used now, "" if it can, or if none is configured.
    """

    remote_storage: str = ""
    problem: str = ""


class ClusterReconciler:
    """Reconciles the Cluster of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._made_brokers = MadeBrokers(services)
        self._failing = False
        self._sweep_due_s = 0.0
        self._audits = AuditReader(services)

    @property
    def _known(self) -> RemoteStorageState:
        """State of the storage that the controller works with."""
        cluster = self._services.state.cluster
        return RemoteStorageState(cluster.remote_storage, cluster.storage_problem)

    def _know(self, found: RemoteStorageState) -> None:
        state = self._services.state
        state.cluster = dataclasses.replace(
            state.cluster, remote_storage=found.remote_storage, storage_problem=found.problem
        )

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile the Cluster object: remote storage, Broker objects, status, deletion.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = await managed_cluster(services, key)
        if body is None:
            return None
        generation = int(body["metadata"]["generation"])
        # A Cluster that is being deleted waits for its Topics and Brokers.
        if is_leaving(body):
            remove = functools.partial(self._made_brokers.remove, key)
            return await leave_cluster(services, key, generation, remove)
        # Raises InvalidResource, before anything is done for the object.
        cluster_info(body, remote_storage="", storage_problem="")
        if not services.state.cluster.deletion_blocked:
            await services.client.ensure_finalizer(CLUSTER, body, CLUSTER_FINALIZER)
        # Storage first: brokers and topics depend on it.
        await self._storage(key, body)
        if not self._known.problem:
            await self._look_at_sweep()
            await self._audits.look()
        await self._settle_unserved()
        # Then brokers, then what the API server refused, then the status that shows all of it.
        brokers_s = await self._made_brokers.keep(key, body)
        refused_s = take_refusals(services)
        later_s = await write_cluster_status(services, key, generation)
        configured = bool(body["spec"].get("remoteStorage"))
        check_s = STORAGE_CHECK_S if configured else None
        retry_s = STORAGE_RETRY_S if self._known.problem else None
        # The most urgent of all checks decides when to look again.
        return earliest(brokers_s, later_s, check_s, retry_s, refused_s)

    async def _settle_unserved(self) -> None:
        """Rebuild topics without a Topic object: no other reconciler does."""
        services = self._services
        if services.first_reports.are_complete and rebuilding.has_unserved(services.state):
            await services.committer.decide(rebuilding.settle_unserved, urgent=False)

    # ------------------------------------------------------------ storage

    async def check_first(self) -> None:
        """Find the accepted remote storage and its credentials, before brokers receive states.

        Called once in a takeover. Afterwards the state contains the storage, or the reason why it
        is not known yet; the regular reconciliation then checks it again. A store that does not
        respond delays the takeover by :data:`FIRST_LOOK_S` at most.
        """
        services = self._services
        body = services.objects.get(services.cluster_key)
        if body is None or not body["spec"].get("remoteStorage"):
            return
        # If brokers received "no remote storage" now, they would stop serving remote data.
        self._know(RemoteStorageState("", "the remote store has not responded yet"))
        try:
            # First the storage that the status names as accepted, then the one in the spec.
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._resolve_accepted(body)
                await self._storage(services.cluster_key, body)
        except (TimeoutError, KubeError, remote_storage.RemoteStorageProblem) as error:
            logger.warning(
                "Cluster %s: remote storage is not known yet: %s",
                services.cluster_key.namespaced_name,
                error_text(error),
            )
        except TermEnded:
            raise
        except Exception:
            # The reconciler checks again, and reports what keeps failing. Without this, a fault in
            # the check would end every term of every operator.
            logger.exception(
                "Cluster %s: the first check of the remote storage failed",
                services.cluster_key.namespaced_name,
            )

    async def _resolve_accepted(self, body: Json) -> None:
        """Give the brokers the storage that was accepted before, whether or not the store answers.

        They check its identity themselves, and "unavailable" does not mean "none".
        """
        services, spec = self._services, body["spec"]["remoteStorage"]
        former = (body.get("status") or {}).get("acceptedStorage")
        if former and not moved(former, location_of(spec) or {}):
            text = await remote_storage.resolve(
                services.client.api, services.cluster_key.namespace, spec
            )
            self._know(RemoteStorageState(text, self._known.problem))

    async def _look_at_sweep(self) -> None:
        """Read what the last sweep has left, once a minute at most."""
        state = self._services.state
        if not state.cluster.remote_storage or time.monotonic() < self._sweep_due_s:
            return
        self._sweep_due_s = time.monotonic() + SWEEP_CHECK_S
        swept = await remote_storage.last_sweep(state.cluster.remote_storage)
        if swept is not None:
            state.cluster = dataclasses.replace(state.cluster, swept=swept)

    async def _storage(self, key: Key, body: Json) -> None:
        """Check the remote storage in the spec.

        On a change, notify the brokers and queue all Topics.
        """
        before = self._known
        # Persist an acceptance before any broker uses the storage.
        found, accepted = await self._check(key, body)
        if accepted is not None:
            await self._record(key, accepted)
        if found == before:
            return
        services = self._services
        self._know(found)
        self._report(key, found, is_new=accepted is not None)
        # Brokers receive the storage with the topics that depend on it.
        services.engine.publish()
        for topic_key in services.objects.keys(TOPIC):
            services.queue.add(topic_key)

    async def _check(
        self, key: Key, body: Json
    ) -> tuple[RemoteStorageState, remote_storage.UsableStorage | None]:
        """Return the state of the remote storage, and an acceptance to persist, None for none.

        An acceptance is new if the location or the store's id differs from those in the status; it
        has to be persisted before brokers use the storage.
        """
        services, spec = self._services, body["spec"].get("remoteStorage")
        status = body.get("status") or {}
        place, former = location_of(spec), status.get("acceptedStorage")
        in_use = bool(status.get("tieredTopics"))
        # Removed: allowed only while no topic has data in the tier.
        if place is None or spec is None:
            if former and in_use:
                return self._kept(
                    f"remoteStorage was removed, but {self._tiered()} need it. Restore it"
                ), None
            return RemoteStorageState(), None
        # A move is allowed only without tiered topics, too: readers would lose the data at the old
        # place.
        why = "" if not former else moved(former, place)
        if why and in_use:
            return self._kept(
                f"{why}, but {self._tiered()} have data in the tier. Restore the previous value"
            ), None
        # A store's id is created at its first use. A store that was accepted before must have the
        # same id, which proves that it is the same store.
        expected = "" if why or not former else str(status.get("storeId") or "")
        text = ""
        try:
            text = await remote_storage.resolve(services.client.api, key.namespace, spec)
            accepted = await remote_storage.accept(
                text,
                place,
                remote_storage.Terms(
                    cluster_id=services.state.cluster.cluster_id,
                    store_id=expected,
                    create=remote_storage.asks_to_create(spec),
                    allowed_endpoints=services.allowed_endpoints,
                    credentials_secret=remote_storage.credentials_secret(spec),
                ),
            )
        except remote_storage.RemoteStorageProblem as problem:
            # A known store stays with the brokers while it, or its Secret, cannot be reached.
            usable = text if text and former and not why else self._known.remote_storage
            return RemoteStorageState(usable, str(problem)), None
        new = former != place or status.get("storeId") != accepted.store_id
        return RemoteStorageState(text, ""), accepted if new else None

    def _kept(self, problem: str) -> RemoteStorageState:
        return RemoteStorageState(self._known.remote_storage, problem)

    def _tiered(self) -> str:
        """Return the names of topics with data in the tier, at most five."""
        topics = self._services.state.topics.values()
        names = sorted(topic.name for topic in topics if topic.tiering.ever_tiered)
        shown = ", ".join(names[:5]) or "topics"
        return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

    async def _record(self, key: Key, accepted: remote_storage.UsableStorage) -> None:
        """Record location and store id in the status, before a broker receives the storage."""
        cached = self._services.objects.get(key)
        status = dict((cached or {}).get("status") or {})
        status["acceptedStorage"] = accepted.location
        status["storeId"] = accepted.store_id
        await self._services.statuses.write(CLUSTER, key, status)

    def _report(self, key: Key, now: RemoteStorageState, *, is_new: bool) -> None:
        """Emit an Event when the storage is accepted, when it fails, and when it works again."""
        text, events = key.namespaced_name, self._services.events
        if now.problem:
            self._failing = True
            events.emit(warning(CLUSTER.kind, text, Reason.REMOTE_STORAGE_UNAVAILABLE, now.problem))
        elif now.remote_storage and (is_new or self._failing):
            self._failing = False
            sentence = (
                f"the remote tier is available, store {self._services.state.cluster.store_id}"
            )
            events.emit(normal(CLUSTER.kind, text, "RemoteStorageAccepted", sentence))


# ------------------------------------------------------------ audits


AUDIT_CHECK_S = 60.0


class AuditReader:
    """Reader of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._due_s = 0.0

    async def look(self) -> None:
        """Read the audit record once a minute at most; without an answer the last result stays."""
        state = self._services.state
        if not state.cluster.remote_storage or time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + AUDIT_CHECK_S
        # None: the store did not answer.
        found = await remote_storage.last_audits(state.cluster.remote_storage)
        if found is not None:
            state.cluster = dataclasses.replace(state.cluster, audits=found)
        self._wake()

    def _wake(self) -> None:
        state, now_ms = self._services.state, wall_ms()
        for text, topic in state.topics.items():
            if topic.paused or topic.deletion_ms is not None or not state.rows_of(topic.id):
                continue
            current = remote_integrity(state, topic, topic.tiering_status, now_ms=now_ms)
            if has_changed(topic.status, current):
                self._services.queue.add(TOPIC.key(text))
