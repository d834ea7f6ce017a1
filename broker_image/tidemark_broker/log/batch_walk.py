"""Walk over a log file, batch by batch, that reads headers only.

Headers are read with ``pread`` in chunks: many small batches cost one call, a large one costs one
call for its header.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidemark.records.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    BatchHeader,
    parse_header,
)
from tidemark_broker.log.errors import CorruptRecords
from tidemark_broker.log.files import opened, pread

_CHUNK_BYTES = 8 * 1024
#: base offset, length, leader epoch, magic, (crc, attributes), last delta, (base time), max time
_GLANCE = struct.Struct(">qiib4x2xi8xq")
#: (all before it), producer id
_PRODUCER = struct.Struct(">43xq")
_LENGTH_MIN = HEADER_BYTES - LENGTH_OVERHEAD


class BatchAt(NamedTuple):
    """Position of a batch in its file, with the header fields needed to find and index it."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int

    @property
    def end_position(self) -> int:
        """Position of the byte after the batch."""
        return self.position + self.size_bytes


def walk_batches(descriptor: int, position: int, end: int) -> Iterator[BatchAt]:
    """Yield each batch of ``[position, end)``.

    Raises :class:`CorruptRecords` for a missing or cut batch.
    """
    for batch, _, _ in _walk(descriptor, position, end):
        yield batch


def walk_produced(
    descriptor: int, position: int, end: int
) -> Iterator[tuple[BatchAt, BatchHeader]]:
    """Yield the batches of :func:`walk_batches` that have a producer id, with their headers."""
    for batch, chunk, offset in _walk(descriptor, position, end):
        if _PRODUCER.unpack_from(chunk, offset)[0] > NO_PRODUCER_ID:
            yield batch, parse_header(chunk, offset)


def _walk(descriptor: int, position: int, end: int) -> Iterator[tuple[BatchAt, bytes, int]]:
    """Yield each batch in ``[position, end)`` of a log file, reading headers only.

    With each batch it yields the bytes that contain its header, and the header's offset in them.
    """
    chunk, chunk_start = b"", position
    while position < end:
        offset = position - chunk_start
        # Read the next chunk from the batch's own start, so that its whole header is in one chunk.
        if offset + HEADER_BYTES > len(chunk):
            chunk = pread(descriptor, min(_CHUNK_BYTES, end - position), position)
            chunk_start, offset = position, 0
            if len(chunk) < HEADER_BYTES:
                raise CorruptRecords(f"a batch is cut at byte {position} of {end}")
        batch = batch_at(chunk, offset, position)
        if batch.end_position > end:
            raise CorruptRecords(f"the batch at byte {position} ends behind byte {end}")
        yield batch, chunk, offset
        position = batch.end_position


def walk_file(path: Path) -> Iterator[BatchAt]:
    """Yield each batch of a whole file (blocking). Raises ``OSError`` if it cannot be opened."""
    with opened(path) as descriptor:
        yield from walk_batches(descriptor, 0, os.fstat(descriptor).st_size)


def batch_at(chunk: bytes, offset: int, position: int) -> BatchAt:
    """Parse the batch at ``offset`` of ``chunk``, which is at ``position`` of its file.

    Raises :class:`CorruptRecords` if no batch starts there.
    """
    base, length, epoch, magic, last_delta, max_timestamp = _GLANCE.unpack_from(chunk, offset)
    if magic != MAGIC or length < _LENGTH_MIN or base < 0 or last_delta < 0:
        raise CorruptRecords(f"no record batch begins at byte {position}")
    return BatchAt(
        position, length + LENGTH_OVERHEAD, base, base + last_delta, epoch, max_timestamp
    )
