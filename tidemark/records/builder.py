"""Builder of record batches v2, for tools, tests and the broker's own records."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    TimestampType,
    compute_crc,
)
from tidemark.records.codecs import compress
from tidemark.records.varint import write_varint

_FRONT = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a producer; ``timestamp_ms`` -1 means none."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = NO_TIMESTAMP


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Return one record batch v2 of ``records``, with consecutive offsets from ``base_offset``.

    ``codec``: number of the compression codec, 0 for none. -1 stands for no leader epoch, no
    producer and no sequence number. Raises ValueError without records.
    """
    if not records:
        raise ValueError("a batch needs at least one record")
    # Records have deltas to the first one's timestamp and offset (KIP-98, message format v2).
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        _write_record(body, record, delta, record.timestamp_ms - base_timestamp)
    payload = compress(codec, bytes(body))
    # Attributes: codec in bits 0-2, then timestamp type, transactional and control flags.
    covered = _COVERED.pack(
        codec | timestamp_type << 3 | is_transactional << 4 | is_control << 5,
        len(records) - 1,
        base_timestamp,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    covered += payload
    # The length field counts from behind itself; the CRC covers all that follows it.
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(payload)
    front = _FRONT.pack(base_offset, length, leader_epoch, MAGIC)
    assert len(front) + _CRC.size == CRC_COVERS_FROM
    return front + _CRC.pack(compute_crc(covered, 0, len(covered))) + covered


def _write_record(out: bytearray, record: Record, offset_delta: int, timestamp_delta: int) -> None:
    # Attributes: none are defined for records of version 2.
    body = bytearray(b"\x00")
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    # The length precedes the record, and is known only now.
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        write_varint(out, -1)
        return
    write_varint(out, len(value))
    out += value
