"""Part of a replica in a disablement (KIP-950).

With policy Retain only the leader's claim and the follower's stored epoch are needed. With policy
Delete the leader first waits until every electable replica has stored the new tiered epoch and
reported its local log start (from then on its local retention is suspended). So the log start can
move to an offset that all of them have, and no offset is on one broker only. A replica that starts
above it and joins the ISR later re-fetches the missing range first (:mod:`follower_fetches`). If
that is not possible any more, the log start follows. Every step may be repeated.
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_broker.purgatory import DelayedOperationKey, PartitionChange
from tidemark_broker.remote_log.head_writer import HeadWriter
from tidemark_broker.remote_log.manager_state import ManagerState
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import RemoteUnavailable, TieredPartition

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2


def fetch_key(partition: TieredPartition) -> DelayedOperationKey:
    """Return the purgatory key of reads from the tier."""
    return PartitionChange.REMOTE_READ, partition.tp


async def delete_remote_part(writer: HeadWriter) -> None:
    """Do the leader's part of a disablement with policy Delete (KIP-950).

    It moves the log start offset to one that every electable replica has locally, which marks all
    remote segments for deletion, and waits until the new log start is durable here. The caller may
    acknowledge the disablement to the controller when this returns.

    It may be repeated. If an earlier leader has committed the new log start already, only the later
    steps run.
    """
    partition, shared, tiered_epoch = writer.partition, writer.shared, writer.term.tiering.epoch
    # One commit claims the epoch and moves the log start, so that no reader sees only one of them.
    if writer.head.floor_epoch < tiered_epoch:
        start = await _common_local_start(shared, partition, tiered_epoch)
        await writer.disable_delete(start)
    await writer.claim()
    # Compare again: a replica that joined the ISR since the commit may start above its log start.
    await _common_local_start(shared, partition, tiered_epoch)
    await follow_local_starts(writer)
    start = writer.head.log_start_offset
    # An earlier leader's commit may be above this leader's high watermark.
    await _until(
        shared, partition, PartitionChange.HIGH_WATERMARK, lambda: partition.high_watermark >= start
    )
    # Raise this replica's log start. The head's tiered epoch and end reach the followers only
    # with the second call, once that log start is durable.
    writer.publish()
    await _made_durable(partition, start)
    writer.publish()
    # Consumers' reads of the tier that wait now could never succeed: end them at once.
    drained = shared.context.purgatory.cancel([fetch_key(partition)])
    await partition.write_changes()
    logger.info(
        "%s: the remote part is marked for deletion, the log starts at %d, %d waiting reads ended",
        partition.tp,
        start,
        drained,
    )


async def follow_local_starts(writer: HeadWriter) -> None:
    """Raise the log start to one that all electable replicas have.

    A replica that joined the ISR since the commit, or the leader itself, may start above the log
    start, and the missing range is not in the tier any more. The result is as if it had been in the
    ISR in time.
    """
    # Repeated with every expiry run, since replicas may join the ISR later.
    start = _largest(writer.partition, writer.term.tiering.epoch)
    if start is not None and start > writer.head.log_start_offset:
        await writer.expire_to(start)


async def follow_disablement(shared: ManagerState, partition: Partition, tiered_epoch: int) -> None:
    """Do a follower's part of a disablement with policy Delete (KIP-950).

    Wait until this replica's log start has reached that of the manifest's head, is checkpointed,
    and the local log has every record from there. Then the disablement may be acknowledged.
    ``tiered_epoch``: tiering epoch of the disablement. Raises RemoteUnavailable if the replica
    stops following meanwhile.
    """
    # The leader's fetch responses report the head of the disablement, and its log start.
    await _until(
        shared,
        partition,
        PartitionChange.LOW_WATERMARK,
        lambda: _knows_head(partition, tiered_epoch),
    )
    # The leader sends the head's log start together with its tiered epoch.
    start = partition.head_log_start_offset
    await _until(
        shared, partition, PartitionChange.LOW_WATERMARK, lambda: _has_reached(partition, start)
    )
    await _made_durable(partition, start)
    # Consumers' reads of the tier that wait here could never succeed either.
    shared.context.purgatory.cancel([fetch_key(partition)])
    await partition.write_changes()


def local_starts(partition: Partition, tiered_epoch: int) -> dict[int, int | None]:
    """Return the local log start offset of each electable replica, by broker id.

    The value is None for a replica that has not reported its local log start under ``tiered_epoch``
    yet.
    """
    starts: dict[int, int | None] = {}
    leader = partition.leader
    for node in partition.isr if leader is None else sorted(leader.electable):
        if node == partition.context.node_id:
            starts[node] = partition.log.local_log_start_offset
            continue
        follower = None if leader is None else leader.followers.get(node)
        # Before it stored the epoch, a follower's local retention may still raise its start.
        has_epoch = follower is not None and follower.tiered_epoch >= tiered_epoch
        starts[node] = (
            follower.local_log_start_offset if has_epoch and follower is not None else None
        )
    return starts


async def _common_local_start(shared: ManagerState, partition: Partition, tiered_epoch: int) -> int:
    """Wait until all electable replicas have reported their local log starts; return the largest.

    Each of the replicas has all records from the returned offset on its own disk.
    """

    def all_have_the_epoch() -> bool:
        return _largest(partition, tiered_epoch) is not None

    while True:
        await _until(shared, partition, PartitionChange.LOW_WATERMARK, all_have_the_epoch)
        # The ISR may have changed again since the condition was met.
        start = _largest(partition, tiered_epoch)
        if start is not None:
            return start


def _largest(partition: Partition, tiered_epoch: int) -> int | None:
    """Return the electable replicas' largest local log start offset, None if it is not known.

    None means that a replica has not reported its local log start under ``tiered_epoch``, or that
    the largest one is above the high watermark. None is also the result while the partition has
    eligible leader replicas (KIP-966) outside the ISR, since the start of one that is down is
    unknown.
    """
    if partition.row is None or partition.row.has_eligible_leaders:
        return None
    known: list[int] = []
    for start in local_starts(partition, tiered_epoch).values():
        if start is None:
            return None
        known.append(start)
    # The log start must not exceed the high watermark (invariant 13).
    largest = max(known, default=None)
    return largest if largest is not None and largest <= partition.high_watermark else None


async def _until(
    shared: ManagerState,
    partition: Partition,
    change: PartitionChange,
    condition: Callable[[], bool],
) -> None:
    """Wait for a condition, checked after each change and periodically."""
    while not condition():
        await shared.context.purgatory.wait([(change, partition.tp)], condition, _LOOK_AGAIN_S)


async def _made_durable(partition: Partition, log_start_offset: int) -> None:
    while partition.durable_log_start_offset < log_start_offset:
        await partition.context.checkpoint_log_start(partition)
        if partition.durable_log_start_offset < log_start_offset:
            await asyncio.sleep(_LOOK_AGAIN_S)


def _knows_head(partition: Partition, tiered_epoch: int) -> bool:
    _check_follows(partition)
    return partition.head_tiered_epoch >= tiered_epoch and partition.head_log_start_offset >= 0


def _has_reached(partition: Partition, log_start_offset: int) -> bool:
    _check_follows(partition)
    log = partition.log
    return log.local_log_start_offset <= log.log_start_offset >= log_start_offset


def _check_follows(partition: Partition) -> None:
    if partition.removed or partition.role is not Role.FOLLOWER:
        raise RemoteUnavailable(f"{partition.tp}: the role changed meanwhile; retry")
