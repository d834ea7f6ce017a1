"""Dependencies of a decision in a group: the slices it changes, and those it reads as changed."""

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    numbered_uuid,
    row,
    topic,
)
from tidemark.wire.control import AlterPartitionRequest, IsrChange
from tidemark_operator.controller.isr import alter_partition
from tidemark_operator.slices.committer import TrackingDraft

KEY = (numbered_uuid(1), 0)


def proposal(partition_epoch: int, new_isr: tuple[int, ...]) -> AlterPartitionRequest:
    change = IsrChange(
        topic_id=KEY[0],
        partition=0,
        leader_epoch=0,
        partition_epoch=partition_epoch,
        new_isr=new_isr,
        remote_manifest=False,
    )
    return AlterPartitionRequest(broker_id=1, broker_epoch=101, changes=(change,))


def world() -> ControllerWorld:
    return ControllerWorld(brokers=[broker(1), broker(2)], topics=[topic()], rows=[row((1, 2))])


def test_refusal_that_reads_an_uncommitted_row_depends_on_its_slice() -> None:
    state = world().state
    draft, home = TrackingDraft(state), state.slice_index(KEY)
    draft.begin()
    alter_partition(draft, proposal(0, (1,)))
    assert draft.touched == {home}
    # The second decision of the group sees the partition epoch that the first one drafted.
    draft.begin()
    (result,) = alter_partition(draft, proposal(0, (1,))).results
    assert (result.partition_epoch, result.isr) == (1, (1,))
    assert draft.touched == {home}


def test_refusal_that_reads_a_stored_row_depends_on_no_slice() -> None:
    draft = TrackingDraft(world().state)
    draft.begin()
    (result,) = alter_partition(draft, proposal(7, (1,))).results
    # 95 is INVALID_UPDATE_VERSION.
    assert (result.error_code, result.partition_epoch, result.isr) == (95, 0, (1, 2))
    assert not draft.touched
