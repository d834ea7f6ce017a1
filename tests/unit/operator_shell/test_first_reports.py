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
from tests.unit.operator_shell.broker_request_frames import Asked
from tests.unit.operator_shell.shell_world import NAMESPACE, UNDER_REPLICATED, ShellWorld
from tidemark.wire import control
from tidemark_broker.control import client, controller_discovery, status
from tidemark_operator import background
from tidemark_operator.controller import elections, snapshot
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.model import PartitionRow
from tidemark_operator.engines.own.own_brokers import OwnBrokers
from tidemark_operator.kube.kinds import PARTITION_SLICE, TOPIC
from tidemark_operator.leadership.terms import NotLeading, SlicesBehind
from tidemark_operator.listener.sessions import Beat
from tidemark_operator.listener.standby_discovery import Looked
from tidemark_operator.reconcile.first_reports import (
    BOUND_TURNS,
    LAST_TURNS,
    OTHERS_TURNS,
    FirstReports,
)
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.reconcile.workers import LastPass
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.slices import committer
from tidemark_operator.term import broker_requests
from tidemark_operator.term.pacemaker import TICK_S, UNREACHED_TURNS, Pacemaker
from tidemark_operator.term.term import Term

NOBODY = Looked()
NOT_ATTEMPTED = int(ErrorCode.operation_not_attempted)

# ---------------------------------------------------------------- who is waited for


def turns(reports: FirstReports, number: int) -> FirstReports:
    for _ in range(number):
        reports.turn()
    return reports


def expecting(live: tuple[int, ...], others: tuple[int, ...] = ()) -> FirstReports:
    reports = FirstReports()
    reports.expect(live, others)
    return reports


def test_without_expected_brokers_there_is_no_wait() -> None:
    assert FirstReports().are_in
    assert expecting(()).are_in


def test_every_live_broker_is_waited_for_until_it_has_reported() -> None:
    reports = expecting((1, 2))
    reports.presented(1)
    assert not turns(reports, OTHERS_TURNS).are_in
    reports.presented(2)
    assert reports.are_in


def test_a_broker_whose_session_is_over_is_not_waited_for() -> None:
    reports = turns(expecting((1, 2)), OTHERS_TURNS)
    reports.presented(1)
    reports.over((2,))
    assert reports.are_in


def test_others_have_a_moment_to_come_though_the_slices_say_that_they_are_dead() -> None:
    reports = expecting((1,), (2,))
    reports.presented(1)
    assert not turns(reports, OTHERS_TURNS - 1).are_in
    assert turns(reports, 1).are_in
    reports = expecting((1,), (2,))
    for node_id in (1, 2):
        reports.presented(node_id)
    assert reports.are_in, "all have come"


def test_a_broker_that_arrives_at_that_moment_is_waited_for() -> None:
    reports = expecting((1,), (2,))
    reports.presented(1)
    reports.knocked(2)
    assert not turns(reports, OTHERS_TURNS).are_in
    reports.presented(2)
    assert reports.are_in
    reports.knocked(3)
    assert reports.are_in, "once they are in they stay in"


def test_all_of_it_ends_some_time_after_the_first_has_come() -> None:
    reports = turns(expecting((1, 2)), 5)
    reports.knocked(1)
    assert not turns(reports, BOUND_TURNS - 1).are_in
    assert turns(reports, 1).are_in


def test_reports_count_as_complete_until_a_broker_looks_for_a_controller() -> None:
    reports = expecting((1, 2))
    reports.give_up()
    assert turns(reports, 0).are_in
    reports.knocked(1)
    assert not turns(reports, 0).are_in
    for node_id in (1, 2):
        reports.presented(node_id)
    assert reports.are_in


async def test_brokers_that_are_removed_are_not_waited_for() -> None:
    reports = expecting((1, 2), (3,))
    reports.look_again({1})
    assert not turns(reports, 0).are_in
    reports.look_again(set())
    assert reports.are_in
    async with asyncio.timeout(5):
        await reports.wait()


# ---------------------------------------------------------------- what waits


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    """Two brokers serve a partition, which broker 1 leads; a controller has just taken over."""
    world = ShellWorld()
    world.make_cluster(UNDER_REPLICATED)
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic(replicas=2)
    async with world.term():
        for node_id in (1, 2):
            await world.start_broker(node_id)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        made = Asked(world)
        made.begin()
        world.services.first_reports.expect((1, 2))
        yield made


def the_row(asked: Asked) -> PartitionRow:
    (found,) = asked.world.services.state.all_rows()
    return found


@contextlib.contextmanager
def nothing_is_written(asked: Asked) -> Iterator[None]:
    before = asked.world.server.of_kind(PARTITION_SLICE)
    yield
    assert asked.world.server.of_kind(PARTITION_SLICE) == before


def all_report(asked: Asked) -> None:
    for node_id in (1, 2):
        asked.world.services.first_reports.presented(node_id)


def expires(asked: Asked, *node_ids: int) -> None:
    for node_id in node_ids:
        epoch = asked.world.services.state.brokers[node_id].broker_epoch
        asked.requests.on_expired(node_id, epoch)


def leader_leaves(draft: Draft) -> None:
    elections.fence(draft, [1], reason="a test wants it")


async def test_no_row_is_written_for_any_request(asked: Asked) -> None:
    line = asked.world.services.committer
    with nothing_is_written(asked):
        deciding = asyncio.create_task(line.decide(leader_leaves))
        assert await line.decide(lambda draft: len(draft.state.brokers)) == 2, "others continue"
        await many_turns()
        assert not deciding.done()
    all_report(asked)
    async with asyncio.timeout(10):
        await deciding
    assert the_row(asked).leader == 2


async def test_what_is_put_off_ends_with_the_term(asked: Asked) -> None:
    services = asked.world.services
    deciding = asyncio.create_task(services.committer.decide(leader_leaves))
    await many_turns()
    services.committer._end(NotLeading("the Lease was lost"))
    services.first_reports.end()
    async with asyncio.timeout(10):
        with pytest.raises(NotLeading):
            await deciding


async def test_a_dead_broker_is_fenced_once_the_others_have_reported(asked: Asked) -> None:
    services = asked.world.services
    turns(services.first_reports, OTHERS_TURNS)
    with nothing_is_written(asked):
        expires(asked, 1)
        await many_turns()
        assert services.state.is_live(1)
    services.first_reports.presented(2)
    await many_turns()
    assert not services.state.is_live(1)
    assert the_row(asked).leader == 2


async def test_a_report_that_shows_old_slices_comes_before_the_end_of_a_session_counts(
    asked: Asked,
) -> None:
    """The old slices may declare the leader dead: seeds 248 and 284 of the simulation's backups."""
    told = dataclasses.replace(snapshot.partition_state(the_row(asked)), leader_epoch=9)
    states = topic_state(the_row(asked).topic_id, "t", partitions=(told,))
    with nothing_is_written(asked):
        expires(asked, 2)
        await many_turns()
        await asked.requests.replica_states(
            control.ReplicaStatesRequest(
                broker_id=1,
                incarnation_id=numbered_uuid(1),
                page=0,
                is_last=True,
                topics=(states,),
            )
        )
        await asked.register(has_states=True)
        await many_turns()
    assert [type(end) for end in asked.ends] == [SlicesBehind]


async def test_a_broker_that_has_come_again_meanwhile_is_not_fenced(asked: Asked) -> None:
    services = asked.world.services
    expires(asked, 1)
    await many_turns()
    assert (await asked.register()).error_code == 0
    services.first_reports.presented(2)
    await many_turns()
    assert services.first_reports.are_in
    assert services.state.is_live(1)
    expires(asked, 1)
    await many_turns()
    assert not services.state.is_live(1), "this one counts"


async def test_a_broker_that_sends_heartbeats_again_meanwhile_is_not_fenced(asked: Asked) -> None:
    """The broker hung for a session and sends heartbeats again under the same registration."""
    services = asked.world.services
    expires(asked, 1)
    await many_turns()
    asked.requests.on_beat(1, services.state.brokers[1].broker_epoch, Beat())
    all_report(asked)
    await many_turns()
    assert services.state.is_live(1)
    expires(asked, 1)
    await many_turns()
    assert not services.state.is_live(1), "this one counts"


async def test_a_heartbeat_of_a_blocked_broker_does_not_extend_its_session(asked: Asked) -> None:
    services = asked.world.services
    expires(asked, 1)
    await many_turns()
    epoch = services.state.brokers[1].broker_epoch
    asked.requests.on_beat(1, epoch, Beat(loop_stalled=True))
    all_report(asked)
    await many_turns()
    assert not services.state.is_live(1)


def stores_nothing_at_first(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other writers keep changing the slices, for a while."""
    monkeypatch.setattr(committer, "AGAIN_S", 0)
    failures = [committer.DecisionFailed("other writers kept changing the slices")] * 3
    decide = asked.world.services.committer.decide

    async def fails_at_first(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await decide(*arguments)

    monkeypatch.setattr(asked.world.services.committer, "decide", fails_at_first)


async def test_a_dead_broker_is_fenced_though_that_could_not_be_stored_at_first(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores_nothing_at_first(asked, monkeypatch)
    all_report(asked)
    expires(asked, 1)
    await many_turns()
    assert not asked.world.services.state.is_live(1)


async def test_a_broker_is_unfenced_though_that_could_not_be_stored_at_first(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next heartbeats say nothing new."""
    state = asked.world.services.state
    all_report(asked)
    await asked.world.services.committer.decide(leader_leaves)
    assert not state.is_live(1)
    stores_nothing_at_first(asked, monkeypatch)
    beat = Beat(snapshot_controller_epoch=state.controller_epoch)
    asked.requests.on_beat(1, state.brokers[1].broker_epoch, beat)
    await many_turns()
    assert state.is_live(1)


async def test_what_a_broker_no_longer_says_is_not_decided_later(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = asked.world.services.state
    all_report(asked)
    stores_nothing_at_first(asked, monkeypatch)
    epoch = state.brokers[1].broker_epoch
    asked.requests.on_beat(1, epoch, Beat())
    asked.requests.on_beat(1, epoch, Beat(want_shut_down=True))
    await many_turns()
    assert the_row(asked).leader == 2
    assert state.brokers[1].shutting_down, "its shutdown continues"


async def test_a_broker_with_oversized_reports_prevents_no_fencing(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report is decided once, in whatever form it arrives."""
    monkeypatch.setattr(background, "TASKS_MAX", 20)
    services = asked.world.services
    epoch = services.state.brokers[2].broker_epoch
    for number in range(30):
        said = Beat(
            want_shut_down=True, snapshot_controller_epoch=-number, certificates=f"{number}"
        )
        asked.requests.on_beat(2, epoch, said)
    await many_turns()
    assert len(services.background._tasks) == 1
    expires(asked, 1)
    all_report(asked)
    await many_turns()
    assert not services.state.is_live(1)


async def test_where_too_much_is_under_way_a_dead_broker_is_fenced_later(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "TASKS_MAX", 0)
    monkeypatch.setattr(broker_requests, "FENCED_AGAIN_S", 0)
    services = asked.world.services
    all_report(asked)
    expires(asked, 1)
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
async def test_of_two_processes_that_waited_one_is_admitted(
    asked: Asked, directory: int, error: int
) -> None:
    """The second one came when the first was not alive yet; a directory has one process."""
    services = asked.world.services
    coming = [
        asyncio.create_task(
            asked.register(incarnation_id=numbered_uuid(process), directory_id=numbered_uuid(at))
        )
        for process, at in ((70, 5), (71, directory))
    ]
    await many_turns()
    assert not any(item.done() for item in coming)
    services.first_reports.presented(2)
    async with asyncio.timeout(10):
        first, second = await asyncio.gather(*coming)
    assert first.error_code == 0
    assert second.error_code == error


async def test_an_isr_change_is_put_off_in_time_and_decided_when_it_comes_again(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_requests, "FIRST_REPORTS_S", 0.01)
    services, row = asked.world.services, the_row(asked)
    change = control.IsrChange(
        topic_id=row.topic_id,
        partition=0,
        leader_epoch=row.leader_epoch,
        partition_epoch=row.partition_epoch,
        new_isr=(1,),
        remote_manifest=False,
        leader_recovery_state=0,
    )
    other = dataclasses.replace(change, topic_id=numbered_uuid(77))
    request = control.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=services.state.brokers[1].broker_epoch,
        changes=(change, other),
    )
    with nothing_is_written(asked):
        early = await asked.requests.alter_partition(request)
    assert early.error_code == 0, "the session continues"
    assert [result.error_code for result in early.results] == [NOT_ATTEMPTED, NOT_ATTEMPTED]
    all_report(asked)
    assert (await asked.requests.alter_partition(request)).results[0].error_code == 0
    assert the_row(asked).isr == (1,)


async def test_a_broker_that_wants_to_stop_waits(asked: Asked) -> None:
    epoch = asked.world.services.state.brokers[1].broker_epoch
    with nothing_is_written(asked):
        asked.requests.on_beat(1, epoch, Beat(want_shut_down=True))
        await many_turns()
    all_report(asked)
    await many_turns()
    assert the_row(asked).leader == 2


async def test_a_broker_that_the_slices_call_dead_reports_before_a_live_one_is_admitted(
    asked: Asked,
) -> None:
    world = asked.world
    world.make_broker(3)
    request = dataclasses.replace(asked.request(has_states=True), broker_id=3)
    answer = await asked.requests.register(request, session_alive=False, connected=False)
    assert answer.wants_states
    all_report(asked)
    assert not world.services.first_reports.are_in
    world.services.first_reports.presented(3)
    assert world.services.first_reports.are_in


# ---------------------------------------------------------------- how long


def expected_by(asked: Asked, looked: Looked = NOBODY) -> FirstReports:
    """As a term of this world begins."""
    services = dataclasses.replace(asked.world.services, first_reports=FirstReports())
    term = Term(
        services,
        OwnBrokers(services.state, asked.requests),
        asked,  # type: ignore[arg-type]
        asked.requests,
        settings=OperatorSettings(namespace=NAMESPACE),
        leads=lambda: True,
        last_pass=LastPass(),
    )
    term._expect_reports(looked)
    return services.first_reports


async def test_a_term_begins_with_those_that_may_be_alive(asked: Asked) -> None:
    asked.world.services.first_reports.end()
    await asked.world.services.committer.decide(leader_leaves)
    reports = expected_by(asked)
    reports.presented(2)
    assert not reports.are_in
    assert turns(reports, OTHERS_TURNS).are_in
    assert not turns(expected_by(asked), OTHERS_TURNS).are_in, "broker 2 counts as live"


async def test_discovery_requests_before_the_term_count(asked: Asked) -> None:
    """A live broker has looked for a controller as long as the others."""
    asked.world.services.first_reports.end()
    await asked.world.services.committer.decide(leader_leaves)
    now_s = time.monotonic()
    reports = expected_by(asked, Looked(now_s - 60, {2: now_s}))
    assert not turns(reports, OTHERS_TURNS).are_in, "broker 2 counts as live"
    reports = expected_by(asked, Looked(now_s - 60, {2: now_s}))
    reports.presented(2)
    assert not turns(reports, LAST_TURNS - 1).are_in
    assert turns(reports, 1).are_in, "broker 1 has not come in all that time"
    reports = expected_by(asked, Looked(now_s - 3 * TICK_S - 0.1, {2: now_s}))
    reports.presented(2)
    assert not turns(reports, OTHERS_TURNS - 4).are_in
    assert turns(reports, 1).are_in


async def test_a_broker_that_looked_for_a_controller_is_waited_for_despite_the_slices(
    asked: Asked,
) -> None:
    asked.world.services.first_reports.end()
    await asked.world.services.committer.decide(leader_leaves)
    now_s = time.monotonic()
    reports = expected_by(asked, Looked(now_s - 60, {1: now_s}))
    reports.presented(2)
    assert not turns(reports, OTHERS_TURNS).are_in
    reports.presented(1)
    assert reports.are_in


async def test_a_new_cluster_waits_for_no_broker() -> None:
    world = ShellWorld()
    world.make_cluster()
    world.make_broker(1)
    async with world.term():
        assert expected_by(Asked(world)).are_in


def test_live_brokers_connect_in_time_for_their_sessions() -> None:
    """Also where one of the operator's addresses does not answer."""
    comes_s = client._LONGEST_PAUSE_S + controller_discovery.DIAL_S
    assert comes_s < OTHERS_TURNS * TICK_S < OperatorSettings().session_timeout_s
    assert OTHERS_TURNS * TICK_S < broker_requests.FIRST_REPORTS_S < status._TIMEOUT_S
    assert broker_requests.FIRST_REPORTS_S < client._TIMEOUT_S


@pytest.mark.parametrize(
    ("comes", "turns_needed"),
    [(lambda _: None, UNREACHED_TURNS), (lambda reports: reports.knocked(2), BOUND_TURNS)],
    ids=["nobody", "one that says nothing"],
)
async def test_no_wait_is_endless(
    asked: Asked, comes: Callable[[FirstReports], None], turns_needed: int
) -> None:
    services = asked.world.services
    comes(services.first_reports)
    pacemaker = Pacemaker(services, asked.world.questions, leads=lambda: True)
    for number in range(1, turns_needed + 1):
        assert not services.first_reports.are_in
        await pacemaker._turn(number)
    assert services.first_reports.are_in
