"""What of one batch a cleaning keeps (Kafka's ``Cleaner.cleanInto`` and ``shouldRetainRecord``).

A record goes when a later one has its key, when it is a tombstone whose delete horizon has passed
(KIP-534), when it has no key at all, or when its transaction was aborted. The last batch of a
producer that is still active stays though it may be empty: it says which sequence number comes
next. A batch whose records cannot be read stays as it is: who wrote it loses nothing but room, and
keeps nobody else's keys from being cleaned.
"""

from collections.abc import Mapping

from tidemark.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch
from tidemark.records.codecs import decompress
from tidemark.records.keyed import keyed_records
from tidemark.records.rewriting import delete_horizon_ms, with_records, without_records
from tidemark_broker.log.compaction.offset_map import OffsetMap
from tidemark_broker.log.compaction.pace import Pace
from tidemark_broker.log.compaction.transactions import CleanedTransactions, marker_type

#: What a cleaning unpacks of one batch; a larger one counts as one that cannot be read.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024
RECORDS_MAX = 250_000


def unpacked(header: BatchHeader, batch: bytes) -> bytes:
    """The records of a batch; :class:`CorruptBatch` for one that cannot be unpacked, or is larger
    than a cleaning looks into."""
    if not 0 <= header.count <= RECORDS_MAX:
        raise CorruptBatch(f"a batch of {header.count} records")
    return decompress(header.codec, batch[HEADER_BYTES:], limit_bytes=UNPACKED_BYTES_MAX)


def marker_of(header: BatchHeader, batch: bytes) -> int | None:
    """:func:`marker_type` of a control batch; None where it is empty."""
    if not header.count:
        return None
    _, _, _, key, _ = next(keyed_records(unpacked(header, batch), 1))
    return marker_type(key)


class BatchFilter:
    """Shown the batches of a log in their order. ``last_offsets``: of each producer id the last
    offset of its last batch; a producer id that is not in it may have had its last batch
    anywhere. ``producer_expiration_ms``: after so long without a batch a producer is forgotten."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        last_offsets: Mapping[int, int],
        pace: Pace,
        *,
        now_ms: int,
        delete_retention_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self._offsets = offsets
        self._transactions = transactions
        self._last_offsets = last_offsets
        self._pace = pace
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._producers_since_ms = now_ms - producer_expiration_ms
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
        except CorruptBatch:
            self.unreadable += 1
            return batch

    def _marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        """It goes a while after the last of what it ends: readers that saw that must see it."""
        if not self._transactions.may_drop_marker(header, marker_of(header, batch)):
            return batch
        horizon_ms = delete_horizon_ms(header)
        if not header.count or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return self._nothing_of(header)
        if horizon_ms is not None:
            return batch
        payload = unpacked(header, batch)
        kept = [(start, end) for start, end, *_ in keyed_records(payload, header.count)]
        return with_records(header, payload, kept, self._new_horizon_ms)

    def _data(self, header: BatchHeader, batch: bytes) -> bytes | None:
        payload = unpacked(header, batch)
        horizon_ms = delete_horizon_ms(header)
        tombstones_stay = horizon_ms is None or self._now_ms < horizon_ms
        base, latest, newest = header.base_offset, self._offsets.latest_offset, self._offsets.get
        kept, tombstones, keyless = [], False, 0
        for turn in self._pace.turns(keyed_records(payload, header.count)):
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
        producer_id, last = header.producer_id, header.last_offset
        if (
            producer_id < 0
            or header.max_timestamp < self._producers_since_ms
            or self._last_offsets.get(producer_id, last) != last
        ):
            return None
        return without_records(header)
