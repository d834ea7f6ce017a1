"""One partition of ``__transaction_state``, coordinated by this broker in one leader epoch.

Around :class:`Transactions`: a decision that changes something is appended, and answered once that
is committed. What follows from a committed change (markers to be written, a time-out to be kept)
follows whether or not whoever asked still waits.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.memory_shares import Shares
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core import rules
from tidemark_broker.transactions.core.markers import Marker
from tidemark_broker.transactions.core.metadata import (
    PREPARED,
    Producer,
    TransactionMetadata,
    TransactionState,
)
from tidemark_broker.transactions.core.records import key_of, value_of
from tidemark_broker.transactions.core.rules import Decision
from tidemark_broker.transactions.core.transactions import Transactions

#: How long whoever asks waits for the commit of a change, before it is told to ask again.
_COMMIT_WAIT_S = 30.0
#: How long one that adds partitions waits for a change before its own (KIP-890: the markers of the
#: transaction before are being written), instead of being told to ask again.
_SETTLE_WAIT_S = 0.1
#: Between looks for ids that nobody uses any more (Kafka's
#: ``transaction.remove.expired.transaction.cleanup.interval.ms``).
_EXPIRY_INTERVAL_S = 3600.0
#: Ids that are looked at, and tombstones that are appended, before others have their turn.
_AT_ONCE = 1000
_FORGOTTEN_AT_ONCE = 50
#: Partitions of one transaction: as many as a record is made of in 10 ms.
_PARTITIONS_MAX = 5_000
#: What a record leaves free of the largest one that the topic takes, so that the end of what could
#: be opened can be written too.
_MARGIN_BYTES = 1024
_RETRY = Backoff(first_s=0.05, most_s=5.0)
_EXPIRY = object()

Rule = Callable[[TransactionMetadata | None, int | None], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``transaction.max.timeout.ms``, ``transactional.id.expiration.ms``, and for how many bytes
    of transactional ids and their partitions one broker coordinates."""

    timeout_max_ms: int
    expiration_ms: int
    bytes_max: int


class Around(Protocol):
    """What the shards of a broker share."""

    @property
    def limits(self) -> Limits: ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""

    def now_s(self) -> float:
        """Seconds, as deadlines count them."""

    @property
    def room(self) -> Shares:
        """What the ids and what they hold take of memory, and may."""

    async def fresh_producer_id(self) -> int:
        """One that nobody has had. Raises CoordinatorError."""

    def write_markers(
        self,
        shard: "TransactionShard",
        transactional_id: str,
        marker: Marker,
        partitions: AbstractSet[TopicPartition],
    ) -> None:
        """Until all have it; :meth:`TransactionShard.markers_written` then."""

    def resigned(self, shard: "TransactionShard") -> None:
        """It writes no more markers."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside."""


class TransactionShard:
    """The loop's. Methods that change something raise :class:`CoordinatorError` where this broker
    coordinates no more, or nothing can be appended now."""

    def __init__(self, log: CoordinatorLog, deadlines: Deadlines[Hashable], around: Around) -> None:
        self.log = log
        self.partition = log.partition.partition
        self._deadlines = deadlines
        self._around = around
        self._table = Transactions()
        self._settling: dict[str, asyncio.Future[None]] = {}
        self._retries: dict[str, Backoff] = {}

    @property
    def weight_bytes(self) -> int:
        """What its ids weigh."""
        return self._table.weight_bytes

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._table)

    # ------------------------------------------------------------ the runtime's

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """T: a record of a former leader."""
        self._table.replay(record.key, record.value)

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """T: nothing here is written in a transaction."""

    def loaded(self, now_s: float) -> None:
        """What a former coordinator decided is brought to its end."""
        self._around.room.used_bytes += self._table.weight_bytes
        self._deadlines.schedule(_EXPIRY, now_s + _EXPIRY_INTERVAL_S)
        self._around.spawn(self._take_over())

    async def _take_over(self) -> None:
        """What has gone on meanwhile is followed up once more, which does no harm. But where a
        change is under way its commit will be: markers that were written must not be written
        anew, and reach partitions only when the next transaction has begun there."""
        for number, (transactional_id, metadata) in enumerate(self._table.all()):
            if self.log.ended:
                return
            if not self._table.is_changing(transactional_id):
                self._follow_up(transactional_id, metadata)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def expired(self, key: Hashable, now_s: float) -> None:
        """A transaction is open for too long, or it is time to look for unused ids, or to try an
        append again."""
        if key is _EXPIRY:
            self._deadlines.schedule(_EXPIRY, now_s + _EXPIRY_INTERVAL_S)
            self._around.spawn(self._forget_unused())
        elif isinstance(key, _Completion):
            self._complete(key.transactional_id)
        else:
            self._around.spawn(self._abort_if_timed_out(str(key)))

    def resigned(self) -> None:
        """Another broker goes on from what is committed."""
        self._around.room.used_bytes -= self._table.weight_bytes
        for transactional_id in self._table.ids():
            self._around.room.leave(transactional_id)
        self._around.resigned(self)
        for settling in self._settling.values():
            settling.cancel()
        self._settling.clear()

    # ------------------------------------------------------------ requests

    async def init_producer_id(
        self, transactional_id: str, *, expected: Producer | None, timeout_ms: int
    ) -> Decision:
        """See :func:`rules.init_producer_id`."""
        if not 0 < timeout_ms <= self._around.limits.timeout_max_ms:
            return Decision(error=ErrorCode.invalid_transaction_timeout)
        return await self._change(
            transactional_id,
            lambda known, fresh: rules.init_producer_id(
                known,
                expected=expected,
                timeout_ms=timeout_ms,
                now_ms=self._around.wall_ms(),
                fresh_producer_id=fresh,
            ),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        *,
        producer: Producer,
        partitions: AbstractSet[TopicPartition],
        version: int,
    ) -> ErrorCode:
        """See :func:`rules.add_partitions`; after a change that is under way, and after the markers
        of the transaction before."""
        await self.settled(transactional_id)
        decision = await self._change(
            transactional_id,
            lambda known, _: rules.add_partitions(
                known,
                producer=producer,
                partitions=partitions,
                version=version,
                now_ms=self._around.wall_ms(),
            ),
        )
        return decision.error

    def verify_partitions(
        self, transactional_id: str, *, producer: Producer, partitions: AbstractSet[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """See :func:`rules.verify_partitions`."""
        known = self._table.get(transactional_id)
        return dict(rules.verify_partitions(known, producer=producer, partitions=partitions))

    async def end(
        self, transactional_id: str, *, producer: Producer, commit: bool, version: int
    ) -> Decision:
        """See :func:`rules.end`. It is answered once the decision is committed; the markers are
        written afterwards."""
        return await self._change(
            transactional_id,
            lambda known, fresh: rules.end(
                known,
                producer=producer,
                commit=commit,
                version=version,
                now_ms=self._around.wall_ms(),
                fresh_producer_id=fresh,
            ),
        )

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """What is committed of it."""
        return self._table.get(transactional_id)

    def all(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """All ids."""
        return self._table.all()

    # ------------------------------------------------------------ changes

    async def _change(self, transactional_id: str, rule: Rule) -> Decision:
        self.log.check()
        decision = self._table.decide(transactional_id, lambda known: rule(known, None))
        if decision.needs_producer_id:
            fresh = await self._around.fresh_producer_id()
            self.log.check()
            decision = self._table.decide(transactional_id, lambda known: rule(known, fresh))
        if decision.change is None:
            return decision
        if len(decision.change.partitions) > _PARTITIONS_MAX:
            return Decision(error=ErrorCode.policy_violation)
        value = value_of(decision.change)
        if not self._has_room(transactional_id, decision.change, len(value)):
            return Decision(error=ErrorCode.policy_violation)
        committed = self._append(transactional_id, decision.change, value)
        await asyncio.wait([committed], timeout=_COMMIT_WAIT_S)
        if not committed.done():
            raise CoordinatorError(ErrorCode.coordinator_not_available, "it is not committed yet")
        committed.result()
        return decision

    def _has_room(
        self, transactional_id: str, change: TransactionMetadata, value_bytes: int
    ) -> bool:
        """What ends something always has."""
        known = self._table.get(transactional_id)
        if known is not None and len(change.partitions) <= len(known.partitions):
            return True
        size = len(transactional_id.encode()) + value_bytes + _MARGIN_BYTES
        is_small = size <= self.log.partition.log.config.max_message_bytes
        return is_small and not self._around.room.lacks(0)

    def _append(
        self, transactional_id: str, change: TransactionMetadata | None, value: bytes | None
    ) -> "asyncio.Future[None]":
        """From here on it is never taken back. ``value``: of the change, None of a tombstone."""
        end_offset = self.log.append([CoordinatorRecord(key_of(transactional_id), value)])
        before = self._table.weight_bytes
        self._table.appended(transactional_id, change)
        self._around.room.add(transactional_id, self._table.weight_bytes - before)
        committed = self.log.committed(end_offset)
        committed.add_done_callback(partial(self._committed, transactional_id))
        return committed

    def _committed(self, transactional_id: str, committed: "asyncio.Future[None]") -> None:
        if self.log.ended or committed.cancelled() or committed.exception() is not None:
            return
        before = self._table.weight_bytes
        metadata = self._table.committed(transactional_id)
        self._around.room.add(transactional_id, self._table.weight_bytes - before)
        self._deadlines.cancel(transactional_id)
        if metadata is not None:
            self._follow_up(transactional_id, metadata)
        if metadata is None or metadata.state not in PREPARED:
            settling = self._settling.pop(transactional_id, None)
            if settling is not None and not settling.done():
                settling.set_result(None)

    def _follow_up(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        if metadata.state in PREPARED:
            self._write_markers(transactional_id, metadata)
        elif metadata.state is TransactionState.ONGOING:
            open_ms = self._around.wall_ms() - metadata.started_ms
            left_s = (metadata.timeout_ms - open_ms + 1) / 1000
            self._deadlines.schedule(transactional_id, self._around.now_s() + max(left_s, 0.0))

    def has_prepared(self, transactional_id: str) -> bool:
        """Are markers of a transaction being written?"""
        known = self._table.get(transactional_id)
        return known is not None and known.state in PREPARED

    async def settled(self, transactional_id: str) -> None:
        """Until no change of the id is under way and no markers are being written, or for a
        while."""
        if not self._is_unsettled(transactional_id):
            return
        settling = self._settling.get(transactional_id)
        if settling is None:
            settling = asyncio.get_running_loop().create_future()
            self._settling[transactional_id] = settling
        await asyncio.wait([settling], timeout=_SETTLE_WAIT_S)
        self.log.check()

    def _is_unsettled(self, transactional_id: str) -> bool:
        return self.has_prepared(transactional_id) or self._table.is_changing(transactional_id)

    # ------------------------------------------------------------ markers

    def _write_markers(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        marker = Marker(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.log.leader_epoch,
            commit=metadata.state is TransactionState.PREPARE_COMMIT,
            version=metadata.version,
        )
        self._around.write_markers(self, transactional_id, marker, metadata.partitions)

    def markers_written(self, transactional_id: str, marker: Marker) -> None:
        """Every partition has it."""
        known = self._table.get(transactional_id)
        if known is not None and known.producer_epoch == marker.producer_epoch:
            self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        """Write that it has ended; again later where nothing can be appended now."""
        known = self._table.get(transactional_id)
        if (
            known is None
            or known.state not in PREPARED
            or self._table.is_changing(transactional_id)
        ):
            return
        try:
            completed = known.completed(self._around.wall_ms())
            self._append(transactional_id, completed, value_of(completed))
        except CoordinatorError:
            now_s = self._around.now_s()
            retry = self._retries.get(transactional_id, _RETRY).failed(now_s)
            self._retries[transactional_id] = retry
            self._deadlines.schedule(_Completion(transactional_id), retry.until_s)
        else:
            self._retries.pop(transactional_id, None)

    # ------------------------------------------------------------ time

    async def _abort_if_timed_out(self, transactional_id: str) -> None:
        def rule(known: TransactionMetadata | None, fresh: int | None) -> Decision:
            now_ms = self._around.wall_ms()
            if known is None or not known.has_timed_out(now_ms):
                return Decision()
            return rules.fence(known, now_ms=now_ms, fresh_producer_id=fresh)

        with contextlib.suppress(CoordinatorError):
            await self._change(transactional_id, rule)
        known = self._table.get(transactional_id)
        is_open = known is not None and known.state is TransactionState.ONGOING
        if is_open and not self.log.ended:  # a change came in between, or nothing can be appended
            self._deadlines.schedule(transactional_id, self._around.now_s() + 1.0)

    async def _forget_unused(self) -> None:
        expiration_ms, now_ms = self._around.limits.expiration_ms, self._around.wall_ms()
        forgotten = 0
        try:
            for number, (transactional_id, _) in enumerate(self._table.all()):
                if self._table.has_expired(transactional_id, now_ms, expiration_ms):
                    self._append(transactional_id, None, None)
                    forgotten += 1
                if forgotten == _FORGOTTEN_AT_ONCE or number % _AT_ONCE == 0:
                    forgotten = 0
                    await asyncio.sleep(0)
        except CoordinatorError:
            return  # at the next look


@dataclass(frozen=True, slots=True)
class _Completion:
    """When to try again to write that this id's transaction has ended."""

    transactional_id: str
