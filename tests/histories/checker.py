"""From a history to what is wrong with it, in time nearly linear in its length."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.histories import group_offsets, readers, records, transactions
from tests.histories.events import INVOKE, HistoryEvent, shown
from tests.histories.facts import ABORTED, COMMITTED, UNKNOWN, Facts
from tests.histories.levels import Anomaly
from tests.histories.librdkafka_logs import said_of

#: Number of anomalies of one name that are reported in full.
TOLD_MAX = 3
OPERATIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """Counts of one or many histories, of constant size. Anomalies by name."""

    counted: Counter[str]
    faults: Counter[str]
    violations: Counter[str]
    allowed: Counter[str]

    def line(self) -> str:
        """All figures as one line."""
        parts = [f"{name} {number:,}" for name, number in self.counted.items()]
        parts.append(f"faults: {_by_name(self.faults)}")
        parts.append(f"allowed: {_by_name(self.allowed)}")
        parts.append(f"anomalies: {_by_name(self.violations)}")
        return ", ".join(parts)

    def __add__(self, other: "HistoryFigures") -> "HistoryFigures":
        return HistoryFigures(
            _sum(self.counted, other.counted),
            _sum(self.faults, other.faults),
            _sum(self.violations, other.violations),
            _sum(self.allowed, other.allowed),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a history, and what was found: ``violations`` is what no level allows."""

    figures: Counter[str]
    faults: Counter[str]
    violations: tuple[Anomaly, ...]
    allowed: tuple[Anomaly, ...]

    def all_figures(self) -> HistoryFigures:
        """The figures that can be added up over many histories."""
        return HistoryFigures(
            self.figures, self.faults, _names(self.violations), _names(self.allowed)
        )

    def line(self) -> str:
        """All figures as one line."""
        return self.all_figures().line()

    def proofs(self, events: Sequence[HistoryEvent]) -> list[str]:
        """Some of each name, with the few operations that prove it, and of a write that was lost
        what its library said of it."""
        told: Counter[str] = Counter()
        lines = []
        # Most anomalies of a name have one cause, so a few of them are enough.
        for anomaly in self.violations:
            told[anomaly.name] += 1
            if told[anomaly.name] <= TOLD_MAX:
                lines.append(f"{anomaly.name} ({anomaly.level}): {anomaly.text}")
                proof = shown(events, anomaly.operations[:OPERATIONS_MAX], anomaly.text)
                lines.extend(f"  {line}" for line in proof)
                if anomaly.name == "lost write":
                    lines.extend(f"  {line}" for line in said_of(events, anomaly.operations[0]))
        return lines


def check(events: Sequence[HistoryEvent]) -> Report:
    """Judge a whole history."""
    # All checks read the same facts, which one pass over the events has collected.
    facts = Facts.of(events)
    found = [
        anomaly
        for room in (records, readers, transactions, group_offsets)
        for anomaly in room.anomalies(facts)
    ]
    # The figures show whether the round did anything: a run without transactions proves nothing
    # about them.
    outcomes = Counter(txn.outcome for txn in facts.txns.values())
    figures = Counter({"operations": sum(event.type == INVOKE for event in events)})
    figures["records"] = len(facts.writes)
    for outcome in (COMMITTED, ABORTED, UNKNOWN):
        figures[f"transactions {outcome}"] = outcomes[outcome]
    figures["polls"] = len({poll.id for poll in facts.polls})
    figures["clients that hung"] = sum(event.f == "hung" for event in events)
    return Report(
        figures,
        Counter(event.value["kind"] for event in events if event.f == "fault"),
        tuple(anomaly for anomaly in found if not anomaly.is_allowed),
        tuple(anomaly for anomaly in found if anomaly.is_allowed),
    )


def _sum(one: Counter[str], other: Counter[str]) -> Counter[str]:
    """With those that are zero, which ``+`` leaves out."""
    both = one.copy()
    both.update(other)
    return both


def _names(anomalies: Sequence[Anomaly]) -> Counter[str]:
    return Counter(anomaly.name for anomaly in anomalies)


def _by_name(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counted.items())) or "none"
