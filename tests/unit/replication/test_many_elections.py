"""Elections of many partitions at once, as when a broker fails."""

from collections.abc import Callable

from tests.unit.replication.replica_nodes import TOPIC, ReplicaNode, batch, row
from tidemark_broker.replication.partition import Partition, produce

PARTITIONS = 200
USED = PARTITIONS - 1


async def test_partitions_with_new_records_are_led_first(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.receive(*(row(partition=number) for number in range(PARTITIONS)))
    used = one.manager.get(TOPIC, USED)
    assert used is not None
    await produce.append(used, batch(), acks=1, timeout_ms=0)
    # Both terms of broker 1 are new to its state files and logs, so each takes its fsyncs.
    changed = {"leader": 2, "leader_epoch": 1, "partition_epoch": 1}
    await one.receive(*(row(partition=number, **changed) for number in range(PARTITIONS)))
    led: list[int] = []

    def note(partition: Partition) -> None:
        led.append(partition.partition)

    one.context.role_changed.append(note)
    changed = {"leader": 1, "leader_epoch": 2, "partition_epoch": 2}
    await one.receive(*(row(partition=number, **changed) for number in range(PARTITIONS)))
    assert sorted(led) == list(range(PARTITIONS))
    # Partitions whose files are written at the same time may overtake it.
    assert led.index(USED) < PARTITIONS // 4
