"""Producers and their transactions in one log (Kafka's ``ProducerStateManager``).

Pure: batches in, rejections and ended transactions out. The state follows from the batches of the
log alone. So every replica has the same state, and a snapshot with the batches after it restores
it. A transaction that has ended stays *unreplicated* until its marker is committed. The last stable
offset stops at the first transaction that is open or unreplicated.

A producer is forgotten once it has expired (``producer.id.expiration.ms``) and not earlier:
otherwise an acknowledged batch that its client retries would be appended twice. Clients create
producer ids at no cost, so memory is bounded in two other ways. Each log keeps only the
:data:`LIVE_MAX` producers that wrote last as objects and packs the others. And all logs of a broker
together know a limited number of producers. Beyond it a leader refuses the first batch of a new
producer (:class:`TooManyProducers`), which the client retries. Followers append what their leader
has appended, and markers are never refused, so both may exceed the limit.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.producer_snapshot import ENTRY_BYTES, join_entries
from tidemark.logfiles.producer_snapshot import ProducerEntry as SnapshotEntry
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import BatchHeader
from tidemark_broker.log.batch_walk import BatchAt
from tidemark_broker.log.errors import InvalidTransactionState, OutOfOrderSequence, TooManyProducers
from tidemark_broker.log.producer_entry import (
    NO_OFFSET,
    NO_SEQUENCE,
    AppendOrigin,
    BatchMetadata,
    ProducerBatch,
    ProducerStateEntry,
    packed_timestamp_ms,
    packed_without_written,
)

#: Producers of one log that are kept as objects. When it is reached, half of them are packed.
LIVE_MAX = 128
#: Default limit of producers of all logs of a broker: 180 MB at most.
ALL_PRODUCERS_MAX = 500_000
#: Producers that a log may know even if the broker's limit is reached, so that a client with many
#: producers in one partition does not lock new producers out of all others.
PRODUCERS_RESERVED = 100
#: Verifications of one log. Beyond the limit of all logs of a broker, a log keeps its latest ones.
VERIFICATIONS_OF_LOG_MAX = 10_000
VERIFICATIONS_MAX, VERIFICATIONS_KEPT = 50_000, 20


class ProducerLimit:
    """Counters shared by all logs of a broker: known producers, their limit, and verifications in
    progress.
    """

    __slots__ = ("count", "most", "verifications")

    def __init__(self, most: int = ALL_PRODUCERS_MAX) -> None:
        self.count = 0
        self.most = most
        self.verifications = 0


class VerificationGuard:
    """Token issued before the coordinator verifies a partition's transaction (KIP-890).

    The transaction's first batch presents it. A marker in between voids it.
    """

    __slots__ = ("is_void",)

    def __init__(self) -> None:
        self.is_void = False


class _Verification:
    """Pending verification of a producer's transaction.

    ``supports_epoch_bump``: the client uses ``transaction.version`` 2.
    """

    __slots__ = ("began_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool):
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.began_ms = now_ms
        self.supports_epoch_bump = supports_epoch_bump

    def note(self, sequence: int, epoch: int) -> None:
        """Add another batch of the producer that waits for the same answer."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)

    def check(self, batch: ProducerBatch, known: ProducerStateEntry | None) -> None:
        """Raise :class:`OutOfOrderSequence` if an earlier batch is still to arrive."""
        first = batch.base_sequence
        if self.supports_epoch_bump and first != 0 and (known is None or not known.batches):
            raise OutOfOrderSequence(
                f"producer {batch.producer_id} starts with sequence number {first}; "
                "a transaction of version 2 starts with 0"
            )
        if first > self.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {batch.producer_id} sends sequence number {first} while "
                f"{self.lowest_sequence} is still being verified"
            )


class EndedTransaction(NamedTuple):
    """Transaction with a marker; ``last_offset`` is that of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ActiveProducer(NamedTuple):
    """Row of DescribeProducers; -1 for missing values."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_first_offset: int


class ProducerStates:
    """Producers of one log, guarded by the log's lock.

    ``first_unstable_offset`` may be read without it.
    """

    def __init__(self, limit: ProducerLimit | None = None) -> None:
        """Create it without producers; ``limit`` is shared by all logs of a broker."""
        self._limit = limit or ProducerLimit()
        #: Producers that wrote last, in that order. No producer is in both dictionaries.
        self._live: dict[int, ProducerStateEntry] = {}
        #: All others, packed.
        self._packed: dict[int, bytes] = {}
        #: First offset of each open transaction, in ascending order, and its producer.
        self._ongoing: dict[int, int] = {}
        #: Ended transactions whose markers are not committed, in the order of the markers.
        self._unreplicated: deque[EndedTransaction] = deque()
        #: Verifications in progress, by producer id.
        self._verifications: dict[int, _Verification] = {}
        #: Whether ``first_unstable_offset`` is not updated at present.
        self._is_replaying = False
        #: Latest time of a check for expired producers.
        self._newest_ms = 0
        #: None: everything below the high watermark is stable.
        self.first_unstable_offset: int | None = None

    def __len__(self) -> int:
        return len(self._live) + len(self._packed)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._live or producer_id in self._packed

    def _known(self, producer_id: int) -> ProducerStateEntry | None:
        """Return the state of a producer, read-only: a packed one stays packed."""
        entry = self._live.get(producer_id)
        if entry is None and (packed := self._packed.get(producer_id)) is not None:
            return ProducerStateEntry.unpacked(packed)
        return entry

    def _newest(self, most: int | None) -> Iterator[tuple[int, ProducerStateEntry]]:
        """Yield every producer, or the ``most`` that wrote last. Only these are unpacked."""
        skipped = 0 if most is None else max(0, len(self) - most)
        for producer_id, packed in islice(self._packed.items(), skipped, None):
            yield producer_id, ProducerStateEntry.unpacked(packed)
        yield from islice(self._live.items(), max(0, skipped - len(self._packed)), None)

    # -- appends -------------------------------------------------------------------------------

    def entry_in_sequence(self, header: BatchHeader) -> ProducerStateEntry | None:
        """Return the producer whose next batch in sequence this is, if nothing else needs checking.

        The caller calls :meth:`note_in_sequence` after the append. This replaces :meth:`check` and
        :meth:`note` for nearly all batches of idempotent producers, in half of the time.
        """
        entry = self._live.get(header.producer_id)
        return entry if entry is not None and entry.is_followed_by(header) else None

    def note_in_sequence(self, entry: ProducerStateEntry, header: BatchHeader, at: BatchAt) -> None:
        """Record the batch of a producer that :meth:`entry_in_sequence` returned."""
        producers, producer_id = self._live, header.producer_id
        # Reinsert at the end: the dictionary is ordered by the last write.
        producers[producer_id] = producers.pop(producer_id)
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & INT32_MAX
        entry.add_in_epoch(last_sequence, at.last_offset, delta, at.max_timestamp)

    def check(
        self, batch: ProducerBatch, origin: AppendOrigin, guard: VerificationGuard | None
    ) -> BatchMetadata | None:
        """Check a producer's batch before a leader appends it.

        Return None if it may be appended, or the stored batch if this is a retry of it. ``guard``:
        see :meth:`begin_verification`, None for none. Raises :class:`InvalidProducerEpoch`,
        :class:`OutOfOrderSequence`, :class:`InvalidTransactionState` or :class:`TooManyProducers`.
        """
        entry = self._known(batch.producer_id)
        # The common case: the next batch in sequence, outside a transaction.
        if entry is not None and entry.is_followed_by(batch):
            return None
        # Retries are recognised before anything is checked, as in Kafka.
        if entry is not None and origin is AppendOrigin.CLIENT:
            duplicate = entry.duplicate(batch)
            if duplicate is not None:
                return duplicate
        in_transaction = entry is not None and entry.txn_first_offset != NO_OFFSET
        # A transaction's first batch needs the coordinator's confirmation (KIP-890).
        if batch.is_transactional and not self.has_ongoing_transaction(
            batch.producer_id, batch.producer_epoch
        ):
            verification = self._verifications.get(batch.producer_id)
            if verification is None or guard is not verification.guard:
                raise InvalidTransactionState("the record is not part of an ongoing transaction")
        # A newer instance of the producer has fenced this one (KIP-98).
        if entry is not None:
            entry.check_epoch(batch)
        # Coordinators write without sequence numbers.
        if origin is AppendOrigin.CLIENT:
            verification = self._verifications.get(batch.producer_id)
            if verification is not None:
                verification.check(batch, entry)
            if entry is not None:
                entry.check_sequence(batch)
        # Only now, so that a batch that is invalid anyway gets its own error.
        if entry is None:
            self._check_room(batch)
        if in_transaction and not batch.is_transactional:
            raise InvalidTransactionState(
                f"producer {batch.producer_id} has an open transaction, but its batch is not "
                "transactional"
            )
        return None

    def _check_room(self, batch: ProducerBatch) -> None:
        """Raise :class:`TooManyProducers` if another producer would exceed the limit."""
        limit = self._limit
        if limit.count < limit.most or len(self) < PRODUCERS_RESERVED:
            return
        raise TooManyProducers(
            f"producer {batch.producer_id} is new and this broker remembers {limit.count:,} "
            f"producers, the limit is {limit.most:,}. Raise tidemark.producer.ids.max, which a "
            "broker reads when it starts, or use fewer producers: each is remembered in each of "
            "its partitions for producer.id.expiration.ms"
        )

    def check_marker(self, batch: ProducerBatch, transaction_version: int) -> None:
        """Check a marker before a leader appends it; see
        :meth:`ProducerStateEntry.check_marker`."""
        entry = self._known(batch.producer_id)
        if entry is not None and batch.marker is not None:
            entry.check_marker(batch, batch.marker, transaction_version)

    def note(self, batch: ProducerBatch) -> AbortedTxn | None:
        """Record a producer's batch or transaction marker that was appended to the log.

        Return the transaction that it aborts, for the transaction index, or None.
        """
        entry = self._live.pop(batch.producer_id, None)
        if entry is None:
            entry = self._unpacked_or_new(batch.producer_id)
        self._live[batch.producer_id] = entry
        if batch.marker is not None:
            return self._end(entry, batch)
        entry.add(batch)
        if batch.is_transactional:
            # The transaction is open now, so later batches need no verification.
            self._verified(batch.producer_id)
            if entry.txn_first_offset == NO_OFFSET:
                entry.txn_first_offset = batch.base_offset
                self._ongoing[batch.base_offset] = batch.producer_id
                self._update_first_unstable_offset()
        return None

    def _end(self, entry: ProducerStateEntry, batch: ProducerBatch) -> AbortedTxn | None:
        """Record that a marker has ended a transaction; return its entry if it was aborted."""
        assert batch.marker is not None
        self._verified(batch.producer_id)
        first_offset = entry.txn_first_offset
        entry.end_transaction(batch, batch.marker)
        if first_offset == NO_OFFSET:
            return None  # the transaction has no records in this partition
        # Until the marker is committed, the transaction still bounds the last stable offset.
        self._ongoing.pop(first_offset, None)
        ended = EndedTransaction(
            batch.producer_id, first_offset, batch.last_offset, not batch.marker.is_commit
        )
        self._unreplicated.append(ended)
        self._update_first_unstable_offset()
        if not ended.is_aborted:
            return None
        # Readers stop their search for aborted transactions at this offset.
        stable = next(iter(self._ongoing), batch.last_offset + 1)
        return AbortedTxn(batch.producer_id, first_offset, batch.last_offset, stable)

    def _unpacked_or_new(self, producer_id: int) -> ProducerStateEntry:
        """Return the entry of a producer that becomes live."""
        if len(self._live) >= LIVE_MAX:
            # Half of them at once: taking single items from the front of a dictionary is slow.
            for oldest_id in [*self._live][: LIVE_MAX // 2]:
                self._packed[oldest_id] = self._live.pop(oldest_id).packed(oldest_id)
        packed = self._packed.pop(producer_id, None)
        if packed is not None:
            return ProducerStateEntry.unpacked(packed)
        self._limit.count += 1
        return ProducerStateEntry()

    # -- transactions --------------------------------------------------------------------------

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has a transaction open here in that epoch."""
        entry = self._known(producer_id)
        return (
            entry is not None
            and entry.txn_first_offset != NO_OFFSET
            and entry.epoch == producer_epoch
        )

    def begin_verification(
        self, batch: ProducerBatch, now_ms: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Issue a guard before the broker queries the transaction coordinator (KIP-890).

        The append of the batch must present it. None if no verification is needed: the transaction
        is open here already, or the batch is a retry.
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if self.has_ongoing_transaction(producer_id, epoch):
            return None
        # A coordinator's batch has no sequence numbers, so it cannot be recognised as a retry.
        entry = self._known(producer_id)
        is_clients = batch.base_sequence != NO_SEQUENCE
        if is_clients and entry is not None and entry.duplicate(batch) is not None:
            return None
        known = self._verifications.get(producer_id)
        if known is None:
            # The oldest verification is dropped: its client retries and starts another one.
            if self._verifies_too_many():
                self._verified(next(iter(self._verifications)))
            self._limit.verifications += 1
            known = self._verifications[producer_id] = _Verification(
                batch.base_sequence, epoch, now_ms, supports_epoch_bump=supports_epoch_bump
            )
        # Several batches of the transaction may wait for the same confirmation.
        else:
            known.note(batch.base_sequence, epoch)
        return known.guard

    def _verifies_too_many(self) -> bool:
        """Return whether the limits are reached.

        Requesting a verification costs a client nothing, whatever the coordinator answers.
        """
        count, of_all = len(self._verifications), self._limit.verifications
        return count >= VERIFICATIONS_OF_LOG_MAX or (
            of_all >= VERIFICATIONS_MAX and count >= VERIFICATIONS_KEPT
        )

    def _verified(self, producer_id: int) -> None:
        """End the producer's verification, if there is one, and void its guard."""
        verification = self._verifications.pop(producer_id, None)
        if verification is not None:
            verification.guard.is_void = True
            self._limit.verifications -= 1

    def on_high_watermark(self, high_watermark: int) -> None:
        """Drop ended transactions whose markers are below ``high_watermark``, and so committed."""
        unreplicated = self._unreplicated
        if not unreplicated or unreplicated[0].last_offset >= high_watermark:
            return
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()
        self._update_first_unstable_offset()

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Suspend updates of the first unstable offset while all batches are replayed.

        What was unstable before stays unstable, and readers without the lock must not see partial
        state. After an exception the suspension stays in effect.
        """
        self._is_replaying = True
        yield
        self._is_replaying = False
        self._update_first_unstable_offset()

    def _update_first_unstable_offset(self) -> None:
        if self._is_replaying:
            return
        # The first unstable offset is the lowest of open and of unreplicated transactions.
        first = next(iter(self._ongoing), None)
        for ended in self._unreplicated:
            if first is None or ended.first_offset < first:
                first = ended.first_offset
        self.first_unstable_offset = first

    # -- what is known ------------------------------------------------------------------------

    def active(self, most: int | None = None) -> Iterator[ActiveProducer]:
        """Yield every known producer, or the ``most`` that wrote last."""
        for producer_id, entry in self._newest(most):
            yield ActiveProducer(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp_ms,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )

    def expire(self, now_ms: int, idle_ms: int) -> None:
        """Forget producers and verifications that have been idle for ``idle_ms``.

        A producer expires by its records' timestamps (``producer.id.expiration.ms``), but not if it
        has written since the last call: Kafka would forget a producer that copies old records. A
        future timestamp counts as the present time, so that no client is remembered forever. If the
        clock goes back, a timestamp that was in the past before is not in the future.
        """
        newest_ms = self._newest_ms = max(self._newest_ms, now_ms)
        for producer_id, entry in [*self._live.items()]:
            if entry.is_expired(now_ms, idle_ms, newest_ms):
                del self._live[producer_id]
                self._limit.count -= 1
        for producer_id, packed in [*self._packed.items()]:
            # Most timestamps are neither old nor in the future, which is visible without unpacking.
            # A producer that wrote before it was packed stays for one check longer than a live one.
            timestamp_ms = packed_timestamp_ms(packed)
            if now_ms - idle_ms < timestamp_ms <= newest_ms:
                continue
            # Many producers may become old at once, and the log is locked meanwhile.
            if timestamp_ms <= newest_ms and (idle := packed_without_written(packed)):
                self._packed[producer_id] = idle
                continue
            entry = ProducerStateEntry.unpacked(packed)
            if entry.is_expired(now_ms, idle_ms, newest_ms):
                del self._packed[producer_id]
                self._limit.count -= 1
            else:
                self._packed[producer_id] = entry.packed(producer_id)
        late = [
            producer_id
            for producer_id, verification in self._verifications.items()
            if now_ms - verification.began_ms >= idle_ms
        ]
        for producer_id in late:
            self._verified(producer_id)

    @property
    def is_complete(self) -> bool:
        """Whether a snapshot is complete: it omits ended transactions whose markers are not
        committed.
        """
        return not self._unreplicated

    def snapshot(self) -> bytes:
        """Return the content of a ``.snapshot`` file."""
        live = [entry.packed(producer_id) for producer_id, entry in self._live.items()]
        return join_entries([packed[:ENTRY_BYTES] for packed in (*self._packed.values(), *live)])

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Replace the whole state by that of a snapshot."""
        self.clear()
        ongoing = {}
        for entry in entries:
            self._packed[entry.producer_id] = ProducerStateEntry.of(entry).packed(entry.producer_id)
            if entry.current_txn_first_offset >= 0:
                ongoing[entry.current_txn_first_offset] = entry.producer_id
        self._limit.count += len(self)
        self._ongoing = dict(sorted(ongoing.items()))
        self._update_first_unstable_offset()

    def add_recent_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """Add the last batches before a snapshot to its producers, so that retries are recognised.

        The snapshot itself has only the last batch of each producer.
        """
        found: dict[int, ProducerStateEntry] = {}
        for batch in batches:
            if batch.marker is None and batch.producer_id in self._packed:
                found.setdefault(batch.producer_id, ProducerStateEntry()).add(batch)
        for producer_id, recalled in found.items():
            entry = ProducerStateEntry.unpacked(self._packed[producer_id])
            # Use them only if they end with the snapshot's own batch, else they are of another
            # history.
            if recalled.epoch == entry.epoch and recalled.batches[-1:] == entry.batches:
                entry.batches = recalled.batches
                self._packed[producer_id] = entry.packed(producer_id)

    def forget(self) -> None:
        """Drop all producers because the log is closed. The first unstable offset stays."""
        self._limit.count -= len(self)
        self._live.clear()
        self._packed.clear()
        for producer_id in [*self._verifications]:
            self._verified(producer_id)

    def clear(self) -> None:
        """Drop all producers and transactions."""
        self.forget()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._update_first_unstable_offset()
