"""What of one batch a cleaning keeps (Kafka's ``Cleaner.cleanInto`` and ``shouldRetainRecord``).

A record goes when a later one has its key, when it is a tombstone whose delete horizon has passed
(KIP-534), when it has no key at all, or when its transaction was aborted. The last batch of a
producer that is still active stays though it may be empty: it says which sequence number comes
next. A batch whose records cannot be read stays as it is: who wrote it loses nothing but room, and
keeps nobody else's keys from being cleaned.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemark.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch
from tidemark.records.codecs import decompress
from tidemark.records.control import read_end_marker
from tidemark.records.record_keys import KeyedRecord, keyed_records
from tidemark.records.rewriting import delete_horizon_ms, with_records, without_records
from tidemark.records.varint import VarintError
from tidemark_broker.log.compaction.cleaning_pace import Pace
from tidemark_broker.log.compaction.offset_map import OffsetMap
from tidemark_broker.log.compaction.transactions import CleanedTransactions

#: What a cleaning unpacks of one batch; a larger one counts as one that cannot be read.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 250_000


def unpacked(header: BatchHeader, batch: bytes) -> bytes:
    """The records of a batch; :class:`CorruptBatch` for one that cannot be unpacked, or is larger
    than a cleaning looks into."""
    if not 0 <= header.count <= RECORDS_MAX:
        raise CorruptBatch(f"a batch of {header.count} records")
    return decompress(header.codec, batch[HEADER_BYTES:], limit_bytes=UNPACKED_BYTES_MAX)


class LastBatch(NamedTuple):
    """What is known of a producer at the log's end: the last offset of its last data, -1 where only
    a marker is left of it."""

    last_data_offset: int
    producer_epoch: int

    def is_in(self, header: BatchHeader) -> bool:
        """Is it that batch (Kafka's ``isBatchLastRecordOfProducer``)?"""
        if self.last_data_offset >= 0:
            return header.last_offset == self.last_data_offset
        return header.is_control and header.producer_epoch == self.producer_epoch


class BatchFilter:
    """Shown the batches of a log in their order. ``last_batches``: of each producer that is still
    known, by its id."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_batches: Mapping[int, LastBatch],
        pace: Pace,
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._last_batches = last_batches
        self._pace = pace
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        #: Batches that could not be read, and records without a key, which went.
        self.unreadable = self.keyless = 0

    def filtered(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """What stays of it, ``batch`` itself where all does; None where nothing does."""
        try:
            if header.is_control:
                return self._marker(header, batch)
            if self._transactions.may_drop_data(header):
                return self._nothing_of(header)
            if header.base_offset > self._offsets.latest_offset:
                return batch  # a later cleaning will know which keys come again behind it
            return self._data(header, batch)
        except (CorruptBatch, VarintError):
            self.unreadable += 1
            return batch

    def _marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """It goes a while after the last of what it ends: readers that saw that must see it."""
        if not self._transactions.may_drop_marker(header, read_end_marker(batch)):
            return batch
        horizon_ms = delete_horizon_ms(header)
        if not header.count or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return self._nothing_of(header)
        if horizon_ms is not None:
            return batch
        payload = unpacked(header, batch)
        kept = [(start, end) for start, end, *_ in _records(header, payload)]
        return with_records(header, payload, kept, self._new_horizon_ms)

    def _data(self, header: BatchHeader, batch: bytes) -> bytes | None:
        payload = unpacked(header, batch)
        horizon_ms = delete_horizon_ms(header)
        tombstones_stay = horizon_ms is None or self._now_ms < horizon_ms
        base, latest, newest = header.base_offset, self._offsets.latest_offset, self._offsets.get
        kept, tombstones, keyless = [], False, 0
        for turn in self._pace.turns(_records(header, payload)):
            for start, end, delta, key, has_value in turn:
                offset = base + delta
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
            return self._nothing_of(header)
        if tombstones and horizon_ms is None:
            return with_records(header, payload, kept, self._new_horizon_ms)
        return batch if len(kept) == header.count else with_records(header, payload, kept)

    @property
    def _new_horizon_ms(self) -> int:
        return self._now_ms + self._delete_retention_ms

    def _nothing_of(self, header: BatchHeader) -> bytes | None:
        """None, or an empty batch where it is the last one of a producer."""
        last = self._last_batches.get(header.producer_id)
        return None if last is None or not last.is_in(header) else without_records(header)


def _records(header: BatchHeader, payload: bytes) -> Iterator[KeyedRecord]:
    return keyed_records(payload, header.count, header.last_offset_delta)
