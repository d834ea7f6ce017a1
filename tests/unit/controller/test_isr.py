"""AlterPartition: only the leader under the present epochs, only eligible replicas."""

import dataclasses

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    numbered_uuid,
    row,
    topic,
)
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.wire.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrChange,
)
from tidemark_operator.controller.isr import alter_partition


def _world() -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3), broker(4, fenced=True)],
        topics=[topic()],
        rows=[row((1, 2, 3, 4, -1), isr=(1, 2), leader_epoch=5, partition_epoch=8)],
    )


def _change(new_isr: tuple[int, ...], **fields: object) -> IsrChange:
    change = IsrChange(
        topic_id=numbered_uuid(1),
        partition=0,
        leader_epoch=5,
        partition_epoch=8,
        new_isr=new_isr,
        remote_manifest=False,
    )
    return dataclasses.replace(change, **fields)  # type: ignore[arg-type]


def _alter(
    world: ControllerWorld, *changes: IsrChange, node: int = 1, epoch: int = 101
) -> AlterPartitionResponse:
    draft = world.draft()
    request = AlterPartitionRequest(broker_id=node, broker_epoch=epoch, changes=changes)
    response = alter_partition(draft, request)
    world.commit(draft)
    return response


def test_caught_up_replica_joins_the_isr() -> None:
    world = _world()
    (result,) = _alter(world, _change((3, 1, 2))).results
    assert (result.error_code, result.isr, result.partition_epoch) == (0, (1, 2, 3), 9)
    assert (world.row().isr, world.row().leader_epoch) == ((1, 2, 3), 5)


def test_lagging_replica_leaves_the_isr() -> None:
    world = _world()
    (result,) = _alter(world, _change((1,))).results
    assert (result.error_code, world.row().isr) == (0, (1,))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        # Outdated and invented epochs, ineligible replicas, and impossible sets of replicas.
        (_change((1,), leader_epoch=4), ErrorCode.fenced_leader_epoch),
        (_change((1,), leader_epoch=6), ErrorCode.fenced_leader_epoch),
        (_change((1,), partition_epoch=7), ErrorCode.invalid_update_version),
        (_change((1, 2, 4)), ErrorCode.ineligible_replica),
        (_change((2,)), ErrorCode.invalid_request),
        (_change(()), ErrorCode.invalid_request),
        (_change((1, -1)), ErrorCode.invalid_request),
        (_change((1, 9)), ErrorCode.invalid_request),
        (_change((1, 1)), ErrorCode.invalid_request),
        (_change((1,), topic_id=numbered_uuid(2)), ErrorCode.unknown_topic_id),
        (_change((1,), partition=7), ErrorCode.unknown_topic_or_partition),
    ],
)
def test_invalid_isr_changes_are_refused(change: IsrChange, error: ErrorCode) -> None:
    world = _world()
    (result,) = _alter(world, change).results
    assert result.error_code == error.value
    assert world.row() == _world().row()


def test_a_refused_leader_catches_up_from_the_answer() -> None:
    (result,) = _alter(_world(), _change((1,), partition_epoch=7)).results
    assert (result.leader, result.leader_epoch, result.partition_epoch) == (1, 5, 8)
    assert result.isr == (1, 2)


def test_only_the_leader_may_propose() -> None:
    (result,) = _alter(_world(), _change((1, 2, 3)), node=2, epoch=102).results
    assert result.error_code == ErrorCode.fenced_leader_epoch.value


def test_a_report_of_a_former_registration_is_ignored() -> None:
    for node, epoch in ((1, 99), (8, 1)):
        response = _alter(_world(), _change((1,)), node=node, epoch=epoch)
        assert response.error_code == ErrorCode.stale_broker_epoch.value


def test_a_fenced_broker_receives_the_loss_of_its_leaderships() -> None:
    """An error for the whole request would end its session, and it would never learn the leader."""
    response = _alter(_world(), _change((1, 4)), node=4, epoch=104)
    assert response.error_code == 0
    (result,) = response.results
    assert (result.error_code, result.leader) == (ErrorCode.fenced_leader_epoch.value, 1)


def test_a_fenced_member_may_stay_until_it_falls_behind() -> None:
    world = _world()
    # KIP-841: only joining is refused for a fenced replica.
    world.state.put_broker(broker(2, fenced=True))
    (result,) = _alter(world, _change((1, 2, 3))).results
    assert result.error_code == 0


def test_manifest_flag_is_never_cleared() -> None:
    world = _world()
    _alter(world, _change((1, 2), remote_manifest=True))
    assert (world.row().manifest, world.row().partition_epoch) == (True, 9)
    _alter(world, _change((1,), partition_epoch=9))
    assert world.row().manifest


def test_an_ineffective_change_is_answered_and_not_written() -> None:
    world = _world()
    (result,) = _alter(world, _change((2, 1))).results
    assert (result.error_code, result.partition_epoch) == (0, 8)
    assert world.slices == {}


def test_changes_of_one_request_are_decided_one_by_one_and_in_order() -> None:
    world = _world()
    # The second change has the partition epoch before the first one.
    results = _alter(world, _change((1, 2, 3)), _change((1,))).results
    assert [result.error_code for result in results] == [0, ErrorCode.invalid_update_version.value]


# ---------------------------------------------------------------- KIP-704


RECOVERING = LeaderRecoveryState.RECOVERING


def _recovering() -> ControllerWorld:
    """Return a world in which broker 1 was elected uncleanly, and brokers 2 and 3 follow it."""
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic()],
        rows=[
            row(
                (1, 2, 3),
                isr=(1,),
                leader_epoch=5,
                partition_epoch=8,
                leader_recovery_state=RECOVERING,
            )
        ],
    )


def test_a_recovered_leader_reports_it_and_then_admits_followers() -> None:
    world = _recovering()
    # The default state of a change is RECOVERED, which ends the recovery.
    (result,) = _alter(world, _change((1,))).results
    assert (result.error_code, result.partition_epoch) == (0, 9)
    assert result.leader_recovery_state == LeaderRecoveryState.RECOVERED
    assert (world.row().recovering, world.row().partition_epoch) == (False, 9)
    (result,) = _alter(world, _change((1, 2), partition_epoch=9)).results
    assert (result.error_code, world.row().isr) == (0, (1, 2))


@pytest.mark.parametrize("state", [0, 1, 7])
def test_no_replica_joins_the_isr_while_the_leader_recovers(state: int) -> None:
    world = _recovering()
    (result,) = _alter(world, _change((1, 2), leader_recovery_state=state)).results
    assert result.error_code == ErrorCode.invalid_request.value
    assert result.leader_recovery_state == RECOVERING
    assert world.row() == _recovering().row()


def test_another_proposal_of_a_recovering_leader_leaves_it_recovering() -> None:
    world = _recovering()
    change = _change((1,), leader_recovery_state=RECOVERING, remote_manifest=True)
    (result,) = _alter(world, change).results
    assert (result.error_code, result.leader_recovery_state) == (0, RECOVERING)
    assert (world.row().manifest, world.row().recovering) == (True, True)


def test_proposal_cannot_start_a_recovery() -> None:
    world = _world()
    (result,) = _alter(world, _change((1,), leader_recovery_state=RECOVERING)).results
    assert result.error_code == ErrorCode.invalid_request.value
    assert not world.row().recovering


def test_former_leader_cannot_end_a_recovery() -> None:
    world = _recovering()
    for late in (_change((1,), leader_epoch=4), _change((1,), partition_epoch=7)):
        assert _alter(world, late).results[0].error_code
    assert world.row().recovering
