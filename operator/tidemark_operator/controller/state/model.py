"""Values of the controller's state: rows of partitions, brokers, topics and the cluster.

All are frozen; :class:`ControllerState` (:mod:`controller_state`) indexes them. The reconcilers
convert Kubernetes objects into them, so that pydantic stays outside. A replica id below zero is a
placeholder (KIP-409). Times are milliseconds since the epoch.
"""

import dataclasses
import enum
import uuid
from collections.abc import Mapping
from typing import TypeAlias

from tidemark.configuration.broker_keys import (
    DISABLE_POLICY,
    TIERING_SYSTEM,
    UNDER_REPLICATED_CREATION,
)
from tidemark.configuration.table import CLUSTER
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.reasons import Reason
from tidemark.tier.maintenance.audit_record import TopicAudit
from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering
from tidemark.wire.control import Endpoint
from tidemark.wire.users import ClientQuota
from tidemark_operator.controller.state.rows import NO_LEADER, PartitionRow, RowKey, Tombstone

#: Imported from here by the rest of the controller.
__all__ = ["NO_LEADER", "PartitionRow", "RowKey", "Tombstone"]

NO_EPOCH = -1

#: A JSON value of a Kubernetes object; ``object`` because JSON is recursive.
Json: TypeAlias = Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """End of a log: leader epoch of its last record (-1: none), then its log end offset.

    Of two logs, the larger has every committed record of the smaller (KIP-101).
    """

    last_epoch: int
    next_offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """A broker's own report (BrokerStatus), kept in memory only.

    ``storage_error`` is about replicas or the log directory; ``directory_error`` is about the log
    directory only.
    """

    log_bytes: int = 0
    replicas: int = 0
    storage_error: str = ""
    directory_error: str = ""
    remote_error: str = ""
    store_id: str = ""
    #: Replicas whose whole log the broker copies again, each with what the former log lacked.
    set_aside: tuple[tuple[RowKey, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A ``Broker`` object and its registration.

    ``broker_epoch`` is -1 if the broker has never registered. ``directory_id`` outlives the
    process, ``incarnation_id`` identifies one process. ``reported_rack`` is from the latest
    registration and is persisted with it, because racks count while a broker is down and for a new
    controller. A fenced broker, or one that is shutting down, leads nothing and joins no ISR.
    A Reader has no replicas, and serves to consumers what only the tier has. ``annotations`` and
    ``deletion_blocked`` are as in :class:`TopicInfo`. ``status`` is the object's status as last
    read or written.
    """

    node_id: int
    key: str
    spec_rack: str | None = None
    reported_rack: str | None = None
    broker_epoch: int = NO_EPOCH
    incarnation_id: uuid.UUID | None = None
    directory_id: uuid.UUID | None = None
    listeners: tuple[Endpoint, ...] = ()
    fenced: bool = True
    #: Its last start proved a clean shutdown, or was before this controller's term.
    proven: bool = True
    shutting_down: bool = False
    deleting: bool = False
    drain: bool = False
    is_reader: bool = False
    deletion_blocked: bool = False
    #: Names of the listeners that have external addresses, by the spec.
    external: tuple[str, ...] = ()
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generation: int = 1
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Return whether the broker may lead, join an ISR and take replicas."""
        return self.broker_epoch >= 0 and not self.fenced and not self.shutting_down

    @property
    def registered(self) -> bool:
        return self.broker_epoch >= 0

    @property
    def leaving(self) -> bool:
        """Return whether the broker must give up its replicas and takes no new ones."""
        return self.deleting or self.drain or self.is_reader

    @property
    def rack(self) -> str | None:
        """Return the rack of the spec, else the one that the broker reported."""
        return self.spec_rack if self.spec_rack is not None else self.reported_rack


class DeletionPolicy(enum.Enum):
    DELETE = "Delete"
    ORPHAN = "Orphan"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TieringSpec:
    """``spec.tiering``; ``TieringSpec()`` if the block is absent.

    ``policy`` None stands for the Cluster's ``remote.log.disable.policy``.
    """

    enabled: bool = False
    policy: DisablePolicy | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PersistedTiering:
    """``status.tiering`` as persisted: the tiering, its start, and the brokers yet to acknowledge
    it.

    A topic that was never tiered has no such block.
    """

    tiering: Tiering = NEVER_TIERED
    since_ms: int = 0
    pending_brokers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A ``Topic`` object.

    - ``key`` is "namespace/name", ``name`` is Kafka's topic name.
    - ``topic_id`` is ``status.topicId``. Until that is written it is None, and ``uid`` becomes
      the id.
    - ``config`` has every Kafka key that is set for the topic, typed fields (``local.retention.*``)
      included. For a paused topic it is the configuration at the time of the pause.
    - ``config_problem`` says which part of it is refused ("" for none), with ``config_reason`` as
      the condition's reason.
    - ``partitions_placed`` and ``tiering_status`` are persisted in ``status``, which is the
      object's whole status as last read or written.
    - ``refuses_client_changes`` is None if the Cluster decides.
    - ``assignments`` are the brokers on which a client's request wants partitions.
    - ``annotations`` are those by which a person accepts something (:mod:`tidemark.annotations`),
      with their values.
    - ``deletion_blocked`` is set if the Topic is being deleted although it is ``protected``. It is
      still served, and ``deletion_ms`` is None.
    - ``deletion_grace`` is ``spec.deletionGracePeriod`` ("" for none, and with policy Orphan).
      Until it ends, a deleted Topic is still served: ``deletion_due_ms`` is the end, and
      ``deletion_ms`` is None.
    """

    key: str
    uid: uuid.UUID
    name: str
    generation: int
    partitions: int
    replication_factor: int
    config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config_problem: str = ""
    config_reason: Reason = Reason.LOCAL_RETENTION_TOO_LONG
    tiering_spec: TieringSpec = TieringSpec()
    tiering_status: PersistedTiering = PersistedTiering()
    topic_id: uuid.UUID | None = None
    created_ms: int = 0
    deletion_ms: int | None = None
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    deletion_grace: str = ""
    deletion_due_ms: int | None = None
    protected: bool = False
    deletion_blocked: bool = False
    refuses_client_changes: bool | None = None
    assignments: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    paused: bool = False
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    partitions_placed: int = 0
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> uuid.UUID:
        """Return the persisted topic id; before it is persisted, the UID of the object."""
        return self.topic_id or self.uid

    @property
    def is_internal(self) -> bool:
        """Return whether the topic has brokers' own state, so one broker is enough to create it."""
        return self.name in COORDINATORS_TOPICS

    @property
    def was_ready(self) -> bool:
        """Return whether its status says that this generation is Ready."""
        conditions = self.status.get("conditions")
        listed = conditions if isinstance(conditions, list | tuple) else ()
        return any(
            isinstance(condition, Mapping)
            and (condition.get("type"), condition.get("status")) == ("Ready", "True")
            and condition.get("observedGeneration") == self.generation
            for condition in listed
        )

    @property
    def tiering(self) -> Tiering:
        """Return the tiering as persisted."""
        return self.tiering_status.tiering


#: Characters of an annotation's value that a status contains.
ACCEPTED_CHARS_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Acceptance:
    """Consent of a person by annotation: the annotation, its value and its effect."""

    annotation: str
    value: str
    effect: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Reason for a refusal.

    The condition ``Stalled`` shows it, or ``Reconciling`` if it ``goes_on`` by itself once brokers
    or other objects are ready.
    """

    reason: Reason
    message: str
    goes_on: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedTopic:
    """A topic left by ``deletionPolicy: Orphan``, as listed in the Cluster's status.

    ``tiering_status`` is the tiering that an adoption starts from.
    """

    topic_id: uuid.UUID
    name: str
    since_ms: int
    tiering_status: PersistedTiering = PersistedTiering()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRebuilding:
    """State of a rebuilding of rows from brokers' reports, as in the Cluster's status.

    ``behind`` is set if every row may be older than the states that brokers received. Otherwise
    slices are lost and the remaining ones are correct.
    """

    since: str
    behind: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineNotes:
    """Facts about an engine other than Tidemark's own brokers.

    ``problem`` says why it cannot be reached ("" if it can); with ``refused`` only a person can fix
    that. ``tiering`` says what it lacks of KIP-950 ("" for nothing). ``keeps_rows`` is set if it
    stores partition state itself, so that no row is ever rebuilt.
    """

    keeps_rows: bool = False
    problem: str = ""
    refused: bool = False
    tiering: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Audits:
    """Last audit of each topic by its id; ``problem`` says why there is none ("" otherwise)."""

    topics: Mapping[uuid.UUID, TopicAudit] = dataclasses.field(default_factory=dict)
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A ``Cluster`` object.

    - ``config`` and ``groups`` are as in the spec.
    - ``remote_storage`` is the accepted storage configuration as JSON, with credentials resolved
      ("" for none); ``store_id`` is its accepted identity ("" before there is one).
    - ``storage_problem`` says why remote storage cannot be used ("" if it can, or none is
      configured).
    - ``swept`` is what the last sweep of the tier has left ("" for nothing, None before a sweep).
    - ``audits`` is what audits of the tier have found (None before the first).
    - ``certificates_problem`` says why an authority cannot issue certificates ("" if both can).
    - ``authorize``: ACLs decide what users may do, except ``super_users`` (principals without
      ``User:``). ``quotas`` apply to users without quotas of their own.
    - ``has_readers``: the operator creates Readers, possibly none at present.
    - ``annotations`` is as in :class:`TopicInfo`.
    """

    key: str
    cluster_id: str
    config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    remote_storage: str = ""
    store_id: str = ""
    storage_problem: str = ""
    swept: str | None = None
    audits: Audits | None = None
    certificates_problem: str = ""
    #: Objects that the API server refuses to create, with its reason.
    refused_creations: tuple[str, ...] = ()
    authorize: bool = False
    super_users: tuple[str, ...] = ()
    quotas: tuple[ClientQuota, ...] = ()
    #: Kafka clients may not change a spec, if the Topic does not say otherwise.
    refuses_client_changes: bool = False
    orphans: tuple[OrphanedTopic, ...] = ()
    rebuilding: ClusterRebuilding | None = None
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slices: int = 64
    has_readers: bool = False
    deleting: bool = False
    deletion_blocked: bool = False
    generation: int = 1
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def user_settings(self) -> tuple[object, ...]:
        """Return the parts of the Cluster that brokers receive together with the users."""
        return self.authorize, self.super_users, self.quotas

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.config.get(name)
        return default if value is None else value.strip().lower() == "true"

    def int_config(self, name: str) -> int:
        """Return the value of a whole-number key of the Cluster, or the key's default."""
        return int(self.config.get(name) or CLUSTER[name].default or 0)

    @property
    def under_replicated_creation(self) -> bool:
        """Return whether topics may be created with missing replicas (KIP-409)."""
        return self.flag(UNDER_REPLICATED_CREATION)

    @property
    def tiering_available(self) -> bool:
        """Return whether a topic may become tiered: tiering is on and its storage is accepted."""
        return self.flag(TIERING_SYSTEM) and bool(self.remote_storage)

    @property
    def disable_policy(self) -> DisablePolicy:
        """Return the default of ``remote.log.disable.policy`` (KIP-950: retain)."""
        configured = self.config.get(DISABLE_POLICY, "retain").strip().lower()
        return DisablePolicy.DELETE if configured == "delete" else DisablePolicy.RETAIN


def min_insync_replicas(topic: TopicInfo, cluster: ClusterInfo, replicas: int | None = None) -> int:
    """Return min(min.insync.replicas, replication factor), at least 1 (KIP-409).

    ``replicas`` is an existing partition's own number of replicas. It takes the place of the spec's
    replication factor, which may differ by then.
    """
    # A minimum above the replication factor would stop all producers, so it is capped.
    text = topic.config.get("min.insync.replicas") or cluster.config.get("min.insync.replicas", "1")
    configured = int(text) if text.isdecimal() else 1
    return max(1, min(configured, topic.replication_factor if replicas is None else replicas))


def unclean_election(topic: TopicInfo | None, cluster: ClusterInfo) -> bool:
    """Return ``unclean.leader.election.enable`` of the topic, else of the cluster, else false."""
    name = "unclean.leader.election.enable"
    # The topic's own value goes before the Cluster's, even if it is "false".
    if topic is not None and name in topic.config:
        return topic.config[name].strip().lower() == "true"
    return topic is not None and cluster.flag(name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Reason why a changed pod is not created yet.

    No broker has reached this operator, other brokers restart or are down, or partitions of this
    one are not fully in sync.
    """

    unreached: bool = False
    starting: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    behind: tuple[RowKey, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A broker's pod as last observed.

    ``hold``: a changed pod waits. ``restarting``: it is being created, or is not ready, because of
    ``why`` if that is known. ``refused`` and ``volume`` say why the pod, or its volume, differs
    from the spec. ``missing`` says why there can be no pod.
    """

    name: str
    hold: Hold | None = None
    restarting: bool = False
    refused: str = ""
    volume: str = ""
    why: str = ""
    missing: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """External address of one listener of one broker, or of any broker.

    ``host`` "" stands for the node's address, with ``by_external_ip`` its ExternalIP. ``port`` 0:
    there is no address. ``problem`` says why there is none, or why it differs from the spec; with
    ``refused`` a person has to act.
    """

    host: str = ""
    port: int = 0
    by_external_ip: bool = False
    problem: str | None = None
    refused: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class ExternalAddresses:
    """All external addresses.

    ``brokers`` are by node id and listener, ``bootstraps`` (any broker) by listener. A missing
    entry, or None, was not read yet. ``external_ips`` maps InternalIPs of Nodes to ExternalIPs (to
    itself without one). ``nodes_problem`` says why Nodes are not read.
    """

    brokers: dict[int, Mapping[str, ServiceAddress]] = dataclasses.field(default_factory=dict)
    bootstraps: Mapping[str, ServiceAddress] | None = None
    external_ips: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nodes_problem: str = ""
