"""One term over an Apache Kafka, from a takeover to its end.

A takeover claims the epoch in the Cluster's status, which fences the statuses that carry it, and
reads all objects. There are no slices, because Kafka stores the rows. Requests to Kafka are fenced
by the Lease alone, whose time is checked before each (docs/explanation/engines.md).
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

from tidemark.reasons import Reason
from tidemark_operator.controller.state.acknowledgements import AlwaysAcknowledged
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import EngineNotes
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.kafka_term.clusters import KafkaBrokerReconciler, KafkaClusterReconciler
from tidemark_operator.kafka_term.disablement import NOTE, Disabler
from tidemark_operator.kafka_term.observer import Observer
from tidemark_operator.kafka_term.reassignments import Mover
from tidemark_operator.kafka_term.reflector import KafkaReflector
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kafka_term.topics import KafkaTopicReconciler
from tidemark_operator.kube.kinds import (
    BROKER,
    CLUSTER,
    EXPORT,
    RECORD_DELETION,
    TOPIC,
    USER,
    Json,
    Key,
    key_of,
)
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.objects.conversions import cluster_info, cluster_of
from tidemark_operator.reconcile.engine_takeover import EngineTakeover, stored_epoch
from tidemark_operator.reconcile.engine_term import EngineTerm
from tidemark_operator.reconcile.export_reconciler import ExportReconciler
from tidemark_operator.reconcile.object_conditions import write_conditions
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.workers import LastPass

TICK_S = 1.0
_NO_USERS = (
    "users of Apache Kafka are not managed by the operator. Create them in "
    "that cluster (kafka-configs.sh, kafka-acls.sh), and delete this object"
)


# ------------------------------------------------------------ takeover


logger = logging.getLogger(__name__)


class KafkaTakeover(EngineTakeover):
    """Takeover with an Apache Kafka; ``run`` performs it."""

    async def run(self, body: Json) -> ControllerState:
        """Become the controller of a Cluster with an existing Kafka; return the state.

        ``body`` is the Cluster as it was just read.
        """
        # Raising the epoch fences the previous operator's status writes.
        body = await self.claim_epoch(body)
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
        await self.list_objects()
        self.objects.put(body)
        logger.info("Cluster %s: epoch %d", key_of(body), state.controller_epoch)
        return state


# ------------------------------------------------------------ term


class KafkaTerm(EngineTerm):
    """One term; ``run`` raises the reason of its end."""

    services: KafkaServices

    def __init__(self, services: KafkaServices, *, resync_s: float, last_pass: LastPass) -> None:
        """Create the parts of a term with an existing Kafka cluster; :meth:`run` starts them.

        For the other parameters see :class:`EngineTerm`.
        """
        # The observer reads Kafka's state. The mover reassigns replicas, and the disabler follows
        # disablements.
        self._observer = Observer(services)
        self._mover = Mover(services, self._observer)
        self._disabler = Disabler(services)
        topics = KafkaTopicReconciler(services, self._observer, self._mover, self._disabler)
        super().__init__(
            services,
            KafkaReflector(services),
            {
                TOPIC.kind: topics.reconcile,
                BROKER.kind: KafkaBrokerReconciler(services).reconcile,
                RECORD_DELETION.kind: RecordDeletionReconciler(services).reconcile,
                CLUSTER.kind: KafkaClusterReconciler(services).reconcile,
                EXPORT.kind: ExportReconciler(services).reconcile,
                USER.kind: self._refuse_user,
            },
            resync_s=resync_s,
            last_pass=last_pass,
        )

    def _tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {
            "pacemaker": self._keep_leading(),
            "observer": self._observer.run(),
            "mover": self._mover.run(),
            "disabler": self._disabler.run(),
        }

    async def _keep_leading(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not self.services.leads():
                raise TermEnded("the Lease expired")
            self.services.disablements.forget_gone(self.services.state)

    async def _refuse_user(self, key: Key) -> None:
        """Write once that Users are not supported here."""
        services = self.services
        body = services.objects.get(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return
        if cluster_of(body) != services.cluster_key.name:
            return
        conditions = summary(
            ready=False, reason=Reason.ENGINE_KAFKA, message=_NO_USERS, stalled=True
        )
        await write_conditions(services, USER, key, body, conditions)
