"""Draining: replicas move to other brokers within limits and despite failures, with progress."""

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.controller.controller_world import (
    KIP_409,
    ControllerWorld,
    alter,
    broker,
    cluster,
    fence,
    row,
    topic,
)
from tidemark_operator.controller import (
    draining,
    elections,
    reassignment,
    registration,
    replication_factor_changes,
)
from tidemark_operator.controller.draining import Obstacle
from tidemark_operator.controller.placement import place_topic
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import BrokerHealth, BrokerInfo, PartitionRow
from tidemark_operator.controller.status import broker_status


def drained(node_id: int, **fields: object) -> BrokerInfo:
    return dataclasses.replace(broker(node_id), drain=True, **fields)  # type: ignore[arg-type]


def world(
    *rows: PartitionRow, brokers: int = 4, config: dict[str, str] | None = None
) -> ControllerWorld:
    """Return a world in which broker 1 of ``brokers`` is to be drained."""
    return ControllerWorld(
        brokers=[drained(1), *map(broker, range(2, brokers + 1))],
        topics=[topic(partitions=len(rows), replication_factor=2, partitions_placed=len(rows))],
        rows=rows,
        view=cluster(config),
    )


def step(made: ControllerWorld) -> int:
    draft = made.draft()
    begun = draining.step(draft)
    made.commit(draft)
    return begun


def shape(made: ControllerWorld, partition: int = 0) -> tuple[tuple[int, ...], ...]:
    """Return the partition's replicas, adding replicas and removing replicas."""
    found = made.row(partition)
    return found.replicas, found.adding, found.removing


def catch_up(made: ControllerWorld, partition: int = 0) -> None:
    """Commit that all replicas are in sync, with the completed moves."""
    draft, found = made.draft(), made.row(partition)
    in_sync = dataclasses.replace(found, isr=found.hosts)
    new = elections.with_elr_and_epochs(
        found, reassignment.settled(draft, in_sync), draft.state.min_isr(found)
    )
    draft.put_row(new)
    made.commit(draft)


def condition(made: ControllerWorld, node_id: int = 1) -> tuple[str, str, str]:
    status = broker_status(made.state, made.state.brokers[node_id], now_ms=0).status
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    (found,) = (condition_ for condition_ in conditions if condition_["type"] == "Draining")
    return found["status"], found["reason"], found["message"]


def test_a_successor_catches_up_before_the_drained_replica_is_removed() -> None:
    made = world(row((1, 2)), brokers=3)
    assert step(made) == 1
    assert shape(made) == ((3, 2, 1), (3,), (1,))
    assert made.row().leader == 1, "it leads until then"
    assert step(made) == 0, "it is on its way"
    # The successor joins the ISR, which removes the drained replica and elects the new leader.
    assert alter(made, 1, 2, 3) == 0
    assert shape(made) == ((3, 2), (), ())
    assert made.row().leader == 3
    assert condition(made)[:2] == ("False", "Drained")


def test_successor_balances_the_topic_and_its_racks() -> None:
    made = world(row((1, 2), partition=0), row((3, 4), partition=1))
    made.state.put_broker(dataclasses.replace(broker(2), spec_rack="a"))
    made.state.put_broker(dataclasses.replace(broker(3), spec_rack="b"))
    made.state.put_broker(dataclasses.replace(broker(4), spec_rack="a"))
    step(made)
    assert shape(made)[0] == (3, 2, 1), "broker 4 has as few, in the rack of broker 2"


def test_moves_respect_the_catch_up_limit() -> None:
    rows = [row((1, 2), partition=part) for part in range(5)]
    made = world(*rows, brokers=3, config={"tidemark.catch.up.replicas": "2"})
    assert (step(made), step(made)) == (2, 0)
    under_way = [part for part in range(5) if made.row(part).adding]
    assert condition(made)[1] == "MovingReplicas"
    assert "5 replicas left: 2 moving, 3 waiting for the limit" in condition(made)[2]
    # One completed move frees a slot for the next one.
    catch_up(made, under_way[0])
    assert step(made) == 1


def test_a_new_controller_continues_from_the_rows() -> None:
    rows = [row((1, 2), partition=part) for part in range(4)]
    made = world(*rows, brokers=3, config={"tidemark.catch.up.replicas": "2"})
    step(made)
    # The next controller knows the moves in progress from the rows alone.
    other = ControllerWorld(
        brokers=made.state.brokers.values(),
        topics=made.state.topics.values(),
        rows=made.state.all_rows(),
        view=made.state.cluster,
        epoch=8,
    )
    assert step(other) == 0
    assert sum(bool(found.adding) for found in other.state.all_rows()) == 2
    for part in range(4):
        catch_up(other, part)
    assert step(other) == 2
    for part in range(4):
        catch_up(other, part)
    assert not other.state.partitions.keys_on(1)


def test_a_successor_that_dies_is_replaced() -> None:
    made = world(row((1, 2)))
    step(made)
    (first,) = made.row().adding
    # The successor fails before it has caught up.
    fence(made, first)
    assert step(made) == 1
    (second,) = made.row().adding
    assert second not in (1, 2, first)
    assert first not in made.row().replicas


def test_successor_with_failed_storage_is_replaced_and_avoided() -> None:
    """Moves to a broker with failed storage would never end and would bypass the limit."""
    made = world(*(row((1, 2), partition=part) for part in range(6)))
    step(made)
    keys = made.state.partitions.keys_on(3)
    assert keys
    # All replicas on broker 3 report a storage error.
    made.state.storage_failures.put(3, keys)
    made.state.health[3] = BrokerHealth(directory_error="read-only file system")
    assert step(made) == len(keys)
    assert not made.state.partitions.keys_on(3)
    assert step(made) == 0
    assert all(made.row(part).adding == (4,) for part in range(6))


def test_message_names_missing_working_directories() -> None:
    made = world(row((1, 2)), brokers=3)
    made.state.health[3] = BrokerHealth(directory_error="read-only file system")
    assert step(made) == 0
    assert condition(made)[1] == "ReplicasCannotMove"
    assert "has a working log directory" in condition(made)[2]


@pytest.mark.parametrize("isr", [(1, 2), (2,)], ids=["in-sync", "behind"])
def test_replica_stays_if_its_successor_is_removed(isr: tuple[int, ...]) -> None:
    """Otherwise the partition would be left with one replica less without any decision."""
    made = world(row((1, 2), isr=isr), brokers=3)
    step(made)
    assert shape(made) == ((3, 2, 1), (3,), (1,))
    # The successor is fenced, and its Broker is deleted.
    fence(made, 3)
    draft = made.draft()
    registration.remove_broker(draft, 3)
    reassignment.finish(draft)
    made.commit(draft)
    assert shape(made) == ((1, 2), (), ())


def test_replica_stays_if_its_successor_is_drained_too() -> None:
    """``drain`` was removed, and no other broker is available."""
    made = world(row((1, 2)), brokers=3)
    step(made)
    made.state.put_broker(broker(1))
    # Now the successor itself is to be drained, and broker 1 may keep its replica.
    made.state.put_broker(drained(3))
    assert step(made) == 1
    assert shape(made) == ((1, 2), (), ())
    assert condition(made, 3)[1] == "Drained"


def test_brokers_are_read_once_per_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draining 10,000 replicas in a cluster of 1,000 brokers must not block the event loop."""
    calls = 0
    live_brokers = Draft.live_brokers

    def counted(draft: Draft) -> list[BrokerInfo]:
        nonlocal calls
        calls += 1
        return live_brokers(draft)

    monkeypatch.setattr(Draft, "live_brokers", counted)
    made = world(*(row((1, 2), partition=part) for part in range(40)), brokers=5)
    draining.progress(made.draft(), 1)
    step(made)
    # One call for the progress and one for the step.
    assert calls == 2


def test_a_successor_that_has_not_caught_up_is_not_elected_uncleanly() -> None:
    """The successor may be empty, and the drained broker would then delete the only copy."""
    made = world(row((1, 2), isr=(1,)), brokers=3)
    # Unclean elections are allowed, but broker 3 is still empty.
    config = {"unclean.leader.election.enable": "true"}
    made.state.put_topic(dataclasses.replace(made.view(), config=config))
    step(made)
    assert made.row().adding == (3,)
    fence(made, 1, 2)
    assert (made.row().leader, made.row().isr) == (-1, (1,))
    assert set(made.row().replicas) == {1, 2, 3}


def test_drained_brokers_are_no_successors_of_each_other() -> None:
    made = world(row((1, 2)))
    step(made)
    (first,) = made.row().adding
    made.state.put_broker(drained(first))
    assert step(made) == 1
    # Brokers 3 and 4 add up to 7: the other one takes over.
    assert made.row().adding == (7 - first,)
    made.state.put_broker(drained(2))
    assert step(made) == 0
    assert draining.progress(made.draft(), 2).stuck == {Obstacle.NO_BROKER: (made.row().key,)}


def test_client_reassignment_to_a_drained_broker_is_redirected() -> None:
    made = world(row((2, 3)))
    made.state.put_broker(broker(1))
    draft = made.draft()
    reassignment.reassign(draft, made.view(), {0: (1, 2)})
    made.commit(draft)
    made.state.put_broker(drained(1))
    assert step(made) == 1
    assert 1 not in made.row().replicas
    assert reassignment.target(made.row()) == (4, 2)


def test_placeholders_keep_their_positions() -> None:
    made = world(row((1, 2, -1)), brokers=3)
    step(made)
    assert shape(made) == ((3, 2, -1, 1), (3,), (1,))
    catch_up(made)
    assert shape(made) == ((3, 2, -1), (), ())


def test_fenced_broker_is_drained() -> None:
    made = world(row((1, 2), isr=(2,), leader=2), brokers=3)
    made.state.put_broker(drained(1, fenced=True))
    assert step(made) == 1
    assert alter(made, 2, 3) == 0
    assert shape(made) == ((3, 2), (), ())


@pytest.mark.parametrize(
    ("replicas", "fields", "obstacle"),
    [
        ((1, 2), {}, Obstacle.NO_BROKER),
        ((1, 3), {"leader": -1}, Obstacle.NO_LEADER),
        # Rows of a topic whose Topic object does not exist.
        ((1,), {"number": 9}, Obstacle.NO_TOPIC),
    ],
    ids=["no-broker", "no-leader", "no-topic"],
)
def test_message_names_partitions_that_cannot_move(
    replicas: tuple[int, ...], fields: dict[str, int], obstacle: Obstacle
) -> None:
    made = world(row(replicas, **fields), brokers=2)  # type: ignore[arg-type]
    assert step(made) == 0
    status, reason, message = condition(made)
    assert (status, reason) == ("True", "ReplicasCannotMove")
    assert obstacle.value in message
    assert "1 partition (" in message
    assert ("(no Topic)-0" if "number" in fields else "topic-1-0") in message


def _start_another(made: ControllerWorld) -> None:
    made.state.put_broker(broker(3))


def _lower_the_factor(made: ControllerWorld) -> None:
    view = dataclasses.replace(made.view(), replication_factor=1)
    made.state.put_topic(view)
    made.state.resizing.add(view.id)
    draft = made.draft()
    replication_factor_changes.step(draft)
    made.commit(draft)


def _have_it_led(made: ControllerWorld) -> None:
    made.state.put_row(row((1, 3)))


def _make_the_topic(made: ControllerWorld) -> None:
    made.state.put_topic(topic(9, replication_factor=1, partitions_placed=1))


@pytest.mark.parametrize(
    ("replicas", "fields", "repair"),
    [
        ((1, 2), {}, _start_another),
        ((1, 2), {}, _lower_the_factor),
        ((1, 3), {"leader": -1}, _have_it_led),
        ((1,), {"number": 9}, _make_the_topic),
    ],
    ids=["start-another", "lower-the-factor", "led-again", "topic-made"],
)
def test_following_the_message_completes_the_drain(
    replicas: tuple[int, ...], fields: dict[str, int], repair: Callable[[ControllerWorld], None]
) -> None:
    made = world(row(replicas, **fields), brokers=2)  # type: ignore[arg-type]
    assert condition(made)[1] == "ReplicasCannotMove"
    repair(made)
    step(made)
    for found in list(made.state.all_rows()):
        draft = made.draft()
        in_sync = reassignment.settled(draft, dataclasses.replace(found, isr=found.hosts))
        draft.put_row(elections.with_elr_and_epochs(found, in_sync, draft.state.min_isr(found)))
        made.commit(draft)
    assert condition(made)[1] == "Drained"


def test_paused_topic_blocks_the_drain() -> None:
    made = world(row((1, 2)), brokers=3)
    kept = made.view()
    made.state.put_topic(dataclasses.replace(kept, paused=True))
    assert step(made) == 0
    assert "topic-1-0) cannot move: the Topic is paused" in condition(made)[2]
    # A topic being deleted needs no move: its replicas disappear anyway.
    made.state.put_topic(dataclasses.replace(kept, deletion_ms=5))
    assert step(made) == 1 or condition(made)[1] == "MovingReplicas"


def test_drained_broker_gets_no_new_replicas() -> None:
    view = topic(partitions=2, replication_factor=2, assignments={0: (1, 2)})
    made = ControllerWorld(brokers=[drained(1), broker(2), broker(3)], topics=[view])
    draft = made.draft()
    place_topic(draft, view)
    made.commit(draft)
    assert not made.state.partitions.keys_on(1)
    other_topic = topic(2, replication_factor=3, partitions_placed=1)
    made.state.put_topic(other_topic)
    # A reassignment by a client to the drained broker is refused as well.
    assert reassignment._problem(made.draft(), view, made.row(), (1, 2)) is not None


def test_drained_broker_gets_no_leaders() -> None:
    made = world(row((1, 2), leader=2), brokers=2)
    assert elections.balance_leaders(made.draft(), limit=5) == 0
    made.state.put_broker(broker(1))
    assert elections.balance_leaders(made.draft(), limit=5) == 1


def test_move_does_not_raise_the_effective_min_isr() -> None:
    """With min.insync.replicas 2, a topic of one replica must accept records during its move."""
    made = world(row((1,)), brokers=2)
    config = {"min.insync.replicas": "2"}
    made.state.put_topic(dataclasses.replace(made.view(), replication_factor=1, config=config))
    step(made)
    assert made.row().replicas == (2, 1)
    assert made.state.min_isr(made.row()) == 1


def test_a_running_deleted_broker_reports_that_it_may_be_stopped() -> None:
    made = world(row((1, 2)), brokers=2, config=KIP_409)
    made.state.put_broker(dataclasses.replace(broker(1), deleting=True))
    assert condition(made)[1] == "ReplicasCannotMove"
    assert (
        "Alternatively, stop the broker: its replicas then become placeholders"
        in condition(made)[2]
    )


def test_a_deleted_broker_with_the_last_live_copy_is_in_use() -> None:
    made = world(row((1,)), brokers=1)
    made.state.put_broker(dataclasses.replace(broker(1), deleting=True))
    assert condition(made)[1] == "ReplicasInUse"
    assert "start another broker that can take them, or delete the topics" in condition(made)[2]
    # Another broker joins, to which the copy can move.
    made.state.put_broker(broker(2))
    assert condition(made)[1] == "MovingReplicas", "another broker can take it"


def test_message_for_a_needed_dead_broker_names_the_remedy() -> None:
    """The other replica runs and is complete, so that only another broker helps."""
    made = world(row((1, 2), isr=(2,), elr=(1,), leader=2), brokers=2)
    config = {"min.insync.replicas": "2"}
    made.state.put_topic(dataclasses.replace(made.view(), config=config))
    made.state.put_broker(dataclasses.replace(broker(1), fenced=True, deleting=True))
    assert condition(made)[1] == "ReplicasInUse"
    # The message has two parts: the reason, and the remedy.
    start, _, rest = condition(made)[2].partition(". To remove the broker, ")
    assert start.endswith("would have fewer complete copies than min.insync.replicas")
    assert rest.startswith(
        "start another broker that can take them, or delete the topics. If its log directory is "
        "lost for good, annotate this Broker with tidemark.dev/accept-lost-directory: "
    )
