"""Batches of a segment as a cleaning reads them: complete, each with its CRC checked."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    check_crc,
    parse_header,
)
from tidemark_broker.log.batch_walk import pread, pread_exactly
from tidemark_broker.log.errors import CorruptRecords, storage_errors
from tidemark_broker.log.segment import Segment


def batches_of(segment: Segment, buffer_bytes: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield header and bytes of each batch, read ``buffer_bytes`` at a time. Blocks.

    Raises :class:`CorruptRecords` for a damaged batch.
    """
    position, end = 0, segment.size_bytes
    with _opened(segment) as descriptor:
        # ``begin``: position of the buffer in the file.
        buffer, begin = b"", 0
        while position < end:
            at = position - begin
            if len(buffer) - at < HEADER_BYTES:
                buffer, begin, at = pread(descriptor, buffer_bytes, position), position, 0
            try:
                header = parse_header(buffer, at)
                size = header.size_bytes
                _check_complete(size, end - position)
                # A batch that exceeds the rest of the buffer is read again as a whole.
                if at + size > len(buffer):
                    read_bytes = min(max(buffer_bytes, size), end - position)
                    buffer, begin, at = pread_exactly(descriptor, read_bytes, position), position, 0
                batch = buffer[at : at + size]
                check_crc(batch, 0, header)
            except CorruptBatch as error:
                raise _corrupt(segment, position, error) from error
            yield header, batch
            position += size


def _check_complete(size: int, left: int) -> None:
    if size > left:
        raise CorruptBatch(f"a batch of {size} bytes, {left} are there")


def _corrupt(segment: Segment, position: int, error: Exception) -> CorruptRecords:
    return CorruptRecords(f"{segment.log_path} at byte {position}: {error}; it is not compacted")


@contextmanager
def _opened(segment: Segment) -> Iterator[int]:
    """Yield a descriptor of the log file. It is not the segment's own, which its log may close."""
    with storage_errors(f"{segment.log_path} cannot be read"):
        descriptor = os.open(segment.log_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
