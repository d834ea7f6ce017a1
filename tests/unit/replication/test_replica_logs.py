"""``ReplicaLogInfo``: the end of a replica's log, and committed records that it has lost."""

import errno
import os
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.replication.replica_nodes import T0, TOPIC_ID, Node, row
from tidemark.wire import control
from tidemark_broker.control.replica_logs import replica_logs
from tidemark_broker.log import StorageError

Nodes = Callable[[int], Node]
ALONE = row(replicas=(1,), isr=(1,), leader_epoch=4)


def _asked(node: Node, topic_id: uuid.UUID = TOPIC_ID) -> control.ReplicaLog:
    topic = control.TopicPartitions(topic_id=topic_id, partitions=(0,))
    request = control.ReplicaLogInfoRequest(controller_epoch=1, topics=(topic,))
    (log,) = replica_logs(node.manager, request)
    return log


async def test_a_log_reports_its_last_epoch_and_its_end(node: Nodes) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    log = _asked(one)
    assert (log.error_code, log.last_epoch, log.next_offset, log.leader_epoch) == (0, 4, 5, 4)
    assert (log.lost_start_offset, log.lost_end_offset) == (-1, -1)


async def test_a_later_epoch_without_records_counts_nothing(node: Nodes) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    await one.told(row(replicas=(1,), isr=(1,), leader_epoch=9, partition_epoch=1))
    assert (_asked(one).last_epoch, _asked(one).leader_epoch) == (4, 9)


async def test_a_log_without_records_has_the_epoch_in_which_it_starts(node: Nodes) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    one.partition.log.truncate_fully_and_start_at(5, log_start_offset=5, epochs=())
    assert (_asked(one).last_epoch, _asked(one).next_offset) == (-1, 5)


async def test_what_is_not_here_and_what_is_in_doubt_are_errors(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(1)
    assert _asked(one, uuid.UUID(int=1)).error_code == 3

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageError):
        one.partition.log.flush()
    assert _asked(one).error_code == 56


async def test_an_end_below_the_checkpointed_high_watermark_is_a_loss_with_its_range(
    node: Nodes,
) -> None:
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    await one.stop()
    path = sorted(one.log_folder.glob("*.log"))[-1]
    os.truncate(path, path.stat().st_size - 1)
    (one.folder / ".kafka_cleanshutdown").unlink(missing_ok=True)
    again = node(1)
    await again.told(ALONE)
    log = _asked(again)
    assert log.next_offset == 4
    assert (log.lost_start_offset, log.lost_end_offset) == (4, 5)


async def test_a_log_whose_records_have_all_expired_keeps_its_epoch_over_starts(
    node: Nodes,
) -> None:
    """Else it would seem shorter than any log with a record, and lose an election to one that lacks
    what was committed."""
    one = node(1)
    await one.told(ALONE)
    await one.append(5)
    assert one.partition.log.apply_retention(T0 + 8 * 86_400_000, tiered=None)
    for _ in range(3):
        await one.stop()
        one = node(1)
        await one.told(replace(ALONE, leader=-1, leader_epoch=5, partition_epoch=1))
        assert (_asked(one).last_epoch, _asked(one).next_offset) == (4, 5)
        assert one.partition.log_start_offset == 5
