"""Detection of lost or old slices by the shell, before a broker is admitted or receives a state."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import topic_state
from tests.loop_turns import many_turns
from tests.unit.controller.controller_world import T0, numbered_uuid, row
from tests.unit.operator_shell.broker_request_frames import Asked
from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tidemark.annotations import ADOPT_CLUSTER_ID
from tidemark.leader_epochs import GENERATION
from tidemark.wire import control
from tidemark_operator.controller import snapshot
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC
from tidemark_operator.leadership.terms import SlicesBehind
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.clusters import ClusterReconciler
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.term import broker_requests, takeover
from tidemark_operator.term.replica_states import REPLICAS_MAX, ReplicaStates
from tidemark_operator.term.takeover import Takeover

INVALID_REQUEST = int(ErrorCode.invalid_request)
NOT_CONTROLLER = int(ErrorCode.not_controller)


def page(
    *topics: control.TopicState, number: int = 0, is_last: bool = True, incarnation: int = 1
) -> control.ReplicaStatesRequest:
    return control.ReplicaStatesRequest(
        broker_id=1,
        incarnation_id=numbered_uuid(incarnation),
        page=number,
        is_last=is_last,
        topics=topics,
    )


# ---------------------------------------------------------------- pages


def test_pages_are_joined_and_taken_once() -> None:
    states = ReplicaStates()
    assert states.take(page(topic_state(numbered_uuid(1), "a"), is_last=False)).error_code == 0
    assert states.whole(1, numbered_uuid(1)) is None
    assert states.take(page(topic_state(numbered_uuid(2), "b"), number=1)).error_code == 0
    assert states.whole(1, numbered_uuid(9)) is None
    whole = states.whole(1, numbered_uuid(1))
    assert whole is not None
    assert [topic.name for topic in whole] == ["a", "b"]
    assert states.whole(1, numbered_uuid(1)) is None


@pytest.mark.parametrize(
    "second",
    [page(number=2), page(number=1, incarnation=2), page(number=0, is_last=False)],
    ids=["skipped", "another process", "again"],
)
def test_a_page_out_of_order_restarts_the_report(second: control.ReplicaStatesRequest) -> None:
    states = ReplicaStates()
    states.take(page(is_last=False))
    answer = states.take(second).error_code
    assert answer == (INVALID_REQUEST if second.page else 0)
    assert states.whole(1, numbered_uuid(1)) is None


def test_after_the_last_page_there_is_none() -> None:
    states = ReplicaStates()
    states.take(page())
    assert states.take(page(number=1)).error_code == INVALID_REQUEST


def test_what_a_broker_may_say_is_limited() -> None:
    states = ReplicaStates()
    many = topic_state(
        numbered_uuid(1),
        "a",
        partitions=(snapshot.partition_state(row((1,))),) * (REPLICAS_MAX + 1),
    )
    states.take(page(many, is_last=False))
    assert states.take(page(number=1)).error_code == INVALID_REQUEST


# ---------------------------------------------------------------- registration


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    world = ShellWorld()
    world.make_cluster({"enable.under.replicated.topic.creation": "true"})
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        made = Asked(world)
        made.begin()
        yield made


def _told(asked: Asked, **changes: Any) -> control.TopicState:
    """Return the state of the one partition that broker 1 received."""
    (made,) = asked.world.services.state.all_rows()
    told = dataclasses.replace(snapshot.partition_state(made), **changes)
    return topic_state(made.topic_id, "t", partitions=(told,))


async def test_a_broker_reports_its_states_before_it_is_admitted(asked: Asked) -> None:
    first = await asked.register(has_states=True)
    assert (first.error_code, first.wants_states) == (NOT_CONTROLLER, True)
    answer = await asked.requests.replica_states(page(_told(asked)))
    assert answer.error_code == 0
    second = await asked.register(has_states=True)
    assert (second.error_code, second.wants_states) == (0, False)
    assert asked.world.services.state.held.has_heard(1)
    assert (await asked.register(has_states=True)).wants_states, "each time"


async def test_a_broker_of_an_earlier_version_is_not_queried(asked: Asked) -> None:
    assert (await asked.register()).error_code == 0
    assert not asked.world.services.state.held.has_heard(1)


async def test_a_broker_with_newer_states_ends_the_term_before_any_decision(
    asked: Asked,
) -> None:
    (before,) = asked.world.services.state.all_rows()
    await asked.requests.replica_states(page(_told(asked, leader_epoch=9), incarnation=77))
    answer = await asked.register(has_states=True, incarnation_id=numbered_uuid(77))
    assert answer.error_code == NOT_CONTROLLER
    assert [type(end) for end in asked.ends] == [SlicesBehind]
    assert list(asked.world.services.state.all_rows()) == [before]
    assert asked.sessions == []
    assert (await asked.register()).error_code == NOT_CONTROLLER, "this term decides nothing more"


async def test_a_process_that_is_not_admitted_yet_shows_all_the_same_that_slices_are_old(
    asked: Asked,
) -> None:
    """Its former one counts as alive until its session ends, and then others would be elected."""

    async def knock() -> control.BrokerRegistrationResponse:
        request = asked.request(has_states=True, incarnation_id=numbered_uuid(77))
        return await asked.requests.register(request, session_alive=True, connected=True)

    assert (await knock()).wants_states
    await asked.requests.replica_states(page(_told(asked), incarnation=77))
    answer = await knock()
    assert answer.error_code == int(ErrorCode.duplicate_broker_registration)
    assert not asked.world.services.state.held.has_heard(1), "another may speak for it yet"
    await asked.requests.replica_states(page(_told(asked, leader_epoch=9), incarnation=77))
    assert (await knock()).error_code == NOT_CONTROLLER
    assert [type(end) for end in asked.ends] == [SlicesBehind]


async def test_what_is_said_in_the_name_of_no_broker_is_not_taken(asked: Asked) -> None:
    request = dataclasses.replace(page(), broker_id=7)
    assert (await asked.requests.replica_states(request)).error_code == NOT_CONTROLLER


async def test_a_new_process_is_not_admitted_before_all_live_brokers_have_spoken(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes first may know least."""
    services = asked.world.services
    await asked.world.start_broker(2)
    services.first_reports.expect((1, 2))
    registering = asyncio.create_task(asked.register(incarnation_id=numbered_uuid(77)))
    await many_turns()
    assert not registering.done()
    services.first_reports.presented(2)
    assert (await registering).error_code == 0
    services.first_reports.expect((2,))
    monkeypatch.setattr(broker_requests, "FIRST_REPORTS_S", 0.01)
    late = await asked.register(incarnation_id=numbered_uuid(78))
    assert late.error_code == NOT_CONTROLLER, "the broker retries"
    same = await asked.register(incarnation_id=numbered_uuid(77))
    assert same.error_code == 0, "nothing is decided about a process that is known"


async def test_nothing_is_made_while_live_brokers_have_not_spoken(asked: Asked) -> None:
    asked.world.make_topic("new")
    asked.world.services.first_reports.expect((2,))
    key = ShellWorld.key(TOPIC, "new")
    assert await TopicReconciler(asked.world.services).reconcile(key) is not None
    assert "topicId" not in asked.world.status(TOPIC, "new")


# ---------------------------------------------------------------- take-over


async def _take_over(world: ShellWorld, floor: int = 0, *, behind: bool = False) -> Any:
    return await Takeover(
        api=world.api,  # type: ignore[arg-type]
        namespace=NAMESPACE,
        identity="op",
        leads=lambda: True,
        objects=ObjectCache(),
    ).run("main", floor, behind=behind)


async def test_old_slices_are_in_doubt_and_the_status_reports_it_first(
    asked: Asked,
) -> None:
    world = asked.world
    taken = await _take_over(world, behind=True)
    assert world.status(CLUSTER, "main")["rebuilding"]["reason"] == "SlicesBehind"
    assert taken.state.doubted == {row.key for row in taken.state.all_rows()} != set()
    again = await _take_over(world)
    assert again.state.doubted == taken.state.doubted, "the next controller continues with it"


async def test_a_broker_that_obeyed_a_later_controller_puts_all_in_doubt(asked: Asked) -> None:
    epoch = asked.world.status(CLUSTER, "main")["controller"]["epoch"]
    assert not (await _take_over(asked.world, epoch)).state.doubted
    taken = await _take_over(asked.world, epoch + 7)
    assert taken.state.doubted
    assert taken.state.controller_epoch == epoch + 8


async def test_lost_slices_do_not_hide_that_others_are_behind(asked: Asked) -> None:
    world = asked.world
    (made,) = world.services.state.all_rows()
    index = world.services.state.slice_index(made.key)
    for number in range(64):
        if number != index:
            world.server._objects.pop((PARTITION_SLICE.kind, f"main-{number:02d}"))
            break
    assert not (await _take_over(world)).state.doubted
    since = world.status(CLUSTER, "main")["rebuilding"]["since"]
    taken = await _take_over(world, behind=True)
    assert taken.state.doubted
    assert world.status(CLUSTER, "main")["rebuilding"]["since"] >= since


async def test_a_later_loss_is_another_rebuilding(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilding that waits for a lost broker never ends: a broker given up for it is not given
    up for a later loss.
    """
    world, names = asked.world, ("main-00", "main-01")
    since = []
    for day, name in enumerate(names):
        monkeypatch.setattr(takeover, "wall_ms", lambda day=day: T0 + day * 86_400_000)
        world.server._objects.pop((PARTITION_SLICE.kind, name))
        await _take_over(world)
        since.append(world.status(CLUSTER, "main")["rebuilding"]["since"])
        await _take_over(world)
        assert world.status(CLUSTER, "main")["rebuilding"]["since"] == since[-1]
    assert since[0] < since[1]


# ---------------------------------------------------------------- the end


@contextlib.asynccontextmanager
async def _without_a_slice(world: ShellWorld) -> AsyncIterator[None]:
    """Its only Topic's slice is removed, and a controller takes over."""
    (made,) = world.services.state.all_rows()
    index = world.services.state.slice_index(made.key)
    world.server._objects.pop((PARTITION_SLICE.kind, f"main-{index:02d}"))
    async with world.term():
        yield


async def test_it_ends_once_every_broker_has_reported() -> None:
    world = ShellWorld()
    world.make_cluster()
    for node_id in (1, 2):
        world.make_broker(node_id)
    world.make_topic()
    async with world.term():
        await world.start_broker(1)
        await TopicReconciler(world.services).reconcile(ShellWorld.key(TOPIC, "t"))
        (made,) = world.services.state.all_rows()
        await world.start_broker(2)
    async with _without_a_slice(world):
        services = world.services
        clusters = ClusterReconciler(services)
        await world.start_broker(1)
        await clusters.reconcile(services.cluster_key)
        status, reason, message = world.condition(CLUSTER, "main", "Ready")
        assert (status, reason) == ("False", "Rebuilding")
        assert "Brokers 1, 2 have not reported" in message
        told = topic_state(made.topic_id, "t", partitions=(snapshot.partition_state(made),))
        services.state.take_held(1, [told])
        await TopicReconciler(services).reconcile(ShellWorld.key(TOPIC, "t"))
        (rebuilt,) = services.state.all_rows()
        assert rebuilt.leader_epoch == made.leader_epoch + GENERATION
        await clusters.reconcile(services.cluster_key)
        assert "Brokers 2 have not reported" in world.condition(CLUSTER, "main", "Ready")[2]
        services.state.take_held(2, [])
        await clusters.reconcile(services.cluster_key)
        assert world.condition(CLUSTER, "main", "Ready")[:2] == ("True", "Serving")
        assert "rebuilding" not in world.status(CLUSTER, "main")


async def test_a_topic_that_only_a_broker_knows_is_listed_until_it_has_a_topic(
    asked: Asked,
) -> None:
    services = asked.world.services
    services.state.take_held(1, [topic_state(numbered_uuid(5), "stray")])
    clusters = ClusterReconciler(services)
    await clusters.reconcile(services.cluster_key)
    (stray,) = asked.world.status(CLUSTER, "main")["strayTopics"]
    assert stray["topicName"] == "stray"
    services.state.take_held(1, [])
    await clusters.reconcile(services.cluster_key)
    assert "strayTopics" not in asked.world.status(CLUSTER, "main")


@pytest.mark.parametrize("is_told", [False, True])
async def test_a_broker_with_a_later_commit_proves_that_the_slices_are_old(
    asked: Asked, is_told: bool
) -> None:
    """The broker has no replica of the change.

    Once it was admitted, this controller has pushed more to it.
    """
    state = asked.world.services.state
    epoch, commit = state.controller_epoch, state.landed
    state.found = epoch, commit
    if is_told:
        assert (await asked.register()).error_code == 0
    await asked.requests.replica_states(page())
    request = {"has_states": True, "highest_controller_epoch": epoch}
    answer = await asked.register(**request, highest_commit=commit + 1)
    assert answer.error_code == (0 if is_told else NOT_CONTROLLER)
    assert [type(end) for end in asked.ends] == ([] if is_told else [SlicesBehind])


async def test_a_broker_whose_object_was_removed_by_hand_and_made_again_is_no_sign(
    asked: Asked,
) -> None:
    """Everything beyond its first report came from this controller."""
    world, state = asked.world, asked.world.services.state
    told = _told(asked)
    await asked.requests.replica_states(page(told))
    assert (await asked.register(has_states=True)).error_code == 0
    (made,) = state.all_rows()
    later = dataclasses.replace(made, partition_epoch=made.partition_epoch + 1)
    await world.services.committer.decide(lambda draft: draft.put_row(later))
    told = _told(asked)
    body = world.server.find(BROKER, "broker-1")
    assert body is not None
    world.services.objects.remove(body)
    world.server._remove(body)
    assert 1 not in state.brokers
    world.make_broker(1)
    await asked.requests.replica_states(page(told))
    await asked.register(has_states=True)
    assert asked.ends == []


async def test_where_slices_are_lost_their_commits_are_not_missed(asked: Asked) -> None:
    world = asked.world
    world.server._objects.pop((PARTITION_SLICE.kind, "main-07"))
    taken = await _take_over(world)
    assert taken.state.found[1] > world.services.state.landed


async def test_a_recreated_cluster_without_slices_takes_the_id_that_brokers_know() -> None:
    world = ShellWorld()
    cluster_id = "AAAAAAAAQACAAAAAAAAAAQ"
    meta = {"annotations": {ADOPT_CLUSTER_ID: cluster_id}}
    world.make(CLUSTER, "main", {"config": {}}, metadata=meta)
    taken = await _take_over(world)
    status = world.status(CLUSTER, "main")
    assert (status["clusterId"], status["slices"]) == (cluster_id, 64)
    assert status["rebuilding"]["reason"] == "SlicesMissing"
    assert len(world.server.of_kind(PARTITION_SLICE)) == 64
    assert taken.adopted is not None
    assert (await _take_over(world)).state.cluster.cluster_id == cluster_id
