"""Selection of a batch's records that a cleaning keeps (Kafka's ``Cleaner.cleanInto`` and
``shouldRetainRecord``).

A record is dropped if a later one has its key, if it is a tombstone whose delete horizon has passed
(KIP-534), if it has no key, or if its transaction was aborted. The last batch of a producer that is
still active stays even if it is empty, because it has the last sequence number. A batch whose
records cannot be decoded stays unchanged: that costs space only, and does not stop the cleaning of
other keys.

Data of an aborted transaction is dropped. Its marker stays until none of that data is left, and so
does the marker of a committed one (Kafka's ``CleanedTransactionMetadata``).
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch
from tidemark.records.codecs import decompress
from tidemark.records.control import EndMarker, read_end_marker
from tidemark.records.record_keys import KeyedRecord, keyed_records
from tidemark.records.rewriting import delete_horizon_ms, with_records, without_records
from tidemark.records.varint import VarintError
from tidemark_broker.log.compaction.cleaning_pace import CleaningPace
from tidemark_broker.log.compaction.offset_map import OffsetMap


class CleanedTransactions:
    """State between batches, which must be passed in order."""

    def __init__(self) -> None:
        #: Aborted transactions that start later, a heap by first offset.
        self._aborted: list[tuple[int, AbortedTxn]] = []
        #: Aborted transactions in progress by producer id: the entry, and whether data was seen.
        self._ongoing: dict[int, tuple[AbortedTxn, bool]] = {}
        self._committed: set[int] = set()
        self._kept: list[AbortedTxn] = []

    def add_aborted(self, aborted: Iterable[AbortedTxn]) -> None:
        """Add aborted transactions that have records in the following batches."""
        for item in aborted:
            heapq.heappush(self._aborted, (item.first_offset, item))

    def take_kept(self) -> list[AbortedTxn]:
        """Return the aborted transactions whose markers were passed since the last call and
        whose data was present: the entries of the new transaction index.
        """
        kept, self._kept = self._kept, []
        return kept

    def may_drop_data(self, header: BatchHeader) -> bool:
        """Pass a data batch; return whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        ongoing = self._ongoing.get(header.producer_id)
        if ongoing is None:
            self._committed.add(header.producer_id)
            return False
        self._ongoing[header.producer_id] = (ongoing[0], True)
        return True

    def may_drop_marker(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Pass a control batch; return whether no data of its transaction is left in the log.

        ``marker``: its commit or abort marker, None if it has another or no record.
        """
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return not header.count  # empty batches were cleaned before
        if marker.is_commit:
            seen = producer_id in self._committed
            self._committed.discard(producer_id)
            return not seen
        entry, seen = self._ongoing.pop(producer_id, (None, False))
        if entry is not None and seen:
            self._kept.append(entry)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[0][0] <= offset:
            _, entry = heapq.heappop(self._aborted)
            self._ongoing.setdefault(entry.producer_id, (entry, False))


#: Bytes that a cleaning unpacks of one batch; a larger one counts as unreadable.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 250_000


def unpacked(header: BatchHeader, batch: bytes) -> bytes:
    """Return the records of a batch.

    Raises :class:`CorruptBatch` if it cannot be unpacked or exceeds the limits.
    """
    if not 0 <= header.count <= RECORDS_MAX:
        raise CorruptBatch(f"a batch of {header.count} records")
    return decompress(header.codec, batch[HEADER_BYTES:], limit_bytes=UNPACKED_BYTES_MAX)


class LastBatch(NamedTuple):
    """Last batch of a producer at the log end.

    ``last_data_offset`` is -1 if only a marker is left.
    """

    last_data_offset: int
    producer_epoch: int

    def is_in(self, header: BatchHeader) -> bool:
        """Return whether it is that batch (Kafka's ``isBatchLastRecordOfProducer``)."""
        if self.last_data_offset >= 0:
            return header.last_offset == self.last_data_offset
        return header.is_control and header.producer_epoch == self.producer_epoch


class BatchFilter:
    """Filter for the batches of a log, in their order.

    ``last_batches`` has the last batch of each known producer by producer id.
    """

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_batches: Mapping[int, LastBatch],
        pace: CleaningPace,
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        """Create the filter of one cleaning.

        ``offsets``: last offset of each key in the dirty part. ``transactions``: state of the
        transactions that are passed. ``now_ms``: wall clock. ``delete_retention_ms``: the topic's
        ``delete.retention.ms``.
        """
        self._offsets = offsets
        self._transactions = transactions
        self._last_batches = last_batches
        self._pace = pace
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        #: Batches that could not be read, and records without a key, which were dropped.
        self.unreadable = self.keyless = 0

    def filtered(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return the remaining batch, ``batch`` itself if unchanged, or None if nothing remains."""
        try:
            if header.is_control:
                return self._marker(header, batch)
            if self._transactions.may_drop_data(header):
                return self._empty_batch(header)
            if header.base_offset > self._offsets.latest_offset:
                return batch  # only a later cleaning knows the later records of its keys
            return self._data(header, batch)
        except (CorruptBatch, VarintError):
            self.unreadable += 1
            return batch

    def _marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return what remains of a transaction marker (a control batch), None for nothing.

        A marker outlives its transaction's last record by ``delete.retention.ms``, because readers
        of that record must see it (Kafka's ``Cleaner.shouldDiscardBatch``).
        """
        if not self._transactions.may_drop_marker(header, read_end_marker(batch)):
            return batch
        horizon_ms = delete_horizon_ms(header)
        if not header.count or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return self._empty_batch(header)
        # The transaction's data has just become empty: the delete horizon starts now.
        if horizon_ms is not None:
            return batch
        payload = unpacked(header, batch)
        kept = [(start, end) for start, end, *_ in _records(header, payload)]
        return with_records(header, payload, kept, self._new_horizon_ms)

    def _data(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """Return what remains of a data batch: the last record of each key, and recent tombstones.

        None if nothing remains.
        """
        payload = unpacked(header, batch)
        # The horizon was set when the batch was first cleaned (KIP-534).
        horizon_ms = delete_horizon_ms(header)
        tombstones_stay = horizon_ms is None or self._now_ms < horizon_ms
        base, latest, newest = header.base_offset, self._offsets.latest_offset, self._offsets.get
        kept, tombstones, keyless = [], False, 0
        # Decoding holds the interpreter lock, so the loop thread runs between groups of records.
        for turn in self._pace.turns(_records(header, payload)):
            for start, end, delta, key, has_value in turn:
                offset = base + delta
                # Records above the map's last offset are kept: later ones of their keys are not
                # known yet.
                if offset <= latest:
                    if key is None:
                        keyless += 1
                        continue
                    if offset < newest(key) or not (has_value or tombstones_stay):
                        continue
                kept.append((start, end))
                tombstones = tombstones or not has_value
        self.keyless += keyless
        if not kept:
            return self._empty_batch(header)
        # The first cleaning of a tombstone starts its delete retention.
        if tombstones and horizon_ms is None:
            return with_records(header, payload, kept, self._new_horizon_ms)
        return batch if len(kept) == header.count else with_records(header, payload, kept)

    @property
    def _new_horizon_ms(self) -> int:
        return self._now_ms + self._delete_retention_ms

    def _empty_batch(self, header: BatchHeader) -> bytes | None:
        """Return None, or an empty batch if it is the last one of a producer."""
        last = self._last_batches.get(header.producer_id)
        return None if last is None or not last.is_in(header) else without_records(header)


def _records(header: BatchHeader, payload: bytes) -> Iterator[KeyedRecord]:
    return keyed_records(payload, header.count, header.last_offset_delta)
