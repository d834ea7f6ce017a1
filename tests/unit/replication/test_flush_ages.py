"""``flush.ms``: the time after which records are made durable."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.unit.replication.replica_nodes import ReplicaNode, row
from tidemark_broker.log import LogConfig
from tidemark_broker.log_maintenance import FlushAges
from tidemark_broker.replication.types import TopicPartition

TP = TopicPartition("t", 0)


@dataclass
class FlushedLog:
    recovery_point: int
    next_offset: int
    config: LogConfig


def test_records_that_have_waited_for_flush_ms_are_due() -> None:
    ages, log = FlushAges(), FlushedLog(0, 5, LogConfig(flush_ms=1000))
    assert not ages.overdue({TP: log}, 10.0)
    # Later appends do not postpone the flush: the oldest record counts.
    log.next_offset = 9
    assert not ages.overdue({TP: log}, 10.9)
    assert ages.overdue({TP: log}, 11.0) == {TP}
    # Everything is durable. The next append starts a new interval.
    log.recovery_point = 9
    assert not ages.overdue({TP: log}, 12.0)
    log.next_offset = 10
    assert not ages.overdue({TP: log}, 13.0)
    assert ages.overdue({TP: log}, 14.0) == {TP}


def test_a_flush_for_another_reason_restarts_the_interval() -> None:
    ages, log = FlushAges(), FlushedLog(0, 5, LogConfig(flush_ms=1000))
    ages.overdue({TP: log}, 10.0)
    log.recovery_point = 3
    assert not ages.overdue({TP: log}, 11.0)
    assert ages.overdue({TP: log}, 12.0)


def test_records_are_never_due_by_default() -> None:
    ages, log = FlushAges(), FlushedLog(0, 5, LogConfig())
    ages.overdue({TP: log}, 0.0)
    assert not ages.overdue({TP: log}, 1e9)


def test_a_removed_log_is_forgotten() -> None:
    ages, log = FlushAges(), FlushedLog(0, 5, LogConfig(flush_ms=1000))
    ages.overdue({TP: log}, 10.0)
    assert not ages.overdue({}, 11.0)
    assert not ages.overdue({TP: log}, 12.0)


async def test_the_broker_flushes_records_that_are_due(node: Callable[[int], ReplicaNode]) -> None:
    one = node(1)
    await one.receive(row(replicas=(1,), isr=(1,)))
    await one.append(3)
    await one.upkeep.flush()
    assert one.partition.log.recovery_point == 0
    one.partition.log.config = LogConfig(flush_ms=0)
    await one.upkeep.flush()
    assert one.partition.log.recovery_point == 3
