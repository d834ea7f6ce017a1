"""Cluster whose engine is an Apache Kafka, and the ``Broker`` objects of its brokers.

The operator records the cluster's id and writes the statuses. It creates, updates and removes the
Broker objects; people only read them.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterable

from tidemark.kafka_client.values import Node
from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.state.events import normal, warning
from tidemark_operator.controller.status import broker_status
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.controller.status.write_pacing import figures_interval_ms
from tidemark_operator.kafka_term.observer import broker_key
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.kinds import BROKER, CLUSTER, Json, Key, key_of
from tidemark_operator.objects.conversions import cluster_of, is_leaving
from tidemark_operator.pods.identity import MANAGER, cluster_labels, manifest_head
from tidemark_operator.reconcile.failures import take_refusals
from tidemark_operator.reconcile.object_conditions import report_foreign, write_conditions
from tidemark_operator.reconcile.shared_steps import (
    leave_cluster,
    managed_cluster,
    write_cluster_status,
)
from tidemark_operator.resources.names import CLUSTER_FINALIZER, Workload

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
        body = await managed_cluster(services, key)
        if body is None:
            return None
        generation = int(body["metadata"]["generation"])
        if is_leaving(body):
            self._note_reachability()
            remove = functools.partial(keep_objects, services, ())
            return await leave_cluster(services, key, generation, remove)
        # The finalizer is set before anything exists outside the Cluster.
        if not services.state.cluster.deletion_blocked:
            await services.client.ensure_finalizer(CLUSTER, body, CLUSTER_FINALIZER)
        await self._record_cluster_id(key)
        # While Kafka is unreachable, the objects of its known brokers stay.
        if services.seen.cluster is not None and not services.seen.problem:
            await keep_objects(services, services.seen.cluster.nodes)
        self._report_reachability(key)
        refused_s = take_refusals(services)
        self._note_reachability()
        await write_cluster_status(services, key, generation)
        return refused_s

    async def _record_cluster_id(self, key: Key) -> None:
        """Record the Kafka cluster's id in the status before anything is done in it."""
        services, seen = self._services, self._services.seen.cluster
        status = services.state.cluster.status
        if seen is not None and "clusterId" not in status:
            written = {**status, "clusterId": seen.cluster_id}
            await services.statuses.write(CLUSTER, key, written)

    def _report_reachability(self, key: Key) -> None:
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


# ------------------------------------------------------------ Brokers


_ONLY = (
    "the brokers of this Cluster are Apache Kafka's (spec.engine.kafka), and "
    "the operator creates their Broker objects. Delete this one"
)


class KafkaBrokerReconciler:
    """Reconciler of Brokers of one term."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one Broker of an existing Kafka cluster, which only has a status.

        Returns the seconds until the next reconciliation; None: it waits for a change of the
        object.
        """
        services = self._services
        body = services.objects.get(key)
        # Deleted: if the broker still exists in Kafka, the Cluster's reconciler creates it again.
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        if cluster_of(body) != services.cluster_key.name:
            return await report_foreign(services, BROKER, key, body)
        if body["spec"]["workload"] != Workload.OBSERVED:
            conditions = summary(
                ready=False, reason=Reason.ENGINE_KAFKA, message=_ONLY, stalled=True
            )
            await write_conditions(services, BROKER, key, body, conditions, once=False)
            return None
        broker = services.state.brokers.get(int(body["spec"]["nodeId"]))
        # No such broker in Kafka: the Cluster's reconciler deletes this object.
        if broker is None or broker.key != key.namespaced_name:
            services.queue.add(services.cluster_key)
            return None
        return await self._write(key, body, broker.node_id)

    async def _write(self, key: Key, body: Json, node_id: int) -> float | None:
        services, now_ms = self._services, wall_ms()
        generation = int(body["metadata"]["generation"])
        former = body.get("status") or {}
        broker = dataclasses.replace(
            services.state.brokers[node_id], status=former, generation=generation
        )
        status = broker_status(services.state, broker, now_ms=now_ms).status
        written = await services.statuses.write_if_due(BROKER, key, former, status, now_ms=now_ms)
        return None if written or former == status else figures_interval_ms(status) / 1000


async def keep_objects(services: KafkaServices, nodes: Iterable[Node]) -> None:
    """Create a Broker object for each given broker of Kafka, and remove the others."""
    cluster = services.cluster_key
    bodies = {
        key_of(body).name: body
        for body in services.objects.of_kind(BROKER)
        if cluster_of(body) == cluster.name
    }
    # Create what is missing.
    node_ids = {broker_key(services, node.node_id): node.node_id for node in nodes}
    for name, node_id in node_ids.items():
        if name not in bodies:
            # Server-side apply: a second creation by another operator is no conflict.
            body = _manifest(services, name, node_id)
            await services.client.apply(BROKER, body, manager=MANAGER)
            services.queue.add(BROKER.key(f"{cluster.namespace}/{name}"))
    # Remove what the operator created for a broker that no longer exists.
    for name, body in bodies.items():
        if name not in node_ids and body["spec"]["workload"] == Workload.OBSERVED:
            await _remove(services, body)


async def _remove(services: KafkaServices, body: Json) -> None:
    if body["metadata"].get("deletionTimestamp"):
        return
    try:
        await services.client.delete(BROKER, key_of(body), uid=str(body["metadata"]["uid"]))
    except NotFound:
        logger.info("%s is already deleted", key_of(body))


def _manifest(services: KafkaServices, name: str, node_id: int) -> Json:
    """Return the Broker object of a node of the Kafka cluster."""
    cluster = services.cluster_key
    labels = cluster_labels(cluster.name)
    return {
        **manifest_head(BROKER.api_version, BROKER.kind, name, cluster.namespace, labels),
        "spec": {
            "clusterRef": {"name": cluster.name},
            "nodeId": node_id,
            "workload": str(Workload.OBSERVED),
        },
    }
