"""Cluster whose engine is an Apache Kafka: its cluster id, its brokers' objects, its status."""

import dataclasses
import functools
import logging

from tidemark.reasons import Reason
from tidemark_operator.controller.events import normal, warning
from tidemark_operator.kafka_term.brokers import keep_objects, remove_objects
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import CLUSTER, Key
from tidemark_operator.objects.conversions import is_leaving
from tidemark_operator.reconcile.failures import take_refusals
from tidemark_operator.reconcile.shared_steps import (
    leave_cluster,
    report_second_cluster,
    write_cluster_status,
)
from tidemark_operator.resources.names import CLUSTER_FINALIZER

logger = logging.getLogger(__name__)


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
            await report_second_cluster(services, key, body)
            return None
        generation = int(body["metadata"]["generation"])
        if is_leaving(body):
            self._note_reachability()
            remove = functools.partial(remove_objects, services)
            return await leave_cluster(services, key, generation, remove)
        # The finalizer is set before anything exists outside the Cluster.
        if not services.state.cluster.deletion_blocked:
            await services.client.ensure_finalizer(CLUSTER, body, CLUSTER_FINALIZER)
        await self._know_cluster(key)
        # While Kafka is unreachable, the objects of its known brokers stay.
        if not services.seen.problem:
            await keep_objects(services)
        self._tell(key)
        refused_s = take_refusals(services)
        self._note_reachability()
        await write_cluster_status(services, key, generation)
        return refused_s

    async def _know_cluster(self, key: Key) -> None:
        """Record the Kafka cluster's id in the status before anything is done in it."""
        services, seen = self._services, self._services.seen.cluster
        status = services.state.cluster.status
        if seen is not None and "clusterId" not in status:
            written = {**status, "clusterId": seen.cluster_id}
            await services.statuses.write(CLUSTER, key, written)

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

    def _note_reachability(self) -> None:
        """Copy the reachability of Kafka into the state, from which the status is computed."""
        state, seen = self._services.state, self._services.seen
        unheard = "" if seen.cluster is not None else "the Kafka cluster has not answered yet"
        state.engine = dataclasses.replace(
            state.engine, problem=seen.problem or unheard, refused=seen.refused
        )
