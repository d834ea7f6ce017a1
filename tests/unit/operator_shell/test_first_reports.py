"""No row is written before brokers have reported their states, and no wait is endless."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import topic_state
from tests.loop_turns import many_turns
from tests.unit.controller.controller_world import numbered_uuid
from tests.unit.operator_shell.broker_request_frames import RequestBench
from tests.unit.operator_shell.shell_world import NAMESPACE, UNDER_REPLICATED, ShellWorld
from tidemark.wire import control
from tidemark_broker.control import client, controller_discovery, status
from tidemark_operator import background
from tidemark_operator.controller import elections, snapshot
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.kube.kinds import PARTITION_SLICE, TOPIC
from tidemark_operator.leadership.terms import NotLeading, SlicesBehind
from tidemark_operator.listener.sessions import Beat
from tidemark_operator.listener.standby_discovery import BrokerSearches
from tidemark_operator.reconcile.first_reports import (
    BOUND_TURNS,
    LAST_TURNS,
    OTHERS_TURNS,
    FirstReports,
)
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.workers import LastPass
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.slices import committer
from tidemark_operator.term import broker_requests
from tidemark_operator.term.pacemaker import TICK_S, UNREACHED_TURNS, Pacemaker
from tidemark_operator.term.term import Term

NOBODY = BrokerSearches()
NOT_ATTEMPTED = int(ErrorCode.operation_not_attempted)

# ---------------------------------------------------------------- expected brokers


def turns(reports: FirstReports, number: int) -> FirstReports:
    for _ in range(number):
        reports.count_turn()
    return reports


def expecting(live: tuple[int, ...], others: tuple[int, ...] = ()) -> FirstReports:
    reports = FirstReports()
    reports.expect(live, others)
    return reports


def test_without_expected_brokers_there_is_no_wait() -> None:
    assert FirstReports().are_complete
    assert expecting(()).are_complete


def test_every_live_broker_is_waited_for_until_it_has_reported() -> None:
    reports = expecting((1, 2))
    reports.broker_reported(1)
    assert not turns(reports, OTHERS_TURNS).are_complete
    reports.broker_reported(2)
    assert reports.are_complete


def test_a_broker_whose_session_is_over_is_not_waited_for() -> None:
    reports = turns(expecting((1, 2)), OTHERS_TURNS)
    reports.broker_reported(1)
    reports.sessions_ended((2,))
    assert reports.are_complete


def test_fenced_brokers_have_a_short_time_to_appear() -> None:
    reports = expecting((1,), (2,))
    reports.broker_reported(1)
    # Broker 2 is fenced in the slices, but those may be restored from a backup.
    assert not turns(reports, OTHERS_TURNS - 1).are_complete
    assert turns(reports, 1).are_complete
    reports = expecting((1,), (2,))
    for node_id in (1, 2):
        reports.broker_reported(node_id)
    assert reports.are_complete, "all have come"


def test_broker_that_appears_in_time_is_waited_for() -> None:
    reports = expecting((1,), (2,))
    reports.broker_reported(1)
    # A broker knocks when it dials the controller, before it registers.
    reports.broker_arrived(2)
    assert not turns(reports, OTHERS_TURNS).are_complete
    reports.broker_reported(2)
    assert reports.are_complete
    reports.broker_arrived(3)
    assert reports.are_complete, "once they are in they stay in"


def test_wait_is_bounded_after_the_first_broker_appears() -> None:
    reports = turns(expecting((1, 2)), 5)
    # The bound runs from the first contact: without any there is no network yet.
    reports.broker_arrived(1)
    assert not turns(reports, BOUND_TURNS - 1).are_complete
    assert turns(reports, 1).are_complete


def test_reports_count_as_complete_until_a_broker_looks_for_a_controller() -> None:
    reports = expecting((1, 2))
    # No broker appeared within the limit, so decisions proceed.
    reports.give_up()
    assert turns(reports, 0).are_complete
    reports.broker_arrived(1)
    assert not turns(reports, 0).are_complete
    for node_id in (1, 2):
        reports.broker_reported(node_id)
    assert reports.are_complete


async def test_brokers_that_are_removed_are_not_waited_for() -> None:
    reports = expecting((1, 2), (3,))
    # The Broker objects were deleted since the term began.
    reports.keep_only({1})
    assert not turns(reports, 0).are_complete
    reports.keep_only(set())
    assert reports.are_complete
    async with asyncio.timeout(5):
        await reports.wait()


# ---------------------------------------------------------------- blocked decisions


@pytest.fixture
async def bench() -> AsyncIterator[RequestBench]:
    """Bench whose broker 1 leads a partition of two replicas, just after a takeover."""
    world = ShellWorld()
    world.make_cluster(UNDER_REPLICATED)
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic(replicas=2)
    async with world.term():
        for node_id in (1, 2):
            await world.start_broker(node_id)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        made = RequestBench(world)
        made.begin()
        # From here on the term behaves as one that has just started.
        world.services.first_reports.expect((1, 2))
        yield made


def the_row(bench: RequestBench) -> PartitionRow:
    (found,) = bench.world.services.state.all_rows()
    return found


@contextlib.contextmanager
def nothing_is_written(bench: RequestBench) -> Iterator[None]:
    before = bench.world.server.of_kind(PARTITION_SLICE)
    yield
    assert bench.world.server.of_kind(PARTITION_SLICE) == before


def all_report(bench: RequestBench) -> None:
    for node_id in (1, 2):
        bench.world.services.first_reports.broker_reported(node_id)


def expires(bench: RequestBench, *node_ids: int) -> None:
    for node_id in node_ids:
        epoch = bench.world.services.state.brokers[node_id].broker_epoch
        bench.requests.on_expired(node_id, epoch)


def leader_leaves(draft: Draft) -> None:
    elections.fence(draft, [1], reason="a test wants it")


async def test_no_row_is_written_before_the_reports_are_complete(bench: RequestBench) -> None:
    line = bench.world.services.committer
    with nothing_is_written(bench):
        deciding = asyncio.create_task(line.decide(leader_leaves))
        # A decision that changes no row need not wait.
        assert await line.decide(lambda draft: len(draft.state.brokers)) == 2, "others continue"
        await many_turns()
        assert not deciding.done()
    all_report(bench)
    async with asyncio.timeout(10):
        await deciding
    assert the_row(bench).leader == 2


async def test_deferred_decision_fails_when_the_term_ends(bench: RequestBench) -> None:
    services = bench.world.services
    deciding = asyncio.create_task(services.committer.decide(leader_leaves))
    await many_turns()
    # The term ends before broker 2 has reported.
    services.committer._end(NotLeading("the Lease was lost"))
    services.first_reports.end()
    async with asyncio.timeout(10):
        with pytest.raises(NotLeading):
            await deciding


async def test_a_dead_broker_is_fenced_once_the_others_have_reported(bench: RequestBench) -> None:
    services = bench.world.services
    # Broker 1 stays silent until its session expires.
    turns(services.first_reports, OTHERS_TURNS)
    with nothing_is_written(bench):
        expires(bench, 1)
        await many_turns()
        assert services.state.is_live(1)
    services.first_reports.broker_reported(2)
    await many_turns()
    assert not services.state.is_live(1)
    assert the_row(bench).leader == 2


async def test_report_of_newer_epochs_precedes_the_fencing(
    bench: RequestBench,
) -> None:
    """The restored slices may show the leader as dead (seeds 248 and 284 of the simulation)."""
    # Broker 1 knows a leader epoch that the slices do not: they are from a backup.
    newer = dataclasses.replace(snapshot.partition_state(the_row(bench)), leader_epoch=9)
    states = topic_state(the_row(bench).topic_id, "t", partitions=(newer,))
    with nothing_is_written(bench):
        expires(bench, 2)
        await many_turns()
        await bench.requests.replica_states(
            control.ReplicaStatesRequest(
                broker_id=1,
                incarnation_id=numbered_uuid(1),
                page=0,
                is_last=True,
                topics=(states,),
            )
        )
        await bench.register(has_states=True)
        await many_turns()
    assert [type(end) for end in bench.ends] == [SlicesBehind]


async def test_reregistered_broker_is_not_fenced(bench: RequestBench) -> None:
    services = bench.world.services
    expires(bench, 1)
    await many_turns()
    # The same process registers again before the fencing is decided.
    assert (await bench.register()).error_code == 0
    services.first_reports.broker_reported(2)
    await many_turns()
    assert services.first_reports.are_complete
    assert services.state.is_live(1)
    expires(bench, 1)
    await many_turns()
    assert not services.state.is_live(1), "this one counts"


async def test_resumed_broker_is_not_fenced(bench: RequestBench) -> None:
    """The broker hung for a session and sends heartbeats again under the same registration."""
    services = bench.world.services
    expires(bench, 1)
    await many_turns()
    # The heartbeat arrives between the expiry and the decision.
    bench.requests.on_beat(1, services.state.brokers[1].broker_epoch, Beat())
    all_report(bench)
    await many_turns()
    assert services.state.is_live(1)
    expires(bench, 1)
    await many_turns()
    assert not services.state.is_live(1), "this one counts"


async def test_a_heartbeat_of_a_blocked_broker_does_not_extend_its_session(
    bench: RequestBench,
) -> None:
    services = bench.world.services
    expires(bench, 1)
    await many_turns()
    epoch = services.state.brokers[1].broker_epoch
    # The thread for heartbeats runs, but the broker's event loop is blocked.
    bench.requests.on_beat(1, epoch, Beat(loop_stalled=True))
    all_report(bench)
    await many_turns()
    assert not services.state.is_live(1)


def stores_nothing_at_first(bench: RequestBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first three decisions fail, as other writers of the slices do."""
    monkeypatch.setattr(committer, "AGAIN_S", 0)
    failures = [committer.DecisionFailed("other writers kept changing the slices")] * 3
    decide = bench.world.services.committer.decide

    async def fails_at_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await decide(*arguments)

    monkeypatch.setattr(bench.world.services.committer, "decide", fails_at_first)


async def test_fencing_is_retried_until_it_is_stored(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores_nothing_at_first(bench, monkeypatch)
    all_report(bench)
    expires(bench, 1)
    await many_turns()
    assert not bench.world.services.state.is_live(1)


async def test_unfencing_is_retried_until_it_is_stored(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's next heartbeats carry no change that would trigger the decision."""
    state = bench.world.services.state
    all_report(bench)
    # Fence broker 1, so that its next heartbeat unfences it.
    await bench.world.services.committer.decide(leader_leaves)
    assert not state.is_live(1)
    stores_nothing_at_first(bench, monkeypatch)
    beat = Beat(snapshot_controller_epoch=state.controller_epoch)
    bench.requests.on_beat(1, state.brokers[1].broker_epoch, beat)
    await many_turns()
    assert state.is_live(1)


async def test_outdated_heartbeat_is_not_decided_later(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = bench.world.services.state
    all_report(bench)
    stores_nothing_at_first(bench, monkeypatch)
    epoch = state.brokers[1].broker_epoch
    # The first heartbeat would unfence the broker, the second requests its shutdown.
    bench.requests.on_beat(1, epoch, Beat())
    bench.requests.on_beat(1, epoch, Beat(want_shut_down=True))
    await many_turns()
    assert the_row(bench).leader == 2
    assert state.brokers[1].shutting_down, "its shutdown continues"


async def test_a_broker_with_oversized_reports_prevents_no_fencing(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending requests of one broker to shut down must share one background task."""
    # Thirty different heartbeats, but room for twenty background tasks.
    monkeypatch.setattr(background, "TASKS_MAX", 20)
    services = bench.world.services
    epoch = services.state.brokers[2].broker_epoch
    for number in range(30):
        beat = Beat(
            want_shut_down=True, snapshot_controller_epoch=-number, certificates=f"{number}"
        )
        bench.requests.on_beat(2, epoch, beat)
    await many_turns()
    assert len(services.background._tasks) == 1
    expires(bench, 1)
    all_report(bench)
    await many_turns()
    assert not services.state.is_live(1)


async def test_fencing_waits_for_a_free_background_task(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No background task is free, so the fencing is tried again later.
    monkeypatch.setattr(background, "TASKS_MAX", 0)
    monkeypatch.setattr(broker_requests, "FENCED_AGAIN_S", 0)
    services = bench.world.services
    all_report(bench)
    expires(bench, 1)
    await many_turns()
    assert services.state.is_live(1)
    monkeypatch.undo()
    async with asyncio.timeout(10):
        while services.state.is_live(1):
            await many_turns()


@pytest.mark.parametrize(
    ("directory", "error"),
    [(5, 0), (6, int(ErrorCode.duplicate_broker_registration))],
    ids=["as another run in its directory", "beside it"],
)
async def test_one_of_two_waiting_processes_is_admitted(
    bench: RequestBench, directory: int, error: int
) -> None:
    """Both registered before either was alive. One log directory belongs to one process."""
    services = bench.world.services
    coming = [
        asyncio.create_task(
            bench.register(incarnation_id=numbered_uuid(process), directory_id=numbered_uuid(at))
        )
        for process, at in ((70, 5), (71, directory))
    ]
    # Both processes wait for the reports of broker 2.
    await many_turns()
    assert not any(item.done() for item in coming)
    services.first_reports.broker_reported(2)
    async with asyncio.timeout(10):
        first, second = await asyncio.gather(*coming)
    assert first.error_code == 0
    assert second.error_code == error


async def test_isr_change_is_deferred_and_decided_when_repeated(
    bench: RequestBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer must precede the broker's request timeout.
    monkeypatch.setattr(broker_requests, "FIRST_REPORTS_S", 0.01)
    services, row = bench.world.services, the_row(bench)
    change = control.IsrChange(
        topic_id=row.topic_id,
        partition=0,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        new_isr=(1,),
        remote_manifest=False,
        leader_recovery_state=0,
    )
    # An unknown topic in the same request gets the same retriable error.
    other = dataclasses.replace(change, topic_id=numbered_uuid(77))
    request = control.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=services.state.brokers[1].broker_epoch,
        changes=(change, other),
    )
    with nothing_is_written(bench):
        early = await bench.requests.alter_partition(request)
    assert early.error_code == 0, "the session continues"
    assert [result.error_code for result in early.results] == [NOT_ATTEMPTED, NOT_ATTEMPTED]
    all_report(bench)
    assert (await bench.requests.alter_partition(request)).results[0].error_code == 0
    assert the_row(bench).isr == (1,)


async def test_controlled_shutdown_waits_for_the_reports(bench: RequestBench) -> None:
    epoch = bench.world.services.state.brokers[1].broker_epoch
    with nothing_is_written(bench):
        bench.requests.on_beat(1, epoch, Beat(want_shut_down=True))
        await many_turns()
    all_report(bench)
    await many_turns()
    assert the_row(bench).leader == 2


async def test_a_broker_that_the_slices_call_dead_reports_before_a_live_one_is_admitted(
    bench: RequestBench,
) -> None:
    world = bench.world
    world.make_broker(3)
    request = dataclasses.replace(bench.request(has_states=True), broker_id=3)
    answer = await bench.requests.register(request, session_alive=False, connected=False)
    # A fenced broker that registers is expected too, since its report may be newer.
    assert answer.wants_states
    all_report(bench)
    assert not world.services.first_reports.are_complete
    world.services.first_reports.broker_reported(3)
    assert world.services.first_reports.are_complete


# ---------------------------------------------------------------- limits of the wait


def expected_by(bench: RequestBench, searches: BrokerSearches = NOBODY) -> FirstReports:
    """Return the reports that a new term of this world expects."""
    services = dataclasses.replace(bench.world.services, first_reports=FirstReports())
    term = Term(
        services,
        bench,  # type: ignore[arg-type]
        bench.requests,
        settings=OperatorSettings(namespace=NAMESPACE),
        last_pass=LastPass(),
    )
    term._expect_reports(searches)
    return services.first_reports


async def test_term_expects_live_brokers_and_waits_briefly_for_fenced_ones(
    bench: RequestBench,
) -> None:
    bench.world.services.first_reports.end()
    # The slices show broker 1 as fenced and broker 2 as live.
    await bench.world.services.committer.decide(leader_leaves)
    reports = expected_by(bench)
    reports.broker_reported(2)
    assert not reports.are_complete
    assert turns(reports, OTHERS_TURNS).are_complete
    assert not turns(expected_by(bench), OTHERS_TURNS).are_complete, "broker 2 counts as live"


async def test_discovery_requests_before_the_term_count(bench: RequestBench) -> None:
    """A live broker searches for a controller as long as the others do."""
    bench.world.services.first_reports.end()
    await bench.world.services.committer.decide(leader_leaves)
    now_s = time.monotonic()
    reports = expected_by(bench, BrokerSearches(now_s - 60, {2: now_s}))
    # Broker 2 has dialled a standby, which extends no wait for broker 1.
    assert not turns(reports, OTHERS_TURNS).are_complete, "broker 2 counts as live"
    reports = expected_by(bench, BrokerSearches(now_s - 60, {2: now_s}))
    reports.broker_reported(2)
    assert not turns(reports, LAST_TURNS - 1).are_complete
    assert turns(reports, 1).are_complete, "broker 1 has not come in all that time"
    # Standbys have listened for only three ticks: the rest of the wait is still due.
    reports = expected_by(bench, BrokerSearches(now_s - 3 * TICK_S - 0.1, {2: now_s}))
    reports.broker_reported(2)
    assert not turns(reports, OTHERS_TURNS - 4).are_complete
    assert turns(reports, 1).are_complete


async def test_a_broker_that_looked_for_a_controller_is_waited_for_despite_the_slices(
    bench: RequestBench,
) -> None:
    bench.world.services.first_reports.end()
    await bench.world.services.committer.decide(leader_leaves)
    now_s = time.monotonic()
    # Broker 1 is fenced in the slices, but it has dialled a standby.
    reports = expected_by(bench, BrokerSearches(now_s - 60, {1: now_s}))
    reports.broker_reported(2)
    assert not turns(reports, OTHERS_TURNS).are_complete
    reports.broker_reported(1)
    assert reports.are_complete


async def test_a_new_cluster_waits_for_no_broker() -> None:
    world = ShellWorld()
    world.make_cluster()
    world.make_broker(1)
    async with world.term():
        assert expected_by(RequestBench(world)).are_complete


def test_live_brokers_connect_in_time_for_their_sessions() -> None:
    """The bound includes one operator address that does not answer."""
    comes_s = client._LONGEST_PAUSE_S + controller_discovery.DIAL_S
    assert comes_s < OTHERS_TURNS * TICK_S < OperatorSettings().session_timeout_s
    assert OTHERS_TURNS * TICK_S < broker_requests.FIRST_REPORTS_S < status._TIMEOUT_S
    assert broker_requests.FIRST_REPORTS_S < client._TIMEOUT_S


@pytest.mark.parametrize(
    ("arrival", "turns_needed"),
    [(lambda _: None, UNREACHED_TURNS), (lambda reports: reports.broker_arrived(2), BOUND_TURNS)],
    ids=["no broker", "silent broker"],
)
async def test_wait_for_reports_ends_without_any_broker(
    bench: RequestBench, arrival: Callable[[FirstReports], None], turns_needed: int
) -> None:
    services = bench.world.services
    arrival(services.first_reports)
    # The pacemaker counts the turns, as in a real term.
    pacemaker = Pacemaker(services, bench.world.questions)
    for number in range(1, turns_needed + 1):
        assert not services.first_reports.are_complete
        await pacemaker._turn(number)
    assert services.first_reports.are_complete
