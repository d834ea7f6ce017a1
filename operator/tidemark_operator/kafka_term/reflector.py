"""Reflection of API objects in the state: Topics, Brokers and the Cluster of this term."""

import dataclasses
import logging

from tidemark_operator.controller.status.topic_events import manifest_changes
from tidemark_operator.kafka_term.observer import take_rows
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.kinds import BROKER, TOPIC, WATCHED, Json, Key, key_of
from tidemark_operator.objects.conversions import cluster_info, cluster_of, topic_info
from tidemark_operator.resources.metadata import InvalidResource

logger = logging.getLogger(__name__)


class KafkaReflector:
    """Listener of the object store, for one term."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services

    def changed(self, body: Json) -> None:
        """Take an object as the API server has it now."""
        services, key = self._services, key_of(body)
        try:
            if key == services.cluster_key:
                self._cluster_changed(body)
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
            topic = services.state.topics.get(key.namespaced_name)
            services.state.drop_topic(key.namespaced_name)
            if topic is not None:
                # Another Topic may have waited for the name.
                for claim in services.state.topics_named(topic.name):
                    services.queue.add(TOPIC.key(claim.key))
        if key.kind == BROKER.kind or (key.kind == TOPIC.kind and services.state.cluster.deleting):
            services.queue.add(services.cluster_key)

    def catch_up(self) -> None:
        """Take everything in the store, and reconcile all of it."""
        services = self._services
        for kind in WATCHED:
            for body in list(services.objects.of_kind(kind)):
                self.changed(body)
                services.queue.add(key_of(body))
        for name in list(services.state.topics):
            if services.objects.get(TOPIC.key(name)) is None:
                self.gone(TOPIC.key(name))

    def _topic_changed(self, body: Json) -> None:
        """Put a Topic into the state, and apply the last observation of its topic to it.

        So a changed spec, for example another replication factor, has an effect without waiting.
        """
        services, state = self._services, self._services.state
        topic = topic_info(body, {})
        former = state.topics.get(topic.key)
        # A paused Topic keeps the configuration of the time of its pause.
        if topic.paused and former is not None and former.uid == topic.uid:
            topic = dataclasses.replace(topic, config=former.config)
        state.put_topic(topic)
        for event in manifest_changes(former, topic):
            services.events.emit(event)
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
            for topic in list(services.objects.of_kind(TOPIC)):
                self.changed(topic)
                services.queue.add(key_of(topic))


def cluster_of_any(body: Json) -> str:
    """Return the Cluster that an object names; "" for a kind that names none."""
    return cluster_of(body) if "clusterRef" in body["spec"] else ""
