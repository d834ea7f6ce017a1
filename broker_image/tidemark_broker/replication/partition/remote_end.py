"""Known end of the tier on a replica, from its leader, a head or the tier itself.

This is Kafka's ``highestOffsetInRemoteStorage``, with the epoch of that record. Within one tiered
epoch it only grows. A head of a newer one replaces it, because after a disablement with policy
Delete (KIP-950) nothing of older epochs counts.
"""

from tidemark.tier.metadata.head import HeadPosition
from tidemark_broker.replication.partition import prefix_rule
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.remote import RemoteEnd


def note(partition: Partition, offset: int, epoch: int) -> None:
    """Record that the tier reaches at least ``offset`` (inclusive), or is empty (-1, -1);
    durable soon.
    """
    end = prefix_rule.later(partition.remote_end, offset, epoch)
    log = partition.log
    log.highest_remote_offset = max(log.highest_remote_offset, offset)
    if end != partition.remote_end:
        partition.remote_end = end
        partition.context.states.soon(partition)


def note_position(partition: Partition, position: HeadPosition | None) -> None:
    """Record the position of a head that was read, written or reported by the leader; durable soon.

    An older position is ignored.
    """
    known = partition.tier_position
    if position is not None and (known is None or position.version > known.version):
        partition.tier_position = position
        partition.context.states.soon(partition)


def note_damage(partition: Partition, *, is_damaged: bool) -> None:
    """Record whether the manifest's head was replaced by an older one that is not repaired yet.

    So after a start, local retention does not trust the tier before the head was checked again.
    """
    if partition.tier_damaged != is_damaged:
        partition.tier_damaged = is_damaged
        partition.context.states.soon(partition)


def replace(partition: Partition, end: RemoteEnd, position: HeadPosition | None = None) -> None:
    """Replace the known end by what the tier itself returned; durable with the next
    :meth:`Partition.write_state`.
    """
    note_position(partition, position)
    partition.remote_end = end
    partition.log.highest_remote_offset = end.offset


def note_head(partition: Partition, tiered_epoch: int, offset: int, epoch: int) -> None:
    """Record the tier's end from a head claimed under ``tiered_epoch`` (-1, -1: it is empty).

    A head of an older epoch is ignored.
    """
    if tiered_epoch < partition.head_tiered_epoch:
        return
    if tiered_epoch > partition.head_tiered_epoch:
        partition.head_tiered_epoch = tiered_epoch
        partition.remote_end = None
        partition.log.highest_remote_offset = -1
    note(partition, offset, epoch)
