"""``.snapshot`` files: state of a log's producers at the offset in the file's name.

i16 version 1, u32 CRC-32C of what follows, i32 count, then per producer: id i64, epoch i16, last
sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, first offset
of the open transaction i64 (-1: none).
"""

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import google_crc32c

SNAPSHOT_VERSION = 1

_FRONT = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
#: Size of one producer in a snapshot.
ENTRY_BYTES = _ENTRY.size
#: Offset of the timestamp within these bytes.
TIMESTAMP_AT = struct.calcsize(">qhiqi")


class SnapshotFormatError(ValueError):
    """The bytes are not a producer snapshot."""


class ProducerEntry(NamedTuple):
    """State of one producer; fields in the file's order."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(producers: Sequence[ProducerEntry] = ()) -> bytes:
    """Return the bytes of the file; without producers an empty, valid snapshot."""
    return join_entries([pack_entry(entry) for entry in producers])


def pack_entry(entry: ProducerEntry) -> bytes:
    """Return the :data:`ENTRY_BYTES` bytes of one producer, for :func:`join_entries`."""
    return _ENTRY.pack(*entry)


def unpack_entry(data: bytes) -> ProducerEntry:
    """Return the producer at the start of ``data``; the inverse of :func:`pack_entry`."""
    return ProducerEntry._make(_ENTRY.unpack_from(data))


def join_entries(packed: Sequence[bytes]) -> bytes:
    """Return the file's bytes for packed producers."""
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _FRONT.pack(SNAPSHOT_VERSION, google_crc32c.value(body)) + body


def open_transactions(data: bytes) -> dict[int, int]:
    """Return the first offset of each producer's open transaction, in ascending order.

    Raises :class:`SnapshotFormatError`.
    """
    # Without an object for each producer, of which there may be 100,000.
    rows = _ENTRY.iter_unpack(checked_entries(data))
    found = {row[0]: row[-1] for row in rows if row[-1] >= 0}
    return dict(sorted(found.items(), key=itemgetter(1)))


def without_transactions(data: bytes) -> bytes:
    """Return the snapshot with no producer in a transaction."""
    return encode_snapshot(
        [entry._replace(current_txn_first_offset=-1) for entry in decode_snapshot(data)]
    )


def decode_snapshot(data: bytes) -> tuple[ProducerEntry, ...]:
    """Return the producers in a ``.snapshot`` file. Raises :class:`SnapshotFormatError`."""
    return tuple(map(ProducerEntry._make, _ENTRY.iter_unpack(checked_entries(data))))


def checked_entries(data: bytes) -> bytes:
    """Return the packed producers in a ``.snapshot`` file.

    Raises :class:`SnapshotFormatError` for a wrong version, CRC or length.
    """
    if len(data) < _FRONT.size + _COUNT.size:
        raise SnapshotFormatError(f"{len(data)} bytes are too few")
    version, crc = _FRONT.unpack_from(data)
    body = data[_FRONT.size :]
    # The version first: of another version the rest may have another layout.
    if version != SNAPSHOT_VERSION:
        raise SnapshotFormatError(f"version {version}: only {SNAPSHOT_VERSION} is known")
    if google_crc32c.value(body) != crc:
        raise SnapshotFormatError("the CRC does not fit")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise SnapshotFormatError(f"{count} producers do not take {len(body)} bytes")
    return body[_COUNT.size :]
