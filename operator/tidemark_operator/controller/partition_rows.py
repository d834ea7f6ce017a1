"""Rows of a PartitionSlice: partitions, and the tombstones of deleted topics.

The command line reads them too, and starts faster without the rest of the controller's state.
"""

import dataclasses
import uuid
from typing import TypeAlias

from tidemark.leader_recovery import LeaderRecoveryState

NO_LEADER = -1

#: (topic id, partition)
RowKey: TypeAlias = tuple[uuid.UUID, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition as a PartitionSlice stores it.

    ``name`` is the topic's name and is set only in the row of partition 0. It keeps the name known
    after the Topic object has disappeared. ``elr`` and ``last_known_elr`` (KIP-966,
    :mod:`eligible_leaders`) are replicas outside the ISR that have, or may have, all committed
    records. If the ISR and both lists are empty, every copy was lost and a person must decide.
    ``leader_recovery_state`` (KIP-704) is RECOVERING from an unclean election until a leader
    reports that its log is in order. Meanwhile the ISR is that leader alone.
    """

    topic_id: uuid.UUID
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    manifest: bool = False
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    name: str = ""

    @property
    def key(self) -> RowKey:
        return self.topic_id, self.partition

    @property
    def hosts(self) -> tuple[int, ...]:
        """Return the replicas that are brokers, in order of preference."""
        return tuple(replica for replica in self.replicas if replica >= 0)

    @property
    def holders(self) -> tuple[int, ...]:
        """Return the replicas that have, or may have, all committed records.

        Empty for a lost partition.
        """
        return self.isr + self.elr + self.last_known_elr

    @property
    def recovering(self) -> bool:
        return self.leader_recovery_state is LeaderRecoveryState.RECOVERING

    @property
    def placeholders(self) -> int:
        return sum(replica < 0 for replica in self.replicas)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Record of a deleted topic in a slice, in place of its rows.

    Each slice that had rows of the topic has one, so that each slice's write is complete by itself.
    ``pending`` are the brokers that hosted a replica of those rows and may still have it.
    ``partitions`` counts the whole topic. ``tiered_epoch`` is -1 for a topic that was never tiered.
    """

    topic_id: uuid.UUID
    name: str
    partitions: int
    tiered_epoch: int
    pending: tuple[int, ...]
