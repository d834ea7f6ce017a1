"""The log of one coordinator in one leader epoch: appends, and when they are committed.

A record is appended as leader with acks=all. What it changes is in force in memory from then on,
and told to nobody before the high watermark has passed it. What was appended is never taken back by
the leader that appended it: either it is committed, or another broker leads, and decides.
"""

import asyncio
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from tidemark.lru import Lru
from tidemark.records.builder import Record, build_batch
from tidemark_broker.coordinators.errors import CoordinatorError, RecordTooLarge, append_failed
from tidemark_broker.log import AppendOrigin, VerificationGuard
from tidemark_broker.replication.partition import Partition, produce
from tidemark_broker.replication.partition.produce import DelayedAppend

#: Whose batches of the partition these are: no client's address.
_PEER = "coordinator"
#: Producers whose transactions were verified and that have written nothing since.
_VERIFIED_MAX = 10_000
#: With so many who wait, those are looked for who wait no more.
_WAITING_MIN = 1000


class CoordinatorRecord(NamedTuple):
    """A key and what it stands for now, None (a tombstone): nothing."""

    key: bytes
    value: bytes | None


class TransactionalProducer(NamedTuple):
    """In whose transaction records are: they count once a marker commits them."""

    producer_id: int
    producer_epoch: int


class CoordinatorLog:
    """Of the partition in the leader epoch in which it was made, as long as this broker leads in
    that one. The loop thread owns it."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        #: Behind what was there before: to be loaded, and committed, before anybody is answered.
        self.loaded_below = partition.next_offset
        #: Behind the last record that was appended here.
        self.end_offset = self.loaded_below
        #: A heap: who reads may wait for less than who wrote before.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._looked_through_at = _WAITING_MIN
        self._ended = False
        #: Of transactions that go on here, by what the transaction coordinator has said.
        self._verified: Lru[TransactionalProducer, VerificationGuard] = Lru(_VERIFIED_MAX)

    @property
    def ended(self) -> bool:
        """Does another broker lead by now, or this one in another epoch?"""
        return self._ended

    def begin_verification(self, producer: TransactionalProducer) -> VerificationGuard | None:
        """Before the transaction coordinator is asked whether this partition is part of the
        producer's transaction (KIP-890); None: it is under way here, and nobody has to be asked."""
        self.check()
        return self.partition.log.begin_verification_of(
            producer.producer_id, producer.producer_epoch, self.partition.context.wall_ms()
        )

    def verified(self, producer: TransactionalProducer, guard: VerificationGuard) -> None:
        """It is: the next :meth:`append` of the producer may begin the transaction here, unless a
        marker came in between."""
        self._verified.put(producer, guard)
        self._verified.evict()

    def append(
        self, records: Sequence[CoordinatorRecord], producer: TransactionalProducer | None = None
    ) -> int:
        """Append them as one batch; the offset behind it, for :meth:`committed`.

        Raises :class:`CoordinatorError`: nothing was appended then.
        """
        self.check()
        now_ms = self.partition.context.wall_ms()
        made = [Record(each.key, each.value, timestamp_ms=now_ms) for each in records]
        if producer is None:
            batch = build_batch(made)
        else:
            batch = build_batch(
                made,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                is_transactional=True,
            )
        limit_bytes = self.partition.log.config.max_message_bytes
        if len(batch) > limit_bytes:
            raise RecordTooLarge(len(batch), limit_bytes)
        begun = produce.begin(
            self.partition,
            batch,
            acks=produce.ACKS_ALL,
            peer=_PEER,
            origin=AppendOrigin.COORDINATOR,
            guard=None if producer is None else self._verified.pop(producer),
        )
        if isinstance(begun, DelayedAppend):  # its timestamps are right: nothing to look into
            begun.give_up()
            raise CoordinatorError(ErrorCode.unknown_server_error, "the batch was not appended")
        if begun.error is not ErrorCode.none:
            raise append_failed(begun.error, begun.message)
        self.end_offset = begun.end_offset
        return begun.end_offset

    def check(self) -> None:
        """Raise :class:`CoordinatorError` where this broker coordinates no more."""
        partition = self.partition
        is_ours = not self._ended and partition.leader_epoch == self.leader_epoch
        if not is_ours or partition.check_leader() is not ErrorCode.none:
            raise CoordinatorError(ErrorCode.not_coordinator)

    def committed(self, end_offset: int) -> "asyncio.Future[None]":
        """Done once all below ``end_offset`` is committed; raises :class:`CoordinatorError`
        (NOT_COORDINATOR) if this broker leads no more before it is. Nobody need wait for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._ended:
            self._fail(future)
        elif end_offset <= self.partition.high_watermark:
            future.set_result(None)
        else:
            self._count += 1
            heapq.heappush(self._waiting, (end_offset, self._count, future))
            if len(self._waiting) >= self._looked_through_at:
                self._forget_those_who_left()
        return future

    def _forget_those_who_left(self) -> None:
        """While nothing is committed, whoever asks gives up after a while and asks again."""
        self._waiting = [each for each in self._waiting if not each[2].done()]
        heapq.heapify(self._waiting)
        self._looked_through_at = max(_WAITING_MIN, 2 * len(self._waiting))

    def high_watermark_moved(self) -> None:
        """Answer those whose records are committed by now."""
        high_watermark = self.partition.high_watermark
        while self._waiting and self._waiting[0][0] <= high_watermark:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    def end(self) -> None:
        """This broker leads no more in that epoch: nobody here knows what becomes of the rest."""
        self._ended = True
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                self._fail(future)

    def _fail(self, future: "asyncio.Future[None]") -> None:
        future.set_exception(CoordinatorError(ErrorCode.not_coordinator))
        future.exception()  # it is no news to whoever has stopped waiting
