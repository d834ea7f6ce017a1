"""What is in a batch that a client sent, where its header does not tell: found out by reading the
records once, in a thread unless they are few.

Kafka's ``LogValidator`` reads the records of every batch. We pass them through unread (reading them
all in this interpreter would halve what a broker takes), and read those of which something is in
doubt: the header's timestamps cannot be right (:mod:`tidemark_broker.log.timestamps`), the topic is
compacted, which takes no record without a key, or they may be *poison*: records that nobody can
read, though the CRC holds. Every consumer would stop there, silently. A client makes such batches
from the beginning or never, so all batches of few records are read, the first ones of a connection,
and of the others one in so many, by their CRCs (``tests/benchmarks/record_inspection.py`` says what
that costs).
"""

import struct
from dataclasses import dataclass

from tidemark.records.batch import HEADER_BYTES, NO_TIMESTAMP, Buffer, CorruptBatch, codec_of
from tidemark.records.codecs import Codec, UnpackedTooLarge
from tidemark.records.decode import UnpackLimits, scan_records
from tidemark_broker.log.errors import InvalidRecords

#: What a broker unpacks of one batch, or for one look-up, at most: a few KiB may unpack to
#: gigabytes.
UNPACKED_BYTES_MAX = 16 * 1024 * 1024
#: How many records it looks at in that: a quarter of a second's work.
RECORDS_MAX = 250_000
#: Batches of a connection that are read, whatever they are.
FIRST_BATCHES = 8
#: So few records are read at once, where they are not packed and not large.
FEW_RECORDS = 8
FEW_BYTES = 16 * 1024
#: Of all other batches one in so many is read.
ONE_IN = 64
#: Records without a key that are told of at most.
KEYLESS_MAX = 100
_CRC_AND_COUNT = struct.Struct(">17xI36xi")


class RecordsInDoubt(Exception):
    """The header does not tell all: append again with the :func:`batch_contents`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """Smallest and largest timestamp (ms) of the records that have one, -1 where none has, and in
    which records; the first of those without a key. ``unread``: why the records were not read."""

    smallest_ms: int = NO_TIMESTAMP
    largest_ms: int = NO_TIMESTAMP
    smallest_at: int = 0
    largest_at: int = 0
    keyless: tuple[int, ...] = ()
    unread: str = ""


def unpack_limits() -> UnpackLimits:
    """For one batch that is appended, or one look-up by time."""
    return UnpackLimits(UNPACKED_BYTES_MAX, RECORDS_MAX)


def is_to_be_read(data: Buffer, *, is_early: bool) -> bool:
    """Is that a batch that is read on suspicion, though that takes a while? ``is_early``: one of
    the first of its connection."""
    if len(data) < HEADER_BYTES:
        return False
    crc, _ = _CRC_AND_COUNT.unpack_from(data)
    return is_early or crc % ONE_IN == 0


def is_quickly_read(data: Buffer) -> bool:
    """May it be read on the loop?"""
    if not HEADER_BYTES <= len(data) <= FEW_BYTES:
        return False
    _, count = _CRC_AND_COUNT.unpack_from(data)
    return count <= FEW_RECORDS and codec_of(data) == Codec.NONE


def batch_contents(data: Buffer) -> BatchContents:
    """T, unless it :func:`is_quickly_read`: read the records of one batch, whose CRC holds.
    :class:`InvalidRecords` if they are none."""
    smallest = largest = NO_TIMESTAMP
    smallest_at = largest_at = 0
    keyless: list[int] = []
    try:
        for number, (timestamp_ms, has_key) in enumerate(scan_records(data, unpack_limits())):
            if not has_key and len(keyless) < KEYLESS_MAX:
                keyless.append(number)
            if timestamp_ms == NO_TIMESTAMP:
                continue
            if smallest == NO_TIMESTAMP or timestamp_ms < smallest:
                smallest, smallest_at = timestamp_ms, number
            if timestamp_ms > largest:
                largest, largest_at = timestamp_ms, number
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
