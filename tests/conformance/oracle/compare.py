"""One case after another to both sides: what differs, and what of it is explained."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from tests.conformance.oracle import cases, on_purpose
from tests.conformance.oracle.cases import Case
from tests.conformance.oracle.normal import differences, normal
from tests.conformance.oracle.on_purpose import Difference
from tests.conformance.oracle.sides import CLOSED, SILENT, Side
from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import FrameError, decode_response

Say = Callable[[str], None]
#: A topic that was made is in the metadata before its leader leads.
LEADS_WITHIN_S = 30.0


@dataclass(slots=True)
class Verdict:
    """What a run has found."""

    sent: int = 0
    same: int = 0
    unexplained: list[str] = field(default_factory=list)
    used: set[Difference] = field(default_factory=set)

    @property
    def unused(self) -> list[Difference]:
        """Lines of the list that explain nothing any more."""
        return [each for each in on_purpose.ON_PURPOSE if each not in self.used]

    @property
    def figures(self) -> str:
        """One line."""
        explained = self.sent - self.same - len(self.unexplained)
        return (
            f"{self.sent} requests to both: {self.same} answered alike, {explained} otherwise on "
            f"purpose, {len(self.unexplained)} otherwise"
        )


def prepare(side: Side) -> None:
    """Make its topics, and fill the one that is read."""
    side.create(cases.TOPICS)
    until_s = time.monotonic() + LEADS_WITHIN_S
    while True:
        answer = side.ask(cases.preload(side.world, 9), kafka.PRODUCE, 9)
        part = answer.responses[0].partition_responses[0]
        if part.error_code is not ErrorCode.not_leader_or_follower or time.monotonic() > until_s:
            break
        time.sleep(0.1)
    assert part.error_code is ErrorCode.none, (side.name, part)


def shared_versions(ours: Side, theirs: Side) -> dict[int, range]:
    """Of each Api that both serve, as far as kio knows them."""
    mine, others = ours.versions(), theirs.versions()
    first = {kafka.PRODUCE: 3}
    return {
        key: range(
            max(mine[key][0], others[key][0], first.get(key, 0)),
            min(mine[key][-1], others[key][-1]) + 1,
        )
        for key in mine.keys() & others.keys()
    }


def run(ours: Side, theirs: Side, table: Iterable[Case], say: Say) -> Verdict:
    """Send all of the table."""
    verdict, api = Verdict(), ""
    for case in table:
        if case.name.partition(" ")[0] != api:
            api = case.name.partition(" ")[0]
            say(f"{api}: {verdict.sent} sent so far")
        found = _differences(case, ours, theirs)
        verdict.sent += 1
        verdict.same += not found
        unexplained = []
        for path, one, other in found:
            line = on_purpose.explained(case.name, path)
            if line is None:
                unexplained.append(f"{case.name}: {path}: ours {one}, Kafka's {other}")
            else:
                verdict.used.add(line)
        if unexplained:
            verdict.unexplained.append("\n  ".join(unexplained))
            say(f"  {verdict.unexplained[-1]}")
    return verdict


def _differences(case: Case, ours: Side, theirs: Side) -> list[tuple[str, Any, Any]]:
    return list(differences(_answer(case, ours), _answer(case, theirs)))


def _answer(case: Case, side: Side) -> Any:
    frame = side.exchange(case.frame(side.world))
    if frame in (CLOSED, SILENT):
        return frame.decode()
    try:
        _, read = decode_response(kafka.answer_type(case.api_key, case.version), frame)
    except FrameError as error:
        return f"unreadable: {error}"
    return normal(read, side.world)
