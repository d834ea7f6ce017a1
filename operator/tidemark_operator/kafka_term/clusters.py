"""Cluster whose engine is an Apache Kafka: its cluster id, its brokers' objects, its status."""

import dataclasses
import logging

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import left_behind
from tidemark_operator.controller.events import normal, warning
from tidemark_operator.controller.status import cluster_status
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.kafka_term.brokers import keep_objects, remove_objects
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, Key
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.objects.conversions import cluster_of, is_leaving
from tidemark_operator.reconcile.failures import take_refusals
from tidemark_operator.reconcile.foreign_objects import write_conditions
from tidemark_operator.resources.names import CLUSTER_FINALIZER

logger = logging.getLogger(__name__)

LEAVING_CHECK_S = 5.0


class KafkaClusterReconciler:
    """Reconciler of the Cluster of one term."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._reported_problem = ""

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile the Cluster of an existing Kafka cluster: Broker objects and status.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        if body is None:
            return None
        # A second Cluster of the namespace is refused, not served.
        if key != services.cluster_key:
            text = (
                f"this operator manages Cluster {services.cluster_key.name} of "
                "this namespace. Each Cluster needs its own namespace. Delete "
                "one of the two"
            )
            conditions = summary(
                ready=False, reason=Reason.SECOND_CLUSTER, message=text, stalled=True
            )
            await write_conditions(services, CLUSTER, key, body, conditions)
            return None
        generation = int(body["metadata"]["generation"])
        if is_leaving(body):
            return await self._leave(key, generation)
        # The finalizer is set before anything exists outside the Cluster.
        if not services.state.cluster.deletion_blocked:
            await services.client.ensure_finalizer(CLUSTER, body, CLUSTER_FINALIZER)
        await self._know_cluster(key)
        # While Kafka is unreachable, the objects of its known brokers stay.
        if not services.seen.problem:
            await keep_objects(services)
        self._tell(key)
        refused_s = take_refusals(services)
        await self._write(key, generation)
        return refused_s

    async def _know_cluster(self, key: Key) -> None:
        """Record the Kafka cluster's id in the status before anything is done in it."""
        services, seen = self._services, self._services.seen.cluster
        status = services.state.cluster.status
        if seen is not None and "clusterId" not in status:
            written = {**status, "clusterId": seen.cluster_id}
            await services.statuses.write(CLUSTER, key, written)

    async def _leave(self, key: Key, generation: int) -> float | None:
        """Delete in order: Topics need the engine for their own deletion, so they come first."""
        services, objects = self._services, self._services.objects
        if any(cluster_of(topic) == key.name for topic in objects.of_kind(TOPIC)):
            await self._write(key, generation)
            return LEAVING_CHECK_S
        if any(cluster_of(broker) == key.name for broker in objects.of_kind(BROKER)):
            await remove_objects(services)
            await self._write(key, generation)
            return LEAVING_CHECK_S
        raise TermEnded(f"Cluster {key.name} is being deleted, and no dependent object is left")

    def _tell(self, key: Key) -> None:
        """Emit one Event when Kafka becomes unreachable, and one when it answers again."""
        services, seen = self._services, self._services.seen
        if seen.problem == self._reported_problem:
            return
        event = (
            warning(CLUSTER.kind, key.namespaced_name, Reason.ENGINE_UNAVAILABLE, seen.problem)
            if seen.problem
            else normal(
                CLUSTER.kind, key.namespaced_name, "EngineAnswers", "Kafka is available again"
            )
        )
        self._reported_problem = seen.problem
        services.events.emit(event)

    async def _write(self, key: Key, generation: int) -> None:
        """Write the Cluster's status, with the reachability of Kafka."""
        services, now_ms = self._services, wall_ms()
        state, seen = services.state, services.seen
        unheard = "" if seen.cluster is not None else "the Kafka cluster has not answered yet"
        state.engine = dataclasses.replace(
            state.engine, problem=seen.problem or unheard, refused=seen.refused
        )
        former = state.cluster.status
        status = cluster_status(state, generation=generation, now_ms=now_ms).status
        forgotten = left_behind.settle(state).events
        if await services.statuses.write_if_due(CLUSTER, key, former, status, now_ms=now_ms):
            for event in forgotten:
                services.events.emit(event)
