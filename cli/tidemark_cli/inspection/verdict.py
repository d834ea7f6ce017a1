"""Conditions of a snapshot's objects that report a problem or a change in progress."""

import dataclasses
import datetime as dt
import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.message_text import count
from tidemark.reason_table import TABLE, ReasonEntry
from tidemark_cli.inspection.snapshot import ClusterSnapshot
from tidemark_cli.inspection.topic_rows import condition
from tidemark_kube.client import LEASE_NAME

#: Kind of the findings about the operator itself, which has no object.
OPERATOR = "Operator"
#: Conditions to report, with the status that is reported, in the order of their importance. The
#: others repeat these, or describe the past: a sweep's orphans (TierSwept) disturb nothing.
_REPORTED: Mapping[str, Mapping[str, str]] = {
    "Cluster": {
        "Ready": "False",
        "Stalled": "True",
        "RemoteStorageReady": "False",
        "ObjectsAccepted": "False",
        "ExternalAddress": "False",
    },
    "Broker": {
        "Ready": "False",
        "Stalled": "True",
        "PodUpToDate": "False",
        "ExternalAddress": "False",
        "Draining": "True",
    },
    "Topic": {
        "Ready": "False",
        "Stalled": "True",
        "TierIntegrity": "False",
        "RemoteIntegrity": "False",
        "TieringSettled": "False",
        "TieringLagging": "True",
        "FullyReplicated": "False",
        "ConfigEffective": "False",
    },
    "User": {"Ready": "False", "Stalled": "True"},
    "Export": {"Ready": "False", "Stalled": "True", "Exporting": "False", "Maintained": "False"},
    "RecordDeletion": {"Succeeded": "False", "Stalled": "True"},
}
#: Kinds in the order in which problems spread: a broker's failure is the cause of a topic's.
_SPREAD = (OPERATOR, *_REPORTED)
#: Reasons of Ready=True that are reported all the same.
_REPORTED_THOUGH_READY: Mapping[str, frozenset[str]] = {
    "Broker": frozenset({"ReplicasFailed", "RemoteStorageUnavailable"}),
    "Topic": frozenset({"DeletionPending"}),
}
#: Reasons of a Broker whose process does not run or is not heard.
SILENT = frozenset({"NeverRegistered", "Fenced", "ShutDown", "BrokerUnreachable"})
#: An object without a status is new for this long. After that, no operator reconciles it.
_NEW = dt.timedelta(seconds=60)
#: Reason of an object that no operator has reconciled yet.
PENDING = "Pending"
#: Lease durations without a renewal after which no operator leads. Clocks may differ a little.
_DURATIONS_MISSED = 3


class Severity(enum.IntEnum):
    """Severity of a finding.

    ``PROGRESS``: the operator is working, and nothing needs to be done. ``PROBLEM``: clients or
    data are affected, or a person must act.
    """

    PROGRESS = 1
    PROBLEM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One condition of one object that is not as it should be.

    ``condition`` is such as ``Ready=False``. ``since`` is the condition's ``lastTransitionTime``.
    """

    kind: str
    name: str
    condition: str
    reason: str
    message: str
    severity: Severity
    since: str = ""

    @property
    def reference(self) -> str:
        """Name of the object for ``tidemark why``, such as ``topic/orders``."""
        return f"{self.kind.lower()}/{self.name}"

    @property
    def entry(self) -> ReasonEntry | None:
        """Documented meaning and remedy of the reason, if the reason is known."""
        return reason_entry(self.kind, self.reason)


def reason_entry(kind: str, reason: str) -> ReasonEntry | None:
    """Return the row of ``docs/reference/conditions.md`` for a reason of a kind."""
    for title, rows in TABLE.items():
        if (kind in title or title == "Every kind") and reason in rows:
            return rows[reason]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCounts:
    """Number of objects by kind, and of the brokers that are ready."""

    by_kind: Mapping[str, int]
    ready_brokers: int


def findings(snapshot: ClusterSnapshot) -> list[HealthFinding]:
    """Return the findings of all objects: problems first, causes before consequences."""
    found = [*operator_findings(snapshot.lease, snapshot.read_at)]
    for kind, body in snapshot.objects():
        own = object_findings(kind, body, snapshot.read_at)
        found.extend(own if kind != "Broker" else _with_process(snapshot, body, own))
    return in_order(found)


def _with_process(
    snapshot: ClusterSnapshot, broker: Mapping[str, Any], found: Iterable[HealthFinding]
) -> Iterator[HealthFinding]:
    """Add what is known about the process to a broker's findings.

    The operator sees only that a broker is silent: its process may have ended, or may hang.
    """
    process = snapshot.processes.get(int(broker["spec"]["nodeId"]), "")
    for item in found:
        is_silent = process and item.reason in SILENT
        message = f"{process}. {item.message[:1].upper()}{item.message[1:]}"
        yield dataclasses.replace(item, message=message) if is_silent else item


def in_order(found: Iterable[HealthFinding]) -> list[HealthFinding]:
    """Return findings with problems first, and causes before consequences.

    Findings of the same kind remain in the order of their objects.
    """
    return sorted(found, key=lambda item: (-item.severity, _SPREAD.index(item.kind)))


def verdict(snapshot: ClusterSnapshot, found: Sequence[HealthFinding]) -> str:
    """Return the line of :func:`verdict_line` for a snapshot."""
    by_kind = Counter(kind for kind, _ in snapshot.objects())
    ready = sum(condition(broker, "Ready").get("status") == "True" for broker in snapshot.brokers)
    return verdict_line(HealthCounts(by_kind=by_kind, ready_brokers=ready), found)


def verdict_line(counts: HealthCounts, found: Sequence[HealthFinding]) -> str:
    """Return one line: ``HEALTHY``, or ``NOT HEALTHY`` with the cause and the affected objects.

    ``found``: the findings in the order of :func:`in_order`.
    """
    problems = [item for item in found if item.severity is Severity.PROBLEM]
    if not counts.by_kind.get("Cluster") and not problems:
        return "NOT HEALTHY: the namespace has no Cluster"
    # Without a problem, the line names changes in progress, which need no action.
    if not problems:
        changing = sorted({item.reference for item in found})
        if not changing:
            return f"HEALTHY: {_live(counts)}"
        shown = ", ".join(changing[:3]) + (", …" if len(changing) > 3 else "")
        return f"HEALTHY: {_live(counts)}; in progress: {shown}"
    # The cause comes before the counts, so that a narrow terminal shows it in the first line.
    cause = problems[0]
    subject = "" if cause.kind == OPERATOR else f"{cause.reference}: "
    affected = _affected(counts, problems)
    # Only the first sentence: the whole message is printed below the tables.
    sentence = cause.message.partition(". ")[0]
    return f"NOT HEALTHY: {subject}{sentence}" + (f" ({affected})" if affected else "")


def _live(counts: HealthCounts) -> str:
    topics = count(counts.by_kind.get("Topic", 0), "topic")
    return f"{count(counts.ready_brokers, 'broker')}, {topics}"


def _affected(counts: HealthCounts, problems: Sequence[HealthFinding]) -> str:
    """Return such as "1 of 3 brokers, 2 of 19 topics", or "" if neither is affected."""
    parts = []
    for kind in _SPREAD:
        affected = len({item.name for item in problems if item.kind == kind})
        # Of the operator and the Cluster there is only one, which the cause or a message names.
        if affected and kind not in (OPERATOR, "Cluster"):
            parts.append(f"{affected} of {count(counts.by_kind[kind], _NOUNS[kind])}")
    return ", ".join(parts)


_NOUNS = {
    "Broker": "broker",
    "Topic": "topic",
    "User": "user",
    "Export": "export",
    "RecordDeletion": "record deletion",
}


def operator_findings(lease: Mapping[str, Any] | None, now: dt.datetime) -> Iterator[HealthFinding]:
    """Yield a finding if no operator holds the leader-election Lease.

    The conditions of all other objects may be outdated then. ``lease``: as in
    :class:`ClusterSnapshot`.
    """
    # The user may not read the Lease, so nothing is known about the operator.
    if lease == {}:
        return
    problem = "" if lease is None else _lease_problem(lease, now)
    if lease is None:
        problem = f"no operator has started: there is no Lease {LEASE_NAME}"
    if problem:
        yield HealthFinding(
            kind=OPERATOR,
            name=LEASE_NAME,
            condition="",
            reason="NoOperatorLeads",
            message=f"{problem}; the statuses below may be outdated",
            severity=Severity.PROBLEM,
        )


def _lease_problem(lease: Mapping[str, Any], now: dt.datetime) -> str:
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity")
    if not holder:
        return "no operator leads: the last one has stopped"
    # Another program may have written the Lease: without a time nothing can be said.
    if not spec.get("renewTime"):
        return ""
    silence = now - dt.datetime.fromisoformat(str(spec["renewTime"]))
    limit = dt.timedelta(seconds=_DURATIONS_MISSED * int(spec.get("leaseDurationSeconds") or 10))
    if silence <= limit:
        return ""
    return f"no operator leads: {holder} last renewed its Lease {_age(silence)} ago"


def _age(span: dt.timedelta) -> str:
    """Return such as "45 s", "12 min" or "3 h"."""
    seconds = int(span.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def object_findings(
    kind: str, body: Mapping[str, Any], now: dt.datetime
) -> Iterator[HealthFinding]:
    """Yield the findings of one object: its conditions that report a problem or a change.

    ``now``: time of the snapshot.
    """
    name = str(body["metadata"]["name"])
    conditions = (body.get("status") or {}).get("conditions") or []
    # The CRD's default status has one condition with status Unknown and reason Pending, so a new
    # object has it until an operator reconciles it.
    if all(item.get("reason") == PENDING for item in conditions):
        age = now - dt.datetime.fromisoformat(str(body["metadata"]["creationTimestamp"]))
        yield HealthFinding(
            kind=kind,
            name=name,
            condition="Ready=Unknown",
            reason=PENDING,
            message="No operator has reconciled the object yet.",
            severity=Severity.PROBLEM if age > _NEW else Severity.PROGRESS,
        )
        return
    by_type = {item["type"]: item for item in conditions}
    stalled = by_type.get("Stalled", {}).get("status") == "True"
    seen: set[str] = set()
    for type_, status in _REPORTED[kind].items():
        item = by_type.get(type_)
        if item is None or not _is_reported(kind, item, status):
            continue
        # Several conditions often have the same message; it is reported once, for the most
        # important one.
        message = str(item.get("message", ""))
        if message in seen:
            continue
        seen.add(message)
        yield HealthFinding(
            kind=kind,
            name=name,
            condition=f"{type_}={item['status']}",
            reason=str(item.get("reason", "")),
            message=message,
            severity=_severity(kind, str(item.get("reason", "")), stalled=stalled),
            since=str(item.get("lastTransitionTime", "")),
        )


def _is_reported(kind: str, item: Mapping[str, Any], status: str) -> bool:
    if item.get("status") == status:
        # An export that its owner suspended is as it should be.
        return item.get("reason") != "Suspended"
    return item.get("reason") in _REPORTED_THOUGH_READY.get(kind, ())


def _severity(kind: str, reason: str, *, stalled: bool) -> Severity:
    """Return PROGRESS for a reason whose documented remedy is to wait, unless a person must act."""
    entry = reason_entry(kind, reason)
    waits = entry is not None and entry.action.startswith(("Wait.", "Nothing to do."))
    return Severity.PROGRESS if waits and not stalled else Severity.PROBLEM
