"""One case after another to both sides: what differs, and what of it is explained."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from tests.conformance.oracle import case, intended_differences, produce_cases
from tests.conformance.oracle.case import OracleCase
from tests.conformance.oracle.entities import Here, request
from tests.conformance.oracle.figures import ComparisonFigures
from tests.conformance.oracle.intended_differences import Difference
from tests.conformance.oracle.response_normalization import differences, normal
from tests.conformance.oracle.sides import CLOSED, PATIENCE_S, SILENT, ComparedBroker
from tests.unit.api import api_requests as kafka
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.wire.framing import FrameError, decode_response

Say = Callable[[str], None]
#: A topic that was made is in the metadata before its leader leads.
LEADS_WITHIN_S = 60.0
SAYS_EVERY_S = 5.0
#: For what is known to have no answer.
SILENCE_S = 1.0
COMING = {
    ErrorCode.not_leader_or_follower, ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress,
}  # fmt: skip
UNDER_WAY = {ErrorCode.concurrent_transactions}


@dataclass(slots=True)
class Comparison:
    """Findings of a run."""

    sent: int = 0
    same: int = 0
    unexplained: list[str] = field(default_factory=list)
    used: set[Difference] = field(default_factory=set)

    @property
    def unused(self) -> list[Difference]:
        """Lines of the list that explain nothing any more."""
        return [item for item in intended_differences.ON_PURPOSE if item not in self.used]

    @property
    def figures(self) -> ComparisonFigures:
        """Numbers of each kind of finding."""
        left = len(self.unexplained)
        return ComparisonFigures(self.sent, self.same, self.sent - self.same - left, left)


def prepare(side: ComparedBroker) -> None:
    """Make its topics, fill those that are read, and have its coordinators at work."""
    # The topics have to exist before the first case, and their leaders have to serve.
    side.create(case.TOPICS)
    for topic in case.FILLED:
        _until(side, produce_cases.filling(topic)(side.world, 9), kafka.PRODUCE, 9)
    # The coordinators' topics are created on the first request for a coordinator.
    for kind, key, version, asked in (
        (0, 15, 5, {"groups": ("warm",)}),
        (1, 65, 0, {"transactional_ids": ("warm",)}),
    ):
        found = {"key": "warm", "key_type": kind}
        _until(side, request(10, 3, found, Here(side.world, "")), 10, 3)
        _until(side, request(key, version, asked, Here(side.world, "")), key, version)
    # A producer id is allocated in blocks, which the first request waits for.
    _until(side, request(22, 1, {"transactional_id": None}, Here(side.world, "")), 22, 1)
    # From here on ids and nodes of this side can be normalized.
    side.learn((*case.TOPICS, *COORDINATORS_TOPICS))


def _until(side: ComparedBroker, asked: Any, api_key: int, version: int) -> None:
    """Ask until nothing has still to come."""
    until_s = time.monotonic() + LEADS_WITHIN_S
    while COMING.intersection(errors_in(answer := side.ask(asked, api_key, version))):
        assert time.monotonic() < until_s, (side.name, answer)
        time.sleep(0.1)


def errors_in(answer: Any) -> Iterator[ErrorCode]:
    """All that an answer tells of."""
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if isinstance(value, ErrorCode):
            yield value
        for item in value if isinstance(value, tuple) else (value,):
            yield from errors_in(item)


def shared_versions(ours: ComparedBroker, theirs: ComparedBroker) -> dict[int, range]:
    """Return the common versions of each Api that both serve, within kio's range."""
    mine, others = ours.versions(), theirs.versions()
    first = {kafka.PRODUCE: 3}
    return {
        key: range(
            max(mine[key][0], others[key][0], first.get(key, 0)),
            min(mine[key][-1], others[key][-1]) + 1,
        )
        for key in mine.keys() & others.keys()
    }


def run(
    ours: ComparedBroker, theirs: ComparedBroker, table: Sequence[OracleCase], say: Say
) -> Comparison:
    """Send all of the table, and say how far it is every few seconds."""
    verdict, said_s = Comparison(), -math.inf
    for item in table:
        # Progress is printed every few seconds: a run takes minutes.
        if time.monotonic() - said_s > SAYS_EVERY_S:
            said_s = time.monotonic()
            say(f"{verdict.sent} of {len(table)}: {item.name}")
        found = _differences(item, ours, theirs)
        verdict.sent += 1
        verdict.same += not found
        unexplained = []
        # Each difference needs its own explanation. One line may explain many of them.
        for path, one, other in found:
            line = intended_differences.explained(item.name, path, one, other)
            if line is None:
                unexplained.append(f"{item.name}: {path}: ours {one}, Kafka's {other}")
            else:
                verdict.used.add(line)
        if unexplained:
            verdict.unexplained.append("\n  ".join(unexplained))
            say(f"  {verdict.unexplained[-1]}")
    return verdict


def _differences(
    each: OracleCase, ours: ComparedBroker, theirs: ComparedBroker
) -> list[tuple[str, Any, Any]]:
    # Both receive the request before either answer is read, so their waits overlap.
    for side in (ours, theirs):
        if each.fresh:
            side.close()
        side.send(each.frame(side.world))
    # Kafka never answers some cases. The full patience for each would take hours.
    patience_s = SILENCE_S if intended_differences.is_silent(each.name) else PATIENCE_S
    return list(differences(_answer(each, ours), _answer(each, theirs, patience_s)))


def _is_under_way(answer: Any) -> bool:
    states = [item.transaction_state for item in getattr(answer, "transaction_states", ())]
    if any(isinstance(state, str) and state.startswith("Prepare") for state in states):
        return True
    return not UNDER_WAY.isdisjoint(errors_in(answer))


def _answer(each: OracleCase, side: ComparedBroker, patience_s: float = PATIENCE_S) -> Any:
    """Return the answer, or how the connection failed."""
    # While a transaction's markers are pending the request is retried, as clients do.
    until_s = time.monotonic() + LEADS_WITHIN_S
    while True:
        frame = side.receive(patience_s)
        # How the connection ended is an answer, too, and is compared.
        if frame in (CLOSED, SILENT):
            return frame.decode()
        try:
            _, read = decode_response(kafka.answer_type(each.api_key, each.version), frame)
        except FrameError as error:
            return f"unreadable: {error}"
        if not _is_under_way(read) or time.monotonic() > until_s:
            break
        time.sleep(0.02)
        side.send(each.frame(side.world))
    # Later cases of a story need ids and epochs from this answer.
    if each.learn is not None:
        each.learn(side.world, read)
    return normal(read, side.world)
