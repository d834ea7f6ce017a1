"""KIP-966 on the leader: the high watermark does not advance while its row has eligible leaders."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import TOPIC_ID, Node, newer, row
from tidemark.wire import control
from tidemark_broker.remote_log import disablement
from tidemark_broker.replication.partition import isr_maintenance, log_start

Nodes = Callable[[int], Node]


async def _answered(
    node: Node, *isr: int, has_eligible_leaders: bool, elr: tuple[int, ...] = ()
) -> None:
    """The controller accepted an ISR, one partition epoch later."""
    known = node.partition.row
    assert known is not None
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
    isr_maintenance.answered(node.partition, change, result)


async def test_an_answer_with_eligible_leaders_stops_the_high_watermark(node: Nodes) -> None:
    one = node(1)
    await one.told(row())
    await _answered(one, 1, has_eligible_leaders=True, elr=(2, 3))
    assert one.partition.row is not None
    assert one.partition.row.elr == (2, 3), "as this leader tells clients"
    await one.append(3)
    assert one.partition.log.high_watermark == 0, "though one in sync is enough for this leader"
    await _answered(one, 1, has_eligible_leaders=False)
    isr_maintenance.advance_high_watermark(one.partition)
    assert one.partition.log.high_watermark == 3


async def test_a_pushed_row_with_eligible_leaders_stops_it_too(node: Nodes) -> None:
    one = node(1)
    await one.told(row(isr=(1,), has_eligible_leaders=True))
    await one.append(3)
    assert one.partition.log.high_watermark == 0
    known = one.partition.row
    assert known is not None
    await one.told(newer(known, has_eligible_leaders=False))
    isr_maintenance.advance_high_watermark(one.partition)
    assert one.partition.log.high_watermark == 3


async def _left_behind(node: Nodes) -> tuple[Node, Node]:
    """Broker 2 has everything, and is away; it may be elected all the same."""
    one, two = node(1), node(2)
    await one.lead(1)
    await two.follow(1, 1)
    await one.append(10)
    await two.catch_up(one)
    await two.fetch_once(one)
    known = one.partition.row
    assert known is not None
    await one.told(newer(known, isr=(1,), has_eligible_leaders=True))
    one.fence(2)
    isr_maintenance.after_change(one.partition)
    return one, two


async def test_a_deletion_is_not_acknowledged_that_an_eligible_leader_may_not_have(
    node: Nodes,
) -> None:
    """Were broker 2 elected now, its log start would lie below the one that was acknowledged."""
    one, _ = await _left_behind(node)
    log_start.delete_records(one.partition, 6)
    await one.upkeep.checkpoint()
    assert one.partition.log_start_offset == 6
    assert log_start.low_watermark(one.partition) == 0
    known = one.partition.row
    assert known is not None
    await one.told(newer(known, has_eligible_leaders=False))
    one.fence(2)
    assert log_start.low_watermark(one.partition) == 6


async def test_an_eligible_leader_has_its_part_in_where_a_delete_lets_the_log_begin(
    node: Nodes,
) -> None:
    """The leader's local part alone must not become the log while broker 2 lacks it locally."""
    one, _ = await _left_behind(node)
    assert disablement.local_starts(one.partition, 5) == {1: 0, 2: None}
    known = one.partition.row
    assert known is not None
    await one.told(newer(known, has_eligible_leaders=False))
    assert disablement.local_starts(one.partition, 5) == {1: 0}
