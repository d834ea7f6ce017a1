"""``.timeindex``: offsets by timestamp.

Entries of 12 bytes, big endian: i64 the largest timestamp so far (ms), i32 offset of the batch with
it (its last offset, minus the segment's base). Every record before an entry's offset has a
timestamp not above the entry's, so a lookup takes the greatest entry not above the requested
timestamp and searches from its offset on.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import le, lt

from tidemark.logfiles.offset_index import IndexFormatError

ENTRY_BYTES = 12
_ENTRY = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """One entry with its absolute offset."""

    timestamp_ms: int
    offset: int


class TimeIndex:
    """The entries of one segment's time index in memory: 12 bytes an entry."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> "TimeIndex":
        """Read a complete ``.timeindex`` file.

        Raises :class:`IndexFormatError` unless timestamps rise and offsets do not fall.
        """
        if len(data) % ENTRY_BYTES:
            raise IndexFormatError(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
        index = cls(base_offset)
        # Columns instead of entry objects: an index has up to a million entries.
        timestamps = array("q", _column(data, 0, 8))
        offsets = array("i", _column(data, 8, 4))
        # The file is big endian.
        if sys.byteorder == "little":
            timestamps.byteswap()
            offsets.byteswap()
        rise = all(map(lt, timestamps, timestamps[1:])) and all(map(le, offsets, offsets[1:]))
        if not rise or (timestamps and (timestamps[0] < 0 or offsets[0] < 0)):
            raise IndexFormatError("entries do not rise")
        index._timestamps, index._offsets = timestamps, offsets
        return index

    def __len__(self) -> int:
        return len(self._timestamps)

    def to_bytes(self, first_entry: int = 0) -> bytes:
        """Return the bytes of the file from entry number ``first_entry``."""
        return b"".join(
            _ENTRY.pack(timestamp_ms, offset)
            for timestamp_ms, offset in zip(
                self._timestamps[first_entry:], self._offsets[first_entry:], strict=True
            )
        )

    def maybe_append(self, timestamp_ms: int, offset: int) -> bool:
        """Add an entry if the timestamp exists and is above that of the last entry.

        Returns whether it was added. Other threads may look up timestamps at the same time.
        """
        if timestamp_ms < 0 or (self._timestamps and timestamp_ms <= self._timestamps[-1]):
            return False
        # The offset comes first: a reader that finds the timestamp must find its offset.
        self._offsets.append(offset - self.base_offset)
        self._timestamps.append(timestamp_ms)
        return True

    def last(self) -> TimeEntry:
        """Return the last entry; timestamp -1 at the base offset if the index is empty."""
        if not self._timestamps:
            return TimeEntry(-1, self.base_offset)
        return TimeEntry(self._timestamps[-1], self.base_offset + self._offsets[-1])

    def lookup(self, timestamp_ms: int) -> TimeEntry:
        """Return the greatest entry not above ``timestamp_ms``; (-1, base offset) if none."""
        count = bisect_right(self._timestamps, timestamp_ms)
        if not count:
            return TimeEntry(-1, self.base_offset)
        return TimeEntry(self._timestamps[count - 1], self.base_offset + self._offsets[count - 1])

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose offset is at or above ``offset``."""
        keep = bisect_left(self._offsets, offset - self.base_offset)
        del self._offsets[keep:]
        del self._timestamps[keep:]


def _column(data: bytes, first: int, width: int) -> bytes:
    """Return the bytes ``first`` to ``first + width`` of all entries, joined."""
    # One strided copy for each byte of the width, however many entries there are.
    column = bytearray(len(data) // ENTRY_BYTES * width)
    for byte in range(width):
        column[byte::width] = data[first + byte :: ENTRY_BYTES]
    return bytes(column)
