"""What a log remembers of its producers and their transactions (Kafka's ``ProducerStateManager``).

Pure: batches in, refusals and ended transactions out. It follows from the batches of the log alone,
so every replica has the same, and a snapshot with the batches behind it gives it back. A
transaction that has ended stays *unreplicated* until its marker is committed; the last stable
offset stops at the first one that is open or unreplicated.

A producer is forgotten once it has expired (``producer.id.expiration.ms``) and not earlier:
otherwise an acknowledged batch that its client sends again would be appended twice. Clients create
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
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark.records.batch import BatchHeader
from tidemark_broker.log.batch_walk import BatchAt
from tidemark_broker.log.errors import InvalidTransactionState, OutOfOrderSequence, TooManyProducers
from tidemark_broker.log.producer_entry import (
    NO_OFFSET,
    NO_SEQUENCE,
    AppendOrigin,
    BatchMetadata,
    ProducerBatch,
    ProducerEntry,
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
    """What the logs of a broker share: how many producers they know, and may know; and how many
    verifications go on."""

    __slots__ = ("count", "most", "verifications")

    def __init__(self, most: int = ALL_PRODUCERS_MAX) -> None:
        self.count = 0
        self.most = most
        self.verifications = 0


class VerificationGuard:
    """Given out before the coordinator is asked whether a partition is part of a transaction, and
    shown with the first batch of it: a marker that came in between has made it void (KIP-890)."""

    __slots__ = ("is_void",)

    def __init__(self) -> None:
        self.is_void = False


class _Verification:
    """Of a producer whose transaction is still to be verified. ``supports_epoch_bump``: it speaks
    ``transaction.version`` 2."""

    __slots__ = ("began_ms", "epoch", "guard", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool):
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.began_ms = now_ms
        self.supports_epoch_bump = supports_epoch_bump

    def note(self, sequence: int, epoch: int) -> None:
        """Another batch of the producer waits for the same answer."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)

    def check(self, batch: ProducerBatch, known: ProducerEntry | None) -> None:
        """Raise :class:`OutOfOrderSequence` where an earlier batch is still to come."""
        first = batch.base_sequence
        if self.supports_epoch_bump and first != 0 and (known is None or not known.batches):
            raise OutOfOrderSequence(
                f"the producer {batch.producer_id} begins with sequence number {first}, "
                "a transaction of version 2 begins with 0"
            )
        if first > self.lowest_sequence:
            raise OutOfOrderSequence(
                f"the producer {batch.producer_id} sends sequence number {first}, and "
                f"{self.lowest_sequence} is still to be verified"
            )


class EndedTransaction(NamedTuple):
    """``last_offset`` is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ActiveProducer(NamedTuple):
    """What DescribeProducers tells; -1 where there is nothing to tell."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_first_offset: int


class ProducerStates:
    """Of one log; the log's lock guards it. ``first_unstable_offset`` may be read without."""

    def __init__(self, limit: ProducerLimit | None = None) -> None:
        self._limit = limit or ProducerLimit()
        #: Producers that wrote last, in that order. No producer is in both dictionaries.
        self._live: dict[int, ProducerEntry] = {}
        #: All others, packed.
        self._packed: dict[int, bytes] = {}
        #: First offset of each open transaction, in rising order, and its producer.
        self._ongoing: dict[int, int] = {}
        #: In the order of their markers.
        self._unreplicated: deque[EndedTransaction] = deque()
        self._verifications: dict[int, _Verification] = {}
        self._is_told_anew = False
        #: The latest time of a check for expired producers.
        self._newest_ms = 0
        #: None: everything below the high watermark is stable.
        self.first_unstable_offset: int | None = None

    def __len__(self) -> int:
        return len(self._live) + len(self._packed)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._live or producer_id in self._packed

    def _known(self, producer_id: int) -> ProducerEntry | None:
        """Return the state of a producer, read-only: a packed one stays packed."""
        entry = self._live.get(producer_id)
        if entry is None and (packed := self._packed.get(producer_id)) is not None:
            return ProducerEntry.unpacked(packed)
        return entry

    def _newest(self, most: int | None) -> Iterator[tuple[int, ProducerEntry]]:
        """Yield every producer, or the ``most`` that wrote last. Only these are unpacked."""
        skipped = 0 if most is None else max(0, len(self) - most)
        for producer_id, packed in islice(self._packed.items(), skipped, None):
            yield producer_id, ProducerEntry.unpacked(packed)
        yield from islice(self._live.items(), max(0, skipped - len(self._packed)), None)

    # -- appends -------------------------------------------------------------------------------

    def going_on(self, header: BatchHeader) -> ProducerEntry | None:
        """The producer whose next batch that is, where nothing more is to be checked: tell
        :meth:`went_on` once it was appended. Says what :meth:`check` and :meth:`note` say, in half
        of the time, of nearly all batches of idempotent producers."""
        entry = self._live.get(header.producer_id)
        return entry if entry is not None and entry.goes_on_with(header) else None

    def went_on(self, entry: ProducerEntry, header: BatchHeader, at: BatchAt) -> None:
        """The batch of a producer that is :meth:`going_on` stands there."""
        producers, producer_id = self._live, header.producer_id
        producers[producer_id] = producers.pop(producer_id)
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & INT32_MAX
        entry.go_on(last_sequence, at.last_offset, delta, at.max_timestamp)

    def check(
        self, batch: ProducerBatch, origin: AppendOrigin, guard: VerificationGuard | None
    ) -> BatchMetadata | None:
        """May a leader append it? Its former self, where it was appended before; raises
        :class:`InvalidProducerEpoch`, :class:`OutOfOrderSequence`,
        :class:`InvalidTransactionState` or :class:`TooManyProducers`."""
        entry = self._known(batch.producer_id)
        if entry is not None and entry.goes_on_with(batch):
            return None
        if entry is not None and origin is AppendOrigin.CLIENT:
            duplicate = entry.duplicate(batch)
            if duplicate is not None:
                return duplicate
        in_transaction = entry is not None and entry.txn_first_offset != NO_OFFSET
        if batch.is_transactional and not self.has_ongoing_transaction(
            batch.producer_id, batch.producer_epoch
        ):
            verification = self._verifications.get(batch.producer_id)
            if verification is None or guard is not verification.guard:
                raise InvalidTransactionState("the record is not part of an ongoing transaction")
        if entry is not None:
            entry.check_epoch(batch)
        if origin is AppendOrigin.CLIENT:
            verification = self._verifications.get(batch.producer_id)
            if verification is not None:
                verification.check(batch, entry)
            if entry is not None:
                entry.check_sequence(batch)
        if entry is None:
            self._check_room(batch)
        if in_transaction and not batch.is_transactional:
            raise InvalidTransactionState(
                f"the producer {batch.producer_id} is within a transaction, its batch is not"
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
        """May a leader append that marker? See :meth:`ProducerEntry.check_marker`."""
        entry = self._known(batch.producer_id)
        if entry is not None and batch.marker is not None:
            entry.check_marker(batch, batch.marker, transaction_version)

    def note(self, batch: ProducerBatch) -> AbortedTransaction | None:
        """It was appended, here or by the leader; the transaction that it aborts."""
        entry = self._live.pop(batch.producer_id, None)
        if entry is None:
            entry = self._unpacked_or_new(batch.producer_id)
        self._live[batch.producer_id] = entry
        if batch.marker is not None:
            return self._end(entry, batch)
        entry.add(batch)
        if batch.is_transactional:
            self._verified(batch.producer_id)
            if entry.txn_first_offset == NO_OFFSET:
                entry.txn_first_offset = batch.base_offset
                self._ongoing[batch.base_offset] = batch.producer_id
                self._settle()
        return None

    def _end(self, entry: ProducerEntry, batch: ProducerBatch) -> AbortedTransaction | None:
        assert batch.marker is not None
        self._verified(batch.producer_id)
        first_offset = entry.txn_first_offset
        entry.end_transaction(batch, batch.marker)
        if first_offset == NO_OFFSET:
            return None  # it wrote nothing here
        self._ongoing.pop(first_offset, None)
        ended = EndedTransaction(
            batch.producer_id, first_offset, batch.last_offset, not batch.marker.is_commit
        )
        self._unreplicated.append(ended)
        self._settle()
        if not ended.is_aborted:
            return None
        stable = next(iter(self._ongoing), batch.last_offset + 1)
        return AbortedTransaction(batch.producer_id, first_offset, batch.last_offset, stable)

    def _unpacked_or_new(self, producer_id: int) -> ProducerEntry:
        """Return the entry of a producer that becomes live."""
        if len(self._live) >= LIVE_MAX:
            # Half of them at once: taking single items from the front of a dictionary is slow.
            for oldest_id in [*self._live][: LIVE_MAX // 2]:
                self._packed[oldest_id] = self._live.pop(oldest_id).packed(oldest_id)
        packed = self._packed.pop(producer_id, None)
        if packed is not None:
            return ProducerEntry.unpacked(packed)
        self._limit.count += 1
        return ProducerEntry()

    # -- transactions --------------------------------------------------------------------------

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Has that producer one open here, in that epoch?"""
        entry = self._known(producer_id)
        return (
            entry is not None
            and entry.txn_first_offset != NO_OFFSET
            and entry.epoch == producer_epoch
        )

    def begin_verification(
        self, batch: ProducerBatch, now_ms: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Before the coordinator is asked; None where the transaction is under way here (or it is a
        duplicate), and nobody needs to be asked."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if self.has_ongoing_transaction(producer_id, epoch):
            return None
        entry = self._known(producer_id)
        is_clients = batch.base_sequence != NO_SEQUENCE
        if is_clients and entry is not None and entry.duplicate(batch) is not None:
            return None
        known = self._verifications.get(producer_id)
        if known is None:
            if self._verifies_too_many():
                self._verified(next(iter(self._verifications)))
            self._limit.verifications += 1
            known = self._verifications[producer_id] = _Verification(
                batch.base_sequence, epoch, now_ms, supports_epoch_bump=supports_epoch_bump
            )
        else:
            known.note(batch.base_sequence, epoch)
        return known.guard

    def _verifies_too_many(self) -> bool:
        """Whoever asks for one costs nothing, whatever the coordinator says."""
        count, of_all = len(self._verifications), self._limit.verifications
        return count >= VERIFICATIONS_OF_LOG_MAX or (
            of_all >= VERIFICATIONS_MAX and count >= VERIFICATIONS_KEPT
        )

    def _verified(self, producer_id: int) -> None:
        """Its verification, if there is one, is over."""
        verification = self._verifications.pop(producer_id, None)
        if verification is not None:
            verification.guard.is_void = True
            self._limit.verifications -= 1

    def on_high_watermark(self, high_watermark: int) -> None:
        """Everything below is committed, markers too."""
        unreplicated = self._unreplicated
        if not unreplicated or unreplicated[0].last_offset >= high_watermark:
            return
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()
        self._settle()

    @contextmanager
    def told_anew(self) -> Iterator[None]:
        """While batches tell all of it once more, what was unstable before is unstable: it is, and
        who reads without the lock must not see a log half-way. What raises leaves it so."""
        self._is_told_anew = True
        yield
        self._is_told_anew = False
        self._settle()

    def _settle(self) -> None:
        if self._is_told_anew:
            return
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
        """Forget expired producers and verifications.

        A producer expires by its records' timestamps (``producer.id.expiration.ms``), but not if
        it has written since the last call: Kafka would forget a producer that copies old records.
        A future timestamp counts as the present time, so that no client is remembered forever. If
        the clock goes back, a timestamp that was in the past before is not in the future."""
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
            entry = ProducerEntry.unpacked(packed)
            if entry.is_expired(now_ms, idle_ms, newest_ms):
                del self._packed[producer_id]
                self._limit.count -= 1
            else:
                self._packed[producer_id] = entry.packed(producer_id)
        late = [
            producer_id
            for producer_id, each in self._verifications.items()
            if now_ms - each.began_ms >= idle_ms
        ]
        for producer_id in late:
            self._verified(producer_id)

    @property
    def tells_all(self) -> bool:
        """Whether a snapshot would leave out no transaction that has ended, but whose marker is not
        committed."""
        return not self._unreplicated

    def snapshot(self) -> bytes:
        """The bytes of a ``.snapshot``."""
        live = [entry.packed(producer_id) for producer_id, entry in self._live.items()]
        return join_entries([packed[:ENTRY_BYTES] for packed in (*self._packed.values(), *live)])

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Nothing but what a snapshot has."""
        self.clear()
        ongoing = {}
        for each in entries:
            self._packed[each.producer_id] = ProducerEntry.of(each).packed(each.producer_id)
            if each.current_txn_first_offset >= 0:
                ongoing[each.current_txn_first_offset] = each.producer_id
        self._limit.count += len(self)
        self._ongoing = dict(sorted(ongoing.items()))
        self._settle()

    def recall(self, batches: Iterable[ProducerBatch]) -> None:
        """``batches`` are those before a snapshot, which tells of the last one of each producer
        only: with them those that may come again are known as before."""
        found: dict[int, ProducerEntry] = {}
        for batch in batches:
            if batch.marker is None and batch.producer_id in self._packed:
                found.setdefault(batch.producer_id, ProducerEntry()).add(batch)
        for producer_id, recalled in found.items():
            entry = ProducerEntry.unpacked(self._packed[producer_id])
            if recalled.epoch == entry.epoch and recalled.batches[-1:] == entry.batches:
                entry.batches = recalled.batches
                self._packed[producer_id] = entry.packed(producer_id)

    def forget(self) -> None:
        """The log is closed: producers are nobody's business any more, but what is stable stays
        so."""
        self._limit.count -= len(self)
        self._live.clear()
        self._packed.clear()
        for producer_id in [*self._verifications]:
            self._verified(producer_id)

    def clear(self) -> None:
        """Nothing is known."""
        self.forget()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._settle()
