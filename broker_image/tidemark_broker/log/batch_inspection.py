"""Inspection of a client's batch: its records are read once if the header is not sufficient.

Kafka's ``LogValidator`` reads the records of every batch. This broker passes them through unread,
since reading all of them would halve its throughput. It reads the records of a batch in three
cases. The header's timestamps cannot be right (:mod:`tidemark_broker.log.timestamps`). The topic is
compacted, which requires keys. Or the records may be *poison*: unreadable, though the CRC is
correct, so that every consumer would stop there silently. A client produces poison always or never.
So the first batches of a connection are read, all batches of few records, and a sample of the
others, selected by CRC. Reading is done in a thread, unless the records are few.
``tests/benchmarks/record_inspection.py`` measures the cost.
"""

import struct
from dataclasses import dataclass

from tidemark.records.batch import HEADER_BYTES, NO_TIMESTAMP, Buffer, CorruptBatch, codec_of
from tidemark.records.codecs import Codec, UnpackedTooLarge
from tidemark.records.decode import UnpackLimits, scan_records
from tidemark_broker.log.errors import InvalidRecords

#: Bytes that a broker unpacks of one batch, or for one look-up, at most: a few KiB may unpack to
#: gigabytes.
UNPACKED_BYTES_MAX = 16 * 1024 * 1024
#: Records that are examined within that limit: about a quarter of a second's work.
RECORDS_MAX = 250_000
#: Batches of a connection that are always read.
FIRST_BATCHES = 8
#: Limits below which an uncompressed batch is always read, on the loop.
FEW_RECORDS = 8
FEW_BYTES = 16 * 1024
#: Sampling rate: one of this number of other batches is read.
ONE_IN = 64
#: Records without a key that are reported at most.
KEYLESS_MAX = 100
_CRC_AND_COUNT = struct.Struct(">17xI36xi")


class RecordsInDoubt(Exception):
    """The header is not sufficient: repeat the append with :func:`batch_contents`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """Smallest and largest timestamp (ms, -1 for none) with the numbers of their records.

    ``keyless`` has the numbers of the first records without a key. ``unread`` is the reason why the
    records were not read.
    """

    smallest_ms: int = NO_TIMESTAMP
    largest_ms: int = NO_TIMESTAMP
    smallest_at: int = 0
    largest_at: int = 0
    keyless: tuple[int, ...] = ()
    unread: str = ""


def unpack_limits() -> UnpackLimits:
    """Return new limits for one batch that is appended, or one look-up by time."""
    return UnpackLimits(UNPACKED_BYTES_MAX, RECORDS_MAX)


def is_sampled(data: Buffer, *, is_early: bool) -> bool:
    """Return whether a batch is read on suspicion, though that takes time.

    ``is_early``: it is one of the first of its connection.
    """
    if len(data) < HEADER_BYTES:
        return False
    crc, _ = _CRC_AND_COUNT.unpack_from(data)
    return is_early or crc % ONE_IN == 0


def is_quickly_read(data: Buffer) -> bool:
    """Return whether the batch is small enough to be read on the loop."""
    if not HEADER_BYTES <= len(data) <= FEW_BYTES:
        return False
    _, count = _CRC_AND_COUNT.unpack_from(data)
    return count <= FEW_RECORDS and codec_of(data) == Codec.NONE


def batch_contents(data: Buffer) -> BatchContents:
    """Read the records of a batch whose CRC is correct; return their timestamps and missing keys.

    It may take a quarter of a second: call it in a thread unless :func:`is_quickly_read`. Raises
    :class:`InvalidRecords` if the records cannot be decoded. If they would unpack to too much,
    ``unread`` of the result has the reason.
    """
    smallest = largest = NO_TIMESTAMP
    smallest_at = largest_at = 0
    keyless: list[int] = []
    try:
        for number, (timestamp_ms, has_key) in enumerate(scan_records(data, unpack_limits())):
            # Compacted topics reject records without a key; the answer names the first ones.
            if not has_key and len(keyless) < KEYLESS_MAX:
                keyless.append(number)
            if timestamp_ms == NO_TIMESTAMP:
                continue
            if smallest == NO_TIMESTAMP or timestamp_ms < smallest:
                smallest, smallest_at = timestamp_ms, number
            if timestamp_ms > largest:
                largest, largest_at = timestamp_ms, number
    # An oversized batch is not an error here: the caller knows whether the records must be read.
    except UnpackedTooLarge as error:
        return BatchContents(unread=str(error))
    except CorruptBatch as error:
        raise InvalidRecords(f"the records cannot be read: {error}") from error
    return BatchContents(
        smallest_ms=smallest,
        largest_ms=largest,
        smallest_at=smallest_at,
        largest_at=largest_at,
        keyless=tuple(keyless),
    )
