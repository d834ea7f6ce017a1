"""The cost of an operation does not grow with the number of other objects. Costs are counted in
function calls, not in time. The operations are those of ``make bench-scale``, which measures
their CPU time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.scale_operations import OPERATIONS, ScaleOperation
from tests.counted_calls import counted_calls, dearer
from tests.unit.replication.replica_nodes import TOPIC, ReplicaNode, batch, newer, row, states
from tidemark.wire import control
from tidemark_broker.control.status import StatusReporter
from tidemark_broker.purgatory import PartitionChange
from tidemark_broker.replication.partition import produce

Nodes = Callable[[int], ReplicaNode]

FEW, MANY = 5, 50
#: Operations bounded by tests of another module, or deliberately linear and cheap.
NOT_COUNTED = {
    "status report, nothing new",
    "a raised log start made durable",
    "a copied segment",
    "log.size_bytes",
    "opening a log at start",
}
COUNTED = [item for item in OPERATIONS if item.name not in NOT_COUNTED]


async def calls(work: Callable[[], Awaitable[object]]) -> Counter[str]:
    """Return how often each function of the broker is entered on this thread."""
    with counted_calls("tidemark_broker") as found:
        await work()
    return found


async def cost(operation: ScaleOperation, folder: Path, size: int) -> Counter[str]:
    folder.mkdir()
    async with operation.ready(folder, size) as work:
        await work()
        return await calls(work)


@pytest.mark.parametrize("operation", COUNTED, ids=lambda item: item.name)
async def test_an_operation_costs_the_same_with_ten_times_as_many_objects(
    operation: ScaleOperation, tmp_path: Path
) -> None:
    few = await cost(operation, tmp_path / "few", FEW)
    many = await cost(operation, tmp_path / "many", MANY)
    assert few
    assert many.total() <= 1.5 * few.total(), dearer(few, many)


async def leading(node: Nodes, count: int = MANY) -> ReplicaNode:
    one = node(1)
    await one.receive(*(row(partition=number) for number in range(count)), full=True)
    return one


def topic_change(**changes: object) -> control.PartitionStatesRequest:
    """Return a delta of the topic itself, without a row."""
    request = states(row())
    topic = replace(request.topics[0], partitions=(), **changes)
    return replace(request, topics=(topic,))


async def test_a_changed_row_applies_only_to_its_partition(node: Nodes) -> None:
    one = await leading(node)
    found = await calls(lambda: one.receive(newer(row(partition=7), isr=(1,))))
    assert found["StoredState.with_row"] == 1
    assert found["Placement._config"] == 0, "the topic's configuration has not changed"
    partition = one.manager.get(TOPIC, 7)
    assert partition is not None
    assert partition.isr == (1,)


async def test_a_change_of_the_topic_reaches_all_its_partitions(node: Nodes) -> None:
    one = await leading(node)
    entry = control.ConfigEntry(name="retention.ms", value="77")
    await one.manager.apply(topic_change(config=(entry,)))
    assert {partition.log.config.retention_ms for partition in one.manager.partitions} == {77}
    await one.manager.apply(topic_change(config=(entry,), tiering_state=1, tiered_epoch=4))
    assert {partition.tiering.epoch for partition in one.manager.partitions} == {4}
    # The same state once more changes nothing, so no partition is touched.
    again = await calls(
        lambda: one.manager.apply(topic_change(config=(entry,), tiering_state=1, tiered_epoch=4))
    )
    assert "StoredState.of" not in again


async def test_a_change_of_brokers_reaches_the_leaders_of_their_replicas(node: Nodes) -> None:
    one = await leading(node)
    brokers = states().brokers
    third = replace(brokers[1], broker_id=3, broker_epoch=3)
    # Broker 3 has no replica, so no leader is concerned. Broker 2 has one of every partition.
    joins = await calls(lambda: one.manager.apply(replace(states(), brokers=(*brokers, third))))
    assert "after_change" not in joins
    fenced = (brokers[0], replace(brokers[1], fenced=True), third)
    leaves = await calls(lambda: one.manager.apply(replace(states(), brokers=fenced)))
    assert leaves["after_change"] == MANY


async def test_an_isr_change_wakes_no_fetch(node: Nodes) -> None:
    """A Fetch and a Produce wait. A new row with the same leader concerns neither."""
    one = await leading(node, 1)
    checked: list[str] = []

    def waiter(kind: str) -> "asyncio.Task[bool]":
        def look() -> bool:
            checked.append(kind)
            return False

        purgatory = one.context.purgatory
        return asyncio.create_task(purgatory.wait([(kind, one.partition.tp)], look, 600.0))

    waiting = [
        waiter(kind)
        for kind in (
            PartitionChange.HIGH_WATERMARK,
            PartitionChange.LOG_END,
            PartitionChange.LOW_WATERMARK,
        )
    ]
    while one.context.purgatory.size < 3:  # noqa: ASYNC110 - until all of them wait
        await asyncio.sleep(0)
    # Each waiter is checked once when it starts to wait. Only later checks count.
    checked.clear()
    await one.receive(newer(row(), isr=(1,)))
    await asyncio.sleep(0)
    assert checked == [PartitionChange.LOW_WATERMARK]
    for task in waiting:
        task.cancel()


async def test_a_status_report_collects_only_changed_partitions(node: Nodes) -> None:
    one = await leading(node)
    reporter = StatusReporter(one.manager, str)

    async def report() -> None:
        for item in reporter._changed():
            reporter._acknowledged[item.topic_id, item.partition] = item

    # The first report sends everything, the second finds nothing to send.
    await report()
    await report()
    assert "partition_status" not in await calls(report)
    partition = one.manager.get(TOPIC, 9)
    assert partition is not None
    await produce.append(partition, batch(), acks=1, timeout_ms=0)
    (status,) = reporter._changed()
    assert (status.partition, status.next_offset) == (9, 1)
    assert (await calls(report))["partition_status"] == 1
