"""Header of a record batch v2, and the changes that a broker makes to it.

A broker does not unpack batches. It reads the 61 bytes of the header, checks the CRC-32C over
everything behind the CRC field, and writes base offset and partition leader epoch. Both fields are
before the CRC, so they can change without a new one. Only LogAppendTime, and a largest timestamp
that the client did not set, change fields that the CRC covers.

Layout (big endian): baseOffset i64@0, length i32@8 (of what follows it), partitionLeaderEpoch
i32@12, magic i8@16, crc u32@17, attributes i16@21, lastOffsetDelta i32@23, baseTimestamp i64@27,
maxTimestamp i64@35, producerId i64@43, producerEpoch i16@51, baseSequence i32@53, count i32@57.
"""

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
#: What ``length`` does not count: base offset and length themselves.
LENGTH_OVERHEAD = 12
MAGIC = 2
CRC_COVERS_FROM = 21
ATTRIBUTES_LOW_BYTE = 22
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_EXTENT = struct.Struct(">qi")
_INT32, _INT64 = struct.Struct(">i"), struct.Struct(">q")
_CRC_CHUNK_BYTES = 256 * 1024

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class CorruptBatch(ValueError):
    """The bytes are not a record batch v2, or their CRC does not match."""


class TimestampType(enum.IntEnum):
    """Values of ``message.timestamp.type``, as in bit 3 of the attributes."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


#: In variables, because this version of Python calls a function to read a member of an enumeration.
CREATE_TIME, LOG_APPEND_TIME = _TIMESTAMP_TYPES = tuple(TimestampType)


class BatchHeader(NamedTuple):
    """Fields of the header, in their order.

    Offsets are absolute. Timestamps are in ms since the epoch, or -1. A named tuple, because one is
    created for every batch, and that takes a fifth of the time of a dataclass.
    """

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.length + LENGTH_OVERHEAD

    @property
    def codec(self) -> int:
        """Compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _CODEC_MASK

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a control record, such as a transaction marker."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def timestamp_type(self) -> TimestampType:
        """Type of the timestamps.

        With LogAppendTime, ``max_timestamp`` is the timestamp of every record.
        """
        return _TIMESTAMP_TYPES[bool(self.attributes & _LOG_APPEND_TIME)]


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of a stored batch at ``position``. Raises :class:`CorruptBatch`."""
    # Offsets of a stored batch are a broker's, so negative ones are damage.
    header = read_header(buffer, position)
    if header.base_offset < 0 or header.last_offset_delta < 0:
        raise CorruptBatch(
            f"negative offsets: base {header.base_offset}, last delta {header.last_offset_delta}"
        )
    return header


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``, as sent by a client.

    Magic and length are checked, but neither the CRC nor the offsets, which the broker assigns.
    Raises :class:`CorruptBatch`.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(
            f"{len(buffer) - position} bytes are fewer than a batch header ({HEADER_BYTES})"
        )
    # One unpack of the whole header is much faster than reading field by field.
    header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic}: only record batch version {MAGIC} is supported")
    if header.length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise CorruptBatch(f"a batch length of {header.length} is shorter than its own header")
    return header


def codec_of(batch: Buffer) -> int:
    """Return the codec in a batch's header, 0 if the header is incomplete."""
    return batch[ATTRIBUTES_LOW_BYTE] & _CODEC_MASK if len(batch) >= HEADER_BYTES else 0


def is_transactional(batch: Buffer) -> bool:
    """Return whether the batch is part of a transaction; False if there is no whole header."""
    return len(batch) >= HEADER_BYTES and bool(batch[ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL)


def iter_headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each complete batch; a partial last one is ignored."""
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = parse_header(buffer, position)
        # A fetch may cut the last batch: clients ignore the rest, and so does this iterator.
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def compute_crc(buffer: Buffer, start: int, end: int, crc: int = 0) -> int:
    """Return the CRC-32C of ``buffer[start:end]``, which follows bytes with the CRC ``crc``."""
    for begin in range(start, end, _CRC_CHUNK_BYTES):
        # The library accepts only ``bytes``. Pieces bound the memory of the copy.
        piece = buffer[begin : min(begin + _CRC_CHUNK_BYTES, end)]
        crc = google_crc32c.extend(crc, piece if type(piece) is bytes else bytes(piece))
    return crc


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise :class:`CorruptBatch` unless the stored CRC is that of the batch at ``position``."""
    end = position + header.size_bytes
    if end > len(buffer):
        raise CorruptBatch(
            f"the batch at offset {header.base_offset} says {header.size_bytes} bytes, "
            f"{len(buffer) - position} are there"
        )
    require_crc(header, compute_crc(buffer, position + CRC_COVERS_FROM, end))


def require_crc(header: BatchHeader, actual: int) -> None:
    """Raise :class:`CorruptBatch` unless ``actual`` is the CRC that the header says."""
    if actual != header.crc:
        raise CorruptBatch(
            f"CRC of the batch at offset {header.base_offset} is {actual:#010x}, "
            f"its header says {header.crc:#010x}"
        )


def restamp(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Write base offset and leader epoch in place; the CRC does not cover them."""
    # Both fields are in front of the CRC, so that followers can verify what producers sent.
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, leader_epoch)


def set_log_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Stamp the whole batch with ``timestamp_ms`` (LogAppendTime) and renew its CRC."""
    struct.pack_into(">h", buffer, position + 21, header.attributes | _LOG_APPEND_TIME)
    set_max_timestamp(buffer, position, header, timestamp_ms)


def set_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> None:
    """Correct the largest timestamp of the batch and renew its CRC."""
    struct.pack_into(">q", buffer, position + 35, timestamp_ms)
    crc = compute_crc(buffer, position + CRC_COVERS_FROM, position + header.size_bytes)
    struct.pack_into(">I", buffer, position + 17, crc)
