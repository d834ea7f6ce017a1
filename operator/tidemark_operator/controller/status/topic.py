"""Status of a Topic: conditions as kstatus reads them, replica counts, tiering.

`observedGeneration` increases only here, where Ready is computed (invariant 22). A paused Topic
keeps its conditions and its generation.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from tidemark.ids import id_text
from tidemark.message_text import count, numbered, quoted, them
from tidemark.reasons import Reason
from tidemark.tiering import Tiering
from tidemark.wire.control import PAGE_NOT_FOUND, TIER_INTEGRITY, PartitionStatus
from tidemark_operator.controller import reassignment
from tidemark_operator.controller.accepted_losses import offer_text
from tidemark_operator.controller.replication_factor_changes import Resizing
from tidemark_operator.controller.state.commit import partitions_in_rows
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    PartitionRow,
    PersistedTiering,
    TopicInfo,
)
from tidemark_operator.controller.status import deletion_grace
from tidemark_operator.controller.status.conditions import (
    FALSE,
    TRUE,
    ConditionValue,
    StatusResult,
    approximate_bytes,
    condition,
    find,
    render,
    summary,
    time_text,
    with_acceptances,
)
from tidemark_operator.controller.status.offline_partitions import (
    leaders_starting,
    no_leader,
    storage_refuses,
)
from tidemark_operator.controller.status.remote_integrity import REMOTE_INTEGRITY, remote_integrity
from tidemark_operator.controller.status.tier_lag import TIERING_LAGGING, tier_lag
from tidemark_operator.controller.tiering_disablement import (
    DisablementProgress,
    changed_while_disabling,
    policy_name,
    state_name,
)
from tidemark_operator.controller.topics import TopicDecision


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicReplicaCounts:
    """Replicas of all partitions; placeholders and offline partitions count as missing."""

    desired: int
    placed: int
    in_sync: int
    placeholders: int
    rows: int
    offline: tuple[PartitionRow, ...]
    lost: tuple[int, ...]
    #: Reports of elected leaders that cannot lead yet, by partition.
    waiting: tuple[PartitionStatus, ...]
    #: Partitions whose leader's storage fails.
    refusing: tuple[PartitionRow, ...]
    #: Partitions whose leader has not acknowledged its leadership.
    starting: tuple[PartitionRow, ...]
    #: Live brokers whose storage refuses replicas, with these partitions and the reason.
    failing: tuple[tuple[int, list[int], str], ...]
    #: Partitions with replicas that are not in sync, and the brokers with them that are not
    #: live and that are live.
    behind: tuple[int, ...]
    #: Partitions with fewer in-sync replicas than min.insync.replicas, which refuse acks=all.
    under_min: tuple[int, ...]
    down: tuple[int, ...]
    catching_up: tuple[int, ...]
    #: Brokers that copy whole replicas because their logs lacked records, with the partitions.
    recopied: tuple[tuple[int, list[int]], ...]


def counts(state: ControllerState, topic: TopicInfo) -> TopicReplicaCounts:
    """Return a topic's replicas and partitions, counted by state.

    The result has the partitions that explain each condition: offline, lost, waiting, and so on.
    """
    # A removed replica or a placeholder counts as neither placed nor behind.
    rows = [state.rows_of(topic.id)[partition] for partition in sorted(state.rows_of(topic.id))]
    led = [row for row in rows if row.leader != NO_LEADER]
    behind = {row.partition: _behind(state, row) for row in rows}
    lagging = {node_id for node_ids in behind.values() for node_id in node_ids}
    return TopicReplicaCounts(
        desired=sum(len(reassignment.target(row)) for row in rows),
        placed=sum(len(row.hosts) for row in rows),
        in_sync=sum(len(_staying(state, row)) for row in led),
        placeholders=sum(row.placeholders for row in rows),
        rows=len(rows),
        offline=tuple(row for row in rows if row.leader == NO_LEADER),
        lost=tuple(row.partition for row in rows if not row.holders),
        waiting=_waiting(state, led),
        refusing=tuple(row for row in led if state.refuses(row, row.leader)),
        starting=tuple(_starting(state, topic, led)),
        failing=tuple(_failing(state, rows)),
        behind=tuple(partition for partition, node_ids in behind.items() if node_ids),
        under_min=tuple(
            row.partition for row in led if len(state.in_sync(row)) < state.min_isr(row)
        ),
        down=tuple(sorted(node_id for node_id in lagging if not state.is_live(node_id))),
        catching_up=tuple(sorted(node_id for node_id in lagging if state.is_live(node_id))),
        recopied=tuple(_recopied(state, topic)),
    )


def _failing(
    state: ControllerState, rows: Sequence[PartitionRow]
) -> Iterator[tuple[int, list[int], str]]:
    for node_id in sorted({host for row in rows for host in row.hosts}):
        partitions = [
            row.partition for row in rows if node_id in row.hosts and _fails(state, row, node_id)
        ]
        if partitions:
            health = state.health.get(node_id)
            yield node_id, partitions, "" if health is None else health.storage_error


def _recopied(state: ControllerState, topic: TopicInfo) -> Iterator[tuple[int, list[int]]]:
    for node_id, health in sorted(state.health.items()):
        partitions = [key[1] for key, _ in health.set_aside if key[0] == topic.id]
        if partitions and state.is_live(node_id):
            yield node_id, partitions


def _behind(state: ControllerState, row: PartitionRow) -> list[int]:
    """Return the brokers whose replicas are to stay and are not in sync."""
    in_sync = state.in_sync(row)
    return [node for node in reassignment.target(row) if node in row.hosts and node not in in_sync]


def _staying(state: ControllerState, row: PartitionRow) -> list[int]:
    """Return the in-sync replicas, without those that a move removes."""
    return [node_id for node_id in state.in_sync(row) if node_id not in row.removing]


def _fails(state: ControllerState, row: PartitionRow, node_id: int) -> bool:
    return state.is_live(node_id) and state.refuses(row, node_id)


def _starting(
    state: ControllerState, topic: TopicInfo, led: Sequence[PartitionRow]
) -> list[PartitionRow]:
    """Return the partitions whose leader has not acknowledged its leadership.

    A topic that was Ready stays so during a change of leaders, unless that takes too long, and in a
    new controller term until the first acknowledgements.
    """
    known = state.acknowledgements
    if topic.was_ready:
        overdue = known.is_overdue(topic.id)
        return [row for row in led if overdue and known.awaits_leader(row)]
    return [
        row
        for row in led
        if known.awaits_leader(row) or not known.has_snapshot(state.brokers.get(row.leader))
    ]


def _waiting(state: ControllerState, led: Sequence[PartitionRow]) -> tuple[PartitionStatus, ...]:
    reports = ((row, state.reports.get(row.key)) for row in led)
    return tuple(
        report
        for row, report in reports
        if report is not None and report.offline and report.leader_epoch == row.leader_epoch
    )


def topic_status(
    state: ControllerState,
    topic: TopicInfo,
    decision: TopicDecision,
    disablements: DisablementProgress,
    *,
    now_ms: int,
) -> StatusResult:
    """Return the status of a Topic that follows from a decision.

    The decision's rows must be committed and applied to ``state``.
    """
    # This status writes the adopted id, so everything in it has to be of that id.
    if decision.adopted is not None:
        adopted = decision.adopted
        topic = dataclasses.replace(
            topic, topic_id=adopted.topic_id, partitions_placed=adopted.partitions
        )
    if decision.paused:
        return _paused(state, topic, decision, now_ms)
    counted = counts(state, topic)
    conditions = _conditions(state, topic, decision, disablements, counted, now_ms)
    # The former status is the base: fields of other writers stay.
    status: dict[str, object] = dict(topic.status)
    status.pop("heldConfig", None)
    status["observedGeneration"] = topic.generation
    status["controllerEpoch"] = state.controller_epoch
    # Without rows and id nothing exists yet, and replica counts would mislead.
    if counted.rows or topic.topic_id is not None:
        status |= _identity(state, topic)
        status["replicas"] = {
            "desired": counted.desired,
            "placed": counted.placed,
            "inSync": counted.in_sync,
            "placeholders": counted.placeholders,
            # A printer column shows one field, and cannot join two.
            "summary": f"{counted.in_sync}/{counted.desired}",
        }
    status.pop(deletion_grace.DELETION, None)
    if (field := deletion_grace.status_field(topic, now_ms=now_ms)) is not None:
        status[deletion_grace.DELETION] = field
    if decision.accepted:
        status["accepted"] = with_acceptances(topic.status, decision.accepted, now_ms=now_ms)
    if decision.tiering_status.tiering.ever_tiered:
        status["tiering"] = {
            **_tiering(state, topic, decision.tiering_status),
            "summary": _tiering_summary(conditions, decision.tiering_status),
        }
    status["conditions"] = render(
        conditions, topic.status, generation=topic.generation, now_ms=now_ms
    )
    return StatusResult(status=status, sentence=_sentence(topic, conditions))


def _identity(state: ControllerState, topic: TopicInfo) -> dict[str, object]:
    """Return the topic's id and number of partitions, which are evidence if slices are lost."""
    placed = max(topic.partitions_placed, partitions_in_rows(state, topic))
    return {"topicId": id_text(topic.id), "partitionsPlaced": placed}


def _sentence(topic: TopicInfo, conditions: Sequence[ConditionValue]) -> str:
    ready = conditions[0]
    return f"topic {topic.name}: {ready.message or ready.reason}"


def _paused(
    state: ControllerState, topic: TopicInfo, decision: TopicDecision, now_ms: int
) -> StatusResult:
    """Return the status of a paused Topic.

    Ready stays as it was, with its observed generation; only Reconciling says that the Topic is
    paused, and what is lost of it. The configuration that brokers have is stored (``heldConfig``),
    so that it stays in force under the next controller.
    """
    observed = topic.status.get("observedGeneration")
    generation = observed if isinstance(observed, int) else 0
    text = _paused_text(topic, decision, generation)
    paused = condition("Reconciling", False, Reason.PAUSED, text)
    stalled = condition("Stalled", False, Reason.PAUSED)
    # New conditions replace those of the same type, in place; the others stay as they were.
    rendered = render([paused, stalled], topic.status, generation=generation, now_ms=now_ms)
    new = {str(item["type"]): item for item in rendered}
    kept = topic.status.get("conditions")
    old = (
        [item for item in kept if isinstance(item, dict)] if isinstance(kept, list | tuple) else []
    )
    merged = [new.pop(str(item.get("type")), item) for item in old]
    # A Topic that was never reconciled needs a Ready condition for kstatus.
    if find(topic.status, "Ready") is None:
        merged[:0] = render(
            [condition("Ready", None, Reason.PAUSED, text)],
            {},
            generation=generation,
            now_ms=now_ms,
        )
    status: dict[str, object] = {**topic.status, "conditions": [*merged, *new.values()]}
    status["controllerEpoch"] = state.controller_epoch
    if topic.topic_id is not None or state.rows_of(topic.id):
        status |= _identity(state, topic)
        status["heldConfig"] = dict(topic.config)
    if decision.accepted:
        status["accepted"] = with_acceptances(topic.status, decision.accepted, now_ms=now_ms)
    if decision.tiering_status.tiering.ever_tiered and "tiering" not in status:
        status["tiering"] = _tiering(state, topic, decision.tiering_status)
    return StatusResult(status=status, sentence=f"topic {topic.name} is paused")


def _paused_text(topic: TopicInfo, decision: TopicDecision, observed: int) -> str:
    text = "reconciliation is paused. To continue, remove the annotation tidemark.dev/paused"
    if topic.deletion_ms is not None or topic.deletion_due_ms is not None:
        text += ". The Topic's deletion is also paused"
    elif 0 < observed < topic.generation:
        text += f". Generation {topic.generation} of the spec is not applied"
    return text if decision.blocker is None else f"{text}; {decision.blocker.message}"


# ---------------------------------------------------------------- conditions


def _conditions(
    state: ControllerState,
    topic: TopicInfo,
    decision: TopicDecision,
    disablements: DisablementProgress,
    counted: TopicReplicaCounts,
    now_ms: int,
) -> list[ConditionValue]:
    """Return all conditions of a Topic; Ready, Reconciling and Stalled come first."""
    main = _main(state, topic, decision, disablements, counted, now_ms)
    refused = decision.refused
    # A part of the spec that is refused is shown, unless a more important reason is.
    if refused is not None:
        place, name = (1, "Reconciling") if refused.goes_on else (2, "Stalled")
        if main[place].status != TRUE:
            main[place] = condition(name, True, refused.reason, refused.message)
    # So is a deletion that is due later.
    if (text := deletion_grace.pending_text(topic)) and main[1].status != TRUE:
        main[1] = condition("Reconciling", True, Reason.DELETION_PENDING, text)
    # Conditions about data need placed partitions that are not being deleted.
    if decision.deletion is not None or not counted.rows:
        return main
    tiering = decision.tiering_status.tiering
    settled = _settled(state, topic, decision, disablements)
    fails = any(item.status == FALSE for item in settled)
    lagging = tier_lag(topic, tiering, _reports(state, topic), fails=fails)
    audited = remote_integrity(state, topic, decision.tiering_status, now_ms=now_ms)
    damaged = _integrity(state, topic)
    return [
        *main,
        _replicated(counted, decision.resizing),
        *settled,
        *lagging,
        *damaged,
        *audited,
        *_config_effective(topic),
    ]


def _main(
    state: ControllerState,
    topic: TopicInfo,
    decision: TopicDecision,
    disablements: DisablementProgress,
    counted: TopicReplicaCounts,
    now_ms: int,
) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled of a Topic; the first reason that applies is shown."""
    # First what keeps the whole topic from being served.
    if decision.deletion is not None:
        step = decision.deletion
        text, stuck = step.problem or step.message, bool(step.problem)
        return summary(
            ready=False, reason=Reason.DELETING, message=text, reconciling=not stuck, stalled=stuck
        )
    if decision.adopted is not None:
        text = f"the partitions of topic {topic.name} are being adopted"
        return summary(ready=False, reason=Reason.ADOPTING, message=text, reconciling=True)
    if decision.blocker is not None:
        blocker = decision.blocker
        return summary(
            ready=False,
            reason=blocker.reason,
            message=blocker.message,
            reconciling=blocker.goes_on,
            stalled=not blocker.goes_on,
        )
    if decision.missing is not None:
        return _brokers_missing(decision, counted)
    # Then partitions that cannot be served, by severity.
    if counted.rows < topic.partitions and decision.refused is None:
        text = f"{count(topic.partitions - counted.rows, 'partition')} being placed"
        return summary(ready=False, reason=Reason.PLACING, message=text, reconciling=True)
    if counted.lost:
        text = (
            f"{numbered('partition', counted.lost, 'has')} no complete copy left. "
            "Restore the log directory of a broker that had "
            f"one{_acceptable(state, topic, counted)}"
        )
        return summary(ready=False, reason=Reason.LAST_COPY_MISSING, message=text, stalled=True)
    if counted.offline:
        return no_leader(state, topic, counted.offline)
    if counted.waiting:
        return _leaders_wait(counted.waiting)
    if counted.refusing:
        return storage_refuses(state, counted.refusing)
    if counted.starting:
        return leaders_starting(state, topic, counted.starting)
    # A deletion that is due, and a disablement, are only shown while everything is served.
    if text := deletion_grace.pending_text(topic):
        return summary(ready=True, reason=Reason.DELETION_PENDING, message=text, reconciling=True)
    if decision.tiering_status.tiering.is_disabling:
        return _disabling(topic, decision.tiering_status, disablements, now_ms)
    return summary(ready=True, reason=Reason.SERVING, message=_served_text(counted))


def _served_text(counted: TopicReplicaCounts) -> str:
    partitions = count(counted.rows, "partition")
    if counted.in_sync == counted.desired:
        return f"{partitions}, {counted.in_sync} of {count(counted.desired, 'replica')} in sync"
    if counted.failing:
        return f"{partitions} served. Replicas are missing: {_why_failing(counted)}"
    return f"{partitions} served. Replicas are missing, see the condition FullyReplicated"


def _acceptable(state: ControllerState, topic: TopicInfo, counted: TopicReplicaCounts) -> str:
    return offer_text(state, topic, [row for row in counted.offline if not row.holders])


def _leaders_wait(waiting: Sequence[PartitionStatus]) -> list[ConditionValue]:
    """Return the conditions of elected leaders that may not lead yet.

    The first gives the reason.
    """
    first = waiting[0]
    partitions = numbered("partition", (report.partition for report in waiting), "is")
    text = f"{partitions} offline: {first.error_message or first.error_reason}"
    return summary(ready=False, reason=first.error_reason, message=text, reconciling=True)


def _brokers_missing(decision: TopicDecision, counted: TopicReplicaCounts) -> list[ConditionValue]:
    missing = decision.missing
    if missing is None:
        return []
    effect = "the added partitions were not created" if counted.rows else "nothing was created"
    text = (
        f"{count(missing.missing, 'broker')} missing ({missing.live} of "
        f"{missing.required} are live), so {effect}. Start brokers, or set "
        "enable.under.replicated.topic.creation on the Cluster"
    )
    return summary(ready=False, reason=Reason.BROKERS_MISSING, message=text, reconciling=True)


def _disabling(
    topic: TopicInfo, status: PersistedTiering, disablements: DisablementProgress, now_ms: int
) -> list[ConditionValue]:
    """Return Ready, Reconciling and Stalled while tiering is being disabled.

    The topic is served meanwhile, so Ready stays True.
    """
    stalled = disablements.stalled(topic.id, status, now_ms=now_ms)
    policy = policy_name(status.tiering.disable_policy)
    text = f"tiering is being disabled (policy {policy}). {_pending(status)}"
    conditions = summary(
        ready=True, reason=Reason.DISABLING, message=text, reconciling=True, stalled=stalled
    )
    if stalled:
        hint = (
            f"{text}. No progress. Start those brokers, delete their Brokers, or delete the Topic"
        )
        conditions[2] = condition("Stalled", True, Reason.NO_PROGRESS, hint)
    return conditions


def _pending(status: PersistedTiering) -> str:
    if not status.pending_brokers:
        return "waiting for brokers to acknowledge"
    return f"waiting for {numbered('broker', status.pending_brokers)}"


def _why_failing(counted: TopicReplicaCounts) -> str:
    """Describe the replicas whose storage refuses writes: brokers, partitions and reasons."""
    shown = [
        f"broker {node_id}, {numbered('partition', partitions)}"
        + (f" ({quoted(reason, shown=300)})" if reason else "")
        for node_id, partitions, reason in counted.failing[:3]
    ]
    more = [node_id for node_id, _, _ in counted.failing[3:]]
    return "; ".join([*shown, *([numbered("broker", more)] if more else [])])


def _replicated(counted: TopicReplicaCounts, resized: Resizing | None) -> ConditionValue:
    """Return the condition FullyReplicated of a Topic; the first cause that applies is shown."""
    # From a planned change over failures to replicas that only lag.
    if resized is not None and not (resized.without_broker or resized.without_leader):
        text = (
            f"{count(resized.partitions, 'partition', 'has')} another number of "
            "replicas than spec.replicationFactor"
        )
        return condition("FullyReplicated", False, Reason.REPLICATION_FACTOR_CHANGING, text)
    if counted.refusing:
        text = (
            f"storage of {count(len(counted.refusing), 'leader')} has failed, see "
            "the condition Ready"
        )
        return condition("FullyReplicated", False, Reason.STORAGE_FAILED, text)
    if counted.failing:
        text = f"storage of replicas has failed: {_why_failing(counted)}"
        return condition("FullyReplicated", False, Reason.STORAGE_FAILED, text)
    if counted.in_sync == counted.desired:
        text = f"{counted.in_sync} of {count(counted.desired, 'replica')} in sync"
        return condition("FullyReplicated", True, Reason.ALL_IN_SYNC, text)
    # Placeholders are declared and accepted (KIP-409), so replicas that are late come first.
    if counted.placeholders and not counted.behind:
        text = _placeholders_text(counted)
        if not counted.under_min:
            return condition("FullyReplicated", False, Reason.PLACEHOLDERS, text)
        text = (
            f"{numbered('partition', counted.under_min, 'refuses')} acks=all writes, because fewer "
            f"replicas than min.insync.replicas are in sync. {text}. Start brokers, or lower "
            "min.insync.replicas"
        )
        return condition("FullyReplicated", False, Reason.UNDER_MIN_ISR, text)
    if counted.recopied:
        brokers = "; ".join(
            f"broker {node_id} copies {numbered('partition', partitions)} from the leader, "
            "because its log lacked records"
            for node_id, partitions in counted.recopied[:3]
        )
        return condition("FullyReplicated", False, Reason.REPLICAS_BEHIND, brokers)
    text = _behind_text(counted)
    return condition("FullyReplicated", False, Reason.REPLICAS_BEHIND, text)


def _placeholders_text(counted: TopicReplicaCounts) -> str:
    waiting = f"{counted.placeholders} of {count(counted.desired, 'replica')}"
    verb = "waits" if counted.placeholders == 1 else "wait"
    return f"{waiting} {verb} for a broker to join (placeholders)"


def _behind_text(counted: TopicReplicaCounts) -> str:
    """Describe the replicas that are out of sync, the cause and what to do."""
    missing = counted.desired - counted.in_sync - counted.placeholders
    reasons = []
    if counted.down:
        reasons.append(
            f"{numbered('broker', counted.down, 'is')} down. Start {them(counted.down)}, or delete "
            "each Broker that never returns"
        )
    if counted.catching_up:
        reasons.append(f"{numbered('broker', counted.catching_up, 'is')} catching up")
    text = (
        f"{count(missing, 'replica')} of {counted.desired} not in sync, in "
        f"{numbered('partition', counted.behind)}"
    )
    if counted.placeholders:
        reasons.append(_placeholders_text(counted))
    return "; ".join([text, *reasons])


def _settled(
    state: ControllerState,
    topic: TopicInfo,
    decision: TopicDecision,
    disablements: DisablementProgress,
) -> list[ConditionValue]:
    """Return the condition TieringSettled; an empty list for a topic that was never tiered."""
    tiering = decision.tiering_status.tiering
    if not tiering.ever_tiered:
        return []
    # A disablement precedes errors, because it may resolve them.
    if tiering.is_disabling:
        return [_being_disabled(state, topic, decision.tiering_status, disablements)]
    failing = _first_error(state, topic)
    if failing is not None:
        text = f"partition {failing.partition}: {failing.error_message or failing.error_reason}"
        return [condition("TieringSettled", False, failing.error_reason, text)]
    if tiering.copies:
        return [condition("TieringSettled", True, Reason.ENABLED, "closed segments are copied")]
    return [
        condition("TieringSettled", True, Reason.DISABLED, _disabled_text(state, topic, tiering))
    ]


def _config_effective(topic: TopicInfo) -> list[ConditionValue]:
    """Return ConfigEffective=False if the manifest requires more in-sync replicas than exist."""
    configured, factor = topic.config.get("min.insync.replicas", ""), topic.replication_factor
    if not configured.isdecimal() or int(configured) <= factor:
        return []
    text = (
        f"min.insync.replicas {configured} exceeds the replication factor {factor}, "
        f"so {factor} is in force and acks=all writes are refused while any "
        "replica is out of sync. Lower min.insync.replicas in spec.config, or "
        "raise spec.replicationFactor"
    )
    return [condition("ConfigEffective", False, Reason.MIN_INSYNC_REPLICAS_TOO_HIGH, text)]


def _integrity(state: ControllerState, topic: TopicInfo) -> list[ConditionValue]:
    """Return TierIntegrity=False while a leader reports a damaged object of the tier.

    It is never True, because leaders check only what is read.
    """
    reasons = (TIER_INTEGRITY, PAGE_NOT_FOUND)
    damaged = [report for report in _reports(state, topic) if report.error_reason in reasons]
    if not damaged:
        return []
    partitions = numbered("partition", (report.partition for report in damaged))
    text = f"{partitions}. The first: {damaged[0].error_message}"
    return [condition("TierIntegrity", False, Reason.OBJECT_DAMAGED, text)]


def _being_disabled(
    state: ControllerState,
    topic: TopicInfo,
    status: PersistedTiering,
    disablements: DisablementProgress,
) -> ConditionValue:
    """Return the condition TieringSettled during a disablement of tiering."""
    text = (
        f"{_pending(status)}. It ends when each has acknowledged, or when its "
        "Broker or the Topic is deleted"
    )
    # Limits of the engine, such as the missing tiered epoch of Apache Kafka.
    if state.engine.tiering:
        text = f"{text}; {state.engine.tiering}"
    # The latest error comes first, because a long message is cut at its end.
    problem = disablements.errors.get(topic.id)
    if problem:
        text = f"{problem}; {text}"
    if changed_while_disabling(topic):
        text = (
            "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: tiering is enabled again "
            f"after the disablement. {text}"
        )
    return condition("TieringSettled", False, Reason.DISABLING, text)


def _disabled_text(state: ControllerState, topic: TopicInfo, tiering: Tiering) -> str:
    """Return the message of TieringSettled after a disablement."""
    # Brokers of Apache Kafka report no sizes.
    if state.engine.tiering:
        remainder = "the brokers delete the tiered data"
        if not tiering.deletes:
            remainder = "data in the tier stays readable until its retention ends"
        return f"tiering is disabled. {remainder}. {state.engine.tiering}"
    if tiering.deletes and any(report.remaining_segments for report in _reports(state, topic)):
        return (
            "tiering is disabled, and the tiered data is being deleted. See "
            "status.tiering.remainingSegments"
        )
    if tiering.deletes:
        return "tiering is disabled, and the tiered data is deleted"
    # Retained data blocks the expiration of local data, so the disk space is part of the message.
    left = sum(report.remote_bytes for report in _reports(state, topic))
    if not left:
        return "tiering is disabled, and the tier has no data of the topic"
    return (
        f"tiering is disabled. {approximate_bytes(left)} stay in the tier until "
        "their retention ends, and local data does not expire before them. "
        "Plan as much disk space"
    )


def _reports(state: ControllerState, topic: TopicInfo) -> list[PartitionStatus]:
    rows = state.rows_of(topic.id)
    found = (state.reports.get((topic.id, partition)) for partition in sorted(rows))
    return [report for report in found if report is not None]


def _first_error(state: ControllerState, topic: TopicInfo) -> PartitionStatus | None:
    return next((report for report in _reports(state, topic) if report.error_reason), None)


# ---------------------------------------------------------------- tiering figures


def _tiering_summary(conditions: Sequence[ConditionValue], status: PersistedTiering) -> str:
    """Return the state of tiering, or the reason of the first condition with trouble in the tier.

    The order is the one of urgency: a disablement, errors of leaders, the last audit, then a lag.
    """
    by_type = {item.type: item for item in conditions}
    for type_ in ("TieringSettled", "TierIntegrity", REMOTE_INTEGRITY):
        item = by_type.get(type_)
        if item is not None and item.status == FALSE:
            return str(item.reason)
    lagging = by_type.get(TIERING_LAGGING)
    if lagging is not None and lagging.status == TRUE:
        return str(lagging.reason)
    return state_name(status.tiering.state)


def _tiering(
    state: ControllerState, topic: TopicInfo, status: PersistedTiering
) -> dict[str, object]:
    """Return the fields of ``status.tiering``.

    The figures are sums over all partitions. If a partition's report is missing, they keep their
    last values.
    """
    reports, tiering = _reports(state, topic), status.tiering
    body: dict[str, object] = {
        "state": state_name(tiering.state),
        "epoch": tiering.epoch,
        "since": time_text(status.since_ms),
        "summary": state_name(tiering.state),
    }
    if tiering.policy is not None:
        body["policy"] = policy_name(tiering.policy)
    if status.pending_brokers:
        body["pendingBrokers"] = list(status.pending_brokers)
    # A sum over some of the partitions would look like a loss of data.
    if not reports or any(report.offline for report in reports):
        return _kept_figures(topic, body)
    body["remoteSegments"] = sum(report.remote_segments for report in reports)
    body["remoteBytes"] = sum(report.remote_bytes for report in reports)
    remaining = sum(report.remaining_segments for report in reports)
    if remaining or tiering.is_disabling:
        body["remainingSegments"] = remaining
        body["remainingBytes"] = sum(report.remaining_bytes for report in reports)
    return body


def _kept_figures(topic: TopicInfo, body: dict[str, object]) -> dict[str, object]:
    """Return the former figures while there is no complete report.

    That is so after a takeover, or if a leader cannot lead yet.
    """
    old = topic.status.get("tiering")
    if isinstance(old, dict):
        names = ("remoteSegments", "remoteBytes", "remainingSegments", "remainingBytes")
        body.update({name: old[name] for name in names if name in old})
    return body
