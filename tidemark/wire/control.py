"""Control protocol: the messages between a broker and the controller.

Kafka's framing and header, on a listener of the controller. A broker dials every configured
controller address and keeps three connections to the leading controller:

* The *request* connection carries BrokerRegistration, ReplicaStates, AlterPartition, BrokerStatus
  and AllocateProducerIds from broker to controller, as in Kafka.
* The *heartbeat* connection carries BrokerHeartbeat, from a thread of its own.
* The *command* connection begins with ``AttachRequest``. After its answer the roles are reversed:
  the controller sends ``PartitionStates`` (the first one a full snapshot), ``DisableRemoteTopic``
  (KIP-950), ``DeleteRemoteTopic``, ``ReplicaLogInfo`` (KIP-966) and the deletion of records
  (:mod:`tidemark.wire.deletions`). A broker therefore needs no listener that the operator can
  reach, and a command cannot overtake the snapshot that it builds on: ``PartitionStates`` are
  applied in the order in which they are received. Other commands may be answered out of order.

Keys that Kafka has are Kafka's (with fields of Tidemark); Tidemark's own begin at 10000. Offsets
are -1 when unknown. Every command has the controller epoch; a broker that has received a higher one
answers ``STALE_CONTROLLER_EPOCH`` (Kafka's code 11).
"""

import uuid

from kio.static.constants import EntityType
from kio.static.primitive import i8, i32, i64

from tidemark.reasons import Reason
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

#: ``error_reason`` of a partition with an object in the tier that differs from what was copied.
TIER_INTEGRITY = Reason.TIER_INTEGRITY
#: Reason of a manifest's page that is missing.
PAGE_NOT_FOUND = Reason.MANIFEST_PAGE_NOT_FOUND


_nested = EntityType.nested
_request = EntityType.request
_response = EntityType.response


@entity(_request, ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsRequest:
    """Request for a block of producer ids.

    It is answered only after the block is persisted in the Cluster's status, so that no id is
    issued twice, whichever operator leads.
    """

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_response, ALLOCATE_PRODUCER_IDS)
class AllocateProducerIdsResponse:
    """Block of ``producer_id_len`` ids from ``producer_id_start`` on, reserved for the broker."""

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
    """Registration of a broker process.

    ``previous_broker_epoch``: the epoch under which it shut down cleanly, else -1; only that proof
    keeps its place in the ISR. ``has_states``: the broker can report the replica states that it
    received (``ReplicaStates``), and the controller requests them before it admits the broker.
    ``highest_commit``: the last commit of the highest controller epoch that it has received, -1 if
    none since its start.
    """

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
    """Answer to a registration.

    ``error_code``: 0, NOT_CONTROLLER (41), DUPLICATE_BROKER_REGISTRATION (101) while another
    incarnation is alive, INCONSISTENT_CLUSTER_ID (104), BROKER_ID_NOT_REGISTERED (102) if no
    ``Broker`` object has this id. ``session_token``: a secret of this session, which every other
    request of the session contains. ``wants_states``: report the replica states by
    ``ReplicaStates`` and register again; the ``error_code`` is NOT_CONTROLLER then.
    ``suspect_timeout_ms``: silence after which a broker is fenced that others cannot fetch from
    either, 0 for none.
    """

    error_code: int = wire("int16")
    error_message: str | None = wire("string")
    broker_epoch: int = wire("int64")
    controller_epoch: int = wire("int32")
    session_timeout_ms: int = wire("int32")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    wants_states: bool = wire("bool", default=False, tag=1)
    suspect_timeout_ms: int = wire("int32", default=i32(0), tag=2)


@entity(_request, BROKER_HEARTBEAT)
class BrokerHeartbeatRequest:
    """Heartbeat, sent by a separate thread every quarter of the shorter timeout.

    ``loop_age_ms``: time since the main loop's last turn. ``snapshot_controller_epoch``: epoch of
    the full snapshot that has been applied (-1: none); only such a broker is unfenced.
    ``certificates``: digest of the certificates that the broker uses for new connections.
    ``interval_ms``: pause between two heartbeats, 0 from a broker that does not know of the suspect
    timeout. ``unresponsive``: leaders that owe this broker the response to a fetch.
    """

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    snapshot_controller_epoch: int = wire("int32")
    loop_age_ms: int = wire("int32")
    want_shut_down: bool = wire("bool")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    certificates: str = wire("string", default="", tag=1)
    interval_ms: int = wire("int32", default=i32(0), tag=2)
    unresponsive: tuple[int, ...] = wire("int32", default=(), tag=3)


@entity(_response, BROKER_HEARTBEAT)
class BrokerHeartbeatResponse:
    """Answer to a heartbeat.

    After ``error_code`` STALE_BROKER_EPOCH (77) the broker registers again.
    """

    error_code: int = wire("int16")
    is_fenced: bool = wire("bool")
    should_shut_down: bool = wire("bool")
    controller_epoch: int = wire("int32")


@entity(_nested, ALTER_PARTITION)
class IsrChange:
    """ISR that a leader proposes for one partition, with the epochs under which it was decided.

    ``remote_manifest``: the partition's head object has been created; the slice records that, and
    from then on "not found" means unavailable, never empty. ``leader_recovery_state`` RECOVERED
    ends the recovery of an uncleanly elected leader.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    leader_epoch: int = wire("int32")
    partition_epoch: int = wire("int32")
    new_isr: tuple[int, ...] = wire("int32")
    remote_manifest: bool = wire("bool")
    leader_recovery_state: int = wire("int8", default=i8(0), tag=0)


@entity(_request, ALTER_PARTITION)
class AlterPartitionRequest:
    """Changes that a leader proposes. Answered only after they are persisted in the slices."""

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    changes: tuple[IsrChange, ...]
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)


@entity(_nested, ALTER_PARTITION)
class IsrResult:
    """Result of one change.

    ``error_code``: 0, FENCED_LEADER_EPOCH (74), INVALID_UPDATE_VERSION (95), INELIGIBLE_REPLICA
    (107), UNKNOWN_TOPIC_ID (100), INVALID_REQUEST (42; also for a larger ISR of a RECOVERING
    partition).
    """

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
    """Status of a partition, reported by its (elected) leader.

    Offsets as in Kafka: ``next_offset`` is the LEO, ``highest_remote_offset`` is inclusive.
    ``remaining_*``: what a disablement with Delete (or a topic deletion) still has to remove.
    ``error_reason``: CamelCase (``CustomMetadataTooLarge``, ``RemoteStorageUnavailable``) or empty.
    ``offline``: the replica was elected and does not lead yet (prefix rule); ``error_reason`` is
    the cause, and only the offsets of its log are valid then. ``lagging_since_ms``: append time of
    the oldest committed record that is not in the tier, if the topic's maximum lag is exceeded or
    copying is paused; -1 otherwise.
    """

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
    lagging_since_ms: int = wire("int64", default=i64(-1), tag=1)


@entity(_nested, BROKER_STATUS)
class SetAsideReplica:
    """Replica whose log lacked records: its directory was set aside, and it copies the whole
    log from the leader.

    ``message``: the directory, and the missing records.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    message: str = wire("string")


@entity(_request, BROKER_STATUS)
class BrokerStatusRequest:
    """Level-based report, at most one a second.

    ``partitions``: every partition that this broker leads, or was elected for and cannot lead yet,
    and that changed since the last acknowledged report (all of them after a reconnect).
    ``storage_error`` and ``remote_error``: empty while all is well (disk full; store unavailable,
    wrong key, wrong identity). ``failed_replicas``: all replicas, led or followed, whose storage
    fails at present; a replica that is not listed works (again). ``directory_error``: error of the
    whole log directory, empty where only the files of ``failed_replicas`` fail. ``set_aside``:
    replicas that copy their whole log from the leader until they are in sync.
    """

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
    """Answer to a report. ``error_code`` 0 acknowledges it."""

    error_code: int = wire("int16")


@entity(_request, ATTACH)
class AttachRequest:
    """Start of the command connection of a registered broker; roles reverse after the answer.

    ``last_command``: the highest command key that the broker knows, 0 from brokers that know none
    above 10006. A command with another key would end the connection.
    """

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    session_token: bytes = wire("bytes", default=b"", tag=0, secret=True)
    last_command: int = wire("int32", default=i32(0), tag=1)


@entity(_response, ATTACH)
class AttachResponse:
    """Answer to an attach. ``error_code``: 0, NOT_CONTROLLER (41), STALE_BROKER_EPOCH (77)."""

    error_code: int = wire("int16")
    controller_epoch: int = wire("int32")


# ---------------------------------------------------------------- controller -> broker


@entity(_nested, PARTITION_STATES)
class ConfigEntry:
    """Kafka configuration key and its text value."""

    name: str = wire("string")
    value: str = wire("string")


@entity(_nested, PARTITION_STATES)
class BrokerState:
    """Registered broker, as every other broker needs it.

    ``is_reader``: it has no replicas, and serves what only the tier has.
    """

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    rack: str | None = wire("string")
    fenced: bool = wire("bool")
    listeners: tuple[Endpoint, ...]
    is_reader: bool = wire("bool", default=False, tag=0)


@entity(_nested, PARTITION_STATES)
class PartitionState:
    """Row of the slices.

    ``leader`` -1: offline. Negative ids in ``replicas`` are placeholders (KIP-409). ``manifest``:
    the head object exists in the tier. ``leader_recovery_state``: a
    :class:`~tidemark.leader_recovery.LeaderRecoveryState`. ``has_eligible_leaders`` (KIP-966):
    replicas outside the ISR have every committed record, so the leader does not advance its high
    watermark, whatever its own min.insync.replicas is. ``adding``, ``removing``: replicas of a
    reassignment in progress. ``elr``, ``last_known_elr``: these replicas, for clients that query
    them; a leader uses only the flag. ``has_all_records``, in ``ReplicaStates`` only: the log has
    lost nothing since the sender received this state, because its process has run since then or was
    shut down cleanly.
    """

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
    has_all_records: bool = wire("bool", default=False, tag=6)


@entity(_nested, PARTITION_STATES)
class TopicState:
    """Topic with its whole configuration (only keys that were set).

    ``tiering_state``, ``tiered_epoch``: of KIP-950, with the numbers of :mod:`tidemark.tiering`.
    ``partitions``: those that changed; all of them in a snapshot, except those in doubt.
    ``partition_count``: the topic's partitions, those in doubt included; -1 if the sender does not
    send it.
    """

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
    """Topic that exists without a ``Topic`` object: its partitions are not managed, and it is not
    deleted.

    ``is_unmanaged``: no ``Topic`` released it, so brokers continue to show it.
    """

    name: str = wire("string")
    topic_id: uuid.UUID = wire("uuid")
    is_unmanaged: bool = wire("bool")


@entity(_nested, PARTITION_STATES)
class Removal:
    """Replica that the receiver must delete.

    ``partition`` -1: the topic's tombstone, all of its replicas are deleted. Otherwise
    ``partition_epoch`` is newer than the replica's own. Absence from a snapshot never deletes.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    partition_epoch: int = wire("int32")


@entity(_nested, PARTITION_STATES)
class GroupConfig:
    """Configuration of one consumer group."""

    group_id: str = wire("string")
    config: tuple[ConfigEntry, ...]


@entity(_request, PARTITION_STATES)
class PartitionStatesRequest:
    """Full snapshot (``full``: the first message of a connection) or a delta.

    ``brokers``: the whole list; empty in a delta if unchanged. ``remote_storage``: JSON of the
    accepted storage configuration with credentials resolved, "" for none. ``store_id``: identity
    that the store must have ("" while none was accepted: create it). ``storage_as_before``, in a
    delta: both are unchanged (credentials are sent once), and empty here. ``users_follow``: ACLs
    apply in this cluster, so no client is served before the users are known
    (:mod:`tidemark.wire.users`). ``groups``: all consumer groups with a configuration. ``commit``:
    the last commit in the slices, -1 if the controller does not send it. ``knows_all``: every
    existing topic has been sent on this connection or is in ``unserved``, so that the absence of
    any other one is a recorded deletion. Otherwise a topic or partition that is not listed may only
    be unknown for now.
    """

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
    """Partition for which the broker could not apply a command. ``partition`` -1: the topic."""

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    message: str = wire("string")


@entity(_response, PARTITION_STATES)
class PartitionStatesResponse:
    """Answer to partition states.

    ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11). A removal is acknowledged by its absence from
    ``errors``. KAFKA_STORAGE_ERROR (56) marks replicas that could not be opened.
    """

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    errors: tuple[PartitionError, ...]


@entity(_request, REPLICA_STATES)
class ReplicaStatesRequest:
    """Replica states that a broker has received from any controller, sent page by page before it is
    admitted.

    They cover all replicas, led or not, open or not, and use the connection of the registration.
    ``page`` counts from 0; page 0 restarts the report. Topics have no configuration here. A replica
    without any received state has the leader epoch -1.
    """

    broker_id: int = wire("int32")
    incarnation_id: uuid.UUID = wire("uuid")
    page: int = wire("int32")
    is_last: bool = wire("bool")
    topics: tuple[TopicState, ...]


@entity(_response, REPLICA_STATES)
class ReplicaStatesResponse:
    """Answer to a page.

    ``error_code``: 0, NOT_CONTROLLER (41), INVALID_REQUEST (42): restart at page 0.
    """

    error_code: int = wire("int16")


@entity(_request, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicRequest:
    """Disablement of a topic (KIP-950): the partitions that the receiver hosts, the frozen
    policy and the tiered epoch.

    Idempotent; repeated until each partition is acknowledged.
    """

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    tiered_epoch: int = wire("int32")
    disable_policy: int = wire("int8")
    partitions: tuple[int, ...] = wire("int32")
    timeout_ms: int = wire("int32")


@entity(_nested, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicResult:
    """Result of one partition.

    ``error_code``: 0 acknowledges it under (broker epoch, tiered epoch, leader epoch);
    REQUEST_TIMED_OUT (7): in progress, repeat the request; UNKNOWN_TOPIC_OR_PARTITION (3): not
    hosted here. ``is_leader``: the leader's part was acknowledged.
    """

    partition: int = wire("int32")
    error_code: int = wire("int16")
    leader_epoch: int = wire("int32", default=i32(-1))
    is_leader: bool = wire("bool", default=False)
    local_log_start_offset: int = wire("int64", default=i64(-1))
    message: str = wire("string", default="")


@entity(_response, DISABLE_REMOTE_TOPIC)
class DisableRemoteTopicResponse:
    """Results. ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11) for the whole request."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    tiered_epoch: int = wire("int32")
    results: tuple[DisableRemoteTopicResult, ...]


@entity(_request, DELETE_REMOTE_TOPIC)
class DeleteRemoteTopicRequest:
    """Removal of a deleted topic from the tier; its heads become tombstones.

    Sent to one live broker, and repeated until it is answered with 0.
    """

    controller_epoch: int = wire("int32")
    topic_id: uuid.UUID = wire("uuid")
    name: str = wire("string")
    tiered_epoch: int = wire("int32")
    partitions: int = wire("int32")


@entity(_response, DELETE_REMOTE_TOPIC)
class DeleteRemoteTopicResponse:
    """Answer.

    ``error_code``: 0: no object is left; 7: in progress; 56: the store does not answer.
    """

    error_code: int = wire("int16")
    remaining_segments: int = wire("int64", default=i64(0))
    message: str = wire("string", default="")


@entity(_request, REPLICA_LOG_INFO)
class ReplicaLogInfoRequest:
    """KIP-966's GetReplicaLogInfo: the ends of the receiver's replicas.

    Sent before a leader is elected from several replicas that may each have lost unsynced records.
    An answer under another broker epoch is void.
    """

    controller_epoch: int = wire("int32")
    topics: tuple[TopicPartitions, ...]


@entity(_nested, REPLICA_LOG_INFO)
class ReplicaLog:
    """Log of one replica.

    ``last_epoch``: leader epoch of its last record (-1: no records). ``next_offset``: its LEO.
    ``leader_epoch``: the newest that the broker has received. ``lost_start_offset`` to
    ``lost_end_offset`` (exclusive): records that its checkpoint recorded as committed and that were
    missing when the log was opened, -1 to -1 for none. ``error_code``: 0,
    UNKNOWN_TOPIC_OR_PARTITION (3): not hosted here; KAFKA_STORAGE_ERROR (56): its storage fails.
    """

    topic_id: uuid.UUID = wire("uuid")
    partition: int = wire("int32")
    error_code: int = wire("int16")
    last_epoch: int = wire("int32", default=i32(-1))
    next_offset: int = wire("int64", default=i64(-1))
    leader_epoch: int = wire("int32", default=i32(-1))
    lost_start_offset: int = wire("int64", default=i64(-1))
    lost_end_offset: int = wire("int64", default=i64(-1))


@entity(_response, REPLICA_LOG_INFO)
class ReplicaLogInfoResponse:
    """Logs of the requested replicas. ``error_code``: 0 or STALE_CONTROLLER_EPOCH (11)."""

    error_code: int = wire("int16")
    broker_epoch: int = wire("int64")
    logs: tuple[ReplicaLog, ...]
