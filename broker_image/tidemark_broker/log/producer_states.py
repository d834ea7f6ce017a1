"""What a log remembers of its producers and their transactions (Kafka's ``ProducerStateManager``).

Pure: batches in, refusals and ended transactions out. It follows from the batches of the log alone,
so every replica has the same, and a snapshot with the batches behind it gives it back. A
transaction that has ended stays *unreplicated* until its marker is committed; the last stable
offset stops at the first one that is open or unreplicated.

A client makes producer ids at no cost, so a log keeps no more than :data:`PRODUCERS_MAX` of them
and all logs of a broker together no more than a limit: those that were idle for longest are
forgotten, as if they had expired. A producer within a transaction is not forgotten. For how long
one was idle is told by the log, not by timestamps: these are whatever a client writes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.producer_snapshot import ProducerEntry as SnapshotEntry
from tidemark.logfiles.producer_snapshot import encode_snapshot
from tidemark.logfiles.transaction_index import AbortedTransaction
from tidemark.records.batch import BatchHeader
from tidemark_broker.log.errors import InvalidTransactionState, OutOfOrderSequence
from tidemark_broker.log.producer_entry import (
    NO_OFFSET,
    NO_SEQUENCE,
    AppendOrigin,
    BatchMetadata,
    ProducerBatch,
    ProducerEntry,
)
from tidemark_broker.log.walk import BatchAt

#: Of one log. A snapshot of so many is made in a few ms.
PRODUCERS_MAX = 10_000
#: Of all logs of a broker, where nothing else is configured.
ALL_PRODUCERS_MAX = 200_000
#: Verifications of all logs of a broker; beyond that a log keeps its latest ones, so many.
VERIFICATIONS_MAX, VERIFICATIONS_KEPT = 50_000, 20
#: Which part of them is forgotten at once where there are too many.
_FORGOTTEN_PART = 20


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
        #: In the order in which they last wrote.
        self._producers: dict[int, ProducerEntry] = {}
        #: First offset of each open transaction, in rising order, and its producer.
        self._ongoing: dict[int, int] = {}
        #: In the order of their markers.
        self._unreplicated: deque[EndedTransaction] = deque()
        self._verifications: dict[int, _Verification] = {}
        self._is_told_anew = False
        #: None: everything below the high watermark is stable.
        self.first_unstable_offset: int | None = None

    def __len__(self) -> int:
        return len(self._producers)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._producers

    # -- appends -------------------------------------------------------------------------------

    def going_on(self, header: BatchHeader) -> ProducerEntry | None:
        """The producer whose next batch that is, where nothing more is to be checked: tell
        :meth:`went_on` once it was appended. Says what :meth:`check` and :meth:`note` say, in half
        of the time, of nearly all batches of idempotent producers."""
        entry = self._producers.get(header.producer_id)
        return entry if entry is not None and entry.goes_on_with(header) else None

    def went_on(self, entry: ProducerEntry, header: BatchHeader, at: BatchAt) -> None:
        """The batch of a producer that is :meth:`going_on` stands there."""
        producers, producer_id = self._producers, header.producer_id
        producers[producer_id] = producers.pop(producer_id)
        delta = header.last_offset_delta
        last_sequence = (header.base_sequence + delta) & INT32_MAX
        entry.go_on(last_sequence, at.last_offset, delta, at.max_timestamp)

    def check(
        self, batch: ProducerBatch, origin: AppendOrigin, guard: VerificationGuard | None
    ) -> BatchMetadata | None:
        """May a leader append it? Its former self, where it was appended before; raises
        :class:`InvalidProducerEpoch`, :class:`OutOfOrderSequence` or
        :class:`InvalidTransactionState`."""
        entry = self._producers.get(batch.producer_id)
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
        if in_transaction and not batch.is_transactional:
            raise InvalidTransactionState(
                f"the producer {batch.producer_id} is within a transaction, its batch is not"
            )
        return None

    def check_marker(self, batch: ProducerBatch, transaction_version: int) -> None:
        """May a leader append that marker? See :meth:`ProducerEntry.check_marker`."""
        entry = self._producers.get(batch.producer_id)
        if entry is not None and batch.marker is not None:
            entry.check_marker(batch, batch.marker, transaction_version)

    def note(self, batch: ProducerBatch) -> AbortedTransaction | None:
        """It was appended, here or by the leader; the transaction that it aborts."""
        entry = self._producers.pop(batch.producer_id, None)
        if entry is None:
            entry = self._added()
        self._producers[batch.producer_id] = entry
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

    def _added(self) -> ProducerEntry:
        limit = self._limit
        if len(self._producers) >= PRODUCERS_MAX or limit.count >= limit.most:
            self._forget_idle()
        limit.count += 1
        return ProducerEntry()

    def _forget_idle(self) -> None:
        idle = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.txn_first_offset == NO_OFFSET
        ]
        for producer_id in idle[: max(1, len(idle) // _FORGOTTEN_PART)]:
            self._remove(producer_id)

    def _remove(self, producer_id: int) -> None:
        del self._producers[producer_id]
        self._limit.count -= 1

    # -- transactions --------------------------------------------------------------------------

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Has that producer one open here, in that epoch?"""
        entry = self._producers.get(producer_id)
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
        entry = self._producers.get(producer_id)
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
        return count >= PRODUCERS_MAX or (
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

    def active(self) -> Iterator[ActiveProducer]:
        """Every producer that is known."""
        for producer_id, entry in self._producers.items():
            yield ActiveProducer(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp_ms,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )

    def last_batches(self) -> Iterator[tuple[int, int, int]]:
        """(producer id, epoch, last offset of its last data or -1) of every producer: what
        compaction leaves of it (Kafka's ``lastRecordsOfActiveProducers``)."""
        for producer_id, entry in self._producers.items():
            last = entry.batches[-1].last_offset if entry.batches else NO_OFFSET
            yield producer_id, entry.epoch, last

    def expire(self, now_ms: int, idle_ms: int) -> None:
        """Forget producers whose records are so old (``producer.id.expiration.ms``), unless they
        have written since this was last asked: of those that copy old records Kafka forgets what
        it needs to know a batch again. And verifications that nobody ended."""
        gone = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.txn_first_offset == NO_OFFSET
            and now_ms - entry.timestamp_ms >= idle_ms
            and not entry.has_written
        ]
        for entry in self._producers.values():
            entry.has_written = False
        for producer_id in gone:
            self._remove(producer_id)
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
        return encode_snapshot(
            [entry.snapshot(producer_id) for producer_id, entry in self._producers.items()]
        )

    def load(self, entries: Iterable[SnapshotEntry]) -> None:
        """Nothing but what a snapshot has."""
        self.clear()
        ongoing = {}
        for each in entries:
            self._producers[each.producer_id] = ProducerEntry.of(each)
            if each.current_txn_first_offset >= 0:
                ongoing[each.current_txn_first_offset] = each.producer_id
        self._limit.count += len(self._producers)
        self._ongoing = dict(sorted(ongoing.items()))
        self._settle()

    def recall(self, batches: Iterable[ProducerBatch]) -> None:
        """``batches`` are those before a snapshot, which tells of the last one of each producer
        only: with them those that may come again are known as before."""
        found: dict[int, ProducerEntry] = {}
        for batch in batches:
            if batch.marker is None and batch.producer_id in self._producers:
                found.setdefault(batch.producer_id, ProducerEntry()).add(batch)
        for producer_id, recalled in found.items():
            entry = self._producers[producer_id]
            if recalled.epoch == entry.epoch and recalled.batches[-1:] == entry.batches:
                entry.batches = recalled.batches

    def forget(self) -> None:
        """The log is closed: producers are nobody's business any more, but what is stable stays
        so."""
        self._limit.count -= len(self._producers)
        self._producers.clear()
        for producer_id in [*self._verifications]:
            self._verified(producer_id)

    def clear(self) -> None:
        """Nothing is known."""
        self.forget()
        self._ongoing.clear()
        self._unreplicated.clear()
        self._settle()
