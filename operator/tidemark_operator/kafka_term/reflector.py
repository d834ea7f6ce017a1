"""Reflection of API objects in the state: Topics, Brokers, Exports and the Cluster of this term."""

import dataclasses
import logging

from tidemark_operator.kafka_term.observer import take_rows
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import BROKER, EXPORT, TOPIC, Json, Key, key_of
from tidemark_operator.objects.conversions import cluster_info, cluster_of
from tidemark_operator.reconcile.reflector import ObjectReflector
from tidemark_operator.resources.metadata import InvalidResource

logger = logging.getLogger(__name__)


class KafkaReflector(ObjectReflector):
    """Listener of the object store, for one term."""

    _services: KafkaServices

    def changed(self, body: Json) -> None:
        """Take an object as the API server has it now."""
        services, key = self._services, key_of(body)
        try:
            if key == services.cluster_key:
                self._cluster_changed(body)
            elif key.kind == EXPORT.kind:
                self._put_export(body)
            elif cluster_of_any(body) != services.cluster_key.name:
                return
            elif key.kind == TOPIC.kind:
                self._topic_changed(body)
            elif key.kind == BROKER.kind:
                self._broker_changed(key, body)
        except InvalidResource as error:
            logger.warning("%s cannot be read by this version: %s", key, error)

    def gone(self, key: Key) -> None:
        """Drop a deleted object."""
        services = self._services
        services.statuses.forget(key)
        if key.kind == TOPIC.kind:
            self._drop_topic(key.namespaced_name)
        if key.kind == EXPORT.kind:
            self._drop_export(key.namespaced_name)
        self._wake_cluster(key)

    def _topic_changed(self, body: Json) -> None:
        """Put a Topic into the state, and apply the last observation of its topic to it.

        So a changed spec, for example another replication factor, has an effect without waiting.
        """
        services = self._services
        topic = self._put_topic(body, {})
        found = services.seen.topics.get(topic.name)
        if found is not None and found.view.topic_id == topic.topic_id:
            take_rows(services, topic, found)

    def _broker_changed(self, key: Key, body: Json) -> None:
        state = self._services.state
        known = state.brokers.get(int(body["spec"]["nodeId"]))
        if known is not None and known.key == key.namespaced_name:
            generation = int(body["metadata"]["generation"])
            status = body.get("status") or {}
            state.put_broker(dataclasses.replace(known, status=status, generation=generation))

    def _cluster_changed(self, body: Json) -> None:
        services, former = self._services, self._services.state.cluster
        services.client.api.own.follow(body)
        present = cluster_info(body, remote_storage="", storage_problem="")
        services.state.cluster = present
        # Defaults of the Cluster are part of every Topic's configuration.
        if dict(former.config) != dict(present.config):
            self._read_topics_again()


def cluster_of_any(body: Json) -> str:
    """Return the Cluster that an object names; "" for a kind that names none."""
    return cluster_of(body) if "clusterRef" in body["spec"] else ""
