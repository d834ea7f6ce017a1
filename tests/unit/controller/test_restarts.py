"""Which broker in a pod may be restarted now, and what its status says while it waits."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import World, broker, cluster, fence, row, topic
from tidemark_operator.controller import restarts
from tidemark_operator.controller.model import NO_LEADER, BrokerInfo, PartitionRow
from tidemark_operator.controller.pod_state import Hold, PodState
from tidemark_operator.controller.status import broker_status
from tidemark_operator.resources.broker import parse_broker

OTHERS = (2, 3)


def world(*rows: PartitionRow, brokers: tuple[BrokerInfo, ...] = ()) -> World:
    return World(
        brokers=brokers or tuple(map(broker, (1, 2, 3))),
        topics=[topic(partitions=len(rows), partitions_placed=len(rows))],
        rows=rows,
        view=cluster(),
    )


def held(made: World, starting: tuple[int, ...] = ()) -> Hold | None:
    return restarts.hold(made.state, 1, OTHERS, starting)


def test_one_whose_partitions_are_in_sync_may() -> None:
    assert held(world(row((1, 2, 3)))) is None


def test_the_only_replica_of_a_partition_may_restart() -> None:
    alone = row((1,))
    elsewhere = row((2, 3), isr=(2,), partition=1)
    assert held(world(alone, elsewhere)) is None


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(row((1, 2, 3), isr=(1, 2)), id="another has fallen behind"),
        pytest.param(row((1, 2, 3), isr=(2, 3)), id="it has not caught up itself"),
        pytest.param(row((1, 2), isr=(1, 2), leader=NO_LEADER), id="no leader"),
    ],
)
def test_one_with_a_partition_that_is_not_in_sync_waits(behind: PartitionRow) -> None:
    found = held(world(behind))
    assert found == Hold(behind=(behind.key,))


def test_while_another_one_is_being_made_it_waits() -> None:
    """Its old pod may still be there, and look as if nothing had happened."""
    assert held(world(row((1, 2, 3))), starting=(3,)) == Hold(starting=(3,))


def test_while_another_one_is_away_it_waits_even_without_a_partition_in_common() -> None:
    made = world(row((1,)))
    fence(made, 2)
    assert held(made) == Hold(away=(2,))


def test_one_that_has_never_been_there_is_not_waited_for() -> None:
    new = dataclasses.replace(broker(3, fenced=True), broker_epoch=-1)
    assert held(world(row((1, 2)), brokers=(broker(1), broker(2), new))) is None


def test_one_that_is_not_there_may_whatever_is_the_matter_elsewhere() -> None:
    """Otherwise the absent broker could never be repaired."""
    made = world(row((1, 2, 3), isr=(3,)))
    fence(made, 1)
    fence(made, 2)
    assert held(made, starting=(2,)) is None


def test_an_operator_that_no_broker_has_reached_restarts_no_broker() -> None:
    made = world(row((1, 2, 3)))
    made.state.unreached = True
    assert held(made) == Hold(unreached=True)


# ------------------------------------------------------------------ its status


def told(made: World, pod: PodState) -> dict[str, tuple[str, str, str]]:
    """Conditions of broker 1: (status, reason, message) by type; the resource takes them."""
    made.state.pods[1] = pod
    status = broker_status(made.state, made.state.brokers[1], now_ms=0).status
    spec = {"clusterRef": {"name": "main"}, "nodeId": 1, "workload": "External"}
    parsed = parse_broker({"metadata": {"name": "b"}, "spec": spec, "status": status})
    return {
        condition.type: (condition.status, condition.reason, condition.message)
        for condition in parsed.status.conditions
    }


def test_the_status_has_the_reason_of_a_waiting_restart() -> None:
    behind = row((1, 2, 3), isr=(1, 2))
    made = world(behind)
    found = told(made, PodState(name="b-0", hold=held(made, starting=(3,))))
    status, reason, message = found["PodUpToDate"]
    assert (status, reason) == ("False", "RestartPending")
    assert "topic-1-0" in message
    assert "(3)" in message
    assert found["Reconciling"][:2] == ("True", "RestartPending")
    assert found["Ready"][0] == "True"


def test_once_the_partitions_are_in_sync_nothing_waits() -> None:
    made = world(row((1, 2, 3), isr=(1, 2)))
    assert held(made) is not None
    draft = made.draft()
    draft.put_row(dataclasses.replace(made.row(), isr=(1, 2, 3), partition_epoch=1))
    made.commit(draft)
    assert held(made) is None
    found = told(made, PodState(name="b-0"))
    assert found["PodUpToDate"][:2] == ("True", "UpToDate")
    assert found["Reconciling"][0] == found["Stalled"][0] == "False"


@pytest.mark.parametrize(
    ("pod", "reason", "stalled"),
    [
        pytest.param(PodState(name="b-0", restarting=True), "PodStarting", False, id="starting"),
        pytest.param(PodState(name="b-0", missing="why"), "PodMissing", True, id="missing"),
        pytest.param(PodState(name="b-0", refused="why"), "PodRefused", True, id="refused"),
        pytest.param(PodState(name="b-0", volume="why"), "VolumeRefused", True, id="volume"),
    ],
)
def test_what_needs_a_person_is_stalled(pod: PodState, reason: str, stalled: bool) -> None:
    found = told(world(row((1, 2, 3))), pod)
    assert found["PodUpToDate"][:2] == ("False", reason)
    of = "Stalled" if stalled else "Reconciling"
    assert found[of][:2] == ("True", reason)


def test_a_broker_elsewhere_has_no_such_condition() -> None:
    made = world(row((1, 2, 3)))
    status = broker_status(made.state, made.state.brokers[1], now_ms=0).status
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    assert "PodUpToDate" not in {condition["type"] for condition in conditions}
