"""Reflectors: copy the objects of a term from the store into the state.

:class:`ObjectReflector` has what both engines share; :class:`Reflector` is that of Tidemark's own
brokers.
"""

import abc
import dataclasses
import logging
from collections.abc import Iterable
from typing import Protocol

from tidemark_operator.controller import elections
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.status.topic_events import manifest_changes
from tidemark_operator.kube.kinds import BROKER, EXPORT, TOPIC, USER, WATCHED, Json, Key, key_of
from tidemark_operator.objects.conversions import broker_info, cluster_info, cluster_of, topic_info
from tidemark_operator.objects.exports import export_info
from tidemark_operator.reconcile.services import ReconcilerServices, TermServices
from tidemark_operator.resources.metadata import InvalidResource

logger = logging.getLogger(__name__)


class SessionObserver(Protocol):
    """Sessions of brokers, as far as objects concern them."""

    def close_session(self, broker_id: int) -> None:
        """Close the session of a broker whose object is deleted."""


class ObjectReflector(abc.ABC):
    """Listener of the store for one term, with any engine."""

    def __init__(self, services: TermServices) -> None:
        self._services = services

    @abc.abstractmethod
    def changed(self, body: Json) -> None:
        """Update the controller's state from a new or changed Kubernetes object."""

    @abc.abstractmethod
    def gone(self, key: Key) -> None:
        """Update the controller's state after an object was deleted."""

    def catch_up(self) -> None:
        """Load all objects of the store into the state, and queue each for reconciliation.

        Called at the end of a takeover, during which watch events did not update the state.
        """
        services = self._services
        for kind in WATCHED:
            for body in list(services.objects.of_kind(kind)):
                self.changed(body)
                services.queue.add(key_of(body))
        # Objects that were deleted during the takeover are still in the state.
        for key in self._known():
            if services.objects.get(key) is None:
                self.gone(key)

    def _known(self) -> list[Key]:
        """Return the keys of objects in the state that the store may lack."""
        return [TOPIC.key(name) for name in self._services.state.topics]

    def _put_topic(self, body: Json, defaults: dict[str, str]) -> TopicInfo:
        """Update a Topic; a pause keeps the former configuration from the moment it is seen.

        The Topic's status shows that configuration only later. Exports of a Topic that is created,
        replaced or deleted are reconciled.
        """
        state = self._services.state
        topic = topic_info(body, defaults)
        former = state.topics.get(topic.key)
        if topic.paused and former is not None and former.uid == topic.uid:
            topic = dataclasses.replace(topic, config=former.config)
        state.put_topic(topic)
        for event in manifest_changes(former, topic):
            self._services.events.emit(event)
        if former is None or (former.uid, former.deletion_ms) != (topic.uid, topic.deletion_ms):
            self._wake_exports(state.exports.of_topic(topic.key))
        return topic

    def _drop_topic(self, name: str) -> TopicInfo | None:
        """Drop a Topic; its Exports and other Topics that claim the same name are reconciled."""
        state = self._services.state
        topic = state.topics.get(name)
        state.topics.drop(name)
        if topic is not None:
            self._wake_named(topic.name)
        self._wake_exports(state.exports.of_topic(name))
        return topic

    def _put_export(self, body: Json) -> None:
        self._services.state.exports.put(export_info(body)[0])

    def _drop_export(self, name: str) -> None:
        """Drop an Export; others that wait for its table are reconciled."""
        self._wake_exports(self._services.state.exports.drop(name))

    def _wake_exports(self, names: Iterable[str]) -> None:
        for name in names:
            self._services.queue.add(EXPORT.key(name))

    def _wake_named(self, topic_name: str) -> None:
        for claim in self._services.state.topics.named(topic_name):
            self._services.queue.add(TOPIC.key(claim.key))

    def _wake_cluster(self, deleted: Key) -> None:
        """Queue the Cluster if it may wait for a deleted object, or replaces it."""
        services = self._services
        if deleted.kind == BROKER.kind or (
            deleted.kind == TOPIC.kind and services.state.cluster.deleting
        ):
            services.queue.add(services.cluster_key)

    def _read_topics_again(self) -> None:
        """Read all Topics again: defaults of the Cluster are part of their configuration."""
        for topic in list(self._services.objects.of_kind(TOPIC)):
            self.changed(topic)
            self._services.queue.add(key_of(topic))


class Reflector(ObjectReflector):
    """Listener of the store for a term with Tidemark's own brokers."""

    _services: ReconcilerServices

    def __init__(self, services: ReconcilerServices, sessions: SessionObserver) -> None:
        super().__init__(services)
        self._sessions = sessions

    def changed(self, body: Json) -> None:
        """Update the controller's state from a new or changed Kubernetes object.

        Objects of other Clusters are ignored. An object that this version cannot read leaves the
        state as it was; its reconciliation reports the reason.
        """
        # Each kind has its own part of the state.
        key, cluster_key = key_of(body), self._services.cluster_key
        try:
            if key == cluster_key:
                self._cluster_changed(body)
            elif key.kind == TOPIC.kind and cluster_of(body) == cluster_key.name:
                self._topic_changed(body)
            elif key.kind == BROKER.kind and cluster_of(body) == cluster_key.name:
                self._broker_changed(body)
            elif key.kind == USER.kind and body["metadata"].get("deletionTimestamp"):
                # Its rights end at once, whatever finalizers hold it.
                self._services.drop_user(key)
            elif key.kind == EXPORT.kind:
                self._put_export(body)
        except InvalidResource as error:
            logger.warning("%s cannot be read by this version: %s", key, error)

    def gone(self, key: Key) -> None:
        """Update the controller's state after an object was deleted.

        The partitions of a deleted Topic and other brokers' registrations stay: a missing object
        alone never deletes data.
        """
        # Broker: the state finds it by node id, so search for the object's name.
        services, name = self._services, key.namespaced_name
        services.statuses.forget(key)
        if key.kind == TOPIC.kind:
            self._topic_gone(name)
        if key.kind == BROKER.kind:
            for broker in list(services.state.brokers.values()):
                if broker.key == name:
                    self._broker_gone(broker.node_id)

        if key.kind == USER.kind:
            services.drop_user(key)
        if key.kind == EXPORT.kind:
            self._drop_export(name)
        self._wake_cluster(key)

    def _known(self) -> list[Key]:
        state = self._services.state
        brokers = [BROKER.key(broker.key) for broker in state.brokers.values()]
        return [*super()._known(), *brokers, *map(USER.key, state.users.known())]

    # ------------------------------------------------------------ by kind

    def _topic_changed(self, body: Json) -> None:
        self._put_topic(body, dict(self._services.state.cluster.config))

    def _topic_gone(self, name: str) -> None:
        state = self._services.state
        topic = self._drop_topic(name)
        if topic is not None:
            state.forget_reports(topic.id)

    def _broker_changed(self, body: Json) -> None:
        """Update a broker in the state from its Broker object.

        The registration (epoch, listeners, fencing) is kept from the state.
        """
        state = self._services.state
        broker = broker_info(body, fenced=True)
        former = state.brokers.get(broker.node_id)
        if former is None:
            state.put_broker(broker)
        # The object lags behind the registration, whose fields are therefore kept.
        elif former.key == broker.key:
            state.put_broker(
                dataclasses.replace(
                    former,
                    spec_rack=broker.spec_rack,
                    external=broker.external,
                    deleting=broker.deleting,
                    drain=broker.drain,
                    is_reader=broker.is_reader,
                    deletion_blocked=broker.deletion_blocked,
                    annotations=broker.annotations,
                    generation=broker.generation,
                    status=broker.status,
                )
            )

    def _broker_gone(self, node_id: int) -> None:
        """Drop a Broker and let others lead its partitions.

        No broker may receive a partition whose leader is missing from the list of brokers.
        """
        services = self._services
        self._sessions.close_session(node_id)
        services.state.drop_broker(node_id)
        services.engine.publish()
        if services.state.partitions.replica_count(node_id):
            services.background.spawn(("gone", node_id), self._let_others_lead(node_id))

    async def _let_others_lead(self, node_id: int) -> None:
        await self._services.committer.until_decided(
            lambda draft: elections.broker_gone(draft, node_id),
            f"the partitions that the deleted broker {node_id} led",
        )

    def _cluster_changed(self, body: Json) -> None:
        """Update the Cluster in the state from its object, and notify what depends on it."""
        services, former = self._services, self._services.state.cluster
        # Fields that do not come from the object (storage, certificates, sweeps) are kept.
        services.client.api.own.follow(body)
        services.state.cluster = dataclasses.replace(
            cluster_info(
                body,
                remote_storage=former.remote_storage,
                storage_problem=former.storage_problem,
            ),
            certificates_problem=former.certificates_problem,
            swept=former.swept,
            audits=former.audits,
        )
        # Each recipient is notified only of changes that concern it.
        present = services.state.cluster
        if former.user_settings != present.user_settings:
            services.engine.publish_users()
            for user in services.objects.keys(USER):
                services.queue.add(user)
        for left in set(former.orphans).symmetric_difference(present.orphans):
            self._wake_named(left.name)
        if former.groups != present.groups or former.rebuilding != present.rebuilding:
            services.engine.publish()
        if dict(former.config) != dict(present.config):
            self._read_topics_again()
            services.engine.publish()
