"""What the controller knows: rows of partitions, brokers, topics, the cluster.

Frozen values; :class:`~tidemark_operator.controller.controller_state.ControllerState` indexes them.
The shell converts Kubernetes objects into these (pydantic stays outside). Words are Kafka's; a
replica id below zero is a placeholder (KIP-409). Times are milliseconds since the epoch.
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
from tidemark.tier.audit_record import TopicAudit
from tidemark.tiering import NEVER_TIERED, DisablePolicy, Tiering
from tidemark.wire.control import Endpoint, LeaderRecoveryState
from tidemark.wire.users import ClientQuota

NO_LEADER = -1
NO_EPOCH = -1

#: A JSON value of a Kubernetes object; ``object`` because JSON is recursive.
Json: TypeAlias = Mapping[str, object]
#: (topic id, partition)
RowKey: TypeAlias = tuple[uuid.UUID, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition as the slices hold it. ``name`` is the topic's name and stands only in the row
    of partition 0: it is how a name stays known when its Topic object is gone (rule *Identity*).
    ``elr`` and ``last_known_elr`` (KIP-966, :mod:`eligible_leaders`) are replicas outside the ISR
    that still hold, or may hold, all that is committed. None in the three of them means that every
    copy was lost: the partition waits for a person. ``leader_recovery_state`` (KIP-704) is
    RECOVERING from an unclean election until a leader says that its log is in order; the ISR is
    then that leader alone."""

    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    manifest: bool = False
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    name: str = ""

    @property
    def key(self) -> RowKey:
        return self.topic_id, self.partition

    @property
    def hosts(self) -> tuple[int, ...]:
        """The replicas that are brokers, in order of preference."""
        return tuple(replica for replica in self.replicas if replica >= 0)

    @property
    def holders(self) -> tuple[int, ...]:
        """Replicas that hold all that is committed, or may: none is a lost partition."""
        return self.isr + self.elr + self.last_known_elr

    @property
    def recovering(self) -> bool:
        return self.leader_recovery_state is LeaderRecoveryState.RECOVERING

    @property
    def placeholders(self) -> int:
        return sum(replica < 0 for replica in self.replicas)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """How far a log reaches: the leader epoch of its last record (-1: none), then its LEO. Of two
    logs the larger holds all that the smaller does of what is committed (KIP-101)."""

    last_epoch: int
    next_offset: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """A broker's answer about one replica, for as long as ``broker_epoch`` and ``leader_epoch``
    (what it had been told) stand. ``end`` None: its storage refuses. In memory only."""

    broker_epoch: int
    leader_epoch: int
    end: LogEnd | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What stands in a slice for the rows of a deleted topic. One per slice in which the topic had
    rows, so that each slice's write is whole by itself. ``pending`` are the brokers that hosted a
    replica of those rows and may still have it; ``partitions`` counts the whole topic;
    ``tiered_epoch`` is -1 for a topic that never was tiered."""

    topic_id: uuid.UUID
    name: str
    partitions: int
    tiered_epoch: int
    pending: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHealth:
    """A broker's own report (BrokerStatus); kept in memory only. ``storage_error``: of replicas, or
    of the log directory as a whole; ``directory_error``: of that only."""

    log_bytes: int = 0
    replicas: int = 0
    storage_error: str = ""
    directory_error: str = ""
    remote_error: str = ""
    store_id: str = ""
    #: Replicas whose whole log the broker copies, with what the former log lacked.
    set_aside: tuple[tuple[RowKey, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A ``Broker`` object and its registration. ``broker_epoch`` -1: never registered.
    ``directory_id`` outlives the process; ``incarnation_id`` is one process. ``reported_rack`` is
    what the latest registration said, and is persisted with it: racks count also while a broker is
    away, and for a new controller. A broker that is fenced or shutting down leads nothing and joins
    no ISR. ``asked``, ``deletion_held``: as a Topic's. ``status`` is the object's status as last
    read or written."""

    node_id: int
    key: str
    spec_rack: str | None = None
    reported_rack: str | None = None
    broker_epoch: int = NO_EPOCH
    incarnation_id: uuid.UUID | None = None
    directory_id: uuid.UUID | None = None
    listeners: tuple[Endpoint, ...] = ()
    fenced: bool = True
    #: Its last start brought proof of a clean end (or was before this controller's term).
    proven: bool = True
    shutting_down: bool = False
    deleting: bool = False
    drain: bool = False
    deletion_held: bool = False
    #: Names of the listeners that are reached from outside, by the manifest.
    external: tuple[str, ...] = ()
    asked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generation: int = 1
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def live(self) -> bool:
        """May lead, join an ISR and take replicas."""
        return self.broker_epoch >= 0 and not self.fenced and not self.shutting_down

    @property
    def registered(self) -> bool:
        return self.broker_epoch >= 0

    @property
    def leaving(self) -> bool:
        """Its replicas are to go elsewhere, and it is given none."""
        return self.deleting or self.drain

    @property
    def rack(self) -> str | None:
        """What the manifest says goes before what the broker says itself."""
        return self.spec_rack if self.spec_rack is not None else self.reported_rack


class DeletionPolicy(enum.Enum):
    DELETE = "Delete"
    ORPHAN = "Orphan"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TieringSpec:
    """``spec.tiering``; an absent block is ``TieringSpec()``. ``policy`` None: the Cluster's
    ``remote.log.disable.policy``."""

    enabled: bool = False
    policy: DisablePolicy | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TieringStatus:
    """``status.tiering`` as persisted: the tiering, since when it stands, and the brokers whose
    acknowledgement is awaited. A topic that never was tiered has no such block."""

    tiering: Tiering = NEVER_TIERED
    since_ms: int = 0
    pending_brokers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A ``Topic`` object. ``key`` is "namespace/name", ``name`` Kafka's topic name, ``topic_id``
    ``status.topicId`` (None until written: then it will be ``uid``). ``config`` holds every Kafka
    key that is set for the topic, typed fields (``local.retention.*``) included; of a paused topic
    what held when it was paused. ``config_problem`` says what in it cannot be had ("": nothing),
    ``config_reason`` is the condition's reason then.
    ``partitions_placed`` and ``tiering_status`` are what ``status`` persists; ``status`` is the
    object's whole status as last read or written. ``assignments``: the brokers that partitions
    are to be placed on, where somebody has said so; ``asked``: what a person accepts, by annotation
    (:mod:`tidemark.annotations`). ``deletion_held``: it is being deleted though it is
    ``protected``, and is served on as if it were not; ``deletion_ms`` is None."""

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
    tiering_status: TieringStatus = TieringStatus()
    topic_id: uuid.UUID | None = None
    created_ms: int = 0
    deletion_ms: int | None = None
    deletion_policy: DeletionPolicy = DeletionPolicy.DELETE
    protected: bool = False
    deletion_held: bool = False
    assignments: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    paused: bool = False
    asked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    partitions_placed: int = 0
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> uuid.UUID:
        """The topic's id: data once persisted, until then the UID of the object."""
        return self.topic_id or self.uid

    @property
    def is_internal(self) -> bool:
        """Brokers keep their own state in it: it is created however few there are."""
        return self.name in COORDINATORS_TOPICS

    @property
    def was_ready(self) -> bool:
        """Whether its status says that this generation is Ready."""
        conditions = self.status.get("conditions")
        listed = conditions if isinstance(conditions, list | tuple) else ()
        return any(
            isinstance(each, Mapping)
            and (each.get("type"), each.get("status")) == ("Ready", "True")
            and each.get("observedGeneration") == self.generation
            for each in listed
        )

    @property
    def tiering(self) -> Tiering:
        """As persisted."""
        return self.tiering_status.tiering


#: Characters of an annotation's value that a status keeps.
ACCEPTED_CHARS_MAX = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Acceptance:
    """What a person has accepted: the annotation, its value, and what was done because of it."""

    annotation: str
    value: str
    effect: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedTopic:
    """A topic left behind by ``deletionPolicy: Orphan``, as the Cluster's status lists it, with the
    tiering that it is adopted with."""

    topic_id: uuid.UUID
    name: str
    since_ms: int
    tiering_status: TieringStatus = TieringStatus()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRebuilding:
    """Why rows are rebuilt from brokers' reports, and since when, as the Cluster's status has it.
    ``behind``: every row may be older than what brokers were told; else slices are lost, and what
    the others hold is right."""

    since: str
    behind: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineNotes:
    """What is to be said of an engine that is not our own brokers. ``problem``: why it cannot be
    asked at present ("": it can); ``refused``: a person has to mend that; ``tiering``: what it
    cannot give of KIP-950 ("": nothing is missing); ``keeps_rows``: it has the rows itself, so
    none is ever rebuilt."""

    keeps_rows: bool = False
    problem: str = ""
    refused: bool = False
    tiering: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Audits:
    """The last audit of each topic, by its id; ``problem``: why nobody can say ("" otherwise)."""

    topics: Mapping[uuid.UUID, TopicAudit] = dataclasses.field(default_factory=dict)
    problem: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """A ``Cluster`` object. ``config`` and ``groups`` as in spec; ``remote_storage`` is the JSON of
    the accepted storage configuration with credentials resolved ("" for none);
    ``storage_problem`` says why remote storage cannot be used at present ("" when it can, or none
    is configured), ``swept`` what the last sweep of the tier has left ("" for nothing, None while
    nobody knows), ``audits`` what audits of the tier have found (None while nobody knows),
    ``certificates_problem`` why an authority cannot ("" when both can); ``store_id`` is the
    accepted identity ("" while there is none). ``authorize``: ACLs decide what users may do,
    but for ``super_users`` (principals without ``User:``); ``quotas``: of whoever has none of
    their own; ``asked``: as a Topic's."""

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

    orphans: tuple[OrphanedTopic, ...] = ()
    rebuilding: ClusterRebuilding | None = None
    asked: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slices: int = 64
    deleting: bool = False
    deletion_held: bool = False
    generation: int = 1
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def told_with_users(self) -> tuple[object, ...]:
        """What brokers are told of it with the users."""
        return self.authorize, self.super_users, self.quotas

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.config.get(name)
        return default if value is None else value.strip().lower() == "true"

    def whole_number(self, name: str) -> int:
        """The value of a key of the Cluster that is a whole number, or its default."""
        return int(self.config.get(name) or CLUSTER[name].default or 0)

    @property
    def under_replicated_creation(self) -> bool:
        """KIP-409's ``enable.under.replicated.topic.creation``."""
        return self.flag(UNDER_REPLICATED_CREATION)

    @property
    def tiering_available(self) -> bool:
        """Whether a topic may become tiered: switch on and storage accepted."""
        return self.flag(TIERING_SYSTEM) and bool(self.remote_storage)

    @property
    def disable_policy(self) -> DisablePolicy:
        """The default of ``remote.log.disable.policy`` (KIP-950: retain)."""
        configured = self.config.get(DISABLE_POLICY, "retain").strip().lower()
        return DisablePolicy.DELETE if configured == "delete" else DisablePolicy.RETAIN


def min_insync_replicas(topic: TopicInfo, cluster: ClusterInfo, replicas: int | None = None) -> int:
    """Effective minimum: min(min.insync.replicas, replication factor), at least 1 (KIP-409).
    ``replicas``: of a partition that is there its own number, whatever the manifest wants by
    now."""
    text = topic.config.get("min.insync.replicas") or cluster.config.get("min.insync.replicas", "1")
    configured = int(text) if text.isdecimal() else 1
    return max(1, min(configured, topic.replication_factor if replicas is None else replicas))


def unclean_election(topic: TopicInfo | None, cluster: ClusterInfo) -> bool:
    """``unclean.leader.election.enable`` of the topic, else of the cluster, else false."""
    name = "unclean.leader.election.enable"
    if topic is not None and name in topic.config:
        return topic.config[name].strip().lower() == "true"
    return topic is not None and cluster.flag(name)
