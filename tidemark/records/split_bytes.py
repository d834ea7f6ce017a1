"""Record batches in several buffers, which are checked and sent without joining them.

A read from the tier returns parts of several chunks. Joining them would copy every byte once more.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from tidemark.records.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    BatchHeader,
    compute_crc,
    parse_header,
    require_crc,
)


class SplitBytes:
    """Consecutive bytes in several buffers. Its length is that of all of them together.

    ``buffers``: the buffers in order. ``start`` to ``end``: the range of their joined bytes.
    """

    __slots__ = ("_buffers", "_end", "_ends", "_start")

    def __init__(self, buffers: Sequence[bytes], start: int, end: int) -> None:
        self._buffers = buffers
        #: Position of each buffer's end in the joined bytes.
        self._ends = list(accumulate(map(len, buffers)))
        self._start = start
        self._end = min(end, self._ends[-1])

    def __len__(self) -> int:
        return max(0, self._end - self._start)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the buffers keep in memory."""
        return self._ends[-1]

    def __bytes__(self) -> bytes:
        return self._joined(self._start, self._end)

    def first(self, size: int) -> "bytes | SplitBytes":
        """Return the first ``size`` bytes, as a copy if their buffers are half as large again.

        The result keeps its buffers in memory, and only its own bytes count towards the limit of
        unsent responses. Reads of 1 MiB from chunks of 256 KiB are not copied.
        """
        end = self._start + size
        used = self._buffers[: bisect_left(self._ends, end) + 1]
        if 3 * size < 2 * sum(map(len, used)):
            return self._joined(self._start, end)
        return SplitBytes(used, self._start, end)

    def parts(self) -> list[memoryview]:
        """Return views of the bytes in each buffer, for a transport."""
        return [
            memoryview(buffer)[begin:end]
            for buffer, begin, end in self._spans(self._start, self._end)
        ]

    def headers(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each complete batch; a partial last one is ignored.

        Raises :class:`CorruptBatch`.
        """
        at, number = self._start, 0
        while self._end - at >= HEADER_BYTES:
            number = bisect_right(self._ends, at, number)
            left = self._ends[number] - at
            # Only a header that continues in the next buffer is copied.
            if left >= HEADER_BYTES:
                buffer = self._buffers[number]
                header = parse_header(buffer, len(buffer) - left)
            else:
                header = parse_header(self._joined(at, at + HEADER_BYTES))
            if at + header.size_bytes > self._end:
                return
            yield at - self._start, header
            at += header.size_bytes

    def check_crc(self, position: int, header: BatchHeader) -> None:
        """Raise :class:`CorruptBatch` unless the CRC of the batch at ``position`` is correct."""
        at, crc = self._start + position, 0
        for buffer, begin, end in self._spans(at + CRC_COVERS_FROM, at + header.size_bytes):
            crc = compute_crc(buffer, begin, end, crc)
        require_crc(header, crc)

    def _joined(self, begin: int, end: int) -> bytes:
        return b"".join(
            memoryview(buffer)[first:behind] for buffer, first, behind in self._spans(begin, end)
        )

    def _spans(self, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield the buffers with the joined bytes ``begin`` to ``end``, and the range in each."""
        number = bisect_right(self._ends, begin)
        while begin < end:
            buffer, behind = self._buffers[number], self._ends[number]
            offset = behind - len(buffer)
            yield buffer, begin - offset, min(end, behind) - offset
            begin, number = behind, number + 1
