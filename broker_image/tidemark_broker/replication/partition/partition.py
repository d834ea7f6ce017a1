"""What one hosted replica is: its log, the state it was given, its role. No decisions here.

What is done with it stands in modules that import this one: roles are taken in :mod:`roles`,
records are appended in :mod:`produce` and read in :mod:`consumer_reads`, the ISR is
:mod:`isr_maintenance`'s, the log start :mod:`log_start`'s. The loop thread owns it. Everything that
changes the log's end or the role holds ``lock``: a role change never overtakes a truncation that is
still under way in a thread. State is written to the replica's folder before it is in force (persist
before acting).
"""

import asyncio
import enum
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kio.schema.errors import ErrorCode

from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.tier.head import HeadPosition
from tidemark.tiering import NEVER_TIERED, Tiering
from tidemark.wire import control
from tidemark_broker.lock_order import LockRank, ordered_async_lock
from tidemark_broker.log import PartitionLog, TieredRetention
from tidemark_broker.purgatory import Change, Purgatory
from tidemark_broker.replication.metadata import MetadataCache, TopicMetadata, is_newer
from tidemark_broker.replication.partition import isr, prefix_rule
from tidemark_broker.replication.partition.append_order import Turns
from tidemark_broker.replication.partition.leader import LeaderRole
from tidemark_broker.replication.partition.prefix_rule import Doubt, Standing
from tidemark_broker.replication.partition.refused_batches import RefusedBatches
from tidemark_broker.replication.partition.retention_mode import retention_mode
from tidemark_broker.replication.partition.state_file import StoredState
from tidemark_broker.replication.partition.state_writer import StateWriter
from tidemark_broker.replication.partition.storage_failures import StorageFailures
from tidemark_broker.replication.remote import RemoteEnd, RemoteLog
from tidemark_broker.replication.stall_detection import Stall
from tidemark_broker.replication.types import TopicPartition


class Role(enum.Enum):
    """``IDLE``: no role was given (just started, offline, removed); ``TAKING_OVER``: elected, but
    it may lack what is in the tier: it asks the tier, and starts from it if so."""

    IDLE = enum.auto()
    FOLLOWER = enum.auto()
    LEADER = enum.auto()
    TAKING_OVER = enum.auto()


@dataclass(slots=True, kw_only=True)
class ReplicaContext:
    """What the replicas of a broker share. ``monotonic`` in seconds, ``wall_ms`` in milliseconds
    since the epoch; ``persist`` returns once the file is durable; ``checkpoint_log_start`` asks for
    a durable log start soon."""

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
    #: Told when a disk lost records that were appended: the broker cannot answer for its ISRs.
    records_lost: Callable[[], None] | None = None
    #: Told on the loop when a replica has begun to lead, in an epoch of its own, or leads no more.
    role_changed: "list[Callable[[Partition], None]]" = field(default_factory=list)


class Partition:
    """State and figures of one hosted replica."""

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
        """``stored`` is what a former life was told; ``on_disk`` what the file of a new log holds
        already, though no role was taken from it yet; ``doubt``: why its log proves nothing."""
        self.context = context
        self.log = log
        self.tp = TopicPartition(log.topic, log.partition)
        self.lock = ordered_async_lock(LockRank.REPLICA)
        self._file_lock = ordered_async_lock(LockRank.STATE_FILE)
        self.role = Role.IDLE
        self.stored = stored
        self._on_disk = stored if on_disk is None else on_disk
        self.manifest_created = False
        self.view = view
        self.leader: LeaderRole | None = None
        #: Why nothing proves that its log holds all that was committed (the prefix rule).
        self.doubt = doubt
        #: It leads in no epoch up to this one: the disk lost records of this log in it.
        self.lost_in_epoch = -1
        #: What TAKING_OVER waits for: a reason in CamelCase and a message for people.
        self.offline_reason = self.offline_message = ""
        #: The durable log start that the purgatory was last notified of.
        self.durable_log_start_notified = log.durable_log_start_offset
        self.remote_end: RemoteEnd | None = None if stored is None else stored.remote_end
        self.head_tiered_epoch = -1 if stored is None else stored.head_tiered_epoch
        #: Position of the newest known head of the manifest; an older head is damage.
        self.tier_position = None if stored is None else stored.tier_position
        #: The head went back and is not repaired: the tier's contents are not certain.
        self.tier_damaged = stored is not None and stored.tier_damaged
        #: On a follower: its leader's log start when that last told the head's tiered epoch.
        self.head_log_start_offset = -1
        #: Held while local retention runs: a change of tiering waits for what began before it.
        self.retention_lock = ordered_async_lock(LockRank.RETENTION)
        self.removed = False
        #: Batches that must be looked into before they are appended, and those behind them.
        self.turns = Turns()
        if self.remote_end is not None:
            log.highest_remote_offset = max(log.highest_remote_offset, self.remote_end.offset)
        if stored is not None:
            self.settle_log_start()

    def settle_log_start(self) -> None:
        """After a start: where nothing is in the tier, nothing below the local start can be read,
        though a log start that was not checkpointed in time may say so."""
        if self.local_retention() is None:
            self.log.drop_remote_part()

    # ------------------------------------------------------------ what it is

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.tp.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.tp.partition

    @property
    def topic_id(self) -> uuid.UUID:
        """The topic's id as it stands in partition.metadata."""
        return self.log.topic_id

    @property
    def row(self) -> control.PartitionState | None:
        """The state last given by the controller, in this life or an earlier one."""
        return None if self.stored is None else self.stored.row

    @property
    def is_leader(self) -> bool:
        """Does it serve as leader now?"""
        return self.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """The broker that leads, -1 when offline or unknown."""
        return -1 if self.row is None else self.row.leader

    @property
    def recovering(self) -> bool:
        """Was the leader elected uncleanly, and has not reported yet that it has recovered?"""
        state = control.LeaderRecoveryState.RECOVERED
        return self.row is not None and self.row.leader_recovery_state != state

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch, -1 when unknown."""
        return -1 if self.row is None else self.row.leader_epoch

    @property
    def partition_epoch(self) -> int:
        """The current partition epoch, -1 when unknown."""
        return -1 if self.row is None else self.row.partition_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed ISR."""
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
        """The log start that a crash cannot take back; only this counts for the low watermark."""
        return self.log.durable_log_start_offset

    @property
    def next_offset(self) -> int:
        """The log end offset."""
        return self.log.next_offset

    @property
    def tiering(self) -> Tiering:
        """The topic's tiering as it is stored in the replica's folder: what was told is in force
        once it is there."""
        return NEVER_TIERED if self.stored is None else self.stored.tiering

    def standing(self) -> Standing:
        """What the prefix rule looks at before it leads."""
        return Standing(
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
        """Effective ``min.insync.replicas``, as the controller counts: replicas that are being
        added are not asked for yet, and of an internal topic no more than those that are
        brokers."""
        row = self.row
        places = () if row is None else tuple(n for n in row.replicas if n not in row.adding)
        if self.topic in COORDINATORS_TOPICS:
            places = tuple(node for node in places if node >= 0)
        replicas = max(1, len(places))
        return isr.effective_min_isr(self.log.config.min_insync_replicas, replicas)

    @property
    def under_min_isr(self) -> bool:
        """Is the committed ISR too small to accept acks=all?"""
        return len(self.isr) < self.min_isr

    def check_leader(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why a request for the leader cannot be served here; ``none`` if it can."""
        context = self.context
        if self.role is not Role.LEADER or context.stall.must_be_silent(context.monotonic()):
            return ErrorCode.not_leader_or_follower
        return self._check_epoch(current_leader_epoch)

    def check_replica(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why a consumer cannot be served here that may read from followers, too (KIP-392)."""
        if self.role is Role.FOLLOWER:
            return self._check_epoch(current_leader_epoch)
        return self.check_leader(current_leader_epoch)

    def _check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        if current_leader_epoch in (-1, self.leader_epoch):
            return ErrorCode.none
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    def storage_failed(self, error: BaseException) -> None:
        """Its storage refused something. Of a replica that was removed meanwhile that says nothing:
        failures go by name, and another may have its name by now."""
        if not self.removed:
            self.context.failures.failed(self.tp, error, self.context.monotonic())

    # ------------------------------------------------------------ the tier

    def local_retention(self, *, tier_available: bool = True) -> TieredRetention | None:
        """What local retention may do now; None: as for a log without a tier. An end that was told
        under an older tiered epoch may be of what a Delete has removed since."""
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
        """The tier's end as this replica's file has it: what a crash does not take back. Followers
        are told this one, and local retention trusts no other."""
        return None if self._on_disk is None else self._on_disk.remote_end

    @property
    def durable_tier_position(self) -> HeadPosition | None:
        """Position of the newest head in this replica's state file."""
        return None if self._on_disk is None else self._on_disk.tier_position

    @property
    def durable_head_tiered_epoch(self) -> int:
        """The tiered epoch of the head that told :attr:`durable_remote_end`."""
        return -1 if self._on_disk is None else self._on_disk.head_tiered_epoch

    # ------------------------------------------------------------ its file, and who waits for it

    async def write_state(self, stored: StoredState) -> None:
        """Durable first, then in force; a newer row that came into force meanwhile stays."""
        async with self._file_lock:
            await self._write(stored)
            row = self.row
            if row is not None and stored.row is not None and is_newer(row, stored.row):
                stored = stored.with_row(row)
            self.stored = stored
        if self._content(stored) != self._on_disk:
            self.context.states.soon(self)

    def remember(self, stored: StoredState) -> None:
        """In force at once; the file follows soon."""
        self.stored = stored
        self.context.states.soon(self)

    async def write_changes(self) -> None:
        """Have the file say what is in force, the end of the tier included."""
        async with self._file_lock:
            if self.stored is not None and not self.removed:
                await self._write(self.stored)

    async def file_at_rest(self) -> None:
        """Of a replica that was retired: until the write that had begun has ended. No other
        begins."""
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

    def tell_role(self) -> None:
        """Tell those who do something where a partition is led."""
        for tell in self.context.role_changed:
            tell(self)

    def wake_all(self) -> None:
        """Wake every operation that waits for this partition."""
        for change in (Change.HIGH_WATERMARK, Change.LOG_END, Change.LOW_WATERMARK):
            self.context.purgatory.notify((change, self.tp))
