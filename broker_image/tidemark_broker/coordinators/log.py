"""Log of one coordinator in one leader epoch: appends and commits.

A record is appended as leader with acks=all. Its change is applied in memory at once, and reported
to clients only after the high watermark has passed it. A leader never takes back an appended
record: either it is committed, or another broker leads and decides.
"""

import asyncio
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.lru import Lru
from tidemark.records.builder import Record, build_batch
from tidemark_broker.coordinators.errors import (
    CoordinatorError,
    CoordinatorRecordTooLarge,
    append_failed,
)
from tidemark_broker.log import AppendOrigin, VerificationGuard, appending
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.partition.produce import DelayedAppend

#: Client name of the coordinator's batches, in place of an address.
_PEER = "coordinator"
#: Limit of verified producers that have not written since.
_VERIFIED_MAX = 10_000
#: Number of waiting futures at which cancelled ones are removed.
_WAITING_MIN = 1000


class CoordinatorRecord(NamedTuple):
    """A key with its new value, or None for a tombstone."""

    key: bytes
    value: bytes | None


class TransactionalProducer(NamedTuple):
    """Producer of transactional records, which count once a marker commits them."""

    producer_id: int
    producer_epoch: int


class CoordinatorLog:
    """Writer for one partition of an internal topic in one leader epoch of this broker.

    Used from the loop only.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        #: End offset of earlier epochs: loaded and committed before the first answer.
        self.loaded_below = partition.next_offset
        #: End offset of the last record that was appended here.
        self.end_offset = self.loaded_below
        #: A heap, because readers may wait for a lower offset than earlier writers.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._looked_through_at = _WAITING_MIN
        self._ended = False
        #: Guards of verified transactions, until their next append.
        self._verified: Lru[TransactionalProducer, VerificationGuard] = Lru(_VERIFIED_MAX)

    @property
    def ended(self) -> bool:
        """True if another broker leads, or this one in a later epoch."""
        return self._ended

    def begin_verification(self, producer: TransactionalProducer) -> VerificationGuard | None:
        """Start the verification of a producer's transaction (KIP-890).

        Return the guard, or None if the transaction is open here and needs no query.
        """
        self.check()
        return appending.begin_verification_of(
            self.partition.log,
            producer.producer_id,
            producer.producer_epoch,
            self.partition.context.wall_ms(),
        )

    def verified(self, producer: TransactionalProducer, guard: VerificationGuard) -> None:
        """Store a verified guard.

        The producer's next :meth:`append` may open the transaction, unless a marker has voided the
        guard.
        """
        self._verified.put(producer, guard)
        self._verified.evict()

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        """Append records as one batch. Return the end offset, for :meth:`committed`.

        ``producer`` is set for records of a transaction. Does not wait for replication. Raises
        :class:`CoordinatorError` if nothing was appended.
        """
        self.check()
        now_ms = self.partition.context.wall_ms()
        made = [Record(record.key, record.value, timestamp_ms=now_ms) for record in records]
        # Offsets in a transaction are written under its producer id, so that its marker commits or
        # aborts them.
        if producer is None:
            batch = build_batch(made)
        else:
            batch = build_batch(
                made,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                is_transactional=True,
            )
        # Checked here, because the error of the append would not contain the sizes.
        limit_bytes = self.partition.log.config.max_message_bytes
        if len(batch) > limit_bytes:
            raise CoordinatorRecordTooLarge(len(batch), limit_bytes)
        begun = produce.begin(
            self.partition,
            batch,
            acks=produce.ACKS_ALL,
            peer=_PEER,
            origin=AppendOrigin.COORDINATOR,
            guard=None if producer is None else self._verified.pop(producer),
        )
        if isinstance(begun, DelayedAppend):  # never inspected: the coordinator sets timestamps
            begun.give_up()
            raise CoordinatorError(ErrorCode.unknown_server_error, "the batch was not appended")
        if begun.error is not ErrorCode.none:
            raise append_failed(begun.error, begun.message)
        self.end_offset = begun.end_offset
        return begun.end_offset

    def check(self) -> None:
        """Raise :class:`CoordinatorError` if this broker is no longer the coordinator."""
        partition = self.partition
        # The replica may have been elected again in a later epoch, whose log differs.
        is_same_term = not self._ended and partition.leader_epoch == self.leader_epoch
        if not is_same_term or partition.check_leader() is not ErrorCode.none:
            raise CoordinatorError(ErrorCode.not_coordinator)

    def committed(self, end_offset: int) -> "asyncio.Future[None]":
        """Return a future that is done once the log is committed up to ``end_offset``.

        Committed means replicated to the ISR (the high watermark has passed the offset). The future
        raises :class:`CoordinatorError` (NOT_COORDINATOR) if this broker loses the leadership
        first.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            self._fail(future)
        elif end_offset <= self.partition.high_watermark:
            future.set_result(None)
        else:
            self._count += 1
            # The counter makes entries of the same offset comparable, since futures are not.
            heapq.heappush(self._waiting, (end_offset, self._count, future))
            if len(self._waiting) >= self._looked_through_at:
                self._drop_finished()
        return future

    def _drop_finished(self) -> None:
        """Remove futures of requests that timed out, which accumulate while nothing is
        committed.
        """
        self._waiting = [waiter for waiter in self._waiting if not waiter[2].done()]
        heapq.heapify(self._waiting)
        self._looked_through_at = max(_WAITING_MIN, 2 * len(self._waiting))

    def high_watermark_moved(self) -> None:
        """Resolve the futures of committed records."""
        high_watermark = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] <= high_watermark:
            _, _, future = heapq.heappop(self._waiting)
            # The waiting request may have timed out.
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """End this epoch. The outcome of uncommitted records is unknown here."""
        self._ended = True
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                self._fail(future)

    def _fail(self, future: "asyncio.Future[None]") -> None:
        future.set_exception(CoordinatorError(ErrorCode.not_coordinator))
        future.exception()  # marks it as retrieved, since its waiter may have gone
