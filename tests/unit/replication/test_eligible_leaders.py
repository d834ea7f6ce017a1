"""KIP-966 on the leader: the high watermark does not advance while the row has eligible leaders."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import TOPIC_ID, ReplicaNode, newer, row
from tidemark.wire import control
from tidemark_broker.remote_log import disablement
from tidemark_broker.replication.partition import isr_and_high_watermark, log_start

Nodes = Callable[[int], ReplicaNode]


async def _accept_isr(
    node: ReplicaNode, *isr: int, has_eligible_leaders: bool, elr: tuple[int, ...] = ()
) -> None:
    """Answer a proposal as the controller does when it accepts an ISR, one
    partition epoch later."""
    known = node.partition.row
    assert known is not None
    # The proposal that the leader is taken to have sent.
    change = control.IsrChange(
        topic_id=TOPIC_ID,
        partition=0,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch,
        new_isr=isr,
        remote_manifest=False,
    )
    result = control.IsrResult(
        topic_id=TOPIC_ID,
        partition=0,
        error_code=0,
        leader=1,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch + 1,
        isr=isr,
        has_eligible_leaders=has_eligible_leaders,
        elr=elr,
    )
    isr_and_high_watermark.answered(node.partition, change, result)


async def test_an_answer_with_eligible_leaders_stops_the_high_watermark(node: Nodes) -> None:
    one = node(1)
    await one.receive(row())
    await _accept_isr(one, 1, has_eligible_leaders=True, elr=(2, 3))
    assert one.partition.row is not None
    assert one.partition.row.elr == (2, 3), "DescribeTopicPartitions reports them"
    await one.append(3)
    assert one.partition.log.high_watermark == 0, "min.insync.replicas=1 alone would commit"
    await _accept_isr(one, 1, has_eligible_leaders=False)
    isr_and_high_watermark.advance_high_watermark(one.partition)
    assert one.partition.log.high_watermark == 3


async def test_a_pushed_row_with_eligible_leaders_stops_the_high_watermark(node: Nodes) -> None:
    one = node(1)
    await one.receive(row(isr=(1,), has_eligible_leaders=True))
    await one.append(3)
    assert one.partition.log.high_watermark == 0
    known = one.partition.row
    assert known is not None
    # The ISR has reached min.insync.replicas on the controller, so it has cleared the list.
    await one.receive(newer(known, has_eligible_leaders=False))
    isr_and_high_watermark.advance_high_watermark(one.partition)
    assert one.partition.log.high_watermark == 3


async def _left_behind(node: Nodes) -> tuple[ReplicaNode, ReplicaNode]:
    """Return a leader and broker 2, which has every record and is fenced. It may be elected all the
    same."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    await two.fetch_once(one)
    known = one.partition.row
    assert known is not None
    # The controller has removed broker 2 from the ISR and keeps it as an eligible leader.
    await one.receive(newer(known, isr=(1,), has_eligible_leaders=True))
    one.fence(2)
    isr_and_high_watermark.after_change(one.partition)
    return one, two


async def test_a_deletion_waits_for_every_eligible_leader(
    node: Nodes,
) -> None:
    """If broker 2 were elected now, its log start would be below the acknowledged one."""
    one, _ = await _left_behind(node)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 6
    assert log_start.low_watermark(one.partition) == 0
    known = one.partition.row
    assert known is not None
    await one.receive(newer(known, has_eligible_leaders=False))
    one.fence(2)
    assert log_start.low_watermark(one.partition) == 6


async def test_a_tier_deletion_considers_the_local_start_of_eligible_leaders(
    node: Nodes,
) -> None:
    """The leader's local part alone must not become the log while broker 2 lacks it."""
    one, _ = await _left_behind(node)
    assert disablement.local_starts(one.partition, 5) == {1: 0, 2: None}
    known = one.partition.row
    assert known is not None
    await one.receive(newer(known, has_eligible_leaders=False))
    assert disablement.local_starts(one.partition, 5) == {1: 0}
