"""AlterPartition: ISR proposals of many partitions in one request, repeated until answered.

A partition has one proposal at a time. A proposal without an answer at the end of a session is sent
again in the next one, unless the partition's state has changed meanwhile.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.control.session import ControllerSession, check
from tidemark_broker.replication.partition import isr_and_high_watermark
from tidemark_broker.replication.types import TopicIdPartition

if TYPE_CHECKING:
    from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

BATCH_MAX = 1000
_TIMEOUT_S = 30.0


class IsrChanges:
    """Queue of proposed ISR changes (AlterPartition, KIP-497), at most one per partition."""

    def __init__(self) -> None:
        self._waiting: dict[TopicIdPartition, tuple[Partition, control.IsrChange]] = {}
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Number of proposals without an answer."""
        return len(self._waiting)

    def submit(self, partition: "Partition", change: control.IsrChange) -> None:
        """Send the proposal once there is a controller; it replaces an older one of the
        partition.
        """
        self._waiting[change.topic_id, change.partition] = (partition, change)
        self._arrived.set()

    async def run(self, connection: KafkaConnection, session: ControllerSession) -> None:
        """Send proposed ISR changes to the controller until the session ends (raises).

        A proposal stays queued until it is answered, so the end of a session loses none.
        """
        # Proposals of the previous session are still queued and must be sent first.
        self._arrived.set()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            # One request at a time, with up to :data:`BATCH_MAX` partitions.
            while batch := self._batch():
                request = control.AlterPartitionRequest(
                    broker_id=session.broker_id,
                    broker_epoch=session.broker_epoch,
                    session_token=session.token,
                    changes=tuple(change for _, change in batch),
                )
                answer = await connection.request(
                    request, control.AlterPartitionResponse, _TIMEOUT_S
                )
                check(answer.error_code, "AlterPartition")
                self._answered(batch, answer)

    def _batch(self) -> "list[tuple[Partition, control.IsrChange]]":
        # A proposal for an older state would be rejected, and its retry may already be queued.
        for key in [key for key, entry in self._waiting.items() if not _is_current(*entry)]:
            del self._waiting[key]
        return list(self._waiting.values())[:BATCH_MAX]

    def _answered(
        self,
        batch: "list[tuple[Partition, control.IsrChange]]",
        answer: control.AlterPartitionResponse,
    ) -> None:
        """Remove answered proposals from the queue, and pass each result to its partition."""
        results = {(result.topic_id, result.partition): result for result in answer.results}
        for partition, change in batch:
            key = (change.topic_id, change.partition)
            result = results.get(key)
            # A newer proposal may have replaced the one that was answered.
            if self._waiting.get(key) == (partition, change):
                del self._waiting[key]
            # check.
            if result is None:
                logger.warning("%s: AlterPartition was not answered", partition.tp)
            else:
                isr_and_high_watermark.answered(partition, change, result)


def _is_current(partition: "Partition", change: control.IsrChange) -> bool:
    leader = partition.leader
    return (
        leader is not None
        and leader.epoch == change.leader_epoch
        and leader.row.partition_epoch == change.partition_epoch
        and leader.pending == change.new_isr
    )
