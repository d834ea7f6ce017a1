"""RemoteIntegrity of a Topic: what the last audit of the tier found of it.

Beside TierIntegrity, which tells what leaders came upon while they served: an audit has read
everything, once, some time ago. What it found wrong stays so until another one has looked, since
nothing that is damaged heals with time; what it found sound says little after a while. Ready is not
asked: the topic is served, and who reads the damaged range is told.

The record lies in the store and may be anybody's, so its words are not repeated: what is said is
made of kinds, numbers and keys.
"""

import dataclasses

from tidemark.reasons import Reason
from tidemark.tier.audit_record import TopicAudit, Worst
from tidemark.tier.findings import FindingKind
from tidemark.tiering import DisablePolicy
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.events import count
from tidemark_operator.controller.model import Json, TieringStatus, TopicInfo
from tidemark_operator.controller.status.conditions import (
    FALSE,
    TRUE,
    Condition,
    approximate_bytes,
    condition,
    find,
    shorten,
    time_text,
)

REMOTE_INTEGRITY = "RemoteIntegrity"
#: So long an audit that found nothing counts: a month, and time for one that runs late.
VALID_MS = 45 * 24 * 3_600_000
#: So far ahead may the clock of whoever audits be.
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
    state: ControllerState, topic: TopicInfo, status: TieringStatus, *, now_ms: int
) -> list[Condition]:
    """Absent where there is no tier to audit, or its data is given up; as it was until the storage
    has been accepted anew and the record been read."""
    cluster, tiering = state.cluster, status.tiering
    configured = cluster.remote_storage or cluster.storage_problem
    if not configured or not tiering.ever_tiered or tiering.deletes:
        return []
    audits = cluster.audits
    former = _former(topic.status)
    if audits is None:
        return former
    if audits.problem:
        if former and former[0].status == FALSE:
            return former
        text = f"the audit record in the store is unreadable ({audits.problem})"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    audit = audits.topics.get(topic.id)
    if audit is None:
        return [_unknown(Reason.NOT_AUDITED, "no audit has looked at this topic", topic)]
    if audit.at_ms > now_ms + _SKEW_MS:
        text = "the audit record has a time in the future"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    if tiering.copies and tiering.policy is DisablePolicy.DELETE and audit.at_ms < status.since_ms:
        text = f"the tier was emptied after the audit of {time_text(audit.at_ms)}"
        return [_unknown(Reason.NOT_AUDITED, text, topic)]
    if audit.counts:
        return [_damaged(audit, topic)]
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


def has_changed(status: Json, found: list[Condition]) -> bool:
    """Does a status say something else of it?"""
    shown = [dataclasses.replace(each, message=shorten(each.message)) for each in found]
    return _former(status) != shown


def _damaged(audit: TopicAudit, topic: TopicInfo) -> Condition:
    """The worst first, with what to do about it: a message is cut at its end."""
    of_objects = any(kind in audit.counts for kind in _OF_OBJECTS)
    kinds = ", ".join(f"{number} {kind.value}" for kind, number in audit.counts.items())
    worst = next(iter(audit.worst), None)
    text = f"{_heading(audit)}: {kinds}"
    if worst is not None:
        text += f". Worst: {_where(worst)}: {_WHAT[worst.kind]}"
    back = "Restore it from the bucket's versions or a copy"
    if not of_objects:
        text += f". {back}, or report it. Then audit again: {_command(topic)}"
        return condition(REMOTE_INTEGRITY, False, Reason.MANIFEST_CONTRADICTS, text)
    if worst is not None and worst.end_offset_inclusive >= 0:
        before = worst.end_offset_inclusive + 1
        back += f", or give up its records with a RecordDeletion before offset {before}"
    text += f". {back}. Then audit again, which also lists all findings: {_command(topic)}"
    return condition(REMOTE_INTEGRITY, False, Reason.DAMAGE_FOUND, text)


def _where(worst: Worst) -> str:
    text = f"partition {worst.partition}"
    if worst.start_offset >= 0:
        text += f", offsets {worst.start_offset} to {worst.end_offset_inclusive}"
    return f"{text}, {worst.object}" if worst.object else text


def _heading(audit: TopicAudit) -> str:
    return f"audited {time_text(audit.at_ms)} by {audit.by}"


def _unknown(reason: str, text: str, topic: TopicInfo) -> Condition:
    return condition(REMOTE_INTEGRITY, None, reason, f"{text}: {_command(topic)}")


def _command(topic: TopicInfo) -> str:
    return f"tidemark spark audit {topic.name}"


def _former(status: Json) -> list[Condition]:
    old = find(status, REMOTE_INTEGRITY)
    if old is None:
        return []
    values = {TRUE: True, FALSE: False}
    value = values.get(str(old.get("status")))
    return [condition(REMOTE_INTEGRITY, value, str(old.get("reason")), str(old.get("message", "")))]
