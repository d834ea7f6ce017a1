"""``.index``: positions of batches in a segment's log.

Entries of 8 bytes, big endian: i32 last offset of a batch minus the segment's base offset, i32
position of that batch's first byte. A lookup takes the greatest entry not above the requested
offset and walks batches from there; without such an entry it walks from position 0.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right

ENTRY_BYTES = 8
RELATIVE_OFFSET_MAX = 2**31 - 1


class IndexFormatError(ValueError):
    """The bytes are not an index of the segment. The index must be rebuilt from the log."""


def _array_of(data: bytes) -> "array[int]":
    values = array("i")
    values.frombytes(data)
    if sys.byteorder == "little":
        values.byteswap()
    return values


def _bytes_of(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        return values.tobytes()
    swapped = array("i", values)
    swapped.byteswap()
    return swapped.tobytes()


class OffsetIndex:
    """The entries of one segment's index in memory: two int32 arrays, 8 bytes an entry."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes) -> "OffsetIndex":
        """Read an ``.index`` file. Raises :class:`IndexFormatError`.

        Only its shape and its ends are checked, so that a large file is cheap. A reader that uses
        an entry checks the batch at its position.
        """
        if len(data) % ENTRY_BYTES:
            raise IndexFormatError(f"{len(data)} bytes are no multiple of {ENTRY_BYTES}")
        index = cls(base_offset)
        # Offsets and positions alternate in the file.
        values = _array_of(data)
        index._offsets, index._positions = values[0::2], values[1::2]
        for column in (index._offsets, index._positions):
            if column and not 0 <= column[0] <= column[-1]:
                raise IndexFormatError("entries do not rise")
        return index

    def __len__(self) -> int:
        return len(self._offsets)

    def to_bytes(self, first_entry: int = 0) -> bytes:
        """Return the bytes of the file from entry number ``first_entry``."""
        both = array("i", bytes(ENTRY_BYTES * (len(self) - first_entry)))
        both[0::2], both[1::2] = self._offsets[first_entry:], self._positions[first_entry:]
        return _bytes_of(both)

    def append(self, last_offset: int, position: int) -> None:
        """Add the batch that ends with ``last_offset`` and begins at ``position``.

        Other threads may look up offsets at the same time.
        """
        # The position comes first: a reader that finds the offset must find its position.
        self._positions.append(position)
        self._offsets.append(last_offset - self.base_offset)

    def last(self) -> tuple[int, int]:
        """Return (last offset, position) of the last entry; (base offset, 0) if empty."""
        return self._last_of(len(self._offsets))

    def position_for(self, offset: int) -> int:
        """Return the position from which to walk to the batch that contains ``offset``."""
        return self.entry_for(offset)[1]

    def entry_for(self, offset: int) -> tuple[int, int]:
        """Return (last offset, position) of the batch from which to walk to ``offset``.

        (base offset, 0) if no batch at or below ``offset`` is indexed.
        """
        return self._last_of(bisect_right(self._offsets, offset - self.base_offset))

    def entry_at(self, position: int) -> tuple[int, int]:
        """Return (last offset, position) of the last indexed batch that begins there or before.

        (base offset, 0) if there is none.
        """
        return self._last_of(bisect_right(self._positions, position))

    def _last_of(self, count: int) -> tuple[int, int]:
        """Return the last of the first ``count`` entries; (base offset, 0) of none."""
        if not count:
            return self.base_offset, 0
        return self.base_offset + self._offsets[count - 1], self._positions[count - 1]

    def position_behind(self, offset: int) -> int | None:
        """Return the position behind all batches with ``offset`` or less; None: the log's end."""
        # The first entry at or above the offset may still begin below it: take the one after it.
        following = bisect_left(self._offsets, offset - self.base_offset) + 1
        return self._positions[following] if following < len(self._positions) else None

    def floor_position(self, position: int, before_offset: int) -> int:
        """Return the greatest indexed position that satisfies both limits, or 0.

        It is at most ``position``, and its batch ends below ``before_offset``.
        """
        by_offset = bisect_right(self._offsets, before_offset - 1 - self.base_offset)
        count = bisect_right(self._positions, position, 0, by_offset)
        return self._positions[count - 1] if count else 0
