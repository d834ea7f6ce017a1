"""Committer: concurrent decisions share one write per slice, and answers follow the write."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.controller.controller_world import broker, row
from tests.unit.operator_shell.test_slice_store import WRITE, Slices
from tidemark_operator.controller.state.commit import Draft, SliceFull
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import BrokerInfo
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict
from tidemark_operator.kube.kinds import PARTITION_SLICE
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading
from tidemark_operator.reconcile.first_reports import FirstReports
from tidemark_operator.slices import committer as module
from tidemark_operator.slices.committer import CommitListener, Committed, Committer, DecisionFailed


class Notes(CommitListener):
    """Listener that records commits; each entry of ``refuse`` answers one registration."""

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self.groups: list[Committed] = []
        self.refuse: list[Callable[[], bool]] = []
        self.brokers: list[int] = []

    def slice_stored(self, state: object, write: object) -> None:
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
class CommitterBench:
    slices: Slices
    committer: Committer
    notes: Notes
    running: "asyncio.Task[None]"

    def writes(self) -> int:
        return sum(call.startswith(WRITE) for call in self.slices.api.calls)


@pytest.fixture
async def line() -> AsyncIterator[CommitterBench]:
    slices = Slices()
    await slices.begin()
    committer = Committer(slices.state, slices.store, busy=lambda: False, reports=FirstReports())
    notes = Notes(slices)
    running = asyncio.create_task(committer.run(notes))
    yield CommitterBench(slices, committer, notes, running)
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


async def test_decisions_of_one_moment_share_their_writes(line: CommitterBench) -> None:
    # All decisions are queued before the committer runs: they form one group.
    found = await asyncio.gather(*(line.committer.decide(put(number)) for number in range(20)))
    assert found == list(range(20))
    assert line.writes() <= 2, "one for each slice"
    assert [group.decisions for group in line.notes.groups] == [20]
    assert line.slices.rows == 20


async def test_a_decision_that_raises_fails_alone_and_leaves_nothing_behind(
    line: CommitterBench,
) -> None:
    first, wrong, last = await asyncio.gather(
        line.committer.decide(put(1)),
        line.committer.decide(fail),
        line.committer.decide(put(2)),
        return_exceptions=True,
    )
    assert (first, last) == (1, 2)
    assert isinstance(wrong, KeyError)
    assert line.slices.rows == 2


async def test_a_decision_that_changes_nothing_writes_nothing(line: CommitterBench) -> None:
    assert await line.committer.decide(lambda draft: len(draft.brokers)) == 0
    assert line.writes() == 0


async def test_conflict_repeats_the_decision_on_the_stored_state(line: CommitterBench) -> None:
    # The slice was modified by another writer, so the first write is rejected.
    line.slices.api.fail(WRITE, Conflict(409, "modified"))
    seen: list[int] = []

    def decide(draft: Draft) -> int:
        seen.append(len(draft.state.slices))
        return put(1)(draft)

    assert await line.committer.decide(decide) == 1
    # Only the second attempt emits its event.
    assert len(seen) == 2
    assert [event.reason for group in line.notes.groups for event in group.events] == ["Placed"]


async def test_a_slice_that_others_keep_changing_is_given_up(line: CommitterBench) -> None:
    line.slices.api.fail(WRITE, Conflict(409, "modified"), times=module.RETAKEN_MAX)
    with pytest.raises(DecisionFailed):
        await line.committer.decide(put(1))
    # The committer continues after it has given a decision up.
    assert await line.committer.decide(put(1)) == 1


async def test_only_the_oversized_decision_of_a_group_is_refused(
    line: CommitterBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.plan

    # Any plan that contains partition 3 is too large for its slice.
    def plan(draft: Draft) -> object:
        if any(key[0] == row((1,), number=3).topic_id for key in draft.rows):
            raise SliceFull(0, 2**21)
        return real(draft)

    monkeypatch.setattr(module, "plan", plan)
    found = await asyncio.gather(
        *(line.committer.decide(put(number)) for number in range(6)), return_exceptions=True
    )
    assert [type(item) for item in found] == [int, int, int, SliceFull, int, int]


async def test_a_registration_counts_once_it_is_written_and_after_its_slices(
    line: CommitterBench,
) -> None:
    def register(draft: Draft) -> str:
        put(1)(draft)
        draft.put_broker(broker(1))
        return "registered"

    def unavailable() -> bool:
        raise ApiServerUnavailable(0, "no answer")

    # The registration's status write fails, then is refused, then succeeds.
    line.notes.refuse = [unavailable, lambda: False]
    assert await line.committer.decide(register) == "registered"
    assert line.notes.brokers == [1]
    assert line.slices.state.brokers[1].live
    assert line.notes.groups[-1].brokers == {1}


async def test_the_end_of_the_term_reaches_present_and_later_waiters(
    line: CommitterBench,
) -> None:
    # Another controller claims the slices with a higher epoch.
    body = line.slices.server.of_kind(PARTITION_SLICE)
    for item in body:
        line.slices.server.replace("other", PARTITION_SLICE, {**item, "controllerEpoch": 8})
    with pytest.raises(NotLeading):
        await line.committer.decide(put(1))
    with pytest.raises(ControllerFenced):
        await line.running
    assert await line.committer.try_decide(put(1), "a placement") is None


async def test_non_urgent_decision_waits_for_others_while_busy() -> None:
    slices = Slices()
    await slices.begin()
    committer = Committer(slices.state, slices.store, busy=lambda: True, reports=FirstReports())
    notes = Notes(slices)
    running = asyncio.create_task(committer.run(notes))
    patient = asyncio.create_task(committer.decide(put(1), urgent=False))
    # Busy: the committer holds the decision back, for another one to share its write.
    await asyncio.sleep(0.01)
    assert not patient.done()
    await committer.decide(put(2))
    await patient
    assert len(notes.groups) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_non_urgent_decision_stops_waiting_when_no_other_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No other decision arrives within this interval, so waiting on has no use.
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


async def test_glance_answers_reads_and_refuses_changes(line: CommitterBench) -> None:
    assert line.committer.preview(lambda draft: len(draft.rows) + 5) == 5
    assert line.committer.preview(put(1)) is None
    assert line.committer.preview(lambda draft: draft.emit(normal("Topic", "k", "R", "t"))) is None
    assert line.slices.rows == 0
    # Without a running committer there is no authority to answer from memory.
    line.running.cancel()
    await asyncio.gather(line.running, return_exceptions=True)
    assert line.committer.preview(lambda _: 5) is None
    with pytest.raises(NotLeading):
        await line.committer.decide(lambda _: 5)
