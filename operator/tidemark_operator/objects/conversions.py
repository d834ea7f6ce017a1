"""Conversion of Kubernetes objects to the core's values.

Pure: pydantic models in, dataclasses out.
"""

import uuid
from collections.abc import Mapping

from tidemark.annotations import (
    ADOPT_CLUSTER_ID,
    DELETION_PROTECTION,
    OF_BROKER,
    OF_CLUSTER,
    OF_TOPIC,
)
from tidemark.configuration.broker_keys import SWEEP
from tidemark.configuration.layers import topic_defaults
from tidemark.ids import id_text, parse_id
from tidemark.reasons import Reason, RebuildingReason
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire.control import Endpoint
from tidemark.wire.deletions import HIGH_WATERMARK, NO_TIME, DeletionPoint, DeletionPointQuery
from tidemark_operator.controller.record_deletion import (
    ALL_PARTITIONS,
    NO_LEADER_EPOCH,
    DeletionInfo,
    DeletionProgress,
)
from tidemark_operator.controller.slice_claim import Claimant
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    ClusterInfo,
    ClusterRebuilding,
    DeletionPolicy,
    OrphanedTopic,
    PersistedTiering,
    TieringSpec,
    TopicInfo,
)
from tidemark_operator.kube.kinds import Json
from tidemark_operator.objects.quotas import cluster_quotas
from tidemark_operator.resources.assignments import parse_assignments
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.cluster import Cluster, LeftBehind
from tidemark_operator.resources.conditions import READY, ConditionStatus, find_condition
from tidemark_operator.resources.metadata import InvalidResource, ObjectMeta
from tidemark_operator.resources.names import (
    ASSIGNMENT_ANNOTATION,
    PAUSED_ANNOTATION,
    SLICES_DEFAULT,
    SWEEP_PAUSED_ANNOTATION,
    TOPIC_FINALIZER,
    BrokerRole,
)
from tidemark_operator.resources.record_deletion import (
    AllPartitions,
    PartitionPoint,
    RecordDeletion,
    RecordDeletionSpec,
)
from tidemark_operator.resources.scalars import duration_ms, ms_of_time
from tidemark_operator.resources.topic import ClientChangesName, Topic
from tidemark_operator.resources.topic import DisablePolicyName as SpecPolicy
from tidemark_operator.resources.topic import TieringStatus as StoredTiering
from tidemark_operator.resources.topic_config import (
    COMPACTED,
    copy_lag_problem,
    is_compacted,
    kafka_config,
    retention_problem,
)


def cluster_id_of(body: Json) -> str:
    """Return Kafka's cluster id from the status, or else the Cluster's uid in Kafka's text form."""
    stored = (body.get("status") or {}).get("clusterId")
    return str(stored) if stored else id_text(uuid.UUID(body["metadata"]["uid"]))


def claimant_of(body: Json) -> Claimant:
    """Return the Cluster's identity for its claim on PartitionSlices."""
    meta, status = body["metadata"], body.get("status") or {}
    return Claimant(
        own_id=id_text(uuid.UUID(meta["uid"])),
        stored_id=str(status.get("clusterId") or ""),
        recorded=status.get("slices"),
        requested_id=str((meta.get("annotations") or {}).get(ADOPT_CLUSTER_ID, "")).strip(),
    )


def cluster_of(body: Json) -> str:
    """Return the name of the Cluster that a Topic or Broker belongs to."""
    return str(body["spec"]["clusterRef"]["name"])


def is_paused(meta: ObjectMeta) -> bool:
    """Return whether ``tidemark.dev/paused: "true"`` stops reconciling."""
    return meta.annotations.get(PAUSED_ANNOTATION, "").lower() == "true"


def is_protected(meta: ObjectMeta) -> bool:
    """Return whether an annotation makes the operator ignore a deletion.

    The annotation is ``tidemark.dev/deletion-protection: "true"``.
    """
    return meta.annotations.get(DELETION_PROTECTION, "").lower() == "true"


def is_leaving(body: Json) -> bool:
    """Return whether the object is being deleted and the deletion is not held back."""
    meta = body["metadata"]
    protected = (meta.get("annotations") or {}).get(DELETION_PROTECTION, "").lower() == "true"
    return bool(meta.get("deletionTimestamp")) and not protected


def _deletion_ms(meta: ObjectMeta) -> int | None:
    if meta.deletion_timestamp is None or is_protected(meta):
        return None
    return ms_of_time(meta.deletion_timestamp)


def _grace_period(topic: Topic) -> str:
    """Return the grace period of a topic's deletion, "" for none."""
    period = topic.spec.deletion_grace_period
    has_grace = period is not None and duration_ms(period) > 0
    return str(period) if has_grace and not topic.spec.is_orphaned_on_delete else ""


def _deletion_times(topic: Topic) -> tuple[int | None, int | None]:
    """Return when the topic's deletion was requested, and when its grace period ends.

    At most one is set. The first one means that the deletion may start or has started. The start is
    read from the status and not from the clock, which may be set back. Whether a topic exists that
    could be kept is decided by the controller's state.
    """
    requested_ms, period, status = _deletion_ms(topic.metadata), _grace_period(topic), topic.status
    started = status.deletion is not None and bool(status.deletion.started)
    # Without the finalizer the operator has released the topic, and others hold the object.
    is_released = TOPIC_FINALIZER not in topic.metadata.finalizers
    if requested_ms is None or not period or started or is_released:
        return requested_ms, None
    return None, requested_ms + duration_ms(period)


def cluster_info(body: Json, *, remote_storage: str, storage_problem: str) -> ClusterInfo:
    """Convert a ``Cluster`` object for the controller.

    ``remote_storage``: configuration of the accepted storage for brokers, "" without one;
    ``storage_problem``: why it cannot be used, "" if it can.
    """
    cluster = Cluster.parse(body)
    status, authorization = cluster.status, cluster.spec.authorization
    orphans = tuple(
        OrphanedTopic(
            topic_id=parse_id(left.topic_id),
            name=left.topic_name,
            since_ms=ms_of_time(left.since),
            tiering_status=_left_tiering(left),
        )
        for left in status.left_behind or ()
    )
    return ClusterInfo(
        key=cluster.metadata.key,
        cluster_id=cluster_id_of(body),
        config=_cluster_config(cluster),
        groups=dict(cluster.spec.groups or {}),
        remote_storage=remote_storage,
        store_id=status.store_id or "",
        storage_problem=storage_problem,
        authorize=authorization is not None,
        quotas=cluster_quotas(cluster.spec.quotas),
        refuses_client_changes=cluster.spec.client_changes is ClientChangesName.REFUSE,
        super_users=tuple(sorted((authorization and authorization.super_users) or ())),
        orphans=orphans,
        rebuilding=rebuilding_of(body),
        has_readers=cluster.spec.readers is not None,
        annotations=_annotations(cluster.metadata, OF_CLUSTER),
        # Deletion: a protected object is reported as held, and otherwise treated as if it stayed.
        deleting=cluster.metadata.is_deleting and not is_protected(cluster.metadata),
        deletion_blocked=cluster.metadata.is_deleting and is_protected(cluster.metadata),
        slices=status.slices or SLICES_DEFAULT,
        generation=cluster.metadata.generation,
        status=body.get("status") or {},
    )


def rebuilding_of(body: Json) -> ClusterRebuilding | None:
    """Return the rebuilding in a Cluster's status, before the Cluster is parsed."""
    stored = (body.get("status") or {}).get("rebuilding")
    if not stored:
        return None
    behind = {RebuildingReason.SLICES_MISSING: False, RebuildingReason.SLICES_BEHIND: True}
    return ClusterRebuilding(since=str(stored["since"]), behind=behind[stored["reason"]])


def _cluster_config(cluster: Cluster) -> dict[str, str]:
    """Return the spec's configuration with temporary overrides from annotations."""
    config = dict(cluster.spec.config or {})
    if cluster.metadata.annotations.get(SWEEP_PAUSED_ANNOTATION, "").lower() == "true":
        config[SWEEP] = "false"
    return config


def broker_info(body: Json, *, fenced: bool) -> BrokerInfo:
    """Convert a ``Broker`` object for the controller, with the registration in its status.

    ``fenced``: state to begin with; it is not in the status.
    """
    broker = Broker.parse(body)
    status, meta = broker.status, broker.metadata
    listeners = tuple(
        Endpoint(name=point.name, host=point.host, port=point.port) for point in status.endpoints
    )
    # The registration comes from the status, everything else from the spec.
    return BrokerInfo(
        node_id=broker.spec.node_id,
        key=meta.key,
        spec_rack=broker.spec.rack,
        reported_rack=status.rack,
        broker_epoch=-1 if status.broker_epoch is None else status.broker_epoch,
        incarnation_id=uuid.UUID(status.incarnation_id) if status.incarnation_id else None,
        directory_id=uuid.UUID(status.directory_id) if status.directory_id else None,
        listeners=listeners,
        external=_external(broker),
        fenced=fenced,
        deleting=meta.is_deleting and not is_protected(meta),
        deletion_blocked=meta.is_deleting and is_protected(meta),
        drain=bool(broker.spec.drain),
        is_reader=broker.spec.role is BrokerRole.READER,
        annotations=_annotations(meta, OF_BROKER),
        generation=meta.generation,
        status=body.get("status") or {},
    )


def _external(broker: Broker) -> tuple[str, ...]:
    listeners = broker.spec.pod.listeners if broker.spec.pod is not None else ()
    return tuple(listener.name for listener in listeners if listener.external is not None)


def stored_fenced(broker: Broker) -> bool:
    """Return whether the status shows the broker as fenced."""
    ready = find_condition(broker.status.conditions, READY)
    return ready is None or ready.status is not ConditionStatus.TRUE


def topic_info(body: Json, cluster_config: dict[str, str]) -> TopicInfo:
    """Convert a ``Topic`` object for the controller.

    ``cluster_config``: the Cluster's defaults for topics. A paused topic keeps the configuration in
    its status. A Cluster default may make a tiered topic compacted, which the API server cannot
    reject. Then the topic stays what it is: with remote data it is not compacted, and without it is
    not tiered. Fields of a newer version are reported, and the known fields apply. Raises
    ``InvalidResource``.
    """
    topic, unknown = _read_topic(body)
    spec, status, meta = topic.spec, topic.status, topic.metadata
    if meta.uid is None:
        raise InvalidResource(f"Topic {meta.key} has no uid")
    paused = is_paused(meta)
    deletion_ms, due_ms = _deletion_times(topic)
    # Configuration: the spec over the Cluster's defaults, or what a paused topic holds.
    config = kafka_config(spec, topic_defaults(cluster_config))
    if paused and status.held_config is not None:
        config = dict(status.held_config)
    # Compaction and tiering exclude each other; data in the tier decides.
    in_tier = _in_tier(status.tiering)
    compacted = is_compacted(config) and (spec.tiering_enabled or in_tier)
    enabled = spec.tiering_enabled and (in_tier or not compacted)
    problem, reason = _config_problem(config, is_compacted=compacted, is_tiered=enabled)
    if unknown:
        problem, reason = unknown, Reason.OBJECT_UNREADABLE
    # Brokers receive a consistent configuration, and a condition explains the difference.
    if compacted and in_tier:
        config["cleanup.policy"] = "delete"
    elif compacted:
        config["remote.storage.enable"] = "false"
    return TopicInfo(
        key=meta.key,
        uid=meta.uid,
        name=topic.topic_name,
        generation=meta.generation,
        partitions=spec.partitions,
        replication_factor=spec.replication_factor,
        config=config,
        config_problem=problem,
        config_reason=reason,
        tiering_spec=TieringSpec(
            enabled=enabled,
            policy=None if spec.tiering is None else _policy(spec.tiering.disable_policy),
        ),
        tiering_status=_tiering(status.tiering),
        topic_id=parse_id(status.topic_id) if status.topic_id else None,
        created_ms=_created_ms(topic),
        deletion_ms=deletion_ms,
        deletion_grace=_grace_period(topic),
        deletion_due_ms=due_ms,
        protected=is_protected(meta),
        deletion_blocked=meta.is_deleting and is_protected(meta),
        deletion_policy=(
            DeletionPolicy.ORPHAN if spec.is_orphaned_on_delete else DeletionPolicy.DELETE
        ),
        refuses_client_changes=(
            None if spec.client_changes is None else spec.client_changes is ClientChangesName.REFUSE
        ),
        assignments=parse_assignments(meta.annotations.get(ASSIGNMENT_ANNOTATION, "")),
        paused=paused,
        annotations=_annotations(meta, OF_TOPIC),
        partitions_placed=status.partitions_placed or 0,
        status=body.get("status") or {},
    )


def _config_problem(
    config: Mapping[str, str], *, is_compacted: bool, is_tiered: bool
) -> tuple[str, Reason]:
    """Return why a topic's configuration contradicts itself, "" if it does not, and the reason."""
    if is_compacted:
        return COMPACTED, Reason.COMPACTED
    retention = retention_problem(config) if is_tiered else None
    copy_lag = copy_lag_problem(config) if is_tiered else None
    if retention is None and copy_lag is not None:
        return copy_lag, Reason.COPY_LAG_TOO_LONG
    return retention or "", Reason.LOCAL_RETENTION_TOO_LONG


def _read_topic(body: Json) -> tuple[Topic, str]:
    """Return a Topic, and a message about fields that this version does not know, or ""."""
    try:
        return Topic.parse(body), ""
    except InvalidResource as error:
        # Without unknown fields the error is about the known ones, and the Topic is invalid.
        known = Topic.known_part(body)
        if known is body:
            raise
        text = f"this version of the operator does not support a field of the object: {error}"
        return Topic.parse(known), f"{text}. Upgrade the operator, or remove the field"


def _annotations(meta: ObjectMeta, names: tuple[str, ...]) -> dict[str, str]:
    return {name: text for name in names if (text := meta.annotations.get(name, "").strip())}


def _left_tiering(left: LeftBehind) -> PersistedTiering:
    if left.tiering is None:
        return PersistedTiering()
    stored = left.tiering
    tiering = Tiering(TieringState[stored.state.name], stored.epoch, _policy(stored.policy))
    return PersistedTiering(tiering=tiering, since_ms=ms_of_time(left.since))


def _created_ms(resource: Topic | RecordDeletion) -> int:
    created = resource.metadata.creation_timestamp
    return 0 if created is None else ms_of_time(created)


def _policy(policy: SpecPolicy | None) -> DisablePolicy | None:
    return None if policy is None else DisablePolicy[policy.name]


def _in_tier(stored: StoredTiering | None) -> bool:
    """Return whether data of the topic is in the tier, by the same rule as admission."""
    if stored is None:
        return False
    # A disabled topic without segments has left the tier.
    is_disabled = TieringState[stored.state.name] is TieringState.DISABLED
    return not (is_disabled and stored.remote_segments == 0)


def _tiering(stored: StoredTiering | None) -> PersistedTiering:
    if stored is None:
        return PersistedTiering()
    state = TieringState[stored.state.name]
    return PersistedTiering(
        tiering=Tiering(state, stored.epoch, _policy(stored.policy)),
        since_ms=0 if stored.since is None else ms_of_time(stored.since),
        pending_brokers=stored.pending_brokers or (),
    )


def deletion_info(body: Json) -> DeletionInfo:
    """Convert a ``RecordDeletion`` object, with the offsets that its status has stored."""
    request = RecordDeletion.parse(body)
    spec, status, meta = request.spec, request.status, request.metadata
    if meta.uid is None:
        raise InvalidResource(f"RecordDeletion {meta.key} has no uid")
    # Offsets are resolved once, so that a retry deletes the same records.
    resolved = None
    if status.resolved is not None:
        resolved = {
            point.partition: DeletionPoint(
                partition=point.partition,
                log_start_offset=-1 if point.records is None else point.offset - point.records,
                offset=point.offset,
                last_epoch=point.leader_epoch,
                size_bytes=-1 if point.bytes is None else point.bytes,
            )
            for point in status.resolved
        }
    progress = {
        part.partition: DeletionProgress(low_watermark=part.low_watermark, error=part.error or "")
        for part in status.partitions or ()
    }
    return DeletionInfo(
        key=meta.key,
        uid=meta.uid,
        generation=meta.generation,
        topic_key=f"{meta.namespace}/{spec.topic_ref.name}",
        targets=_targets(spec),
        latest_epochs={
            point.partition: point.leader_epoch
            for point in spec.partitions or ()
            if point.leader_epoch is not None
        },
        created_ms=_created_ms(request),
        expected_topic_id=None if spec.topic_id is None else parse_id(spec.topic_id),
        timeout_ms=None if spec.timeout is None else duration_ms(spec.timeout),
        dry_run=bool(spec.dry_run),
        paused=is_paused(meta),
        ttl_after_finished_ms=(
            None if spec.ttl_after_finished is None else duration_ms(spec.ttl_after_finished)
        ),
        topic_id=parse_id(status.topic_id) if status.topic_id else None,
        resolved=resolved,
        progress=progress,
        records=status.records,
        size_bytes=status.bytes,
        started_ms=None if status.start_time is None else ms_of_time(status.start_time),
        finished_ms=None if status.completion_time is None else ms_of_time(status.completion_time),
        status=body.get("status") or {},
    )


def _targets(spec: RecordDeletionSpec) -> tuple[DeletionPointQuery, ...]:
    """Return the offsets or times up to which a RecordDeletion deletes."""
    # The schema allows either one point for all partitions, or a list of partitions.
    if spec.all is not None:
        return (_target(ALL_PARTITIONS, spec.all),)
    return tuple(_target(point.partition, point) for point in spec.partitions or ())


def _target(partition: int, point: AllPartitions | PartitionPoint) -> DeletionPointQuery:
    offset, time = point.before_offset, point.before_time
    return DeletionPointQuery(
        partition=partition,
        leader_epoch=NO_LEADER_EPOCH,
        before_offset=HIGH_WATERMARK if offset is None else offset,
        before_time_ms=NO_TIME if time is None else ms_of_time(time),
    )
