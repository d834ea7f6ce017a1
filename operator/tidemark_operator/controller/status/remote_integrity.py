"""RemoteIntegrity of a Topic: the result of the last audit of the tier.

TierIntegrity reports what leaders found while they served. An audit has read everything, once, some
time ago. Its damage stays until another audit, because nothing damaged heals with time. A clean
result expires. Ready is not affected: the topic is served, and readers of the damaged range get an
error.

The record is in the store and could be forged, so its texts are not repeated: messages consist of
kinds, numbers and keys.
"""

import dataclasses

from tidemark.message_text import count
from tidemark.reasons import Reason
from tidemark.tier.maintenance.audit_record import TopicAudit, WorstFinding
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tiering import DisablePolicy
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import Json, PersistedTiering, TopicInfo
from tidemark_operator.controller.status.conditions import (
    FALSE,
    TRUE,
    ConditionValue,
    approximate_bytes,
    condition,
    find,
    shorten,
    time_text,
)

REMOTE_INTEGRITY = "RemoteIntegrity"
#: Validity of a clean audit: a month, with time for one that runs late.
VALID_MS = 45 * 24 * 3_600_000
#: Clock difference that is accepted from the auditing machine.
_SKEW_MS = 600_000

_WHAT = {
    FindingKind.MISSING: "an object (.log or .aux) is missing in the store",
    FindingKind.DAMAGED: "an object (.log or .aux) differs from the copied one",
    FindingKind.GAP: "no segment covers the offsets before it",
    FindingKind.OVERLAP: "two segments cover the same offsets",
    FindingKind.LINEAGE: "leader epochs decrease, or exceed the manifest's epoch",
    FindingKind.EPOCH: "tiered epochs decrease, or exceed the topic's epoch",
    FindingKind.MANIFEST: "the manifest (head or page) is unreadable",
}
_OF_OBJECTS = (FindingKind.MISSING, FindingKind.DAMAGED)


def remote_integrity(
    state: ControllerState, topic: TopicInfo, status: PersistedTiering, *, now_ms: int
) -> list[ConditionValue]:
    """Return the condition RemoteIntegrity, which shows the last audit of a topic's remote data.

    An empty list if there is no remote data to audit. The condition stays unchanged until the
    storage is accepted and the audit record is read.
    """
    cluster, tiering = state.cluster, status.tiering
    configured = cluster.remote_storage or cluster.storage_problem
    if not configured or not tiering.ever_tiered or tiering.deletes:
        return []
    audits = cluster.audits
    former = _former(topic.status)
    if audits is None:
        return former
    # Damage that was found before stays visible, even if the record cannot be read now.
    if audits.problem:
        if former and former[0].status == FALSE:
            return former
        text = f"the audit record in the store is unreadable ({audits.problem})"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    audit = audits.topics.get(topic.id)
    if audit is None:
        return [_unknown(Reason.NOT_AUDITED, "no audit has looked at this topic", topic)]
    # Clocks of brokers and operator may differ a little.
    if audit.at_ms > now_ms + _SKEW_MS:
        text = "the audit record has a time in the future"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    # The remote data was deleted and copied again after the audit.
    if tiering.copies and tiering.policy is DisablePolicy.DELETE and audit.at_ms < status.since_ms:
        text = f"the tier was emptied after the audit of {time_text(audit.at_ms)}"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    if audit.counts:
        return [_damaged(audit, topic)]
    # Only a clean result expires.
    if audit.at_ms < now_ms - VALID_MS:
        text = f"the last audit, at {time_text(audit.at_ms)}, found no problem"
        return [_unknown(Reason.AUDIT_OUTDATED, text, topic)]
    text = (
        f"{_heading(audit)}: {count(audit.segments, 'segment')} "
        f"({approximate_bytes(audit.size_bytes)}) of "
        f"{count(audit.manifests, 'partition')} are intact, and every offset is "
        "covered once"
    )
    return [condition(REMOTE_INTEGRITY, True, Reason.AUDIT_PASSED, text)]


def has_changed(status: Json, found: list[ConditionValue]) -> bool:
    """Return whether a status shows another result."""
    shown = [dataclasses.replace(item, message=shorten(item.message)) for item in found]
    return _former(status) != shown


def _damaged(audit: TopicAudit, topic: TopicInfo) -> ConditionValue:
    """Return the condition of a topic with damaged remote data.

    The worst damage comes first, because a long message is cut at its end.
    """
    of_objects = any(kind in audit.counts for kind in _OF_OBJECTS)
    kinds = ", ".join(f"{number} {kind.value}" for kind, number in audit.counts.items())
    worst = next(iter(audit.worst), None)
    text = f"{_heading(audit)}: {kinds}"
    if worst is not None:
        text += f". Worst: {_where(worst)}: {_WHAT[worst.kind]}"
    # Missing or damaged objects can be restored. A manifest that contradicts itself cannot.
    back = "Restore it from the bucket's versions or a copy"
    if not of_objects:
        text += f". {back}, or report it. Then audit again: {_command(topic)}"
        return condition(REMOTE_INTEGRITY, False, Reason.MANIFEST_CONTRADICTS, text)
    if worst is not None and worst.end_offset_inclusive >= 0:
        before = worst.end_offset_inclusive + 1
        back += f", or give up its records with a RecordDeletion before offset {before}"
    text += f". {back}. Then audit again, which also lists all findings: {_command(topic)}"
    return condition(REMOTE_INTEGRITY, False, Reason.DAMAGE_FOUND, text)


def _where(worst: WorstFinding) -> str:
    text = f"partition {worst.partition}"
    if worst.start_offset >= 0:
        text += f", offsets {worst.start_offset} to {worst.end_offset_inclusive}"
    return f"{text}, {worst.object}" if worst.object else text


def _heading(audit: TopicAudit) -> str:
    return f"audited {time_text(audit.at_ms)} by {audit.by}"


def _unknown(reason: str, text: str, topic: TopicInfo) -> ConditionValue:
    return condition(REMOTE_INTEGRITY, None, reason, f"{text}: {_command(topic)}")


def _command(topic: TopicInfo) -> str:
    return f"tidemark spark audit {topic.name}"


def _former(status: Json) -> list[ConditionValue]:
    old = find(status, REMOTE_INTEGRITY)
    if old is None:
        return []
    values = {TRUE: True, FALSE: False}
    value = values.get(str(old.get("status")))
    return [condition(REMOTE_INTEGRITY, value, str(old.get("reason")), str(old.get("message", "")))]
