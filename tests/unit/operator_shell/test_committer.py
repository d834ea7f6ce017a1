"""The line of decisions: one group, one write per slice, and no answer before it is stored."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.controller.controller_world import broker, row
from tests.unit.operator_shell.test_slice_store import WRITE, Slices
from tidemark_operator.controller.commit import Draft, SliceFull
from tidemark_operator.controller.events import normal
from tidemark_operator.controller.model import BrokerInfo
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict
from tidemark_operator.kube.kinds import PARTITION_SLICE
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading
from tidemark_operator.reconcile.first_reports import FirstReports
from tidemark_operator.slices import committer as module
from tidemark_operator.slices.committer import CommitListener, Committed, Committer, DecisionFailed


class Notes(CommitListener):
    """Keeps what was committed; ``refuse`` registrations as often as it says."""

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self.groups: list[Committed] = []
        self.refuse: list[Callable[[], bool]] = []
        self.brokers: list[int] = []

    def landing(self, state: object, write: object) -> None:
        return

    async def write_broker(self, drafted: BrokerInfo) -> bool:
        if self.refuse:
            return self.refuse.pop()()
        self.brokers.append(drafted.node_id)
        self.slices.state.put_broker(drafted)
        return True

    def committed(self, committed: Committed) -> None:
        self.groups.append(committed)


@dataclasses.dataclass
class Line:
    slices: Slices
    committer: Committer
    notes: Notes
    running: "asyncio.Task[None]"

    def writes(self) -> int:
        return sum(call.startswith(WRITE) for call in self.slices.api.calls)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    slices = Slices()
    await slices.begin()
    committer = Committer(slices.state, slices.store, busy=lambda: False, reports=FirstReports())
    notes = Notes(slices)
    running = asyncio.create_task(committer.run(notes))
    yield Line(slices, committer, notes, running)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def put(number: int) -> Callable[[Draft], int]:
    """A decision that places one partition."""

    def decide(draft: Draft) -> int:
        draft.put_row(row((1, 2), number=number))
        draft.emit(normal("Topic", f"ns/topic-{number}", "Placed", "it is placed"))
        return number

    return decide


def fail(draft: Draft) -> None:
    draft.put_row(row((9,), number=99))
    raise KeyError("a decision that goes wrong half way")


async def test_decisions_of_one_moment_share_their_writes(line: Line) -> None:
    found = await asyncio.gather(*(line.committer.decide(put(number)) for number in range(20)))
    assert found == list(range(20))
    assert line.writes() <= 2, "one for each slice"
    assert [group.decisions for group in line.notes.groups] == [20]
    assert line.slices.rows == 20


async def test_a_decision_that_raises_fails_alone_and_leaves_nothing_behind(line: Line) -> None:
    first, wrong, last = await asyncio.gather(
        line.committer.decide(put(1)),
        line.committer.decide(fail),
        line.committer.decide(put(2)),
        return_exceptions=True,
    )
    assert (first, last) == (1, 2)
    assert isinstance(wrong, KeyError)
    assert line.slices.rows == 2


async def test_a_decision_that_changes_nothing_writes_nothing(line: Line) -> None:
    assert await line.committer.decide(lambda draft: len(draft.brokers)) == 0
    assert line.writes() == 0


async def test_after_a_conflict_the_decision_is_taken_again_on_what_is_stored(line: Line) -> None:
    line.slices.api.fail(WRITE, Conflict(409, "modified"))
    seen: list[int] = []

    def decide(draft: Draft) -> int:
        seen.append(len(draft.state.encoded))
        return put(1)(draft)

    assert await line.committer.decide(decide) == 1
    assert len(seen) == 2
    assert [event.reason for group in line.notes.groups for event in group.events] == ["Placed"]


async def test_a_slice_that_others_keep_changing_is_given_up(line: Line) -> None:
    line.slices.api.fail(WRITE, Conflict(409, "modified"), times=module.RETAKEN_MAX)
    with pytest.raises(DecisionFailed):
        await line.committer.decide(put(1))
    assert await line.committer.decide(put(1)) == 1


async def test_of_a_group_that_does_not_fit_only_what_does_not_fit_is_refused(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.plan

    def plan(draft: Draft) -> object:
        if any(key[0] == row((1,), number=3).topic_id for key in draft.rows):
            raise SliceFull(0, 2**21)
        return real(draft)

    monkeypatch.setattr(module, "plan", plan)
    found = await asyncio.gather(
        *(line.committer.decide(put(number)) for number in range(6)), return_exceptions=True
    )
    assert [type(item) for item in found] == [int, int, int, SliceFull, int, int]


async def test_a_registration_counts_once_it_is_written_and_after_its_slices(line: Line) -> None:
    def register(draft: Draft) -> str:
        put(1)(draft)
        draft.put_broker(broker(1))
        return "registered"

    def unavailable() -> bool:
        raise ApiServerUnavailable(0, "no answer")

    line.notes.refuse = [unavailable, lambda: False]
    assert await line.committer.decide(register) == "registered"
    assert line.notes.brokers == [1]
    assert line.slices.state.brokers[1].live
    assert line.notes.groups[-1].brokers == {1}


async def test_the_end_of_the_term_reaches_present_and_later_waiters(
    line: Line,
) -> None:
    body = line.slices.server.of_kind(PARTITION_SLICE)
    for item in body:
        line.slices.server.replace("other", PARTITION_SLICE, {**item, "controllerEpoch": 8})
    with pytest.raises(NotLeading):
        await line.committer.decide(put(1))
    with pytest.raises(ControllerFenced):
        await line.running
    assert await line.committer.try_decide(put(1), "a placement") is None


async def test_what_is_not_urgent_waits_for_company_while_there_is_much_to_do() -> None:
    slices = Slices()
    await slices.begin()
    committer = Committer(slices.state, slices.store, busy=lambda: True, reports=FirstReports())
    notes = Notes(slices)
    running = asyncio.create_task(committer.run(notes))
    patient = asyncio.create_task(committer.decide(put(1), urgent=False))
    await asyncio.sleep(0.01)
    assert not patient.done()
    await committer.decide(put(2))
    await patient
    assert len(notes.groups) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_waits_no_longer_than_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROWS_WITHIN_S", 0.001)
    slices = Slices()
    await slices.begin()
    committer = Committer(slices.state, slices.store, busy=lambda: True, reports=FirstReports())
    notes = Notes(slices)
    running = asyncio.create_task(committer.run(notes))
    async with asyncio.timeout(module.LINGER_S / 2):
        await committer.decide(put(1), urgent=False)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_changes_nothing_is_known_at_once_and_what_does_is_not_taken(line: Line) -> None:
    assert line.committer.glance(lambda draft: len(draft.rows) + 5) == 5
    assert line.committer.glance(put(1)) is None
    assert line.committer.glance(lambda draft: draft.emit(normal("Topic", "k", "R", "t"))) is None
    assert line.slices.rows == 0
    line.running.cancel()
    await asyncio.gather(line.running, return_exceptions=True)
    assert line.committer.glance(lambda _: 5) is None
    with pytest.raises(NotLeading):
        await line.committer.decide(lambda _: 5)
