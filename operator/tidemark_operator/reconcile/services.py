"""Collaborators of the reconcilers of one controller term; created for every term."""

import dataclasses
import uuid
from collections.abc import Callable

from tidemark_operator.background import BackgroundTasks
from tidemark_operator.certificates.certificates import Certificates, ClientCertificates
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.status.deletion_grace import GraceAnnouncements
from tidemark_operator.controller.tiering_disablement import DisablementProgress
from tidemark_operator.controller.topic_deletion import Deletions
from tidemark_operator.engines.base import Engine
from tidemark_operator.engines.own.broker_connections import OwnBrokers
from tidemark_operator.events import EventWriter
from tidemark_operator.jobs.runner import JobRunner
from tidemark_operator.kube.kinds import TOPIC, Json, Key, Kind
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient, StatusWriter
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.first_reports import FirstReports
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.slices.committer import Committer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TermServices:
    """Services of a term with any engine.

    ``cluster_key``: the Cluster that this operator controls. ``state``: the engine's view, with the
    objects of the API server. ``jobs`` runs those of Exports. ``export_image``,
    ``export_service_account``: see the settings. ``disablements``: what brokers have acknowledged.
    ``leads``: whether the Lease is still held. ``announcements``: deletions that this term has
    announced.
    """

    cluster_key: Key
    state: ControllerState
    engine: Engine
    objects: ObjectCache
    client: ObjectClient
    statuses: StatusWriter
    queue: KeyQueue
    background: BackgroundTasks
    events: EventWriter
    metrics: Metrics
    jobs: JobRunner
    export_image: str = ""
    export_service_account: str = ""
    leads: Callable[[], bool] = lambda: True
    disablements: DisablementProgress = dataclasses.field(default_factory=DisablementProgress)
    announcements: GraceAnnouncements = dataclasses.field(default_factory=GraceAnnouncements)

    def wake_topic(self, topic_id: uuid.UUID, *, ahead: bool = False) -> None:
        """Reconcile the Topic of an id soon, if there is one; ``ahead``: see the queue."""
        topic = self.state.topics.by_id(topic_id)
        if topic is not None:
            self.queue.add(TOPIC.key(topic.key), ahead=ahead)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerServices(TermServices):
    """Services of a term with Tidemark's own brokers.

    Commits change ``state``, answers of brokers change ``deletions``. ``allowed_endpoints`` and
    ``controller_addresses``: see the settings.
    """

    engine: OwnBrokers
    committer: Committer
    certificates: Certificates
    client_certificates: ClientCertificates
    allowed_endpoints: frozenset[str] = frozenset()
    controller_addresses: str = ""
    deletions: Deletions = dataclasses.field(default_factory=Deletions)
    first_reports: FirstReports = dataclasses.field(default_factory=FirstReports)

    async def named(self, kind: Kind, name: str) -> Json | None:
        """Return the object of that name, of a kind that the account may list but not get."""
        found = await self.client.api.list_all(kind, self.cluster_key.namespace, name=name)
        return found[0] if found else None

    def drop_user(self, key: Key) -> None:
        """Withdraw a User's rights from brokers."""
        self.state.users.drop(key.namespaced_name)
        self.client_certificates.forget(key.name)
        self.engine.publish_users()

    def wake_rebuilding(self) -> None:
        """Queue the objects that wait for brokers' reports, or that may no longer need them."""
        self.queue.add(self.cluster_key)
        if self.state.cluster.rebuilding is not None:
            for key in self.state.topics:
                self.queue.add(TOPIC.key(key))

    def wake_rebuilt(self, node_id: int) -> None:
        """Queue the objects that may have waited for a broker's report."""
        state = self.state
        self.wake_rebuilding()
        if state.cluster.rebuilding is not None:
            return
        # Topics that wait for a name which this broker's replicas explain.
        for topic_id in {topic_id for topic_id, _ in state.replica_reports.keys_on(node_id)}:
            if state.topics.by_id(topic_id) is None:
                for topic in state.topics.named(state.replica_reports.name(topic_id)):
                    self.queue.add(TOPIC.key(topic.key))
