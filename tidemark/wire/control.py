"""The control protocol: what a broker and the controller say to each other.

Kafka's framing and header, on a listener of the controller. A broker dials every controller
address it was given and keeps three connections to the one that leads:

* the *request* connection carries BrokerRegistration, ReplicaStates, AlterPartition, BrokerStatus
  and AllocateProducerIds from broker to controller, in Kafka's manner; BrokerHeartbeat has a
  connection and a thread of its own;
* the *command* connection begins with ``AttachRequest``; once that is answered the roles are
  reversed and the controller sends ``PartitionStates`` (the first one a full snapshot),
  ``DisableRemoteTopic`` (KIP-950), ``DeleteRemoteTopic``, ``ReplicaLogInfo`` (KIP-966) and what
  deletes records (:mod:`tidemark.wire.deletions`) to the broker. So a broker needs no listener that
  the operator can reach, and a command can never overtake the snapshot that it builds on:
  ``PartitionStates`` are applied in the order in which they come; other commands may be answered
  out of order.

Keys that Kafka has are Kafka's (with our own fields); ours begin at 10000. Offsets are -1 when
unknown. Every command of ours carries the controller epoch; a broker that has seen a higher one
answers ``STALE_CONTROLLER_EPOCH`` (Kafka's code 11).
"""

import enum
import uuid

from kio.static.constants import EntityType
from kio.static.primitive import i8, i32, i64

from tidemark.wire.entity import entity, wire

BROKER_REGISTRATION = 62
BROKER_HEARTBEAT = 63
ALTER_PARTITION = 56
ALLOCATE_PRODUCER_IDS = 67
ATTACH = 10000
PARTITION_STATES = 10001
DISABLE_REMOTE_TOPIC = 10002
DELETE_REMOTE_TOPIC = 10003
BROKER_STATUS = 10004
REPLICA_LOG_INFO = 10005
REPLICA_STATES = 10010

FRAME_BYTES_MAX = 64 * 1024 * 1024

#: ``error_reason`` of a partition that has an object in the tier which is not what was copied.
TIER_INTEGRITY = "TierIntegrity"
#: Reason of a manifest's page that is missing.
PAGE_NOT_FOUND = "ManifestPageNotFound"


class LeaderRecoveryState(enum.IntEnum):
    """KIP-704: ``RECOVERING`` is a partition whose leader was elected uncleanly and has not said
    yet that its log is in order (here: that what is in the tier is a prefix of it)."""

    RECOVERED = 0
    RECOVERING = 1


_nested = EntityType.nested
_request = EntityType.request
_response = EntityType.response


@entity(_request, ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsRequest:
    """Answered only after the block is persisted in the Cluster's status: no id is handed out
    twice, whoever leads."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_response, ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsResponse:
    """The ids from ``producer_id_start`` on, so many of them, are the broker's."""

    error_code: int = wire("int16")
    producer_id_start: int = wire("int64")
    producer_id_len: int = wire("int32")


@entity(_nested, BROKER_STATUS)
class TopicPartitions:
    """Some partitions of one topic."""

    topic_id: uuid.UUID = wire("uuid")
    partitions: tuple[int, ...] = wire("int32")


# ---------------------------------------------------------------- broker -> controller


@entity(_nested, BROKER_REGISTRATION)
class Endpoint:
    """One advertised listener: its name (``PLAINTEXT``), host and port."""

    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("int32")


@entity(_request, BROKER_REGISTRATION)
class BrokerRegistrationRequest:
    """A process presents itself. ``previous_broker_epoch`` is the epoch under which it shut down
    cleanly, else -1: only that proof lets it keep its place in the ISR. ``has_states``: it can say
    what it was told of its replicas (``ReplicaStates``), and is asked to before it is admitted.
    ``highest_commit``: of the commits of the highest controller epoch the last that it was told of,
    -1 if it has not heard of any since it started."""

    broker_id: int = wire("int32")
    cluster_id: str = wire("string")
    incarnation_id: uuid.UUID = wire("uuid")
    directory_id: uuid.UUID = wire("uuid")
    previous_broker_epoch: int = wire("int64")
    highest_controller_epoch: int = wire("int32")
    rack: str | None = wire("string")
    listeners: tuple[Endpoint, ...]
    has_states: bool = wire("bool", default=False, tag=0)
    highest_commit: int = wire("int64", default=i64(-1), tag=1)


@entity(_response, BROKER_REGISTRATION)
class BrokerRegistrationResponse:
    """``error_code``: 0, NOT_CONTROLLER (41), DUPLICATE_BROKER_REGISTRATION (101) while another
    incarnation is alive, INCONSISTENT_CLUSTER_ID (104), BROKER_ID_NOT_REGISTERED (102) when no
    ``Broker`` object has this id. ``session_token``: a secret of this session, which everything
    else that is asked in it has to show. ``wants_states``: say by ``ReplicaStates`` what was told
    of the replicas, and register again; the ``error_code`` is NOT_CONTROLLER then."""

    error_code: int = wire("int16")
    error_message: str | None = wire("string")
    broker_epoch: int = wire("int64")
    controller_epoch: int = wire("int32")
    session_timeout_ms: int = wire("int32")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    wants_states: bool = wire("bool", default=False, tag=1)


@entity(_request, BROKER_HEARTBEAT)
class BrokerHeartbeatRequest:
    """Sent by a thread of its own every session_timeout / 4. ``loop_age_ms`` says how long ago the
    main loop last turned; ``snapshot_controller_epoch`` is the epoch whose full snapshot has been
    applied (-1: none), which is what lets the broker be unfenced. ``certificates``: digest of those
    that the broker uses for new connections."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    snapshot_controller_epoch: int = wire("int32")
    loop_age_ms: int = wire("int32")
    want_shut_down: bool = wire("bool")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    certificates: str = wire("string", default="", tag=1)


@entity(_response, BROKER_HEARTBEAT)
class BrokerHeartbeatResponse:
    """``error_code`` 77 STALE_BROKER_EPOCH means: register again."""

    error_code: int = wire("int16")
    is_fenced: bool = wire("bool")
    should_shut_down: bool = wire("bool")
    controller_epoch: int = wire("int32")


@entity(_nested, ALTER_PARTITION)
class IsrChange:
    """The ISR that a leader proposes for one partition, with the epochs it was decided under.
    ``remote_manifest`` true reports that the partition's head object has been created (the
    slice remembers it; from then on "not found" is unavailable, never empty).
    ``leader_recovery_state`` RECOVERED ends the recovery of an uncleanly elected leader."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    partition_epoch: int = wire("int32")
    new_isr: tuple[int, ...] = wire("int32")
    remote_manifest: bool = wire("bool")
    leader_recovery_state: int = wire("int8", default=i8(0), tag=0)


@entity(_request, ALTER_PARTITION)
class AlterPartitionRequest:
    """Answered only after the change is persisted in the slices (persist before acting)."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    changes: tuple[IsrChange, ...]
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_nested, ALTER_PARTITION)
class IsrResult:
    """``error_code``: 0, FENCED_LEADER_EPOCH (74), INVALID_UPDATE_VERSION (95),
    INELIGIBLE_REPLICA (107), UNKNOWN_TOPIC_ID (100), INVALID_REQUEST (42; also for a larger ISR of
    a partition that is RECOVERING)."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    leader: int = wire("int32")
    leader_epoch: int = wire("int32")
    partition_epoch: int = wire("int32")
    isr: tuple[int, ...] = wire("int32")
    leader_recovery_state: int = wire("int8", default=i8(0), tag=0)
    has_eligible_leaders: bool = wire("bool", default=False, tag=1)
    elr: tuple[int, ...] = wire("int32", default=(), tag=2)
    last_known_elr: tuple[int, ...] = wire("int32", default=(), tag=3)


@entity(_response, ALTER_PARTITION)
class AlterPartitionResponse:
    """One result per change, in the order of the request."""

    error_code: int = wire("int16")
    results: tuple[IsrResult, ...]


@entity(_nested, BROKER_STATUS)
class PartitionStatus:
    """What the (elected) leader of a partition knows and the operator shows. Offsets as in Kafka:
    ``next_offset`` is the LEO, ``highest_remote_offset`` is inclusive. ``remaining_*`` count
    what a disablement with Delete (or a topic deletion) still has to remove. ``error_reason`` is
    CamelCase (``CustomMetadataTooLarge``, ``RemoteStorageUnavailable``) or empty. ``offline``: it
    was elected and does not lead yet (prefix rule), ``error_reason`` says what it waits for; only
    the offsets of its log mean anything then."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    log_start_offset: int = wire("int64")
    local_log_start_offset: int = wire("int64")
    high_watermark: int = wire("int64")
    next_offset: int = wire("int64")
    highest_remote_offset: int = wire("int64")
    low_watermark: int = wire("int64")
    local_bytes: int = wire("int64")
    remote_segments: int = wire("int64")
    remote_bytes: int = wire("int64")
    remaining_segments: int = wire("int64")
    remaining_bytes: int = wire("int64")
    error_reason: str = wire("string")
    error_message: str = wire("string")
    offline: bool = wire("bool", default=False, tag=0)


@entity(_nested, BROKER_STATUS)
class SetAsideReplica:
    """A replica whose log lacked records: its directory was set aside, and it copies the whole log
    from its leader. ``message``: the directory, and what was missing."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    message: str = wire("string")


@entity(_request, BROKER_STATUS)
class BrokerStatusRequest:
    """Level-based, at most one a second: every partition this broker leads, or was elected for and
    cannot lead yet, that changed since the last acknowledged report (all of them after a
    reconnect), and the broker's own health. ``storage_error`` / ``remote_error`` are empty when
    all is well (disk full; store unavailable, wrong key, wrong identity). ``failed_replicas`` are
    all those, led or followed, whose storage refuses at present, in every report: what is not
    named works (again). ``directory_error``: why the log directory as a whole takes nothing, empty
    where only the files of ``failed_replicas`` refuse. ``set_aside``: those that copy their
    whole log from the leader until they are in sync."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    log_bytes: int = wire("int64")
    replicas: int = wire("int32")
    storage_error: str = wire("string")
    remote_error: str = wire("string")
    store_id: str = wire("string")
    partitions: tuple[PartitionStatus, ...]
    failed_replicas: tuple[TopicPartitions, ...] = wire(None, default=(), tag=0)
    session_token: bytes = wire("bytes", default=b"", tag=1, secret=True)
    directory_error: str = wire("string", default="", tag=2)
    set_aside: tuple[SetAsideReplica, ...] = wire(None, default=(), tag=3)


@entity(_response, BROKER_STATUS)
class BrokerStatusResponse:
    """``error_code`` 0 acknowledges the report."""

    error_code: int = wire("int16")


@entity(_request, ATTACH)
class AttachRequest:
    """Opens the command connection of a registered broker; roles reverse after the answer.
    ``last_command``: the highest key of a command that the broker knows, 0 from those which know
    none above 10006. Another one would end the connection."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    last_command: int = wire("int32", default=i32(0), tag=1)


@entity(_response, ATTACH)
class AttachResponse:
    """``error_code``: 0, NOT_CONTROLLER (41), STALE_BROKER_EPOCH (77)."""

    error_code: int = wire("int16")
    controller_epoch: int = wire("int32")


# ---------------------------------------------------------------- controller -> broker


@entity(_nested, PARTITION_STATES)
class ConfigEntry:
    """A Kafka configuration key and its text value."""

    name: str = wire("string")
    value: str = wire("string")


@entity(_nested, PARTITION_STATES)
class BrokerState:
    """A registered broker as every other broker needs to see it."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    rack: str | None = wire("string")
    fenced: bool = wire("bool")
    listeners: tuple[Endpoint, ...]


@entity(_nested, PARTITION_STATES)
class PartitionState:
    """A row of the slices. ``leader`` -1 is offline; ids below zero in ``replicas`` are
    placeholders (KIP-409); ``manifest``: the head object exists in the tier;
    ``leader_recovery_state``: a :class:`LeaderRecoveryState`, RECOVERING after an unclean election
    until the leader reports that it has recovered. ``has_eligible_leaders`` (KIP-966): replicas
    outside the ISR are kept as holders of all that is committed; so the leader's high watermark
    stands still, whatever it believes min.insync.replicas to be. ``adding`` and ``removing``: of
    the replicas, those that come and go with a reassignment under way. ``elr`` and
    ``last_known_elr``: who these replicas are, for clients that ask; a leader goes by the flag.
    ``is_whole``, in ``ReplicaStates`` only: the log has lost nothing since the sender received
    this state, because its process has run since then or was shut down cleanly."""

    partition: int = wire("int32")
    leader: int = wire("int32")
    leader_epoch: int = wire("int32")
    partition_epoch: int = wire("int32")
    replicas: tuple[int, ...] = wire("int32")
    isr: tuple[int, ...] = wire("int32")
    manifest: bool = wire("bool")
    leader_recovery_state: int = wire("int8", default=i8(0), tag=0)
    has_eligible_leaders: bool = wire("bool", default=False, tag=1)
    adding: tuple[int, ...] = wire("int32", default=(), tag=2)
    removing: tuple[int, ...] = wire("int32", default=(), tag=3)
    elr: tuple[int, ...] = wire("int32", default=(), tag=4)
    last_known_elr: tuple[int, ...] = wire("int32", default=(), tag=5)
    is_whole: bool = wire("bool", default=False, tag=6)


@entity(_nested, PARTITION_STATES)
class TopicState:
    """A topic with its whole configuration (only keys that were set), KIP-950's tiered state and
    epoch (the numbers of :mod:`tidemark.tiering`), and those of its partitions that changed (all of
    them in a snapshot, except those in doubt). ``partition_count``: how many partitions the topic
    has, those in doubt included; -1 where the sender does not say."""

    topic_id: uuid.UUID = wire("uuid")
    name: str = wire("string")
    config: tuple[ConfigEntry, ...]
    tiering_state: int = wire("int8")
    tiered_epoch: int = wire("int32")
    disable_policy: int = wire("int8")
    partitions: tuple[PartitionState, ...]
    partition_count: int = wire("int32", default=i32(-1), tag=0)


@entity(_nested, PARTITION_STATES)
class UnservedTopic:
    """A topic that exists without a ``Topic`` object: its partitions are not managed, and it is not
    deleted. ``is_stray``: no ``Topic`` released it, so brokers continue to show it."""

    name: str = wire("string")
    topic_id: uuid.UUID = wire("uuid")
    is_stray: bool = wire("bool")


@entity(_nested, PARTITION_STATES)
class Removal:
    """A replica that must go from the receiver. ``partition`` -1: the topic's tombstone, all of
    its replicas go. Otherwise ``partition_epoch`` is newer than the replica's own. Absence from
    a snapshot never deletes."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    partition_epoch: int = wire("int32")


@entity(_nested, PARTITION_STATES)
class GroupConfig:
    """What is set for one consumer group."""

    group_id: str = wire("string")
    config: tuple[ConfigEntry, ...]


@entity(_request, PARTITION_STATES)
class PartitionStatesRequest:
    """A full snapshot (``full``: the first of a connection) or a delta. ``brokers`` is the whole
    list; in a delta an empty one says that they are as before. ``remote_storage`` is the
    JSON of the accepted storage configuration with credentials resolved, "" for none;
    ``store_id`` the identity the store must have ("" while none was accepted: create it).
    ``storage_as_before``, in a delta: both are as they were (credentials travel once), and empty
    here. ``users_follow``: ACLs decide in this cluster, so nobody is served before the users are
    known (:mod:`tidemark.wire.users`). ``groups``: all consumer groups with a configuration.
    ``commit``: the last that the slices hold, -1 from a controller that does not say.
    ``knows_all``: every topic that exists is among those sent on this connection or in
    ``unserved``, so that the absence of any other one is a deletion on record. Without it a topic
    or partition that is not named may be unknown only for now."""

    controller_id: str = wire("string")
    controller_epoch: int = wire("int32")
    full: bool = wire("bool")
    cluster_id: str = wire("string")
    cluster_config: tuple[ConfigEntry, ...]
    remote_storage: str = wire("string", secret=True)
    store_id: str = wire("string")
    brokers: tuple[BrokerState, ...]
    topics: tuple[TopicState, ...]
    removals: tuple[Removal, ...]
    storage_as_before: bool = wire("bool", default=False, tag=0)
    users_follow: bool = wire("bool", default=False, tag=1)
    groups: tuple[GroupConfig, ...] = wire(None, default=(), tag=2)
    commit: int = wire("int64", default=i64(-1), tag=3)
    knows_all: bool = wire("bool", default=False, tag=4)
    unserved: tuple[UnservedTopic, ...] = wire(None, default=(), tag=5)


@entity(_nested, PARTITION_STATES)
class PartitionError:
    """A partition for which the broker could not do as it was told. ``partition`` -1: the topic."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    message: str = wire("string")


@entity(_response, PARTITION_STATES)
class PartitionStatesResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11); a removal is acknowledged by its absence
    from ``errors``. KAFKA_STORAGE_ERROR (56) marks replicas that could not be opened."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    errors: tuple[PartitionError, ...]


@entity(_request, REPLICA_STATES)
class ReplicaStatesRequest:
    """What a broker was told of its replicas, led or not, open or not, by any controller: page by
    page before it is admitted, over the connection over which it registers. ``page`` counts from 0,
    which begins anew. Topics come without their configuration. A replica of which nothing was told
    has the leader epoch -1."""

    broker_id: int = wire("int32")
    incarnation_id: uuid.UUID = wire("uuid")
    page: int = wire("int32")
    is_last: bool = wire("bool")
    topics: tuple[TopicState, ...]


@entity(_response, REPLICA_STATES)
class ReplicaStatesResponse:
    """``error_code``: 0, NOT_CONTROLLER (41), INVALID_REQUEST (42): begin again."""

    error_code: int = wire("int16")


@entity(_request, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicRequest:
    """KIP-950: every partition of one topic that the receiver hosts, the frozen policy and the
    tiered epoch of the disablement. Idempotent; repeated until each is acknowledged."""

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    tiered_epoch: int = wire("int32")
    disable_policy: int = wire("int8")
    partitions: tuple[int, ...] = wire("int32")
    timeout_ms: int = wire("int32")


@entity(_nested, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicResult:
    """``error_code`` 0 acknowledges the partition under (broker epoch, tiered epoch, leader
    epoch); REQUEST_TIMED_OUT (7): still at work, ask again; UNKNOWN_TOPIC_OR_PARTITION (3): not
    hosted here. ``is_leader`` tells whose part was acknowledged."""

    partition: int = wire("int32")
    error_code: int = wire("int16")
    leader_epoch: int = wire("int32")
    is_leader: bool = wire("bool")
    local_log_start_offset: int = wire("int64")
    message: str = wire("string")


@entity(_response, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11) for the whole request."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    tiered_epoch: int = wire("int32")
    results: tuple[DisableRemoteTopicResult, ...]


@entity(_request, DELETE_REMOTE_TOPIC)
class DeleteRemoteTopicRequest:
    """Remove what a deleted topic left in the tier, heads becoming tombstones. Sent to one live
    broker that the controller names; repeated until answered with 0."""

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    name: str = wire("string")
    tiered_epoch: int = wire("int32")
    partitions: int = wire("int32")


@entity(_response, DELETE_REMOTE_TOPIC)
class DeleteRemoteTopicResponse:
    """``error_code`` 0: no object is left; 7: still at work; 56: the store does not answer."""

    error_code: int = wire("int16")
    remaining_segments: int = wire("int64")
    message: str = wire("string")


@entity(_request, REPLICA_LOG_INFO)
class ReplicaLogInfoRequest:
    """KIP-966's GetReplicaLogInfo: how far the receiver's replicas reach. Asked before one of
    several replicas is elected of which each may have lost what it had not synced; an answer is
    void under another broker epoch."""

    controller_epoch: int = wire("int32")
    topics: tuple[TopicPartitions, ...]


@entity(_nested, REPLICA_LOG_INFO)
class ReplicaLog:
    """One replica's log. ``last_epoch`` is the leader epoch of its last record (-1: it holds none),
    ``next_offset`` its LEO, ``leader_epoch`` the newest the broker was told. ``lost_start_offset``
    to ``lost_end_offset`` (exclusive) is what its checkpoint knew to be committed and was gone
    when the log was opened, -1 to -1 for nothing. ``error_code``: 0, UNKNOWN_TOPIC_OR_PARTITION
    (3): not hosted here; KAFKA_STORAGE_ERROR (56): its storage refuses."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    last_epoch: int = wire("int32")
    next_offset: int = wire("int64")
    leader_epoch: int = wire("int32")
    lost_start_offset: int = wire("int64")
    lost_end_offset: int = wire("int64")


@entity(_response, REPLICA_LOG_INFO)
class ReplicaLogInfoResponse:
    """``error_code`` 0 or STALE_CONTROLLER_EPOCH (11); one log per partition asked for."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    logs: tuple[ReplicaLog, ...]
