"""One hosted replica and its role.

The loop thread owns it. Everything that changes the log's end or the role holds ``lock``: a role
change never overtakes a truncation that is still under way in a thread. State is written to the
replica's folder before the role changes (persist before acting).
"""

import asyncio
import enum
import logging
import uuid
from dataclasses import replace

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.log import PartitionLog
from tidemark_broker.replication import in_sync, isr, low_watermark, prefix, produce, reads
from tidemark_broker.replication.context import ReplicaContext
from tidemark_broker.replication.isr import FetchSeen
from tidemark_broker.replication.leader import LeaderRole
from tidemark_broker.replication.metadata import TopicView, is_newer
from tidemark_broker.replication.prefix import RemoteEnd
from tidemark_broker.replication.state_file import StoredState
from tidemark_broker.replication.threads import in_thread
from tidemark_broker.replication.types import (
    DeleteResult,
    FetchResult,
    OffsetResult,
    ProduceResult,
    TopicPartition,
)

logger = logging.getLogger(__name__)

_TIER_TIMEOUT_S = 10.0


class Role(enum.Enum):
    """``IDLE``: no role was given (just started, offline, removed); ``TAKING_OVER``: elected, but
    its log lacks what is in the tier, which it is fetching."""

    IDLE = enum.auto()
    FOLLOWER = enum.auto()
    LEADER = enum.auto()
    TAKING_OVER = enum.auto()


class Partition:
    """A replica: its log, the state it was given, what it does as leader."""

    def __init__(
        self,
        context: ReplicaContext,
        log: PartitionLog,
        *,
        stored: StoredState | None,
        view: TopicView | None,
    ) -> None:
        self.context = context
        self.log = log
        self.tp = TopicPartition(log.topic, log.partition)
        self.lock = asyncio.Lock()
        self.role = Role.IDLE
        self.stored = stored
        self._on_disk = stored
        self.manifest_created = False
        self.view = view
        self.leader: LeaderRole | None = None
        self._durable_log_start_seen = log.durable_log_start_offset
        self.remote_end: RemoteEnd | None = None if stored is None else stored.remote_end
        self.head_tiered_epoch = -1
        #: On a follower: its leader's log start when that last told the head's tiered epoch.
        self.head_log_start_offset = -1
        #: Held while local retention runs: a change of tiering waits for what began before it.
        self.retention_lock = asyncio.Lock()
        self.removed = False
        if self.remote_end is not None:
            log.highest_remote_offset = max(log.highest_remote_offset, self.remote_end.offset)

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
    def tiering_state(self) -> control.TieringState:
        """The topic's tiering state as last told, also before this life's first snapshot."""
        if self.view is not None:
            return self.view.tiering_state
        return control.TieringState.NONE if self.stored is None else self.stored.tiering_state

    @property
    def tiered_epoch(self) -> int:
        """The tiered epoch that is stored in the replica's folder, -1 when none is."""
        return -1 if self.stored is None else self.stored.tiered_epoch

    @property
    def disable_policy(self) -> control.DisablePolicy:
        """The frozen policy of the last disablement."""
        if self.view is not None:
            return self.view.disable_policy
        return control.DisablePolicy.RETAIN if self.stored is None else self.stored.disable_policy

    @property
    def reads_tier(self) -> bool:
        """May offsets below the local log start be read from the tier?"""
        state = self.tiering_state
        if state is control.TieringState.NONE:
            return False
        if state is control.TieringState.ENABLED:
            return True
        return self.disable_policy is control.DisablePolicy.RETAIN

    @property
    def min_isr(self) -> int:
        """Effective ``min.insync.replicas``."""
        replicas = 1 if self.row is None else len(self.row.replicas)
        return isr.effective_min_isr(self.log.config.min_insync_replicas, replicas)

    @property
    def under_min_isr(self) -> bool:
        """Is the committed ISR too small to accept acks=all?"""
        return len(self.isr) < self.min_isr

    def alive_followers(self) -> frozenset[int]:
        """Assigned followers that are registered and unfenced."""
        if self.row is None:
            return frozenset()
        others = (node for node in self.row.replicas if node >= 0 and node != self.context.node_id)
        return self.context.metadata.alive(others)

    def check_leader(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Why a request for the leader cannot be served here; ``none`` if it can."""
        if self.role is not Role.LEADER:
            return ErrorCode.not_leader_or_follower
        if current_leader_epoch in (-1, self.leader_epoch):
            return ErrorCode.none
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.unknown_leader_epoch

    # ------------------------------------------------------------ roles

    async def apply(
        self, view: TopicView, row: control.PartitionState, controller_epoch: int
    ) -> bool:
        """Take over a state from the controller; gives False if it must not be obeyed.

        Applying the same state again is how a role is taken after a start. A row that is older
        than a known one changes nothing but the topic's own settings; after a start it is not
        even that: a report ahead of the controller's state is for the controller to resolve.
        """
        async with self.lock:
            known = self.row
            if self.removed:
                return False
            if known is not None and is_newer(known, row):
                if self.role is Role.IDLE:
                    logger.warning(
                        "%s: the controller's state (epochs %d, %d) is older than the stored one "
                        "(%d, %d): no role is taken",
                        self.tp,
                        row.leader_epoch,
                        row.partition_epoch,
                        known.leader_epoch,
                        known.partition_epoch,
                    )
                    return False
                row = known
            tiering_changed = self._tiering_differs(view)
            if tiering_changed:
                async with self.retention_lock:
                    await self._persist(view, row, controller_epoch)
                    self.view = view
            else:
                await self._persist(view, row, controller_epoch)
                self.view = view
            await self._take_role(row)
            if tiering_changed and self.context.remote is not None:
                self.context.remote.on_tiering_change(self)
            return True

    def _tiering_differs(self, view: TopicView) -> bool:
        stored = self.stored
        return stored is None or (
            stored.tiering_state,
            stored.tiered_epoch,
            stored.disable_policy,
        ) != (view.tiering_state, view.tiered_epoch, view.disable_policy)

    async def _persist(
        self, view: TopicView, row: control.PartitionState, controller_epoch: int
    ) -> None:
        stored = StoredState(
            topic=view.name,
            topic_id=view.topic_id,
            controller_epoch=controller_epoch,
            tiered_epoch=view.tiered_epoch,
            tiering_state=view.tiering_state,
            disable_policy=view.disable_policy,
            row=row,
            remote_end=self.remote_end,
        )
        await self.write_state(stored)

    async def write_state(self, stored: StoredState) -> None:
        """Durable first, then in force."""
        if stored != self._on_disk:
            await self.context.persist(self.log.directory, stored)
            self._on_disk = stored
        self.stored = stored

    async def _take_role(self, row: control.PartitionState) -> None:
        if row.leader == self.context.node_id:
            if self.leader is not None and self.leader.epoch == row.leader_epoch:
                self.leader.adopt(row, self.context.monotonic())
                self.after_change()
            else:
                await self.become_leader()
        else:
            self._step_down(Role.FOLLOWER if self.context.node_id in row.replicas else Role.IDLE)

    async def become_leader(self) -> None:
        """Lead in the epoch of the current row, unless the log lacks what is in the tier.

        The caller holds ``lock``.
        """
        row = self.row
        if row is None:
            return
        if await self._lacks_tier():
            self._stop_leading(Role.TAKING_OVER)
            logger.warning(
                "%s: elected in epoch %d, but the log (end %d) does not hold what is in the tier "
                "(end %s); taking it over from there first",
                self.tp,
                row.leader_epoch,
                self.next_offset,
                self.remote_end,
            )
            return
        await in_thread(self.log.assign_leader_epoch, row.leader_epoch)
        start = self._epoch_start(row.leader_epoch)
        self.leader = LeaderRole(
            node_id=self.context.node_id,
            row=row,
            epoch_start_offset=start,
            now_s=self.context.monotonic(),
            before=self.leader,
        )
        self.role = Role.LEADER
        logger.info(
            "%s: leads in epoch %d from offset %d, ISR %s",
            self.tp,
            row.leader_epoch,
            start,
            row.isr,
        )
        self.after_change()
        if self.context.remote is not None:
            self.context.remote.on_leader(self)

    def _epoch_start(self, epoch: int) -> int:
        """Where an epoch that this log knows begins."""
        for entry in reversed(self.log.epochs.entries):
            if entry.epoch == epoch:
                return entry.start_offset
        return self.log.next_offset

    async def _lacks_tier(self) -> bool:
        """The prefix rule; asks the tier only where this replica never heard of its end."""
        if not self.reads_tier or self.row is None or not self.row.manifest:
            return False
        if self.remote_end is None and not await self._learn_remote_end():
            return True
        end = self.remote_end
        epoch = -1 if end is None else self.log.epochs.epoch_for_offset(end.offset)
        return prefix.contradicts(end, next_offset=self.next_offset, epoch_at_end=epoch)

    async def _learn_remote_end(self) -> bool:
        if self.context.remote is None:
            return False
        try:
            async with asyncio.timeout(_TIER_TIMEOUT_S):
                end = await self.context.remote.last_known_end(self)
        except Exception as error:  # noqa: BLE001  any failure of the tier leaves it offline
            logger.warning("%s: the end of the tier is not known: %s", self.tp, error)
            return False
        self.note_remote_end(*(end or (-1, -1)))
        return True

    def _step_down(self, role: Role) -> None:
        was_leader = self.leader is not None
        changed = self.role is not role
        self._stop_leading(role)
        if was_leader or changed:
            logger.info(
                "%s: %s of broker %d in epoch %d",
                self.tp,
                "follower" if role is Role.FOLLOWER else "no replica",
                self.leader_id,
                self.leader_epoch,
            )
            if self.context.remote is not None:
                self.context.remote.on_follower(self)

    def _stop_leading(self, role: Role) -> None:
        self.leader = None
        self.role = role
        self.wake_all()

    def retire(self) -> None:
        """The replica goes: no role any more, whoever waits is woken."""
        self.removed = True
        self._stop_leading(Role.IDLE)

    def wake_all(self) -> None:
        """Wake every operation that waits for this partition."""
        for kind in ("hw", "leo", "lw"):
            self.context.purgatory.notify((kind, self.tp))

    # ------------------------------------------------------------ the tier

    def note_remote_end(self, offset: int, epoch: int) -> None:
        """The tier reaches at least to ``offset`` (inclusive), or is known to be empty (-1, -1);
        kept with the next state write."""
        self.remote_end = prefix.later(self.remote_end, offset, epoch)
        self.log.highest_remote_offset = max(self.log.highest_remote_offset, offset)

    def learn_remote_end(self, tiered_epoch: int, offset: int, epoch: int) -> None:
        """What a head claimed under ``tiered_epoch`` says of the tier's end (-1, -1: it is empty).

        A newer tiered epoch replaces what was known (after Delete nothing of the older ones counts),
        the same one only adds to it, an older one is out of date.
        """
        if tiered_epoch < self.head_tiered_epoch:
            return
        if tiered_epoch > self.head_tiered_epoch:
            self.head_tiered_epoch = tiered_epoch
            self.remote_end = None
            self.log.highest_remote_offset = -1
        self.note_remote_end(offset, epoch)

    async def persist_remote_end(self) -> None:
        """Write the known end of the tier, if the file does not have it yet."""
        async with self.lock:
            if self.stored is not None and not self.removed:
                await self.write_state(replace(self.stored, remote_end=self.remote_end))

    # ------------------------------------------------------------ produce

    async def append(self, data: bytes, *, acks: int, timeout_ms: int) -> ProduceResult:
        """Append as leader; with acks -1 wait until it is committed. See :mod:`produce`."""
        return await produce.append(self, data, acks=acks, timeout_ms=timeout_ms)

    # ------------------------------------------------------------ reads

    def fetch(
        self,
        offset: int,
        *,
        max_bytes: int,
        min_one: bool,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> FetchResult:
        """A consumer's read: committed data only. See :func:`reads.fetch`."""
        return reads.fetch(
            self,
            offset,
            max_bytes=max_bytes,
            min_one=min_one,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )

    async def list_offset(self, timestamp: int, *, current_leader_epoch: int = -1) -> OffsetResult:
        """ListOffsets for one timestamp or special value. See :func:`reads.list_offset`."""
        return await reads.list_offset(self, timestamp, current_leader_epoch)

    def offset_for_leader_epoch(
        self, current_leader_epoch: int, epoch: int
    ) -> tuple[ErrorCode, int, int]:
        """(error, epoch, end offset) of the largest epoch not above ``epoch``."""
        error = self.check_leader(current_leader_epoch)
        if error is not ErrorCode.none:
            return error, -1, -1
        end = reads.epoch_end(self.log, epoch)
        return ErrorCode.none, end.epoch, end.end_offset

    # ------------------------------------------------------------ DeleteRecords

    def delete_records(self, offset: int) -> DeleteResult:
        """KIP-107 on the leader: raise the log start to exactly ``offset`` (-1: the high watermark).

        The caller waits for ("lw", tp) until the low watermark has reached ``result.offset``.
        """
        error = self.check_leader()
        if error is ErrorCode.none and not self.log.config.deletes:
            error = ErrorCode.policy_violation
        wanted = self.high_watermark if offset == -1 else offset
        if error is ErrorCode.none and not 0 <= wanted <= self.high_watermark:
            error = ErrorCode.offset_out_of_range
        if error is not ErrorCode.none:
            return DeleteResult(error, wanted, -1)
        self.raise_log_start(wanted)
        return DeleteResult(ErrorCode.none, wanted, self.low_watermark())

    def raise_log_start(self, offset: int) -> "asyncio.Future[None] | None":
        """Raise the log start (never back, never above the high watermark) and have it made
        durable; the future is done once it is. None: it was there already."""
        if not self.log.raise_log_start(offset):
            return None
        logger.info("%s: log start offset raised to %d", self.tp, self.log.log_start_offset)
        self.context.purgatory.notify(("lw", self.tp))
        return self.context.checkpoint_log_start(self)

    def after_checkpoint(self) -> None:
        """Checkpoints were written: a log start may have become durable."""
        if self.log.durable_log_start_offset != self._durable_log_start_seen:
            self._durable_log_start_seen = self.log.durable_log_start_offset
            self.context.purgatory.notify(("lw", self.tp))

    def low_watermark(self) -> int:
        """The smallest durable log start of the leader and its alive followers; -1 elsewhere."""
        leader = self.leader
        if leader is None:
            return -1
        reported = {node: seen.log_start_offset for node, seen in leader.followers.items()}
        return low_watermark.low_watermark(
            self.durable_log_start_offset, reported, self.alive_followers()
        )

    # ------------------------------------------------------------ leader's decisions

    def advance_high_watermark(self) -> None:
        """Commit what enough replicas have."""
        in_sync.advance_high_watermark(self)

    def after_change(self) -> None:
        """ISR, replicas or brokers changed: the high watermark and the low watermark may move."""
        self.advance_high_watermark()
        self.wake_all()

    def follower_fetched(self, node: int, seen: FetchSeen) -> None:
        """A follower has everything below its fetch offset: commit, and let it into the ISR."""
        in_sync.follower_fetched(self, node, seen)

    def shrink_isr(self) -> None:
        """Called every lag/2. See :func:`in_sync.shrink_isr`."""
        in_sync.shrink_isr(self)

    async def isr_answered(self, change: control.IsrChange, result: control.IsrResult) -> None:
        """The controller answered a proposal. See :func:`in_sync.answered`."""
        await in_sync.answered(self, change, result)

    def report_manifest_created(self) -> None:
        """The leader made the partition's head object: the slice must remember it."""
        self.manifest_created = True
        in_sync.propose_manifest(self)
