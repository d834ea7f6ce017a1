"""Status of a Cluster: brokers, tiered topics, remote bytes, and its conditions.

Fields that the reconcilers write themselves (controller, clusterId, slices, storeId,
acceptedStorage, nextProducerId) stay as they were read. So does leftBehind, except adopted or
forgotten entries.

The deletion of a Cluster waits for its Topics and Brokers. They need the controller for their own
deletion (replicas, data in the tier, registrations), and the controller needs the Cluster. So the
Cluster's finalizer is removed after theirs, and the PartitionSlices in between: once a Cluster has
neither Topics nor Brokers, everything else may be removed.
"""

from collections.abc import Iterable, Sequence

from tidemark.ids import id_text
from tidemark.message_text import count, names, numbers
from tidemark.reasons import Reason
from tidemark_operator.controller import epochs, left_behind, protection
from tidemark_operator.controller.rebuilding import is_done
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import OrphanedTopic, TopicInfo
from tidemark_operator.controller.status import external_listeners, rebuilding
from tidemark_operator.controller.status.conditions import (
    ConditionValue,
    StatusResult,
    condition,
    render,
    summary,
    time_text,
)
from tidemark_operator.controller.tiering_disablement import policy_name, state_name

#: Refused objects that a condition names; the rest are counted.
NAMED_MAX = 3
#: Labels of the pods of Readers, for the Cluster of that name.
READERS_SELECTOR = (
    "app.kubernetes.io/name=tidemark-broker,app.kubernetes.io/instance={},tidemark.dev/role=Reader"
)
REFUSED_REMEDY = (
    "Set the labels and annotations that a policy requires in "
    "spec.objectMetadata of the Cluster, or allow these objects"
)


def cluster_status(state: ControllerState, *, generation: int, now_ms: int) -> StatusResult:
    """Return the status of the Cluster; ``generation`` is the one that was reconciled."""
    cluster = state.cluster
    registered = [
        broker for broker in state.brokers.values() if broker.registered and not broker.is_reader
    ]
    fenced = [broker.node_id for broker in registered if not broker.live]
    conditions = [
        *_main(state, len(registered), fenced),
        *_storage(state),
        *_swept(state),
        *_refused_creations(state),
    ]
    conditions, addresses = external_listeners.of_cluster(state, conditions)
    # A blocked deletion and deleted CRDs replace any other reason of Stalled, because a person has
    # to act.
    if cluster.deletion_blocked:
        text = protection.blocked_text("Cluster")
        conditions[2] = condition("Stalled", True, Reason.DELETION_PROTECTED, text)
    if state.leaving_definitions:
        text = protection.leaving_text(state.leaving_definitions)
        conditions[2] = condition("Stalled", True, Reason.DEFINITION_DELETED, text)
    status: dict[str, object] = dict(cluster.status)
    status["observedGeneration"] = generation
    status["brokers"] = {"registered": len(registered), "fenced": len(fenced)}
    status.pop("readers", None)
    status.update(_readers(state))
    status["tieredTopics"] = sum(needs_tier(state, topic) for topic in state.topics.values())
    status["remoteBytes"] = sum(report.remote_bytes for report in state.reports.values())
    status.pop(external_listeners.LISTENERS, None)
    status.update(addresses)
    kept, _ = left_behind.settle(state)
    if kept != cluster.orphans:
        status["leftBehind"] = left_behind_entries(kept)
    if not kept:
        status.pop("leftBehind", None)
    # An engine that stores partition state itself never rebuilds rows.
    if not state.engine.keeps_rows:
        status.update(rebuilding.rendered(state, now_ms=now_ms))
    for name in rebuilding.FIELDS:
        if not status.get(name):
            status.pop(name, None)
    status["conditions"] = render(conditions, cluster.status, generation=generation, now_ms=now_ms)
    return StatusResult(status=status, sentence=f"cluster {cluster.key}: {conditions[0].message}")


def _readers(state: ControllerState) -> dict[str, object]:
    """Return the numbers of Readers for the scale subresource, nothing without a Reader."""
    readers = [broker for broker in state.brokers.values() if broker.is_reader]
    spec = state.cluster.has_readers
    if not readers and not spec:
        return {}
    name = state.cluster.key.rpartition("/")[2]
    counts = {
        "replicas": sum(not broker.deleting for broker in readers),
        "ready": sum(broker.live for broker in readers),
        "selector": READERS_SELECTOR.format(name),
    }
    return {"readers": counts}


def needs_tier(state: ControllerState, topic: TopicInfo) -> bool:
    """Return whether a topic has data in the remote tier, or may get some.

    If not every partition was reported by its leader, a topic that was ever tiered counts: a
    missing report does not prove that there is no data.
    """
    if not topic.tiering.ever_tiered:
        return False
    if not topic.tiering.is_off:
        return True
    for partition in state.rows_of(topic.id):
        report = state.reports.get((topic.id, partition))
        if report is None or report.offline:
            return True
        if report.remote_segments or report.remaining_segments:
            return True
    return False


def _main(state: ControllerState, registered: int, fenced: list[int]) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled of the Cluster.

    The first reason that applies is shown.
    """
    # The order is by urgency.
    if state.cluster.deleting:
        waited_for = (
            [_waited_for(topic) for topic in state.topics.values()],
            [broker.key.rpartition("/")[2] for broker in state.brokers.values()],
        )
        text = deletion_waits_text(*waited_for) or "deleting its PartitionSlices"
        return summary(ready=False, reason=Reason.DELETING, message=text, reconciling=True)
    # Without access to an existing Kafka cluster nothing else is known.
    if state.engine.problem:
        stuck = state.engine.refused
        reason = Reason.ENGINE_REJECTED if stuck else Reason.ENGINE_UNAVAILABLE
        return summary(
            ready=False,
            reason=reason,
            message=state.engine.problem,
            reconciling=not stuck,
            stalled=stuck,
        )
    live = registered - len(fenced)
    # Expiring certificates end every connection sooner or later, so they precede the brokers.
    problem = state.cluster.certificates_problem
    if problem:
        text = (
            f"certificates are neither issued nor renewed: {problem} ({count(live, 'broker')} live)"
        )
        return summary(ready=False, reason=Reason.CERTIFICATES_UNUSABLE, message=text, stalled=True)
    problem = state.own_certificate_problem
    if problem:
        text = (
            f"the operator's own certificate is not renewed: {problem}. See that the operator can "
            f"write its temporary directory ({count(live, 'broker')} live)"
        )
        return summary(ready=False, reason=Reason.CERTIFICATES_UNUSABLE, message=text, stalled=True)
    # If no broker runs, the refusal of Broker objects is the likely cause.
    refused = state.brokers_problem
    if refused and not live:
        return summary(ready=False, reason=Reason.BROKERS_REFUSED, message=refused, stalled=True)
    if not live:
        text = "no broker is live. Start one (its node id needs a Broker object)"
        return summary(ready=False, reason=Reason.NO_BROKERS, message=text, reconciling=True)
    if state.unreached:
        text = (
            "no broker has reached this operator since it took over "
            f"({count(live, 'broker')} were live then and are not fenced). "
            "Check that they run and can reach the operator"
        )
        return summary(
            ready=False, reason=Reason.BROKERS_UNREACHABLE, message=text, reconciling=True
        )
    text = f"{count(live, 'broker')} live"
    if fenced:
        text += f", fenced: {numbers(fenced)}"
    if state.cluster.rebuilding is not None and not is_done(state):
        return summary(
            ready=False,
            reason=Reason.REBUILDING,
            message=f"{rebuilding.sentence(state)} ({text})",
            reconciling=True,
        )
    # The last three do not affect service yet, so Ready stays True.
    left = epochs.left(state.controller_epoch)
    if left < epochs.RUNNING_OUT:
        text += (
            f". Only {count(left, 'controller epoch', 'is')} left, and each takeover uses "
            "one. Create another Cluster and move the topics there"
        )
        return summary(ready=True, reason=Reason.EPOCHS_RUNNING_OUT, message=text, stalled=True)
    if refused:
        text += f"; {refused}"
        return summary(ready=True, reason=Reason.BROKERS_REFUSED, message=text, stalled=True)
    return summary(ready=True, reason=Reason.SERVING, message=text)


def _waited_for(topic: TopicInfo) -> str:
    """Return the name of a Topic that the Cluster's deletion waits for, and until when it does."""
    name = topic.key.rpartition("/")[2]
    if topic.deletion_due_ms is None:
        return name
    return f"{name}, grace period until {time_text(topic.deletion_due_ms)}"


def _storage(state: ControllerState) -> list[ConditionValue]:
    """Return RemoteStorageReady; absent if no remote storage is configured."""
    cluster = state.cluster
    if cluster.storage_problem:
        text = cluster.storage_problem
        return [condition("RemoteStorageReady", False, Reason.REMOTE_STORAGE_UNAVAILABLE, text)]
    if not cluster.remote_storage:
        return []
    failing = sorted(node for node, health in state.health.items() if health.remote_error)
    if failing:
        text = f"broker {failing[0]}: {state.health[failing[0]].remote_error}"
        return [condition("RemoteStorageReady", False, Reason.REMOTE_STORAGE_UNAVAILABLE, text)]
    return [condition("RemoteStorageReady", True, Reason.AVAILABLE, "the remote tier is available")]


def _refused_creations(state: ControllerState) -> list[ConditionValue]:
    """Return ObjectsAccepted; absent while the API server accepts the operator's objects."""
    refused = state.cluster.refused_creations
    if not refused:
        return []
    more = f"; and {len(refused) - NAMED_MAX} more" if len(refused) > NAMED_MAX else ""
    text = f"the API server refuses {'; '.join(refused[:NAMED_MAX])}{more}. {REFUSED_REMEDY}"
    return [condition("ObjectsAccepted", False, Reason.CREATION_REFUSED, text)]


def _swept(state: ControllerState) -> list[ConditionValue]:
    """Return TierSwept; absent before the first sweep."""
    left = state.cluster.swept
    if left is None or not state.cluster.remote_storage:
        return []
    if not left:
        return [
            condition(
                "TierSwept", True, Reason.SWEPT, "every object in the tier is referenced by a head"
            )
        ]
    return [condition("TierSwept", False, Reason.ORPHANS_LEFT, left)]


#: Names of each kind in a condition; the rest are counted.
_SHOWN = 5


def deletion_waits_text(topics: Iterable[str], brokers: Iterable[str]) -> str:
    """Return the objects that a Cluster's deletion waits for, and what to do.

    "" if there are none.
    """
    waits = [
        f"{count(len(found), kind)} ({names(sorted(found), shown=_SHOWN)})"
        for kind, found in (("Topic", list(topics)), ("Broker", list(brokers)))
        if found
    ]
    if not waits:
        return ""
    return (
        f"waiting for {' and '.join(waits)}. Delete them. If one is not "
        "deleted, see its conditions (for a Broker, Draining)"
    )


def left_behind_entries(orphans: Sequence[OrphanedTopic]) -> list[dict[str, object]]:
    """Return the entries for a status."""
    return [_left_behind_entry(left) for left in orphans]


def _left_behind_entry(left: OrphanedTopic) -> dict[str, object]:
    """Return the entry of one orphaned topic in ``status.leftBehind``."""
    entry: dict[str, object] = {
        "topicName": left.name,
        "topicId": id_text(left.topic_id),
        "since": time_text(left.since_ms),
    }
    tiering = left.tiering_status.tiering
    if tiering.ever_tiered:
        policy = {} if tiering.policy is None else {"policy": policy_name(tiering.policy)}
        entry["tiering"] = {
            "state": state_name(tiering.state),
            "epoch": tiering.epoch,
            **policy,
        }
    return entry
