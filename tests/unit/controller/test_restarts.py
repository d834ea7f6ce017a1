"""Conditions for restarting a broker's pod, and the status of a broker that waits."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    cluster,
    fence,
    row,
    topic,
)
from tidemark_operator.controller import restarts
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    BrokerInfo,
    Hold,
    PartitionRow,
    PodState,
)
from tidemark_operator.controller.status import broker_status
from tidemark_operator.resources.broker import Broker

OTHERS = (2, 3)


def world(*rows: PartitionRow, brokers: tuple[BrokerInfo, ...] = ()) -> ControllerWorld:
    return ControllerWorld(
        brokers=brokers or tuple(map(broker, (1, 2, 3))),
        topics=[topic(partitions=len(rows), partitions_placed=len(rows))],
        rows=rows,
        view=cluster(),
    )


def hold_of(made: ControllerWorld, starting: tuple[int, ...] = ()) -> Hold | None:
    return restarts.hold(made.state, 1, OTHERS, starting)


def test_broker_with_partitions_in_sync_may_restart() -> None:
    assert hold_of(world(row((1, 2, 3)))) is None


def test_the_only_replica_of_a_partition_may_restart() -> None:
    alone = row((1,))
    # A partition without a replica on broker 1 may be out of sync.
    other = row((2, 3), isr=(2,), partition=1)
    assert hold_of(world(alone, other)) is None


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param(row((1, 2, 3), isr=(1, 2)), id="another has fallen behind"),
        pytest.param(row((1, 2, 3), isr=(2, 3)), id="it has not caught up itself"),
        pytest.param(row((1, 2), isr=(1, 2), leader=NO_LEADER), id="no leader"),
    ],
)
def test_restart_waits_for_partitions_out_of_sync(behind: PartitionRow) -> None:
    found = hold_of(world(behind))
    assert found == Hold(behind=(behind.key,))


def test_restart_waits_while_another_pod_is_created() -> None:
    """The old pod may still run and look healthy while the new one is being created."""
    assert hold_of(world(row((1, 2, 3))), starting=(3,)) == Hold(starting=(3,))


def test_restart_waits_for_an_absent_broker_without_common_partitions() -> None:
    made = world(row((1,)))
    fence(made, 2)
    assert hold_of(made) == Hold(away=(2,))


def test_never_registered_broker_is_not_waited_for() -> None:
    new = dataclasses.replace(broker(3, fenced=True), broker_epoch=-1)
    assert hold_of(world(row((1, 2)), brokers=(broker(1), broker(2), new))) is None


def test_absent_broker_may_always_be_restarted() -> None:
    """Otherwise the absent broker could never be repaired."""
    made = world(row((1, 2, 3), isr=(3,)))
    fence(made, 1)
    fence(made, 2)
    assert hold_of(made, starting=(2,)) is None


def test_unreached_operator_restarts_no_broker() -> None:
    made = world(row((1, 2, 3)))
    made.state.unreached = True
    assert hold_of(made) == Hold(unreached=True)


# ------------------------------------------------------------------ status


def conditions_of(made: ControllerWorld, pod: PodState) -> dict[str, tuple[str, str, str]]:
    """Return broker 1's conditions as (status, reason, message) by type, through the resource."""
    made.state.pods[1] = pod
    status = broker_status(made.state, made.state.brokers[1], now_ms=0).status
    spec = {"clusterRef": {"name": "main"}, "nodeId": 1, "workload": "External"}
    parsed = Broker.parse({"metadata": {"name": "b"}, "spec": spec, "status": status})
    return {
        condition.type: (condition.status, condition.reason, condition.message)
        for condition in parsed.status.conditions
    }


def test_the_status_has_the_reason_of_a_waiting_restart() -> None:
    behind = row((1, 2, 3), isr=(1, 2))
    made = world(behind)
    found = conditions_of(made, PodState(name="b-0", hold=hold_of(made, starting=(3,))))
    status, reason, message = found["PodUpToDate"]
    assert (status, reason) == ("False", "RestartPending")
    assert "topic-1-0" in message
    assert "(3)" in message
    assert found["Reconciling"][:2] == ("True", "RestartPending")
    # The broker itself serves while it waits for its restart.
    assert found["Ready"][0] == "True"


def test_once_the_partitions_are_in_sync_nothing_waits() -> None:
    made = world(row((1, 2, 3), isr=(1, 2)))
    assert hold_of(made) is not None
    draft = made.draft()
    # The third replica joins the ISR.
    draft.put_row(dataclasses.replace(made.row(), isr=(1, 2, 3), partition_epoch=1))
    made.commit(draft)
    assert hold_of(made) is None
    found = conditions_of(made, PodState(name="b-0"))
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
def test_problems_that_need_a_user_are_stalled(pod: PodState, reason: str, stalled: bool) -> None:
    found = conditions_of(world(row((1, 2, 3))), pod)
    assert found["PodUpToDate"][:2] == ("False", reason)
    of = "Stalled" if stalled else "Reconciling"
    assert found[of][:2] == ("True", reason)


def test_external_broker_has_no_pod_condition() -> None:
    made = world(row((1, 2, 3)))
    status = broker_status(made.state, made.state.brokers[1], now_ms=0).status
    conditions = status["conditions"]
    assert isinstance(conditions, list)
    assert "PodUpToDate" not in {condition["type"] for condition in conditions}
