"""Batches from which records were removed, rewritten as Kafka's ``MemoryRecords.filterTo`` does.

The identity of a batch stays: base offset, last offset, leader epoch, producer id and epoch, base
sequence, codec, and the bytes of each record that is kept. A batch with tombstones gets a *delete
horizon* (KIP-534): with bit 6 of the attributes the base timestamp is the time from which the
tombstones may be removed, and every timestamp delta counts from there.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    compute_crc,
)
from tidemark.records.codecs import compress
from tidemark.records.record_keys import timestamp_delta_of
from tidemark.records.varint import write_varint

DELETE_HORIZON = 0x40
#: Log append time, transactional, control: what an empty batch keeps of the attributes.
_EMPTY_KEEPS = 0x38
_FRONT = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")

#: (start, end) of each record that stays, in the unpacked payload.
Kept = Sequence[tuple[int, int]]


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return the time (ms) from which the batch's tombstones or marker may be removed, if set."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_records(
    header: BatchHeader, payload: bytes, kept: Kept, horizon_ms: int | None = None
) -> bytes:
    """Return the batch with the records of ``kept`` only (at least one).

    ``payload``: the decompressed records, in which ``kept`` are (start, end). ``horizon_ms``: the
    delete horizon to set (KIP-534), the time from which tombstones may be removed. None keeps the
    present one.
    """
    deltas = [timestamp_delta_of(payload, start) for start, _ in kept]
    # With LogAppendTime the batch's largest timestamp is the append time, which stays.
    largest = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        largest = _int64(header.base_timestamp + max(value for _, _, value in deltas))
    attributes, base_timestamp = header.attributes, header.base_timestamp
    # A delete horizon takes the place of the base timestamp, so all deltas change with it.
    if horizon_ms is None:
        body = b"".join(payload[start:end] for start, end in kept)
    else:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
        body = _counted_from(header, payload, kept, deltas, horizon_ms)
    return _encode(
        header,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=largest,
        count=len(kept),
        body=compress(header.codec, body),
    )


def without_records(header: BatchHeader) -> bytes:
    """Return the batch without records, which preserves the state of its producer.

    As Kafka's ``DefaultRecordBatch.writeEmptyHeader``.
    """
    return _encode(
        header,
        attributes=header.attributes & _EMPTY_KEEPS,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        count=0,
        body=b"",
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets (both inclusive) that no record has any more, all of one leader epoch."""

    base_offset: int
    last_offset: int
    leader_epoch: int

    def batch(self) -> bytes:
        """Return an empty batch that covers the offsets."""
        # No timestamps, no producer, no records: the batch only fills the offsets.
        covered = _COVERED.pack(
            0,
            self.last_offset - self.base_offset,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            NO_PRODUCER_ID,
            -1,
            -1,
            0,
        )
        return _assemble(self.base_offset, self.leader_epoch, covered)


def reaching_to(batch: bytes, last_offset: int) -> bytes:
    """Return the same records in a batch that ends with ``last_offset``, behind its own end.

    There are no records in between. Not for a batch of a producer id, whose last sequence number
    follows from its last offset.
    """
    # The last offset delta is under the CRC, so both fields change.
    extended = bytearray(batch)
    (base_offset,) = struct.unpack_from(">q", extended)
    struct.pack_into(">i", extended, 23, last_offset - base_offset)
    _CRC.pack_into(extended, 17, compute_crc(extended, CRC_COVERS_FROM, len(extended)))
    return bytes(extended)


def _counted_from(
    header: BatchHeader,
    payload: bytes,
    kept: Kept,
    deltas: Sequence[tuple[int, int, int]],
    base_timestamp: int,
) -> bytes:
    """Return the records with timestamp deltas relative to ``base_timestamp``.

    ``deltas``: of each kept record, the position of its timestamp delta, the position behind it,
    and its value.
    """
    body = bytearray()
    # Only the delta and the record's length change. Everything behind the delta is copied.
    for (_, end), (at, behind, delta) in zip(kept, deltas, strict=True):
        timestamp = header.max_timestamp
        if header.timestamp_type is TimestampType.CREATE_TIME:
            timestamp = header.base_timestamp + delta
        field = bytearray()
        write_varint(field, _int64(timestamp - base_timestamp))
        attributes = payload[at - 1 : at]
        write_varint(body, len(attributes) + len(field) + end - behind)
        body += attributes + field + payload[behind:end]
    return bytes(body)


def _encode(
    header: BatchHeader,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    body: bytes,
) -> bytes:
    """Return a batch with the identity of ``header``, whose (compressed) records are ``body``."""
    # The CRC covers everything after itself, so these fields are packed first.
    covered = _COVERED.pack(
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    return _assemble(header.base_offset, header.partition_leader_epoch, covered + body)


def _assemble(base_offset: int, leader_epoch: int, covered: bytes) -> bytes:
    """Return a batch: the fields before the CRC, the CRC, and the ``covered`` rest."""
    length = HEADER_BYTES - LENGTH_OVERHEAD - _COVERED.size + len(covered)
    front = _FRONT.pack(base_offset, length, leader_epoch, MAGIC)
    return front + _CRC.pack(compute_crc(covered, 0, len(covered))) + covered


def _int64(value: int) -> int:
    """Wrap a sum to 64 bits, as Java does."""
    return (value + 2**63) % 2**64 - 2**63
