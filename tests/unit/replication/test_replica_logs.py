"""``ReplicaLogInfo``: the end of a replica's log, and committed records
that the replica has lost."""

import errno
import os
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.replication.replica_nodes import T0, TOPIC_ID, ReplicaNode, row
from tidemark.wire import control
from tidemark_broker.control.replica_states import replica_logs
from tidemark_broker.log import StorageError, flushing, retention, truncation

Nodes = Callable[[int], ReplicaNode]
ALONE = row(replicas=(1,), isr=(1,), leader_epoch=4)


def _log_info(node: ReplicaNode, topic_id: uuid.UUID = TOPIC_ID) -> control.ReplicaLog:
    topic = control.TopicPartitions(topic_id=topic_id, partitions=(0,))
    request = control.ReplicaLogInfoRequest(controller_epoch=1, topics=(topic,))
    (log,) = replica_logs(node.manager, request)
    return log


async def test_a_log_reports_its_last_epoch_and_its_end(node: Nodes) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    log = _log_info(one)
    assert (log.error_code, log.last_epoch, log.next_offset, log.leader_epoch) == (0, 4, 5, 4)
    assert (log.lost_start_offset, log.lost_end_offset) == (-1, -1)


async def test_an_epoch_without_records_is_not_the_last_epoch(node: Nodes) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    await one.receive(row(replicas=(1,), isr=(1,), leader_epoch=9, partition_epoch=1))
    assert (_log_info(one).last_epoch, _log_info(one).leader_epoch) == (4, 9)


async def test_a_log_without_records_has_the_epoch_in_which_it_starts(node: Nodes) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    # Restarted from a tier whose epochs are unknown.
    truncation.truncate_fully_and_start_at(one.partition.log, 5, log_start_offset=5, epochs=())
    assert (_log_info(one).last_epoch, _log_info(one).next_offset) == (-1, 5)


async def test_unknown_and_failed_replicas_are_errors(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(1)
    assert _log_info(one, uuid.UUID(int=1)).error_code == 3

    # After a failed fsync nothing is certain about the log: kafka_storage_error is 56.
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", refuse)
    with pytest.raises(StorageError):
        flushing.flush(one.partition.log)
    assert _log_info(one).error_code == 56


async def test_an_end_below_the_checkpointed_high_watermark_is_a_loss_with_its_range(
    node: Nodes,
) -> None:
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    await one.stop()
    # Cut the last record, which was committed, as an unclean shutdown may do.
    path = sorted(one.log_folder.glob("*.log"))[-1]
    os.truncate(path, path.stat().st_size - 1)
    (one.folder / ".kafka_cleanshutdown").unlink(missing_ok=True)
    restarted = node(1)
    await restarted.receive(ALONE)
    log = _log_info(restarted)
    assert log.next_offset == 4
    assert (log.lost_start_offset, log.lost_end_offset) == (4, 5)


async def test_a_log_whose_records_have_all_expired_keeps_its_epoch_over_starts(
    node: Nodes,
) -> None:
    """Otherwise it would look shorter than any log with a record, and lose an unclean election to a
    replica without the committed records."""
    one = node(1)
    await one.receive(ALONE)
    await one.append(5)
    assert retention.apply_retention(one.partition.log, T0 + 8 * 86_400_000, tiered=None)
    for _ in range(3):
        await one.stop()
        one = node(1)
        await one.receive(replace(ALONE, leader=-1, leader_epoch=5, partition_epoch=1))
        assert (_log_info(one).last_epoch, _log_info(one).next_offset) == (4, 5)
        assert one.partition.log_start_offset == 5
