"""One term over an Apache Kafka, from a takeover to its end.

A takeover claims the epoch in the Cluster's status, which fences the statuses that carry it, and
reads all objects. There are no slices, because Kafka stores the rows. Requests to Kafka are fenced
by the Lease alone, whose time is checked before each (docs/explanation/engines.md).
"""

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from tidemark.kafka_client.access import KafkaAccess
from tidemark.reasons import Reason
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.controller.state.acknowledgements import AlwaysAcknowledged
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import EngineNotes
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.engines.kafka.cluster import KafkaCluster
from tidemark_operator.engines.kafka.records import ApacheKafka
from tidemark_operator.events import EventWriter
from tidemark_operator.kafka_term.clusters import KafkaBrokerReconciler, KafkaClusterReconciler
from tidemark_operator.kafka_term.disablement import NOTE, Disabler
from tidemark_operator.kafka_term.observer import Observer
from tidemark_operator.kafka_term.reassignments import Mover
from tidemark_operator.kafka_term.reflector import KafkaReflector
from tidemark_operator.kafka_term.services import KafkaServices, ObservedCluster
from tidemark_operator.kafka_term.topics import KafkaTopicReconciler
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    RECORD_DELETION,
    TOPIC,
    USER,
    WATCHED,
    Json,
    Key,
    Kind,
    key_of,
)
from tidemark_operator.leadership.epoch import raise_epoch, stored_epoch
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient, StatusWriter, take_list
from tidemark_operator.objects.conversions import cluster_info, cluster_of
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.failures import reporter
from tidemark_operator.reconcile.object_conditions import write_conditions
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.reconcile.record_deletions import RecordDeletionReconciler
from tidemark_operator.reconcile.workers import LastPass, Reconcile, TermTasks, Workers
from tidemark_operator.resources.names import CLUSTER_FINALIZER

TICK_S = 1.0
_NO_USERS = (
    "users of Apache Kafka are not managed by the operator. Create them in "
    "that cluster (kafka-configs.sh, kafka-acls.sh), and delete this object"
)
_NO_EXPORTS = (
    "Exports support only topics of Tidemark's own brokers. Use tidemark spark "
    "export with --option engine=kafka for Apache Kafka, and delete this "
    "object"
)


# ------------------------------------------------------------ takeover


logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class KafkaTakeoverResult:
    """Start of a term."""

    cluster_key: Key
    state: ControllerState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTakeover:
    """Inputs of a takeover; ``run`` performs it."""

    api: KubeApi
    namespace: str
    identity: str
    leads: Callable[[], bool]
    objects: ObjectCache

    async def run(self, body: Json) -> KafkaTakeoverResult:
        """Become the controller of a Cluster with an existing Kafka; return the start of the term.

        ``body`` is the Cluster as it was just read.
        """
        meta = body["metadata"]
        if not meta.get("deletionTimestamp") and CLUSTER_FINALIZER not in finalizers_of(body):
            await add_finalizer(self.api, CLUSTER, body, CLUSTER_FINALIZER)
        # Raising the epoch fences the previous operator's status writes.
        body = await raise_epoch(
            self.api,
            self.namespace,
            str(meta["name"]),
            identity=self.identity,
            uid=str(meta["uid"]),
            beginning={},
            floor=0,
            leads=self.leads,
        )
        # Partitions are not loaded from slices: the observer reads them from Kafka.
        state = ControllerState(
            controller_id=self.identity,
            controller_epoch=stored_epoch(body),
            cluster=cluster_info(
                self.objects.without_unconfirmed_deletion(body),
                remote_storage="",
                storage_problem="",
            ),
        )
        state.acknowledgements = AlwaysAcknowledged()
        state.engine = EngineNotes(keeps_rows=True, tiering=NOTE)
        # List after the epoch is claimed: later changes arrive by the watch.
        for kind in WATCHED:
            await take_list(self.api, self.objects, kind, self.namespace)
        self.objects.put(body)
        logger.info("Cluster %s: epoch %d", key_of(body), state.controller_epoch)
        return KafkaTakeoverResult(key_of(body), state)


# ------------------------------------------------------------ term


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TermRoom:
    """Objects that outlive a term, or are created for it."""

    client: ObjectClient
    objects: ObjectCache
    queue: KeyQueue
    events: EventWriter
    metrics: Metrics


def kafka_term(
    taken: KafkaTakeoverResult,
    room: TermRoom,
    *,
    resync_s: float,
    leads: Callable[[], bool],
    last_pass: LastPass,
) -> "KafkaTerm":
    """Create the term that follows a takeover. It reads the access to Kafka when it starts."""
    # The access is empty at first: the observer reads it from the spec and its Secrets.
    cluster = KafkaCluster(KafkaAccess(()), leads=leads)
    services = KafkaServices(
        cluster_key=taken.cluster_key,
        state=taken.state,
        engine=ApacheKafka(cluster, taken.state),
        objects=room.objects,
        client=room.client,
        statuses=StatusWriter(room.client),
        queue=room.queue,
        background=BackgroundTasks(),
        events=room.events,
        metrics=room.metrics,
        leads=leads,
        seen=ObservedCluster(),
    )
    return KafkaTerm(services, resync_s=resync_s, leads=leads, last_pass=last_pass)


class KafkaTerm:
    """One term; ``run`` raises the reason of its end."""

    def __init__(
        self,
        services: KafkaServices,
        *,
        resync_s: float,
        leads: Callable[[], bool],
        last_pass: LastPass,
    ) -> None:
        """Create the parts of a term with an existing Kafka cluster; :meth:`run` starts them.

        ``leads``: whether this process still holds the Lease. ``last_pass``: time of the last
        reconciliation, for /healthz.
        """
        self.services = services
        self._leads = leads
        self._tasks = TermTasks(services, resync_s=resync_s)
        self.end, self.deliver = self._tasks.end, self._tasks.deliver
        # The observer reads Kafka's state. The mover reassigns replicas, and the disabler follows
        # disablements.
        self._reflector = KafkaReflector(services)
        self._observer = Observer(services)
        self._mover = Mover(services, self._observer)
        self._disabler = Disabler(services)
        topics = KafkaTopicReconciler(services, self._observer, self._mover, self._disabler)
        # Kinds without support on Apache Kafka get a condition that says so.
        reconcilers: dict[str, Reconcile] = {
            TOPIC.kind: topics.reconcile,
            BROKER.kind: KafkaBrokerReconciler(services).reconcile,
            RECORD_DELETION.kind: RecordDeletionReconciler(services).reconcile,
            CLUSTER.kind: KafkaClusterReconciler(services).reconcile,
            USER.kind: self._user,
            EXPORT.kind: self._export,
        }
        self._workers = Workers(services, reconcilers, last_pass)

    async def run(self) -> None:
        """Serve until the term ends. Raises the reason alone, not as an exception group."""
        services = self.services
        services.objects.listener = self._reflector
        services.client.api.own.on_refusal = reporter(services)
        # Load all objects into the state before the first key is reconciled.
        try:
            self._reflector.catch_up()
            await self._tasks.run(
                self._workers,
                pacemaker=self._keep_leading(),
                observer=self._observer.run(),
                mover=self._mover.run(),
                disabler=self._disabler.run(),
            )
        finally:
            await services.engine.close()
            await services.background.close()
            services.objects.listener = None

    async def _keep_leading(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self._leads():
                raise TermEnded("the Lease expired")
            self.services.disablements.forget_gone(self.services.state)

    async def _user(self, key: Key) -> float | None:
        """Write once that users are not supported here."""
        body = self._present(key)
        if body is not None and cluster_of(body) == self.services.cluster_key.name:
            await self._refuse(USER, key, body, _NO_USERS)
        return None

    async def _export(self, key: Key) -> float | None:
        """Write once that exports are not supported here."""
        body = self._present(key)
        if body is not None:
            await self._refuse(EXPORT, key, body, _NO_EXPORTS)
        return None

    def _present(self, key: Key) -> Json | None:
        body = self.services.objects.get(key)
        return None if body is None or body["metadata"].get("deletionTimestamp") else body

    async def _refuse(self, kind: Kind, key: Key, body: Json, why: str) -> None:
        conditions = summary(ready=False, reason=Reason.ENGINE_KAFKA, message=why, stalled=True)
        await write_conditions(self.services, kind, key, body, conditions)
