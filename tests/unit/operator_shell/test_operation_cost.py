"""The operator's cost per operation does not grow with the number of topics.

Costs are counted in calls, not by a clock; ``make bench-operator`` measures the time.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.counted_calls import counted_calls, dearer
from tests.unit.controller.controller_world import (
    T0,
    ControllerWorld,
    broker,
    fence,
    numbered_uuid,
    topic,
)
from tidemark_operator.controller import elections, snapshot
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.status import broker_status
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile import state_metrics
from tidemark_operator.topic_changes import creation

FEW, MANY = 8, 160


class Measured:
    """The part of the services that the metrics read."""

    def __init__(self, state: ControllerState) -> None:
        self.state, self.metrics, self.disablements = state, Metrics(), None
        self.queue, self.objects = self, ObjectCache()
        self.depth = 0

    def head_age_s(self) -> float:
        return 0.0


def served(topics: int) -> ControllerWorld:
    """Return a world of Ready topics whose names contain characters that may collide."""
    world = ControllerWorld(brokers=[broker(node_id) for node_id in (1, 2, 3)])
    for number in range(1, topics + 1):
        made = topic(number, partitions=2, name=f"topic_{number}")
        # Two passes: the first places the partitions, the second sees them acknowledged.
        world.state.put_topic(made)
        world.reconcile(number, brokers_acknowledge=False)
    world.acknowledge_states()
    for number in range(1, topics + 1):
        world.reconcile(number, brokers_acknowledge=False)
    return world


def topic_is_reconciled(world: ControllerWorld) -> None:
    world.reconcile(3, brokers_acknowledge=False)


def topic_is_changed(world: ControllerWorld) -> None:
    changed = dataclasses.replace(world.view(3), generation=2, config={"retention.ms": "1"})
    world.state.put_topic(changed)
    world.reconcile(3, brokers_acknowledge=False)
    snapshot.delta(world.state, topics=["ns/topic-3"])


def topic_is_created(world: ControllerWorld) -> None:
    world.state.put_topic(topic(5000))
    world.reconcile(5000, brokers_acknowledge=False)


def topic_is_deleted(world: ControllerWorld) -> None:
    world.state.put_topic(dataclasses.replace(world.view(4), deletion_ms=T0))
    world.decide(4)


def partition_is_elected(world: ControllerWorld) -> None:
    draft = world.draft()
    elections.settle_topic(draft, world.view(3))
    draft.put_row(dataclasses.replace(world.row(number=3), leader_epoch=5))
    world.commit(draft)


def broker_status_is_built(world: ControllerWorld) -> None:
    broker_status(world.state, world.state.brokers[1], now_ms=T0)


def topic_name_is_checked(world: ControllerWorld) -> None:
    creation._check_name(world.state, "topic.is_new")


OPERATIONS = (
    topic_is_reconciled,
    topic_is_changed,
    topic_is_created,
    topic_is_deleted,
    partition_is_elected,
    broker_status_is_built,
    topic_name_is_checked,
)


def cost(world: ControllerWorld, work: Callable[[ControllerWorld], None]) -> Counter[str]:
    with counted_calls("tidemark_operator") as found:
        work(world)
    return found


@pytest.fixture(scope="module")
def sizes() -> tuple[ControllerWorld, ControllerWorld]:
    return served(FEW), served(MANY)


@pytest.mark.parametrize("work", OPERATIONS, ids=lambda item: item.__name__)
def test_cost_of_one_operation_is_independent_of_topic_count(
    work: Callable[[ControllerWorld], None], sizes: tuple[ControllerWorld, ControllerWorld]
) -> None:
    few, many = (cost(world, work) for world in sizes)
    assert few
    # The margin covers logarithmic growth: 20 times as many topics, 20 % more calls.
    assert many.total() <= 1.2 * few.total() + 10, dearer(few, many)


def test_metrics_visit_no_healthy_row() -> None:
    world = served(FEW)
    found = cost(world, lambda item: state_metrics.measure(Measured(item.state)))  # type: ignore[arg-type]
    assert "measure" in found
    assert not {name for name in found if name.endswith((".row", ".in_sync", ".all_rows"))}


class _KeyLookupOnly(dict[Any, Any]):
    """Dictionary that permits look-ups by key only."""

    def values(self) -> Any:
        raise AssertionError("all deleted topics are visited")


def test_deletion_of_one_topic_visits_only_its_own_slice() -> None:
    world = served(FEW)
    # Seven topics have tombstones that are not collected yet.
    for number in range(1, FEW):
        world.state.put_topic(dataclasses.replace(world.view(number), deletion_ms=T0))
        world.decide(number)
    world.state.tombstones = _KeyLookupOnly(world.state.tombstones)
    world.state.put_topic(dataclasses.replace(world.view(FEW), deletion_ms=T0))
    world.decide(FEW)
    assert len(world.state.tombstones) == FEW
    # All tombstones reached their slices.
    written = [item for payload in world.slices.values() for item in payload["tombstones"]]  # type: ignore[attr-defined]
    assert len(written) == FEW


def test_figures_equal_a_count_over_all_rows() -> None:
    world = served(20)
    assert figures(world) == counted(world) == (40, 0, 0)
    # A new topic whose states no broker has acknowledged.
    world.state.put_topic(topic(21, replication_factor=2))
    world.decide(21)
    assert figures(world) == counted(world) == (41, 0, 1), "no change was announced"
    world.state.storage_failures.put(2, frozenset({(numbered_uuid(4), 1)}))
    assert figures(world) == counted(world) == (41, 0, 2)
    # With broker 1 fenced, partitions are short of replicas. With all fenced, some are offline.
    fence(world, 1)
    assert figures(world) == counted(world)
    fence(world, 2, 3)
    assert figures(world) == counted(world)
    assert figures(world)[1] > 0
    world.state.put_topic(dataclasses.replace(world.view(21), deletion_ms=T0))
    world.decide(21)
    assert figures(world) == counted(world)


def figures(world: ControllerWorld) -> tuple[int, int, int]:
    state = world.state
    return state.partitions.count, len(state.partitions.offline), state.short_of_replicas()


def counted(world: ControllerWorld) -> tuple[int, int, int]:
    state = world.state
    rows = list(state.all_rows())
    for node_id in (1, 2, 3):
        assert state.partitions.leader_count(node_id) == sum(row.leader == node_id for row in rows)
    short = sum(len(state.in_sync(row)) < len(row.replicas) for row in rows)
    return len(rows), sum(row.leader < 0 for row in rows), short
