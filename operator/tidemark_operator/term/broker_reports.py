"""Status reports of brokers: figures and errors, kept in memory.

A report wakes the reconcilers of the objects whose status shows it: at once for errors, later for
figures.
"""

import uuid

from tidemark.message_text import numbers, quoted
from tidemark.wire import control
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import elections
from tidemark_operator.controller.state.events import warning
from tidemark_operator.controller.state.model import BrokerHealth, RowKey, TopicInfo
from tidemark_operator.kube.kinds import BROKER, TOPIC
from tidemark_operator.reconcile.services import ReconcilerServices

#: Delay of a status write that only changes figures, in seconds.
FIGURES_S = 30.0
FIGURES_DISABLING_S = 1.0


def take_report(services: ReconcilerServices, request: control.BrokerStatusRequest) -> None:
    """Record the status report of a registered broker."""
    _take_health(services, request)
    _take_failed(services, request)
    for report in request.partitions:
        _take_partition(services, report)


def _take_health(services: ReconcilerServices, request: control.BrokerStatusRequest) -> None:
    """Record a broker's storage figures and errors; queue the objects that show them."""
    state, queue = services.state, services.queue
    health = BrokerHealth(
        log_bytes=request.log_bytes,
        replicas=request.replicas,
        storage_error=request.storage_error,
        directory_error=request.directory_error,
        remote_error=request.remote_error,
        store_id=request.store_id,
        set_aside=tuple(
            ((replica.topic_id, replica.partition), replica.message)
            for replica in request.set_aside
        ),
    )
    former = state.health.get(request.broker_id)
    state.health[request.broker_id] = health
    # Events and statuses come from the difference to the last report, so it is replaced first.
    if former is None or former.set_aside != health.set_aside:
        _set_aside_changed(services, request.broker_id, former, health)
    key = BROKER.key(state.brokers[request.broker_id].key)
    # A new error is shown at once. Figures change constantly, so their update is delayed.
    if former is None or _errors(former) != _errors(health):
        queue.add(key)
        queue.add(services.cluster_key)
    elif former != health:
        queue.add_later(key, FIGURES_S)


def _set_aside_changed(
    services: ReconcilerServices, node_id: int, former: BrokerHealth | None, health: BrokerHealth
) -> None:
    """Emit an Event for each Topic of which a broker starts to copy a replica again from scratch.

    The replica's log lacked records, so the broker sets its former directory aside.
    """
    # A broker repeats the list in every report; only new entries are news.
    known = frozenset(() if former is None else former.set_aside)
    by_topic: dict[uuid.UUID, list[tuple[int, str]]] = {}
    for (topic_id, partition), message in health.set_aside:
        if ((topic_id, partition), message) not in known:
            by_topic.setdefault(topic_id, []).append((partition, message))
    for topic_id, replicas in by_topic.items():
        topic = services.state.topics.by_id(topic_id)
        if topic is not None:
            text = (
                f"broker {node_id} lacked records of partition "
                f"{numbers(partition for partition, _ in replicas)} and copies "
                "all of it from the leader. Its former directory is kept until "
                f"the replica is in sync: {quoted(replicas[0][1], shown=300)}"
            )
            services.events.emit(warning(TOPIC.kind, topic.key, "ReplicaSetAside", text))
            services.wake_topic(topic_id)


def _take_failed(services: ReconcilerServices, request: control.BrokerStatusRequest) -> None:
    """Record which replicas have failed storage, and elect other leaders where necessary."""
    state, node_id = services.state, request.broker_id
    named = {
        (topic.topic_id, partition)
        for topic in request.failed_replicas
        for partition in topic.partitions
    }
    # The common case: no replica fails and none failed before.
    if not named and not state.storage_failures.on(node_id):
        return
    news = state.storage_failures.put(
        node_id, state.partitions.keys_on(node_id).intersection(named)
    )
    if news:
        # The election needs a commit; the broker's report is answered without waiting for it.
        services.background.spawn(
            ("storage", node_id, news), _storage_changed(services, node_id, news)
        )


async def _storage_changed(
    services: ReconcilerServices, node_id: int, news: frozenset[RowKey]
) -> None:
    await services.committer.until_decided(
        lambda draft: elections.storage_changed(draft, node_id, news),
        f"the storage report of broker {node_id}",
    )
    for topic_id in {topic_id for topic_id, _ in news}:
        services.wake_topic(topic_id)


def _take_partition(services: ReconcilerServices, report: control.PartitionStatus) -> None:
    """Record a leader's report about one partition (offsets, remote data), and queue its Topic."""
    state = services.state
    row = state.row((report.topic_id, report.partition))
    topic = state.topics.by_id(report.topic_id)
    # A former leader's report is about an older epoch than the row.
    if row is None or topic is None or report.leader_epoch < row.leader_epoch:
        return
    former = state.reports.get(row.key)
    state.reports[row.key] = report
    disabling = topic.tiering.is_disabling
    if disabling:
        _note_remaining(services, topic, report)
    # A new error is shown at once. Other changes are delayed, less during a disablement.
    key = TOPIC.key(topic.key)
    if former is None or _trouble(former) != _trouble(report):
        services.queue.add(key)
    elif former != report:
        services.queue.add_later(key, FIGURES_DISABLING_S if disabling else FIGURES_S)


def _note_remaining(
    services: ReconcilerServices, topic: TopicInfo, report: control.PartitionStatus
) -> None:
    state = services.state
    reports = (
        state.reports.get((report.topic_id, partition))
        for partition in state.rows_of(report.topic_id)
    )
    remaining = sum(found.remaining_segments for found in reports if found is not None)
    services.disablements.note_remaining(topic, remaining, now_ms=wall_ms())


def _trouble(report: control.PartitionStatus) -> tuple[str, bool, bool, bool]:
    """Return the part of a report that is shown at once: errors, a lag of the tier, and that the
    tier is in use.
    """
    is_lagging = report.lagging_since_ms >= 0
    return report.error_reason, report.offline, report.remote_segments > 0, is_lagging


def _errors(health: BrokerHealth) -> tuple[str, ...]:
    return health.storage_error, health.directory_error, health.remote_error, health.store_id
