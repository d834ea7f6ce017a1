"""A replica's part of a disablement (KIP-950).

With Retain there is nothing to do but the leader's claim and the follower's stored epoch. With
Delete the leader first waits until every replica that may be elected has stored the new tiered
epoch and told its local log start (from then on its local retention stands still), so that the log
start can become one that all of them have: no offset is left on one broker only. Who begins behind
it and comes into the ISR later either fetches again what it lacks before that (:mod:`service`), or,
where that cannot be asked of it any more, the log start follows. Every step may be repeated.
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_broker.purgatory import Change, DelayedOperationKey
from tidemark_broker.remote_log.head_writer import HeadWriter
from tidemark_broker.remote_log.manager_state import Shared
from tidemark_broker.replication.partition import Partition, Role
from tidemark_broker.replication.remote import RemoteUnavailable

logger = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.2


def fetch_key(partition: Partition) -> DelayedOperationKey:
    """Where reads of the tier wait in the purgatory."""
    return Change.REMOTE_READ, partition.tp


async def delete_remote_part(writer: HeadWriter) -> None:
    """The leader's part of Delete: afterwards it may be acknowledged.

    Where an earlier leader has made the one commit already, only what follows it is done again.
    """
    partition, shared, tiered_epoch = writer.partition, writer.shared, writer.term.tiering.epoch
    if writer.head.floor_epoch < tiered_epoch:
        start = await _common_local_start(shared, partition, tiered_epoch)
        await writer.disable_delete(start)
    await writer.claim()
    await _common_local_start(shared, partition, tiered_epoch)
    await follow_local_starts(writer)
    start = writer.head.log_start_offset
    # An earlier leader's commit may lie beyond what we know to be committed.
    await _until(
        shared, partition, Change.HIGH_WATERMARK, lambda: partition.high_watermark >= start
    )
    writer.announce()
    await _made_durable(partition, start)
    writer.announce()
    drained = shared.context.purgatory.cancel([fetch_key(partition)])
    await partition.write_changes()
    logger.info(
        "%s: the remote part is marked for deletion, the log starts at %d, %d waiting reads ended",
        partition.tp,
        start,
        drained,
    )


async def follow_local_starts(writer: HeadWriter) -> None:
    """Whoever came into the ISR since the commit that moved the log start, the leader itself
    included, may begin behind it, and what it lacks is not in the tier any more: the log start
    becomes one that all of them have, as it would have been had they been there in time."""
    start = _largest(writer.partition, writer.term.tiering.epoch)
    if start is not None and start > writer.head.log_start_offset:
        await writer.expire_to(start)


async def follow_disablement(shared: Shared, partition: Partition, tiered_epoch: int) -> None:
    """A follower's part of Delete: its log start has reached the head's and is checkpointed, and it
    has all from there on."""
    await _until(
        shared, partition, Change.LOW_WATERMARK, lambda: _has_heard(partition, tiered_epoch)
    )
    start = partition.head_log_start_offset
    await _until(shared, partition, Change.LOW_WATERMARK, lambda: _has_reached(partition, start))
    await _made_durable(partition, start)
    await partition.write_changes()


def local_starts(partition: Partition, tiered_epoch: int) -> dict[int, int | None]:
    """The local log start of each replica that may be elected; None where it was not told under
    this epoch yet."""
    starts: dict[int, int | None] = {}
    leader = partition.leader
    for node in partition.isr if leader is None else sorted(leader.electable):
        if node == partition.context.node_id:
            starts[node] = partition.log.local_log_start_offset
            continue
        follower = None if leader is None else leader.followers.get(node)
        has_epoch = follower is not None and follower.tiered_epoch >= tiered_epoch
        starts[node] = (
            follower.local_log_start_offset if has_epoch and follower is not None else None
        )
    return starts


async def _common_local_start(shared: Shared, partition: Partition, tiered_epoch: int) -> int:
    """The largest local log start of those that may be elected, once all have told theirs."""

    def all_have_the_epoch() -> bool:
        return _largest(partition, tiered_epoch) is not None

    while True:
        await _until(shared, partition, Change.LOW_WATERMARK, all_have_the_epoch)
        start = _largest(partition, tiered_epoch)
        if start is not None:
            return start


def _largest(partition: Partition, tiered_epoch: int) -> int | None:
    """None while one of them has not told its start, or that one is not committed yet. Nor is there
    one while the row has eligible leaders (KIP-966): where one that is away begins is not known."""
    if partition.row is None or partition.row.has_eligible_leaders:
        return None
    known: list[int] = []
    for start in local_starts(partition, tiered_epoch).values():
        if start is None:
            return None
        known.append(start)
    largest = max(known, default=None)
    return largest if largest is not None and largest <= partition.high_watermark else None


async def _until(
    shared: Shared, partition: Partition, change: Change, condition: Callable[[], bool]
) -> None:
    """Wait for a condition, looked at after each change and now and then."""
    while not condition():
        await shared.context.purgatory.wait([(change, partition.tp)], condition, _LOOK_AGAIN_S)


async def _made_durable(partition: Partition, log_start_offset: int) -> None:
    while partition.durable_log_start_offset < log_start_offset:
        await partition.context.checkpoint_log_start(partition)
        if partition.durable_log_start_offset < log_start_offset:
            await asyncio.sleep(_LOOK_AGAIN_S)


def _has_heard(partition: Partition, tiered_epoch: int) -> bool:
    _check_follows(partition)
    return partition.head_tiered_epoch >= tiered_epoch and partition.head_log_start_offset >= 0


def _has_reached(partition: Partition, log_start_offset: int) -> bool:
    _check_follows(partition)
    log = partition.log
    return log.local_log_start_offset <= log.log_start_offset >= log_start_offset


def _check_follows(partition: Partition) -> None:
    if partition.removed or partition.role is not Role.FOLLOWER:
        raise RemoteUnavailable(f"{partition.tp}: the role changed meanwhile; ask again")
