"""One partition of ``__transaction_state``, coordinated by this broker in one leader epoch.

It drives :class:`Transactions`: a decision with a change is appended, and answered once that is
committed. The consequences of a committed change (markers, timeouts) follow whether or not the
client still waits.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark_broker.admission.fair_share import MemoryShares
from tidemark_broker.config_entries import key_field
from tidemark_broker.coordinators.deadlines import Deadlines
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.coordinators.log import (
    CoordinatorLog,
    CoordinatorRecord,
    TransactionalProducer,
)
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.replication.partition import ReplicaContext
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.tasks import start_in
from tidemark_broker.transactions.core import decisions
from tidemark_broker.transactions.core.decisions import Decision
from tidemark_broker.transactions.core.markers import Marker
from tidemark_broker.transactions.core.metadata import (
    PREPARED,
    Producer,
    TransactionMetadata,
    TransactionState,
)
from tidemark_broker.transactions.core.records import key_of, value_of
from tidemark_broker.transactions.core.transactional_ids import Transactions
from tidemark_broker.transactions.marker_sender import MarkerSender

#: Longest wait for the commit of a change, after which the client must retry.
_COMMIT_WAIT_S = 30.0
#: Longest wait of added partitions for a change in progress (KIP-890: markers of the previous
#: transaction), before the client must retry.
_SETTLE_WAIT_S = 0.1
#: Interval of looking for expired ids (Kafka's
#: ``transaction.remove.expired.transaction.cleanup.interval.ms``).
_EXPIRY_INTERVAL_S = 3600.0
#: Ids that are examined, and tombstones that are appended, before the loop is yielded.
_AT_ONCE = 1000
_FORGOTTEN_AT_ONCE = 50
#: Limit of partitions of one transaction: their record takes 10 ms to build.
_PARTITIONS_MAX = 5_000
#: Space that an opening record leaves free in the topic's largest record, so that the end of the
#: transaction can be written too.
_MARGIN_BYTES = 1024
_RETRY = Backoff(first_s=0.05, most_s=5.0)
_EXPIRY = object()
#: Longest wait for a block of producer ids. Clients retry.
_FRESH_ID_WAIT_S = 5.0

Rule = Callable[[TransactionMetadata | None, int | None], Decision]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """``transaction.max.timeout.ms``, ``transactional.id.expiration.ms``, and the memory limit
    in bytes of a broker's transactional ids with their partitions.
    """

    timeout_max_ms: int = key_field("transaction.max.timeout.ms")
    expiration_ms: int = key_field("transactional.id.expiration.ms")
    bytes_max: int = key_field("tidemark.transactions.bytes.max")


@dataclass(frozen=True, slots=True)
class ShardContext:
    """State that all shards of a broker share."""

    limits: TransactionLimits
    replicas: ReplicaContext
    producer_ids: ProducerIds
    #: Sends markers to the leaders of a transaction's partitions until each is written.
    markers: MarkerSender
    #: Memory of the ids and their state, with its limit.
    room: MemoryShares
    #: Work in the background.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class TransactionShard:
    """Coordinator of one partition. Used from the loop only. ``table``: its ids, for readers.

    Changing methods raise :class:`CoordinatorError` if this broker is no longer the coordinator, or
    cannot append at the moment.
    """

    def __init__(
        self, log: CoordinatorLog, deadlines: Deadlines[Hashable], context: ShardContext
    ) -> None:
        self.log = log
        self.partition = log.partition.partition
        self._deadlines = deadlines
        self._context = context
        self.table = Transactions()
        self._settling: dict[str, asyncio.Future[None]] = {}
        self._retries: dict[str, Backoff] = {}

    # ------------------------------------------------------------ interface of Coordinators

    def replay(
        self, record: CoordinatorRecord, producer: TransactionalProducer | None, offset: int
    ) -> None:
        """Apply a record of the log (in a thread)."""
        self.table.replay(record.key, record.value)

    def replay_marker(self, producer: TransactionalProducer, *, committed: bool) -> None:
        """Ignore a marker (in a thread): nothing here is written in a transaction."""

    def loaded(self, now_s: float) -> None:
        """Become active, and complete the decisions of the previous coordinator."""
        self._context.room.used_bytes += self.table.weight_bytes
        self._deadlines.schedule(_EXPIRY, now_s + _EXPIRY_INTERVAL_S)
        # In the background, since a partition may have a hundred thousand ids.
        start_in(self._context.tasks, self._take_over())

    async def _take_over(self) -> None:
        """Follow up on all committed states, which is harmless if repeated.

        An id with a change in progress is skipped; its commit follows up. Its markers must not be
        written again, since they could arrive after the next transaction has started in a
        partition.
        """
        for number, (transactional_id, metadata) in enumerate(self.table.all()):
            if self.log.ended:
                return
            if not self.table.is_changing(transactional_id):
                self._follow_up(transactional_id, metadata)
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    def expired(self, key: Hashable, now_s: float) -> None:
        """Handle a deadline: a transaction timeout, the look for unused ids, or a repeated
        append.
        """
        if key is _EXPIRY:
            self._deadlines.schedule(_EXPIRY, now_s + _EXPIRY_INTERVAL_S)
            start_in(self._context.tasks, self._forget_unused())
        elif isinstance(key, _Completion):
            self._complete(key.transactional_id)
        else:
            start_in(self._context.tasks, self._abort_if_timed_out(str(key)))

    def resigned(self) -> None:
        """Give up the partition. The next coordinator continues from the committed state."""
        self._context.room.used_bytes -= self.table.weight_bytes
        for transactional_id in self.table.ids():
            self._context.room.forget_owner(transactional_id)
        self._context.markers.queue.drop(self.partition)
        # The waiting requests then fail with NOT_COORDINATOR.
        for settling in self._settling.values():
            settling.cancel()
        self._settling.clear()

    # ------------------------------------------------------------ requests

    async def init_producer_id(
        self, transactional_id: str, *, expected: Producer | None, timeout_ms: int
    ) -> Decision:
        """Decide InitProducerId and commit the change. See :func:`rules.init_producer_id`."""
        if not 0 < timeout_ms <= self._context.limits.timeout_max_ms:
            return Decision(error=ErrorCode.invalid_transaction_timeout)
        return await self._change(
            transactional_id,
            lambda known, fresh: decisions.init_producer_id(
                known,
                expected=expected,
                timeout_ms=timeout_ms,
                now_ms=self._context.replicas.wall_ms(),
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
        """Add partitions to the producer's transaction. See :func:`rules.add_partitions`.

        Waits shortly for a change in progress and for markers of the previous transaction.
        """
        # Shortens the time to the next transaction: the client would otherwise retry with a pause.
        await self.settled(transactional_id)
        decision = await self._change(
            transactional_id,
            lambda known, _: decisions.add_partitions(
                known,
                producer=producer,
                partitions=partitions,
                version=version,
                now_ms=self._context.replicas.wall_ms(),
            ),
        )
        return decision.error

    def verify_partitions(
        self, transactional_id: str, *, producer: Producer, partitions: AbstractSet[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Verify partitions. See :func:`rules.verify_partitions`."""
        known = self.table.get(transactional_id)
        return dict(decisions.verify_partitions(known, producer=producer, partitions=partitions))

    async def end(
        self, transactional_id: str, *, producer: Producer, commit: bool, version: int
    ) -> Decision:
        """End a transaction by commit or abort. See :func:`rules.end`.

        Returns once the decision is committed in ``__transaction_state``. Markers are written to
        the transaction's partitions afterwards.
        """
        return await self._change(
            transactional_id,
            lambda known, fresh: decisions.end(
                known,
                producer=producer,
                commit=commit,
                version=version,
                now_ms=self._context.replicas.wall_ms(),
                fresh_producer_id=fresh,
            ),
        )

    # ------------------------------------------------------------ changes

    async def _change(self, transactional_id: str, rule: Rule) -> Decision:
        """Apply a rule to a transactional id, and return its decision once the change is committed.

        ``rule`` receives the id's state and an unused producer id, or None. Raises CoordinatorError
        if this broker is not the coordinator, or if the commit takes too long. In the latter case
        the change may still be committed later.
        """
        # Decide without a new producer id first, since nearly no change needs one.
        self.log.check()
        decision = self.table.decide(transactional_id, lambda known: rule(known, None))
        if decision.needs_producer_id:
            fresh = await self._context.producer_ids.next_id(_FRESH_ID_WAIT_S)
            # Kafka's code while ids are not available; clients retry.
            if fresh is None:
                raise CoordinatorError(ErrorCode.coordinator_load_in_progress)
            # The leadership or the id's state may have changed during the wait for the id.
            self.log.check()
            decision = self.table.decide(transactional_id, lambda known: rule(known, fresh))
        if decision.change is None:
            return decision
        # Limits are checked before the append, because an appended change cannot be taken back.
        if len(decision.change.partitions) > _PARTITIONS_MAX:
            return Decision(error=ErrorCode.policy_violation)
        value = value_of(decision.change)
        if not self._has_room(transactional_id, decision.change, len(value)):
            return Decision(error=ErrorCode.policy_violation)
        # If the wait ends first, the append is not undone: its consequences follow with the commit.
        committed = self._append(transactional_id, decision.change, value)
        await asyncio.wait([committed], timeout=_COMMIT_WAIT_S)
        if not committed.done():
            raise CoordinatorError(
                ErrorCode.coordinator_not_available, "the change is not committed yet"
            )
        # Raises the error of an append that was not committed.
        committed.result()
        return decision

    def _has_room(
        self, transactional_id: str, change: TransactionMetadata, value_bytes: int
    ) -> bool:
        """Return whether the change fits. A change that ends something always fits."""
        known = self.table.get(transactional_id)
        if known is not None and len(change.partitions) <= len(known.partitions):
            return True
        size = len(transactional_id.encode()) + value_bytes + _MARGIN_BYTES
        is_small = size <= self.log.partition.log.config.max_message_bytes
        return is_small and not self._context.room.is_full_for(0)

    def _append(
        self, transactional_id: str, change: TransactionMetadata | None, value: bytes | None
    ) -> "asyncio.Future[None]":
        """Append a change. From here on it is never taken back.

        ``value`` is the encoded change, None for a tombstone.
        """
        end_offset = self.log.append([CoordinatorRecord(key_of(transactional_id), value)])
        before = self.table.weight_bytes
        self.table.appended(transactional_id, change)
        self._context.room.add(transactional_id, self.table.weight_bytes - before)
        committed = self.log.committed(end_offset)
        committed.add_done_callback(partial(self._committed, transactional_id))
        return committed

    def _committed(self, transactional_id: str, committed: "asyncio.Future[None]") -> None:
        """Apply a change after its commit: update the table, timers, and waiting requests.

        ``committed``: result of the append. Without a commit nothing is applied here.
        """
        # Without a commit here the next coordinator decides the outcome.
        if self.log.ended or committed.cancelled() or committed.exception() is not None:
            return
        # Memory is accounted by the difference, since the new state replaces the old one.
        before = self.table.weight_bytes
        metadata = self.table.committed(transactional_id)
        self._context.room.add(transactional_id, self.table.weight_bytes - before)
        self._deadlines.cancel(transactional_id)
        # Markers of a prepared transaction, or the timeout of an open one.
        if metadata is not None:
            self._follow_up(transactional_id, metadata)
        # A prepared transaction still waits for its markers, so its waiters stay.
        if metadata is None or metadata.state not in PREPARED:
            settling = self._settling.pop(transactional_id, None)
            if settling is not None and not settling.done():
                settling.set_result(None)

    def _follow_up(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        if metadata.state in PREPARED:
            self._write_markers(transactional_id, metadata)
        elif metadata.state is TransactionState.ONGOING:
            # The deadline uses the monotonic clock, while the start is recorded in wall time.
            open_ms = self._context.replicas.wall_ms() - metadata.started_ms
            left_s = (metadata.timeout_ms - open_ms + 1) / 1000
            self._deadlines.schedule(
                transactional_id, self._context.replicas.monotonic() + max(left_s, 0.0)
            )

    def has_prepared(self, transactional_id: str) -> bool:
        """Return whether markers of a transaction are being written."""
        known = self.table.get(transactional_id)
        return known is not None and known.state in PREPARED

    async def settled(self, transactional_id: str) -> None:
        """Wait a short time until no change is in progress and no markers are missing."""
        if not self._is_unsettled(transactional_id):
            return
        settling = self._settling.get(transactional_id)
        if settling is None:
            settling = asyncio.get_running_loop().create_future()
            self._settling[transactional_id] = settling
        await asyncio.wait([settling], timeout=_SETTLE_WAIT_S)
        self.log.check()

    def _is_unsettled(self, transactional_id: str) -> bool:
        return self.has_prepared(transactional_id) or self.table.is_changing(transactional_id)

    # ------------------------------------------------------------ markers

    def _write_markers(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        marker = Marker(
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            coordinator_epoch=self.log.leader_epoch,
            commit=metadata.state is TransactionState.PREPARE_COMMIT,
            version=metadata.version,
        )
        self._context.markers.add((self.partition, transactional_id), marker, metadata.partitions)

    def markers_written(self, transactional_id: str, marker: Marker) -> None:
        """Complete the transaction, because all partitions have its marker."""
        known = self.table.get(transactional_id)
        # Markers of an earlier epoch must not complete the current transaction.
        if known is not None and known.producer_epoch == marker.producer_epoch:
            self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        """Record CompleteCommit or CompleteAbort, once all markers of a transaction are written.

        If the append fails it is repeated after a pause.
        """
        known = self.table.get(transactional_id)
        # Nothing to complete, or another change is in progress, which follows up after its commit.
        if known is None or known.state not in PREPARED or self.table.is_changing(transactional_id):
            return
        try:
            completed = known.completed(self._context.replicas.wall_ms())
            self._append(transactional_id, completed, value_of(completed))
        except CoordinatorError:
            now_s = self._context.replicas.monotonic()
            retry = self._retries.get(transactional_id, _RETRY).failed(now_s)
            self._retries[transactional_id] = retry
            self._deadlines.schedule(_Completion(transactional_id), retry.until_s)
        else:
            self._retries.pop(transactional_id, None)

    # ------------------------------------------------------------ time

    async def _abort_if_timed_out(self, transactional_id: str) -> None:
        """Abort a transaction whose timeout is over; retry a second later if that fails.

        The abort raises the producer's epoch, so the producer is fenced.
        """

        def rule(known: TransactionMetadata | None, fresh: int | None) -> Decision:
            now_ms = self._context.replicas.wall_ms()
            if known is None or not known.has_timed_out(now_ms):
                return Decision()
            return decisions.fence(known, now_ms=now_ms, fresh_producer_id=fresh)

        with contextlib.suppress(CoordinatorError):
            await self._change(transactional_id, rule)
        known = self.table.get(transactional_id)
        is_open = known is not None and known.state is TransactionState.ONGOING
        if is_open and not self.log.ended:  # another change came first, or the append failed
            self._deadlines.schedule(transactional_id, self._context.replicas.monotonic() + 1.0)

    async def _forget_unused(self) -> None:
        expiration_ms, now_ms = self._context.limits.expiration_ms, self._context.replicas.wall_ms()
        forgotten = 0
        try:
            for number, (transactional_id, _) in enumerate(self.table.all()):
                if self.table.has_expired(transactional_id, now_ms, expiration_ms):
                    self._append(transactional_id, None, None)
                    forgotten += 1
                if forgotten == _FORGOTTEN_AT_ONCE or number % _AT_ONCE == 0:
                    forgotten = 0
                    await asyncio.sleep(0)
        except CoordinatorError:
            return  # retried at the next interval


@dataclass(frozen=True, slots=True)
class _Completion:
    """Deadline for recording again that the id's transaction has ended."""

    transactional_id: str
