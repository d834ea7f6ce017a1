"""State of one hosted replica: its log, its row from the controller, and its role.

The operations are in modules that import this one: roles in :mod:`roles`, appends in
:mod:`produce`, reads in :mod:`consumer_reads`, the ISR and the high watermark in
:mod:`isr_and_high_watermark`, and the log start in :mod:`log_start`. The loop thread owns it.
Everything that changes the log end or the role holds ``lock``, so a role change never overtakes a
truncation in a thread. A state in which the replica starts to lead is written to its directory
before it takes effect (persist before acting).
"""

import asyncio
import enum
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kio.schema.errors import ErrorCode

from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.tier.metadata.head import HeadPosition
from tidemark.tiering import NEVER_TIERED, LocalRetention, Tiering
from tidemark.wire import control
from tidemark_broker.admission.arrival_order import ArrivalOrder
from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.log import PartitionLog, TieredRetention, start_offsets
from tidemark_broker.purgatory import PartitionChange, Purgatory
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata, is_newer
from tidemark_broker.replication.partition import isr_decisions, prefix_rule
from tidemark_broker.replication.partition.leader import (
    FOLLOWER_CONTACT_S,
    FetchRounds,
    LeaderRole,
)
from tidemark_broker.replication.partition.prefix_rule import Doubt, PrefixState
from tidemark_broker.replication.partition.refused_batches import RefusedBatches
from tidemark_broker.replication.partition.state_file import StateWriter, StoredState
from tidemark_broker.replication.partition.storage_failures import StorageFailures
from tidemark_broker.replication.remote import RemoteEnd, RemoteLog
from tidemark_broker.replication.stall_detection import Stall
from tidemark_broker.replication.types import NO_ERROR, TopicIdPartition, TopicPartition


class Role(enum.Enum):
    """Role of a replica.

    ``IDLE``: no role (just started, offline, removed). ``TAKING_OVER``: elected, but its log may
    lack records of the tier, so it queries the tier first and starts from there if necessary.
    """

    IDLE = enum.auto()
    FOLLOWER = enum.auto()
    LEADER = enum.auto()
    TAKING_OVER = enum.auto()


#: See :data:`NO_ERROR`.
_LEADER = Role.LEADER


@dataclass(slots=True, kw_only=True)
class ReplicaContext:
    """Services shared by a broker's replicas.

    ``monotonic`` is in seconds, ``wall_ms`` in milliseconds since the epoch. ``persist`` returns
    once the file is durable. ``checkpoint_log_start`` requests a durable log start soon.
    """

    node_id: int
    metadata: MetadataCache
    purgatory: Purgatory
    lag_max_s: float
    monotonic: Callable[[], float]
    wall_ms: Callable[[], int]
    propose_isr: Callable[["Partition", control.IsrChange], None]
    persist: Callable[[Path, StoredState], Awaitable[None]]
    checkpoint_log_start: Callable[["Partition"], "asyncio.Future[None]"]
    failures: StorageFailures = field(default_factory=StorageFailures)
    states: StateWriter = field(default_factory=StateWriter)
    stall: Stall = field(default_factory=Stall)
    refused: RefusedBatches = field(default_factory=RefusedBatches)
    remote: "RemoteLog[Partition] | None" = None
    #: Called when a disk lost appended records: the broker must give up its ISR memberships.
    records_lost: Callable[[], None] | None = None
    #: Called on the loop when a replica starts to lead, in its own epoch, or stops leading.
    role_changed: "list[Callable[[Partition], None]]" = field(default_factory=list)


class Partition:
    """State and figures of one hosted replica, for the loop thread."""

    def __init__(
        self,
        context: ReplicaContext,
        log: PartitionLog,
        *,
        stored: StoredState | None,
        view: TopicMetadata | None,
        on_disk: StoredState | None = None,
        doubt: Doubt | None = None,
    ) -> None:
        """Create the replica of an open log, without a role.

        ``stored``: content of the state file of a former run, None for none. ``view``: the topic's
        metadata, None until the controller has sent it. ``on_disk``: content of the state file of a
        new log, from which no role was taken yet. ``doubt``: reason why the log may lack committed
        records.
        """
        self.context = context
        self.log = log
        self.tp = TopicPartition(log.topic, log.partition)
        #: Keys that each append notifies.
        self.log_end_key = PartitionChange.LOG_END, self.tp
        self.high_watermark_key = PartitionChange.HIGH_WATERMARK, self.tp
        #: Held by everything that changes the role or the log end.
        self.lock = ordered_async_lock(LockRank.REPLICA)
        self._file_lock = ordered_async_lock(LockRank.STATE_FILE)
        self.role = Role.IDLE
        self.stored = stored
        self._on_disk = stored if on_disk is None else on_disk
        #: Whether this leader created the manifest's head, which the controller may not know yet.
        self.manifest_created = False
        self.view = view
        #: State of the leader epoch, None while this replica does not lead.
        self.leader: LeaderRole | None = None
        #: Fetches from the leader that include this follower; None while they fail or leave it out.
        self.leader_rounds: FetchRounds | None = None
        #: Reason why the log may lack committed records, None if it is proven to have them
        #: (:mod:`prefix_rule`).
        self.doubt = doubt
        #: The disk lost records up to this leader epoch, so the replica must not lead in it.
        self.lost_in_epoch = -1
        #: Reason why an elected replica in the role TAKING_OVER does not lead yet: CamelCase, with
        #: a message.
        self.offline_reason = self.offline_message = ""
        #: The durable log start that the purgatory was last notified of.
        self.durable_log_start_notified = log.durable_log_start_offset
        #: Last offset in the tier and its leader epoch, as last known; None if unknown.
        self.remote_end: RemoteEnd | None = None if stored is None else stored.remote_end
        #: Tiered epoch of the manifest's head that ``remote_end`` is from, -1 for none.
        self.head_tiered_epoch = -1 if stored is None else stored.head_tiered_epoch
        #: Version of the newest known head of the manifest; an older head is damage.
        self.tier_position = None if stored is None else stored.tier_position
        #: Whether the manifest's head was replaced by an older one and is not repaired, so that the
        #: tier's content is not certain.
        self.tier_damaged = stored is not None and stored.tier_damaged
        #: On a follower: the leader's log start when it last sent the head's tiered epoch.
        self.head_log_start_offset = -1
        #: Held while local retention runs: a change of tiering waits for a run in progress.
        self.retention_lock = ordered_async_lock(LockRank.RETENTION)
        #: Whether the replica is being removed or the broker shuts down; it takes no role again.
        self.removed = False
        #: Batches that must be read before the append, and those that wait for them.
        self.append_order = ArrivalOrder()
        # Restore what a former run knew of the tier, before a leader reports it.
        if self.remote_end is not None:
            log.highest_remote_offset = max(log.highest_remote_offset, self.remote_end.offset)
        if stored is not None:
            self.settle_log_start()

    def settle_log_start(self) -> None:
        """Correct the log start after opening: without a tier nothing below the local start is
        readable.

        The log start in the checkpoint may be older.
        """
        if self.local_retention() is None:
            start_offsets.drop_remote_part(self.log)

    # ------------------------------------------------------------ what it is

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return self.tp.partition

    @property
    def key(self) -> TopicIdPartition:
        """Topic id and number, which no other partition ever has again."""
        return self.topic_id, self.tp.partition

    @property
    def topic_id(self) -> uuid.UUID:
        """Id of the topic, as stored in partition.metadata."""
        return self.log.topic_id

    @property
    def stored(self) -> StoredState | None:
        """State in effect; the file may follow later."""
        return self._stored

    @stored.setter
    def stored(self, stored: StoredState | None) -> None:
        self._stored = stored
        #: State last sent by the controller, in this run or an earlier one. An attribute, because
        #: each request reads it a dozen times.
        self.row: control.PartitionState | None = None if stored is None else stored.row

    @property
    def is_leader(self) -> bool:
        """Whether the replica serves as leader now."""
        return self.role is _LEADER

    @property
    def has_leader_contact(self) -> bool:
        """Whether this follower's last successful fetch from its leader is recent.

        Its log start is then not below one that a DeleteRecords has acknowledged
        (:mod:`log_start`).
        """
        rounds, now_s = self.leader_rounds, self.context.monotonic()
        return rounds is not None and now_s - rounds.last_s < FOLLOWER_CONTACT_S

    @property
    def leader_id(self) -> int:
        """Broker id of the leader, -1 if offline or unknown."""
        return -1 if self.row is None else self.row.leader

    @property
    def recovering(self) -> bool:
        """Whether the leader was elected uncleanly and has not reported its recovery yet."""
        state = LeaderRecoveryState.RECOVERED
        return self.row is not None and self.row.leader_recovery_state != state

    @property
    def leader_epoch(self) -> int:
        """Current leader epoch, -1 if unknown."""
        return -1 if self.row is None else self.row.leader_epoch

    @property
    def partition_epoch(self) -> int:
        """Current partition epoch, -1 if unknown."""
        return -1 if self.row is None else self.row.partition_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """Committed ISR, as broker ids."""
        return () if self.row is None else self.row.isr

    @property
    def high_watermark(self) -> int:
        """End of committed data (exclusive)."""
        return self.log.high_watermark

    @property
    def log_start_offset(self) -> int:
        """First offset that clients see."""
        return self.log.log_start_offset

    @property
    def durable_log_start_offset(self) -> int:
        """Log start that a crash cannot undo; only this one counts for the low watermark."""
        return self.log.durable_log_start_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def tiering(self) -> Tiering:
        """Tiering of the topic as persisted in the replica's directory.

        A change takes effect once it is there.
        """
        return NEVER_TIERED if self.stored is None else self.stored.tiering

    def prefix_state(self) -> PrefixState:
        """Return the input of the prefix rule before this replica leads."""
        return PrefixState(
            has_manifest=self.row is not None and self.row.manifest,
            recovering=self.recovering,
            tiering=self.tiering,
            doubt=self.doubt,
            end=self.remote_end,
            epochs=self.log.epochs,
            next_offset=self.log.next_offset,
        )

    @property
    def min_isr(self) -> int:
        """Effective ``min.insync.replicas``, computed as the controller does.

        Replicas being added do not count yet. For an internal topic only replicas on existing
        brokers count.
        """
        row = self.row
        places = () if row is None else row.replicas
        # Added replicas would raise the minimum before they can meet it.
        if row is not None and row.adding:
            places = tuple(node for node in places if node not in row.adding)
        if self.topic in COORDINATORS_TOPICS:
            places = tuple(node for node in places if node >= 0)
        replicas = max(1, len(places))
        return isr_decisions.effective_min_isr(self.log.config.min_insync_replicas, replicas)

    @property
    def under_min_isr(self) -> bool:
        """Whether the committed ISR is too small for acks=all."""
        row = self.row
        return self.is_below_min_isr(0 if row is None else len(row.isr))

    def is_below_min_isr(self, in_sync: int) -> bool:
        """Return whether an ISR of that size is too small for acks=all."""
        # The effective minimum is never above the configured one, which suffices mostly.
        return in_sync < self.log.config.min_insync_replicas and in_sync < self.min_isr

    def check_leader(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Return the error for a request to the leader, or ``none`` if this replica can serve
        it.
        """
        context = self.context
        # A broker that was paused for long enough may be superseded.
        if self.role is not _LEADER or context.stall.must_be_silent(context.monotonic()):
            return ErrorCode.not_leader_or_follower
        # A Produce names no epoch.
        return NO_ERROR if current_leader_epoch == -1 else self._check_epoch(current_leader_epoch)

    def check_replica(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Return the error for a consumer that may read from followers too (KIP-392), or
        ``none``.
        """
        if self.role is Role.FOLLOWER:
            return self._check_epoch(current_leader_epoch)
        return self.check_leader(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        if current_leader_epoch in (-1, self.leader_epoch):
            return NO_ERROR
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    def storage_failed(self, error: BaseException) -> None:
        """Record a storage failure.

        Failures are stored by name, so a removed replica's are ignored: another replica may have
        its name by now.
        """
        if not self.removed:
            self.context.failures.failed(self.tp, error, self.context.monotonic())

    # ------------------------------------------------------------ the tier

    def local_retention(self, *, tier_available: bool = True) -> TieredRetention | None:
        """Return what local retention may delete now; None for a topic that has no tier.

        Only an end of the tier that is in this replica's state file counts. An end that was
        reported under an older tiered epoch is ignored, because a disablement with policy Delete
        (KIP-950) may have removed those records since. ``tier_available``: False suspends local
        deletions.
        """
        # Only durable knowledge of the tier may justify a local deletion.
        current = self.durable_head_tiered_epoch >= self.tiering.epoch
        end, log = self.durable_remote_end if current else None, self.log
        return retention_mode(
            self.tiering,
            highest_remote_offset=None if end is None else end.offset,
            trusted_remote_offset=prefix_rule.trusted_offset(
                end, log.epochs, next_offset=log.next_offset
            ),
            log_start_offset=log.log_start_offset,
            tier_available=tier_available and not self.tier_damaged,
        )

    @property
    def durable_remote_end(self) -> RemoteEnd | None:
        """End of the tier in this replica's state file, which a crash does not undo.

        Followers receive this one, and local retention trusts no other.
        """
        return None if self._on_disk is None else self._on_disk.remote_end

    @property
    def durable_tier_position(self) -> HeadPosition | None:
        """Position of the newest head in this replica's state file."""
        return None if self._on_disk is None else self._on_disk.tier_position

    @property
    def durable_head_tiered_epoch(self) -> int:
        """Tiered epoch of the head that :attr:`durable_remote_end` is from."""
        return -1 if self._on_disk is None else self._on_disk.head_tiered_epoch

    # ------------------------------------------------------------ its file, and who waits for it

    async def write_state(self, stored: StoredState) -> None:
        """Write a new state to the state file, then put it into effect.

        If a newer partition state took effect during the write, it is kept.
        """
        async with self._file_lock:
            await self._write(stored)
            # An AlterPartition answer may have changed the row during the write.
            row = self.row
            if row is not None and stored.row is not None and is_newer(row, stored.row):
                stored = stored.with_row(row)
            self.stored = stored
        # The tier's end may have advanced during the write: write it again soon.
        if self._content(stored) != self._on_disk:
            self.context.states.soon(self)

    def remember(self, stored: StoredState) -> None:
        """Put the state into effect at once; the file follows soon."""
        self.stored = stored
        self.context.states.soon(self)

    async def write_changes(self) -> None:
        """Write the current state, the end of the tier included."""
        async with self._file_lock:
            if self.stored is not None and not self.removed:
                await self._write(self.stored)

    async def wait_for_last_write(self) -> None:
        """Wait for the last write of a retired replica to end; no other starts."""
        async with self._file_lock:
            return

    async def _write(self, stored: StoredState) -> None:
        content = self._content(stored)
        if content != self._on_disk:
            await self.context.persist(self.log.directory, content)
            self._on_disk = content

    def _content(self, stored: StoredState) -> StoredState:
        return replace(
            stored,
            remote_end=self.remote_end,
            head_tiered_epoch=self.head_tiered_epoch,
            tier_position=self.tier_position,
            tier_damaged=self.tier_damaged,
        )

    def notify_role(self) -> None:
        """Notify the subscribers of role changes."""
        for notify in self.context.role_changed:
            notify(self)

    def wake_all(self) -> None:
        """Wake every operation that waits for this partition."""
        for change in (
            PartitionChange.HIGH_WATERMARK,
            PartitionChange.LOG_END,
            PartitionChange.LOW_WATERMARK,
        ):
            self.context.purgatory.notify((change, self.tp))


# ------------------------------------------------------------ local retention

# Permissions of local retention, derived from a topic's tiering state (KIP-950) and this replica's
# knowledge of the tier. Pure.


def retention_mode(
    tiering: Tiering,
    *,
    highest_remote_offset: int | None,
    trusted_remote_offset: int,
    log_start_offset: int,
    tier_available: bool = True,
) -> TieredRetention | None:
    """Return what local retention may delete; None for a topic without a tier.

    ``highest_remote_offset``: the tier's last offset (inclusive), -1 for an empty tier, None for
    unknown, which does not count as empty. ``trusted_remote_offset``: last offset up to which log
    and tier have the same records (:func:`prefix_rule.trusted_offset`); only segments up to it may
    be deleted. While the tier is unavailable nothing local is deleted.
    """
    # Records below the log start do not count: they are deleted in both tiers.
    tier_is_empty = highest_remote_offset is not None and highest_remote_offset < log_start_offset
    allowed = tiering.local_retention(tier_is_empty=tier_is_empty)
    if allowed is LocalRetention.WHOLE:
        return None
    return TieredRetention(
        highest_remote_offset=trusted_remote_offset,
        copy_enabled=tiering.copies,
        suspended=allowed is LocalRetention.SUSPENDED or not tier_available,
    )
