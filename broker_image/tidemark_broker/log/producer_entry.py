"""State of one producer in a log, and checks of the batch that may follow (Kafka's
``ProducerStateEntry`` and ``ProducerAppendInfo``).

The last five batches are kept, because a client may have five in flight and retry each of them. A
producer that is unknown, because its records were deleted long ago, may use any sequence number, as
in Kafka since 2.4 (KIP-360): UNKNOWN_PRODUCER_ID is never returned.

A producer that has not written for a while is *packed*: into 80 to 180 bytes instead of 400 to
1,100. The packed form starts with the producer's bytes of a snapshot.
"""

import enum
import struct
from typing import NamedTuple

from tidemark.configuration.values import INT32_MAX
from tidemark.logfiles.producer_snapshot import (
    ENTRY_BYTES,
    TIMESTAMP_AT,
    pack_entry,
    unpack_entry,
)
from tidemark.logfiles.producer_snapshot import ProducerEntry as SnapshotEntry
from tidemark.records.batch import BatchHeader, Buffer
from tidemark.records.control import EndMarker, read_end_marker
from tidemark_broker.log.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)

BATCHES_KEPT = 5
NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
_INT16_MAX = 2**15 - 1
#: One batch of a packed producer: the fields of :class:`BatchMetadata`.
_BATCH = struct.Struct(">iqiq")
#: Read on its own when many producers are checked.
_TIMESTAMP = struct.Struct(">q")
#: Follows the snapshot's bytes of a packed producer: whether it has written since its last expiry
#: check. Its batches follow.
_HAS_WRITTEN = struct.Struct(">?")
_BATCHES_AT = ENTRY_BYTES + _HAS_WRITTEN.size


class AppendOrigin(enum.Enum):
    """Appender on the leader (Kafka's ``AppendOrigin``).

    A client's sequence numbers are checked. A coordinator has none and may write control records.
    """

    CLIENT = enum.auto()
    COORDINATOR = enum.auto()


class ProducerBatch(NamedTuple):
    """Fields of a batch that affect its producer's state.

    ``timestamp_ms`` is the batch's largest. ``marker``: the batch ends a transaction.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int
    is_transactional: bool = False
    marker: EndMarker | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; numbers wrap to 0 after 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset - self.base_offset) & INT32_MAX


def producer_batch(header: BatchHeader, batch: Buffer) -> ProducerBatch | None:
    """Return the fields of a stored batch that affect the state of its producer.

    ``batch`` has the bytes of the batch and is read only for a control batch. None for a control
    batch without a transaction marker. Raises :class:`CorruptBatch` for an invalid marker.
    """
    # Other control records do not affect producers.
    marker = read_end_marker(batch) if header.is_control else None
    if marker is None and header.is_control:
        return None
    return ProducerBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_offset,
        header.last_offset,
        header.max_timestamp,
        header.is_transactional,
        marker,
    )


class BatchMetadata(NamedTuple):
    """One of the producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_sequence(self) -> int:
        """Sequence number of the first record."""
        return (self.last_sequence - self.offset_delta) & INT32_MAX

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self.last_offset - self.offset_delta


def packed_timestamp_ms(data: bytes) -> int:
    """Return ``timestamp_ms`` of a packed producer."""
    (timestamp_ms,) = _TIMESTAMP.unpack_from(data, TIMESTAMP_AT)
    return int(timestamp_ms)


def packed_without_written(data: bytes) -> bytes | None:
    """Return a packed producer with ``has_written`` cleared, None if it is clear already."""
    if not data[ENTRY_BYTES]:
        return None
    return b"".join((data[:ENTRY_BYTES], _HAS_WRITTEN.pack(False), data[_BATCHES_AT:]))


class ProducerStateEntry:
    """One producer in one log.

    ``batches``: oldest first, all of ``epoch``. ``txn_first_offset``: first offset of its open
    transaction, -1 for none. ``has_written``: whether it wrote since the last expiry check; the
    timestamps of its records are the client's own.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "has_written",
        "timestamp_ms",
        "txn_first_offset",
    )

    def __init__(self) -> None:
        self.epoch = NO_EPOCH
        self.batches: list[BatchMetadata] = []
        self.coordinator_epoch = -1
        self.timestamp_ms = -1
        self.txn_first_offset = NO_OFFSET
        self.has_written = True

    @property
    def last_sequence(self) -> int:
        """Last sequence number of its epoch, -1 for none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    # -- what may follow -----------------------------------------------------------------------

    def is_followed_by(self, batch: ProducerBatch | BatchHeader) -> bool:
        """Return whether ``batch`` is the next one in sequence, outside a transaction.

        This is true for nearly every batch, so it is checked first for each idempotent produce.
        """
        return (
            bool(self.batches)
            and batch.base_sequence == self.batches[-1].last_sequence + 1
            and batch.producer_epoch == self.epoch
            and not batch.is_transactional
            and self.txn_first_offset == NO_OFFSET
        )

    def duplicate(self, batch: ProducerBatch) -> BatchMetadata | None:
        """Return the stored batch that ``batch`` is a retry of, or None."""
        if batch.producer_epoch != self.epoch:
            return None
        first, last = batch.base_sequence, batch.last_sequence
        for kept in self.batches:
            if kept.last_sequence == last and kept.base_sequence == first:
                return kept
        return None

    def check_epoch(self, batch: ProducerBatch) -> None:
        """Raise :class:`InvalidProducerEpoch` for a superseded epoch."""
        if batch.producer_epoch < self.epoch:
            raise InvalidProducerEpoch(
                f"epoch {batch.producer_epoch} of the producer {batch.producer_id} is below its "
                f"last one, {self.epoch}"
            )

    def check_sequence(self, batch: ProducerBatch) -> None:
        """Raise :class:`OutOfOrderSequence` unless the batch continues the producer's sequence.

        Its first sequence number must follow the last one. A new producer epoch starts at 0.
        """
        # A producer without a batch may start with any number (KIP-360).
        if self.epoch == NO_EPOCH:
            return
        first = batch.base_sequence
        if batch.producer_epoch != self.epoch:
            if first != 0:
                raise OutOfOrderSequence(
                    f"producer {batch.producer_id} starts its epoch {batch.producer_epoch} "
                    f"with sequence number {first}, not 0; the last epoch was {self.epoch}"
                )
            return
        last = self.last_sequence
        if first != last + 1 and not (first == 0 and last == INT32_MAX):
            raise OutOfOrderSequence(
                f"producer {batch.producer_id} sends sequence number {first} after its last one, "
                f"{last}"
            )

    def check_marker(
        self, batch: ProducerBatch, marker: EndMarker, transaction_version: int
    ) -> None:
        """Check the epochs of a transaction marker before it is appended.

        Raises :class:`InvalidProducerEpoch` if the producer has a newer epoch, and
        :class:`TransactionCoordinatorFenced` if a newer coordinator has written a marker already.
        With ``transaction.version`` 2 each end of a transaction raises the producer epoch
        (KIP-890), so a marker with the last epoch again is a harmless retry.
        """
        epoch, last = batch.producer_epoch, self.epoch
        if transaction_version < 2:
            self.check_epoch(batch)
        # An equal epoch with an open transaction would end the wrong one. At the maximum the epoch
        # cannot be raised, so equality is valid there.
        elif epoch < last or (
            epoch == last and self.txn_first_offset != NO_OFFSET and epoch != _INT16_MAX
        ):
            raise InvalidProducerEpoch(
                f"a marker of the producer {batch.producer_id} has epoch {epoch}, its transaction "
                f"has {last}"
            )
        if marker.coordinator_epoch < self.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker of coordinator epoch {marker.coordinator_epoch}, the last one was of "
                f"{self.coordinator_epoch}"
            )

    # -- what followed -------------------------------------------------------------------------

    def add(self, batch: ProducerBatch) -> None:
        """Record a data batch after its append."""
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches.clear()
        last_offset = batch.last_offset
        self.add_in_epoch(
            batch.last_sequence, last_offset, last_offset - batch.base_offset, batch.timestamp_ms
        )

    def add_in_epoch(
        self, last_sequence: int, last_offset: int, offset_delta: int, timestamp_ms: int
    ) -> None:
        """Record a data batch of the current epoch."""
        batches = self.batches
        if len(batches) >= BATCHES_KEPT:
            del batches[0]
        batches.append(BatchMetadata(last_sequence, last_offset, offset_delta, timestamp_ms))
        self.timestamp_ms = timestamp_ms
        self.has_written = True

    def end_transaction(self, batch: ProducerBatch, marker: EndMarker) -> None:
        """Record a marker after its append."""
        if batch.producer_epoch != self.epoch:
            self.epoch = batch.producer_epoch
            self.batches.clear()
        self.coordinator_epoch = marker.coordinator_epoch
        self.timestamp_ms = batch.timestamp_ms
        self.txn_first_offset = NO_OFFSET

    # -- expiry ----------------------------------------------------------------------------------

    def is_expired(self, now_ms: int, idle_ms: int, newest_ms: int) -> bool:
        """Return whether the producer may be forgotten, as of this check.

        It is idle for ``idle_ms``, has no open transaction, and has not written since the last
        check. A timestamp above ``newest_ms`` is in the future and counts as ``newest_ms``.
        """
        has_written, self.has_written = self.has_written, False
        self.timestamp_ms = min(self.timestamp_ms, newest_ms)
        is_old = now_ms - self.timestamp_ms >= idle_ms
        return is_old and not has_written and self.txn_first_offset == NO_OFFSET

    # -- packed form -----------------------------------------------------------------------------

    def packed(self, producer_id: int) -> bytes:
        """Return the complete state of the producer as bytes; :meth:`unpacked` is the inverse."""
        return b"".join(
            (
                pack_entry(self.snapshot(producer_id)),
                _HAS_WRITTEN.pack(self.has_written),
                *(_BATCH.pack(*batch) for batch in self.batches),
            )
        )

    @classmethod
    def unpacked(cls, data: bytes) -> "ProducerStateEntry":
        """Return the producer that :meth:`packed` packed."""
        entry = cls.of(unpack_entry(data))
        (entry.has_written,) = _HAS_WRITTEN.unpack_from(data, ENTRY_BYTES)
        entry.batches = list(map(BatchMetadata._make, _BATCH.iter_unpack(data[_BATCHES_AT:])))
        return entry

    # -- as a snapshot has it ------------------------------------------------------------------

    def snapshot(self, producer_id: int) -> SnapshotEntry:
        """Return the producer's entry of a snapshot, which has the last batch only."""
        last = self.batches[-1] if self.batches else None
        return SnapshotEntry(
            producer_id=producer_id,
            producer_epoch=self.epoch,
            last_sequence=NO_SEQUENCE if last is None else last.last_sequence,
            last_offset=NO_OFFSET if last is None else last.last_offset,
            offset_delta=0 if last is None else last.offset_delta,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.txn_first_offset,
        )

    @classmethod
    def of(cls, entry: SnapshotEntry) -> "ProducerStateEntry":
        """Return the state of a producer from its entry in a snapshot file."""
        made = cls()
        made.epoch = entry.producer_epoch
        made.coordinator_epoch = entry.coordinator_epoch
        made.timestamp_ms = entry.timestamp_ms
        made.txn_first_offset = entry.current_txn_first_offset
        # A producer of which only a marker is left has no batch.
        if entry.last_offset >= 0:
            made.batches.append(
                BatchMetadata(
                    entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms
                )
            )
        return made
