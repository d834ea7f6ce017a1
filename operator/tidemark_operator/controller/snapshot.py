"""PartitionStates for brokers: the state as a full snapshot or as a delta.

Every broker needs every topic, because clients request metadata from any broker. Topics that have
rows but no Topic object are left out: brokers keep what they have, because absence never deletes. A
broker removes a replica only for a tombstone, or for a row of a newer partition epoch that does not
name it. A partition is sent only once the Topic's status counts it as placed (``partitionsPlaced``:
persist before acting), or once a broker has reported it, which had received it before.

A partition whose row is lost or in doubt is counted but not named, so that clients never see a
topic shrink. ``knows_all`` says whether a topic that is not named is deleted. It is false while a
partition is in doubt, and while a broker has not reported in this term.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping

from tidemark.leader_epochs import same_generation
from tidemark.wire.control import (
    BrokerState,
    ConfigEntry,
    GroupConfig,
    PartitionState,
    PartitionStatesRequest,
    Removal,
    TopicState,
    UnservedTopic,
)
from tidemark.wire.users import UserStatesRequest
from tidemark_operator.controller import rebuilding
from tidemark_operator.controller.external_listeners import endpoints
from tidemark_operator.controller.state.commit import SliceWrite
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import BrokerInfo, PartitionRow, RowKey, TopicInfo

#: Topics without a Topic object in one message; if there are more, no topic counts as deleted.
UNSERVED_MAX = 2048


def full(state: ControllerState) -> PartitionStatesRequest:
    """Return the snapshot that opens a command connection; it is the same for every broker."""
    topics = [state.topics[key] for key in sorted(state.topics)]
    return _request(
        state,
        full=True,
        topics=[
            topic_state(topic, _ordered(state, topic), partition_count=state.partitions_of(topic))
            for topic in topics
            if _served(state, topic)
        ],
        removals=[_tombstone(topic_id) for topic_id in sorted(state.tombstones)],
    )


def delta(
    state: ControllerState,
    *,
    rows: Collection[RowKey] = (),
    topics: Collection[str] = (),
    removals: Iterable[Removal] = (),
) -> PartitionStatesRequest:
    """Return a PartitionStates request with changes only, for one broker.

    ``rows``: changed partitions. ``topics``: object keys of Topics with a changed configuration or
    tiering. ``removals``: replicas that this broker has to delete (see :func:`removals_of`). The
    list of brokers is always included; the link omits it if it is unchanged.
    """
    # A topic without changed rows is sent as well: its configuration or tiering may have changed.
    parts: dict[str, list[PartitionRow]] = {key: [] for key in topics if key in state.topics}
    for row_key in sorted(set(rows)):
        # Rows that may be outdated are not sent.
        topic, row = state.topics.by_id(row_key[0]), state.row(row_key)
        if row_key in state.unverified_rows:
            continue
        # Partitions whose placement is not persisted in the Topic's status yet are not sent.
        if topic is not None and row is not None and row.partition < state.partitions_of(topic):
            parts.setdefault(topic.key, []).append(row)
    changed = [(state.topics[key], parts[key]) for key in sorted(parts)]
    return _request(
        state,
        full=False,
        topics=[
            topic_state(topic, own, partition_count=state.partitions_of(topic))
            for topic, own in changed
            if _served(state, topic)
        ],
        removals=list(removals),
    )


def users(state: ControllerState) -> tuple[int, UserStatesRequest] | None:
    """Return all users with their version; None until every User object has been read."""
    if not state.users.complete:
        return None
    states, quotas = state.users.fitting()
    request = UserStatesRequest(
        controller_epoch=state.controller_epoch,
        authorize=state.cluster.authorize,
        super_users=state.cluster.super_users,
        users=states,
        quotas=(*state.cluster.quotas, *quotas),
        strangers_key=state.strangers_key,
    )
    return state.users.version, request


def removals_of(state: ControllerState, write: SliceWrite) -> Mapping[int, tuple[Removal, ...]]:
    """Return the replicas and topics that brokers have to delete after a write, by node id.

    Call it before the write is applied, while the state has the former rows; send the result after
    the write is stored.
    """
    gone: dict[int, list[Removal]] = {}
    for row in write.rows:
        old = state.row(row.key)
        if old is not None and not same_generation(old.leader_epoch, row.leader_epoch):
            # A rebuilt row may not name all replicas that exist, so those not named are kept.
            continue
        # A replica that left the row's replicas is deleted by its broker, at this partition epoch.
        for node_id in set(old.hosts if old else ()) - set(row.hosts):
            removal = Removal(
                topic_id=row.topic_id, partition=row.partition, partition_epoch=row.partition_epoch
            )
            gone.setdefault(node_id, []).append(removal)
    for topic_id, tombstone in write.tombstones:
        if tombstone is None:
            continue
        is_new = write.index not in state.tombstones_of(topic_id)
        # Brokers without a replica show clients the topic until they receive its removal.
        others = state.brokers if is_new else ()
        for node_id in {*tombstone.pending, *others}:
            gone.setdefault(node_id, []).append(_tombstone(topic_id))
    return {node_id: tuple(removals) for node_id, removals in gone.items()}


def _served(state: ControllerState, topic: TopicInfo) -> bool:
    return state.partitions_of(topic) > 0 and state.topics.by_id(topic.id) is topic


def _ordered(state: ControllerState, topic: TopicInfo) -> list[PartitionRow]:
    """Return the placed rows in order, without those that may be older than brokers' state."""
    rows, count = state.rows_of(topic.id), state.partitions_of(topic)
    return [
        rows[partition]
        for partition in sorted(rows)
        if partition < count and (topic.id, partition) not in state.unverified_rows
    ]


def _unserved(state: ControllerState) -> list[UnservedTopic]:
    """Return the topics without a Topic object that slices, brokers or the Cluster's status name.

    Brokers must not let clients create topics with such a name.
    """
    left = {orphan.topic_id: orphan.name for orphan in state.cluster.orphans}
    ids, served = set(left), state.topics.ids()
    ids.difference_update(served)
    ids.update(state.row_topic_ids() - served, state.replica_reports.topic_ids() - served)
    # A topic with a tombstone is being deleted, and is not listed.
    return [
        UnservedTopic(
            name=left.get(topic_id)
            or state.row_name(topic_id)
            or state.replica_reports.name(topic_id),
            topic_id=topic_id,
            is_unmanaged=topic_id not in left,
        )
        for topic_id in sorted(ids)
        if not state.tombstones_of(topic_id)
    ]


def _knows_all(state: ControllerState, unserved: Collection[UnservedTopic]) -> bool:
    """Return whether a topic that is neither served nor ``unserved`` is deleted.

    A broker that has not reported may have a topic that a restored backup does not have. The same
    is true of a broker that rows name and the backup does not have.
    """
    return (
        state.cluster.rebuilding is None
        and not state.unverified_rows
        and len(unserved) <= UNSERVED_MAX
        and all(topic.name for topic in unserved)
        and not rebuilding.silent(state)
        and not state.has_unknown_hosts()
    )


def _request(
    state: ControllerState, *, full: bool, topics: list[TopicState], removals: list[Removal]
) -> PartitionStatesRequest:
    """Return a PartitionStates request with the cluster's settings and the given topics."""
    cluster, unserved = state.cluster, _unserved(state)
    # ``commit`` is the last stored commit: brokers repeat it, and a takeover recognises an old
    # backup.
    return PartitionStatesRequest(
        controller_id=state.controller_id,
        controller_epoch=state.controller_epoch,
        full=full,
        cluster_id=cluster.cluster_id,
        cluster_config=_entries(cluster.config),
        remote_storage=cluster.remote_storage,
        store_id=cluster.store_id,
        brokers=tuple(
            _broker(state, broker)
            for _, broker in sorted(state.brokers.items())
            if broker.registered
        ),
        topics=tuple(topics),
        removals=tuple(removals),
        users_follow=cluster.authorize,
        commit=state.stored_commit,
        groups=tuple(
            GroupConfig(group_id=group_id, config=_entries(cluster.groups[group_id]))
            for group_id in sorted(cluster.groups)
        ),
        knows_all=_knows_all(state, unserved),
        unserved=tuple(unserved[:UNSERVED_MAX]),
    )


def _entries(config: Mapping[str, str]) -> tuple[ConfigEntry, ...]:
    return tuple(ConfigEntry(name=name, value=config[name]) for name in sorted(config))


def _broker(state: ControllerState, broker: BrokerInfo) -> BrokerState:
    return BrokerState(
        broker_id=broker.node_id,
        broker_epoch=broker.broker_epoch,
        rack=broker.rack,
        fenced=not broker.live,
        listeners=endpoints(state, broker),
        is_reader=broker.is_reader,
    )


def topic_state(
    topic: TopicInfo, rows: Iterable[PartitionRow], *, partition_count: int
) -> TopicState:
    """Return the TopicState of a topic with the given rows."""
    return TopicState(
        topic_id=topic.id,
        name=topic.name,
        config=_entries(topic.config),
        tiering_state=int(topic.tiering.state),
        tiered_epoch=topic.tiering.epoch,
        disable_policy=int(topic.tiering.disable_policy),
        partitions=tuple(map(partition_state, rows)),
        partition_count=partition_count,
    )


def partition_state(row: PartitionRow) -> PartitionState:
    """Return a partition's row as it is sent to brokers."""
    return PartitionState(
        partition=row.partition,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        replicas=row.replicas,
        isr=row.isr,
        manifest=row.manifest,
        # A leader uses the flag only; the lists are for clients that query them (KIP-966).
        leader_recovery_state=int(row.leader_recovery_state),
        has_eligible_leaders=bool(row.elr or row.last_known_elr),
        adding=row.adding,
        removing=row.removing,
        elr=row.elr,
        last_known_elr=row.last_known_elr,
    )


def _tombstone(topic_id: uuid.UUID) -> Removal:
    return Removal(topic_id=topic_id, partition=-1, partition_epoch=-1)
