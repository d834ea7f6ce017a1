"""One hosted replica as everybody else sees it: its state and what can be asked of it.

State and figures are :class:`Replica`'s; roles are taken in :mod:`roles`, records are appended in
:mod:`produce` and read in :mod:`reads`, the ISR is :mod:`in_sync`'s.
"""

import asyncio
import logging

from kio.schema.errors import ErrorCode

from tidemark.wire import control
from tidemark_broker.purgatory import Change
from tidemark_broker.replication import in_sync, low_watermark, produce, reads, roles
from tidemark_broker.replication.isr import FetchSeen
from tidemark_broker.replication.metadata import TopicView
from tidemark_broker.replication.prefix import TierEnd
from tidemark_broker.replication.replica import Replica, Role
from tidemark_broker.replication.types import (
    DeleteResult,
    FetchResult,
    OffsetResult,
    ProduceResult,
)

logger = logging.getLogger(__name__)

__all__ = ["Partition", "Role"]


class Partition(Replica):
    """A replica: its log, the state it was given, what it does as leader."""

    # ------------------------------------------------------------ roles

    async def apply(
        self, view: TopicView, row: control.PartitionState, controller_epoch: int
    ) -> bool:
        """Take over a state from the controller. See :func:`roles.apply`."""
        return await roles.apply(self, view, row, controller_epoch)

    async def become_leader(self) -> None:
        """Lead in the epoch of the current row. See :func:`roles.become_leader`."""
        await roles.become_leader(self)

    def found_lacking(self, tier: TierEnd) -> bool:
        """A claim showed what is in the tier. See :func:`roles.found_lacking`."""
        return roles.found_lacking(self, tier)

    async def reopen(self) -> None:
        """Open the log again after its disk failed. See :func:`roles.reopen`."""
        await roles.reopen(self)

    def retire(self) -> None:
        """The replica goes: no role any more, whoever waits is woken."""
        self.removed = True
        roles.stop_leading(self, Role.IDLE)

    # ------------------------------------------------------------ produce

    async def append(
        self, data: bytes, *, acks: int, timeout_ms: int, peer: str = ""
    ) -> ProduceResult:
        """Append as leader; with acks -1 wait until it is committed. See :mod:`produce`."""
        return await produce.append(self, data, acks=acks, timeout_ms=timeout_ms, peer=peer)

    def begin_append(
        self, data: bytes, *, acks: int, peer: str
    ) -> ProduceResult | produce.DelayedAppend:
        """Append as leader now, or take a place. See :func:`produce.begin`."""
        return produce.begin(self, data, acks=acks, peer=peer)

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

    async def read_from_disk(self, asked: FetchResult) -> FetchResult:
        """The rest of a :meth:`fetch`, see :func:`reads.read_from_disk`."""
        return await reads.read_from_disk(self, asked)

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

        The caller waits for ``(Change.LOW_WATERMARK, tp)`` until the low watermark has reached ``result.offset``.
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
        """Have the log start raised (never back, never above the high watermark) as soon as it is
        durable; the future is done then. None: it is there, or on its way, already."""
        if not self.log.announce_log_start(offset):
            return None
        return self.context.checkpoint_log_start(self)

    def after_checkpoint(self) -> None:
        """Checkpoints were written: a log start may have become durable, and so be shown."""
        if self.log.adopt_checkpointed_log_start():
            logger.info("%s: log start offset raised to %d", self.tp, self.log_start_offset)
        if self.log.durable_log_start_offset != self._durable_log_start_seen:
            self._durable_log_start_seen = self.log.durable_log_start_offset
            self.context.purgatory.notify((Change.LOW_WATERMARK, self.tp))

    def low_watermark(self) -> int:
        """The smallest durable log start of the leader, its alive followers and whoever may be
        elected; -1 elsewhere."""
        leader = self.leader
        if leader is None:
            return -1
        reported = {node: seen.log_start_offset for node, seen in leader.followers.items()}
        others = (self.alive_followers() | leader.electable) - {self.context.node_id}
        return low_watermark.low_watermark(self.durable_log_start_offset, reported, others)

    # ------------------------------------------------------------ leader's decisions

    def advance_high_watermark(self) -> None:
        """Commit what enough replicas have."""
        in_sync.advance_high_watermark(self)

    def after_change(self) -> None:
        """ISR, replicas or brokers changed: the high watermark and the low watermark may move. Who
        waits for records or for the high watermark is woken only if that has moved."""
        self.advance_high_watermark()
        self.context.purgatory.notify((Change.LOW_WATERMARK, self.tp))

    def follower_fetched(self, node: int, seen: FetchSeen) -> None:
        """A follower has everything below its fetch offset: commit, and let it into the ISR."""
        in_sync.follower_fetched(self, node, seen)

    def shrink_isr(self) -> None:
        """Called every lag/2. See :func:`in_sync.shrink_isr`."""
        in_sync.shrink_isr(self)

    def isr_answered(self, change: control.IsrChange, result: control.IsrResult) -> None:
        """The controller answered a proposal. See :func:`in_sync.answered`."""
        in_sync.answered(self, change, result)

    def report_manifest_created(self) -> None:
        """The leader made the partition's head object: the slice must remember it."""
        self.manifest_created = True
        in_sync.propose_news(self)
