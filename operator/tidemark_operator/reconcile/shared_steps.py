"""Steps of a reconciliation that both engines share, in the order in which reconcilers take them.

An engine decides what becomes of its topics and brokers. How the operator finds an object, holds it
by its finalizer, writes its status and releases it is the same for Tidemark's own brokers and for
an Apache Kafka.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import left_behind
from tidemark_operator.controller.state.events import Event, normal
from tidemark_operator.controller.state.model import OrphanedTopic, TopicInfo
from tidemark_operator.controller.status import cluster_status, topic_status
from tidemark_operator.controller.status.cluster import left_behind_entries
from tidemark_operator.controller.status.conditions import summary
from tidemark_operator.controller.status.write_pacing import (
    FIGURES_MS,
    figures_interval_ms,
    quiet_deletion_ms,
)
from tidemark_operator.controller.topics import TopicDecision
from tidemark_operator.kube.finalizers import finalizers_of
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, Json, Key
from tidemark_operator.leadership.terms import TermEnded
from tidemark_operator.objects.conversions import cluster_of, topic_info
from tidemark_operator.reconcile.object_conditions import report_foreign, write_conditions
from tidemark_operator.reconcile.services import TermServices
from tidemark_operator.resources.names import TOPIC_FINALIZER

logger = logging.getLogger(__name__)

#: The last Topic or Broker to be deleted wakes the Cluster; this is for a missed event.
LEAVING_CHECK_S = 5.0


# ------------------------------------------------------------ Topics


async def hold_topic(services: TermServices, key: Key, body: Json) -> TopicInfo | None:
    """Return a Topic that has our finalizer, None if nothing is to be done for the object.

    A Topic of another Cluster gets a condition. Raises ``InvalidResource`` if a Topic is of this
    Cluster and the state could not take it in.
    """
    topic = services.state.topics.get(key.namespaced_name)
    if topic is None:
        if cluster_of(body) == services.cluster_key.name:
            topic_info(body, {})  # raises the reason
        await report_foreign(services, TOPIC, key, body)
        return None
    # One that is being deleted gets no finalizer. Without ours, the operator has released it.
    if body["metadata"].get("deletionTimestamp"):
        return topic if TOPIC_FINALIZER in finalizers_of(body) else None
    # Nothing is created for a paused Topic.
    if not topic.paused:
        await services.client.ensure_finalizer(TOPIC, body, TOPIC_FINALIZER)
    return topic


def quiet_deletion_s(topic: TopicInfo, decision: TopicDecision) -> float:
    """Return the seconds for which a deletion needs no status: it will be over in a moment."""
    if decision.deletion is None or decision.deletion.problem or topic.deletion_ms is None:
        return 0.0
    return quiet_deletion_ms(topic.deletion_ms, now_ms=wall_ms()) / 1000


async def write_topic_status(
    services: TermServices,
    key: Key,
    topic: TopicInfo,
    decision: TopicDecision,
    *,
    former: Mapping[str, object],
    keys: list[str] | None = None,
    news: Callable[[TopicInfo, Json], Iterable[Event]] = lambda _topic, _status: (),
) -> float | None:
    """Write the status that follows from a decision, and emit its Events if it was written.

    ``former``: the stored status. ``keys``: configuration keys to record as managed; None: as
    before. ``news``: further Events for a written status. Returns the seconds until figures that
    differ are written, None if nothing differs any more. Raises ``KubeError``.
    """
    now_ms = wall_ms()
    result = topic_status(services.state, topic, decision, services.disablements, now_ms=now_ms)
    status = dict(result.status) if keys is None else {**result.status, "configKeys": keys}
    is_written = await services.statuses.write_if_due(TOPIC, key, former, status, now_ms=now_ms)
    # The Event may be missing although the status is written, if an operator died in between.
    for event in services.announcements.news(services.state, topic, status):
        services.events.emit(event)
    if is_written:
        logger.info("%s", result.sentence)
        for event in (*decision.events, *news(topic, status)):
            services.events.emit(event)
        if decision.adopted is not None:
            services.queue.add(services.cluster_key)  # the topic leaves its list leftBehind
        return None
    # Only figures differ: they are written when their interval is over.
    return None if former == status else figures_interval_ms(status) / 1000


async def record_orphan(services: TermServices, orphan: OrphanedTopic) -> bool:
    """List an orphaned topic in the Cluster's status before its Topic is released.

    Returns False if other topics have filled the list.
    """
    cluster = services.state.cluster
    left = left_behind.added(cluster, orphan)
    if left is not None and left != cluster.orphans:
        status = {**cluster.status, "leftBehind": left_behind_entries(left)}
        await services.statuses.write(CLUSTER, services.cluster_key, status)
    return left is not None


async def release_topic(
    services: TermServices, body: Json, topic: TopicInfo, text: str, *, is_orphaned: bool
) -> None:
    """Emit the Event of a finished deletion, and remove the finalizer: nothing remains to do."""
    reason = "TopicLeftBehind" if is_orphaned else "TopicDeleted"
    services.events.emit(normal(TOPIC.kind, topic.key, reason, f"{topic.name}: {text}"))
    await services.client.release(TOPIC, body, TOPIC_FINALIZER)
    services.disablements.forget(topic.id)
    logger.info("%s: released: %s", TOPIC.key(topic.key), text)


# ------------------------------------------------------------ the Cluster


async def managed_cluster(services: TermServices, key: Key) -> Json | None:
    """Return the Cluster of this operator, None if nothing is to be done for the object.

    An operator manages one Cluster: a second one of the namespace is refused by a condition.
    """
    body = services.objects.get(key)
    if body is None or key == services.cluster_key:
        return body
    text = (
        f"this operator manages Cluster {services.cluster_key.name} of this namespace. Each "
        "Cluster needs its own namespace. Delete one of the two"
    )
    conditions = summary(ready=False, reason=Reason.SECOND_CLUSTER, message=text, stalled=True)
    await write_conditions(services, CLUSTER, key, body, conditions)
    return None


async def leave_cluster(
    services: TermServices, key: Key, generation: int, remove_brokers: Callable[[], Awaitable[None]]
) -> float:
    """Report what a deleted Cluster waits for, and end the term when it waits for nothing.

    Topics need the engine for their own deletion, so they come before Brokers. The remains are
    removed between terms (:mod:`tidemark_operator.term.cluster_teardown`).
    """
    for kind in (TOPIC, BROKER):
        if any(cluster_of(body) == key.name for body in services.objects.of_kind(kind)):
            if kind is BROKER:
                await remove_brokers()
            await write_cluster_status(services, key, generation)
            return LEAVING_CHECK_S
    raise TermEnded(f"Cluster {key.name} is being deleted, and no dependent object is left")


async def write_cluster_status(services: TermServices, key: Key, generation: int) -> float | None:
    """Write the Cluster's status with the generation that was reconciled; the spec may be newer.

    Returns the seconds until figures that differ are written, None if nothing differs any more.
    """
    now_ms, former = wall_ms(), services.state.cluster.status
    status = cluster_status(services.state, generation=generation, now_ms=now_ms).status
    # Orphans that were adopted or deleted leave the list with this write.
    _, forgotten = left_behind.settle(services.state)
    if await services.statuses.write_if_due(CLUSTER, key, former, status, now_ms=now_ms):
        for event in forgotten:
            services.events.emit(event)
        return None
    return None if former == status else FIGURES_MS / 1000
